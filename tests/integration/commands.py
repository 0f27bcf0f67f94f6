"""How the tests call mtx as users do, and the settings of a run that takes seconds."""

import atexit
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.rig import Rig

MTX = [sys.executable, "-m", "mtx"]
os.environ["XDG_CACHE_HOME"] = CACHE = tempfile.mkdtemp()  # no test touches the user's cache
atexit.register(shutil.rmtree, CACHE, ignore_errors=True)
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
TINY = [
    "data.src=en", "data.tgt=de", "data.max_tokens=32", "tokenizer.vocab_size=300",
    "model.preset=tiny", "model.d_model=32", "model.d_ff=64", "model.num_heads=2", "model.dropout=0.1",
    "model.num_encoder_layers=1", "model.num_decoder_layers=1",
    "training.batch_tokens=256", "training.warmup_steps=20", "training.learning_rate=0.01", "training.max_steps=40",
    "training.checkpoint_every=4", "training.validate_every=20", "training.average_last=3",
]  # fmt: skip

_DIGITS = {
    "en": ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"],
    "de": ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"],
}


def pairs(numbers: range) -> list[tuple[str, str]]:
    """The digits of each number in English and German."""
    words = [[" ".join(_DIGITS[tongue][int(d)] for d in str(n)) for tongue in ("en", "de")] for n in numbers]
    return [(src, tgt) for src, tgt in words]


def write_tsv(path: Path, numbers: range) -> Path:
    path.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in pairs(numbers)), encoding="utf-8")
    return path


def write_sides(directory: Path, name: str, numbers: range) -> None:
    for side, tongue in enumerate(("en", "de")):
        lines = [f"{pair[side]}\n" for pair in pairs(numbers)]
        (directory / f"{name}.{tongue}").write_text("".join(lines), encoding="utf-8")


def mtx(*arguments: Any, stdin: bytes = b"", **options: Any) -> "subprocess.CompletedProcess[bytes]":
    """Run one command to its end, in a process that is forked; with options of `subprocess.run`, in one that is not."""
    if options or not hasattr(os, "fork"):
        options = {"env": ENVIRONMENT, "timeout": 120, **options}
        return subprocess.run([*MTX, *map(str, arguments)], input=stdin, capture_output=True, check=False, **options)
    started = rig().run(*arguments, stdin=stdin, timeout_s=120)
    assert started.code is not None
    return subprocess.CompletedProcess(arguments, started.code, started.printed("stdout"), started.printed("stderr"))


@functools.cache
def rig(plain_reports: bool = False) -> Rig:
    """What starts commands; it ends with the tests. With `plain_reports`, training writes no real report."""
    directory = tempfile.mkdtemp()
    starter = Rig(Path(directory), {**ENVIRONMENT, **({"MTX_TEST_PLAIN_REPORTS": "1"} if plain_reports else {})})
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return starter


def start(*arguments: Any, stdin: int | None = None) -> "subprocess.Popen[bytes]":
    """Start one command and do not wait; signals reach it, whatever the tests' process ignores."""
    command = [*MTX, *map(str, arguments)]
    return subprocess.Popen(
        command, env=ENVIRONMENT, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=hears_signals,
    )  # fmt: skip


def hears_signals() -> None:
    """In a new process: it would else ignore what its parent ignores, as a shell's background jobs ignore SIGINT."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def wait_until(done: Any, process: "subprocess.Popen[bytes]") -> None:
    """Wait for `done()`; the process must not end before."""
    for _ in range(12_000):
        if done():
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    raise AssertionError("timed out")


def process_state(pid: int) -> str:
    """`T` of a process that is stopped, `Z` of one whose end its parent has not noticed; for others see proc(5)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def have_ended(pids: Iterable[int], within_s: float = 10.0) -> bool:
    """Whether these processes end soon, if they have not ended yet."""
    ends = time.monotonic() + within_s
    while any(process_state(pid) not in ("", "Z", "X") for pid in pids):
        if time.monotonic() > ends:
            return False
        time.sleep(0.05)
    return True


def end_at_step(run: Path, step: int, number: signal.Signals, *arguments: Any) -> tuple[int, str]:
    """Start training and send a signal when the checkpoint of `step` is written; exit code and stderr."""
    process = start("train", *arguments, f"run_dir={run}")
    wait_until((run / "checkpoints" / f"step-{step:08d}").is_dir, process)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    return process.returncode, err.decode()


def events(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").split("\n") if line]


def tree(directory: Path) -> dict[str, bytes]:
    """Every file below a directory with its content, but for the lock, which names its last owner."""
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != "run.lock")
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def set_settings(run: Path, **values: Any) -> None:
    """Make a run look as if it had been trained with other settings; `__` stands for the dot of a key."""
    from mtx.config import fixed, settings
    from mtx.files import durable

    resolved = settings.Resolved(settings.load(run / "config.yaml"), {})
    changed = {key.replace("__", "."): value for key, value in values.items()}
    config = settings.replace_values(resolved, changed, "a test").config
    (run / "config.yaml").write_text(settings.dump(config))
    for path in (*run.glob("checkpoints/*/state.json"), run / "data" / "settings.json"):
        durable.write_json(path, {**json.loads(path.read_text()), "settings": fixed.fixed_settings(config)})
        durable.write_manifest(path.parent, [path.name])


def flip_bit(path: Path, position: int = -5) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def check_error(code: int, err: str, expected_code: int, *words: str) -> None:
    """One `error:` line that holds all `words` (or its help does), at most one `help:` line, no traceback."""
    lines = [line for line in err.split("\n") if line]
    errors = [line for line in lines if line.startswith("error: ")]
    helps = [line for line in lines if line.startswith("help: ")]
    assert code == expected_code, err
    assert len(errors) == 1 and len(helps) <= 1, err
    assert lines[-1 - len(helps) :] == errors + helps, err
    assert "Traceback" not in err and "mtx itself failed" not in err, err
    for word in words:
        assert word in " ".join(errors + helps), f"{word!r} is not in {err}"
