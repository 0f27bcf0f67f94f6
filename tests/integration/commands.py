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
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.rig import PATIENCE_S, ROOT, Prepare, Rig, Start

MTX = [sys.executable, "-m", "mtx"]
if "MTX_TEST_RIG" not in os.environ:  # the server of `rig` keeps the one of the tests
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()  # no test touches the user's cache
    atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)
os.environ.pop("FORCE_COLOR", None)  # some CI sets it
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


def mtx(
    *arguments: Any, stdin: bytes = b"", cwd: Path = ROOT, first: Prepare | None = None, draws: bool = False,
    **options: Any,
) -> "subprocess.CompletedProcess[bytes]":  # fmt: skip
    """Run one command to its end, in a process that is forked; with options of `subprocess.run`, in one that is not.

    What is forked calls `first` before the command, and training writes a report without content, unless it `draws`.
    """
    if options or not hasattr(os, "fork"):
        options = {"env": ENVIRONMENT, "timeout": PATIENCE_S, "cwd": cwd, **options}
        return subprocess.run([*MTX, *map(str, arguments)], input=stdin, capture_output=True, check=False, **options)
    started = rig().run(*arguments, stdin=stdin, cwd=cwd, first=first, draws=draws)
    assert started.code is not None
    return subprocess.CompletedProcess(arguments, started.code, started.printed("stdout"), started.printed("stderr"))


@functools.cache
def rig() -> Rig:
    """What starts commands; it ends with the tests."""
    directory = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Rig(Path(directory), {**ENVIRONMENT, "MTX_TEST_RIG": "1"})


def start(*arguments: Any, first: Prepare | None = None, draws: bool = False) -> Start:
    """Start one command in a process that is forked, and do not wait."""
    return rig().start(*arguments, first=first, draws=draws)


def put_temporary_files_into(directory: Path) -> None:
    """In a new process: as where TMPDIR is set."""
    os.environ["TMPDIR"] = tempfile.tempdir = str(directory)


def spawn(*arguments: Any, stdin: int | None = None) -> "subprocess.Popen[bytes]":
    """Start one command in a process of its own, and do not wait; signals reach it, whatever the tests' one ignores."""
    command = [*MTX, *map(str, arguments)]
    return subprocess.Popen(
        command, env=ENVIRONMENT, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=hears_signals,
    )  # fmt: skip


def hears_signals() -> None:
    """In a new process: it would else ignore what its parent ignores, as a shell's background jobs ignore SIGINT."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def wait_until(done: Callable[[], object], process: "Start | subprocess.Popen[bytes]") -> None:
    """Wait for `done()`; the process must not end before."""
    ends = time.monotonic() + PATIENCE_S
    while not done():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < ends, "it never came"
        time.sleep(0.005)


def process_state(pid: int) -> str:
    """`T` of a process that is stopped, `Z` of one whose end its parent has not noticed; for others see proc(5)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def have_ended(pids: Iterable[int], within_s: float = 60.0) -> bool:
    """Whether these processes end soon, if they have not ended yet."""
    ends = time.monotonic() + within_s
    while any(process_state(pid) not in ("", "Z", "X") for pid in pids):
        if time.monotonic() > ends:
            return False
        time.sleep(0.05)
    return True


def hold_at_step(step: int, gate: Path) -> None:
    """In a new process: the step after this one does not begin before the file `gate` is there."""
    from mtx.training.trainer import Trainer

    original = Trainer.update

    def update(self: Any, loaded: Any, number: int, rate: float) -> Any:
        while number == step + 1 and not gate.exists():
            time.sleep(0.002)
        return original(self, loaded, number, rate)

    Trainer.update = update  # type: ignore[method-assign]


def end_at_step(run: Path, step: int, number: signal.Signals, *arguments: Any) -> tuple[int, str]:
    """Start training and send a signal when the checkpoint of `step` is written; exit code and stderr."""
    with tempfile.TemporaryDirectory() as directory:
        gate = Path(directory, "gate")
        process = start("train", *arguments, f"run_dir={run}", first=functools.partial(hold_at_step, step, gate))
        wait_until((run / "checkpoints" / f"step-{step:08d}").is_dir, process)
        process.send_signal(number)
        gate.touch()
        return process.wait(), process.err()


def events(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").split("\n") if line]


def tree(directory: Path) -> dict[str, bytes]:
    """Every file below a directory with its content, but for the lock."""
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != "run.lock")
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def set_settings(run: Path, **values: Any) -> None:
    """Make a run look as if it had been trained with other settings; `__` stands for the dot of a key."""
    from mtx.config import settings
    from mtx.storage import durable

    resolved = settings.Resolved(settings.load(run / "config.yaml"), {})
    changed = {key.replace("__", "."): value for key, value in values.items()}
    config = settings.replace_values(resolved, changed, "a test").config
    (run / "config.yaml").write_text(settings.dump(config))
    for path in (*run.glob("checkpoints/*/state.json"), run / "data" / "settings.json"):
        durable.write_json(path, {**json.loads(path.read_text()), "settings": settings.fixed_settings(config)})
        durable.write_manifest(path.parent)


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
