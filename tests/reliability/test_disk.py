"""A disk that is full or fails costs one save, ends with 1, and leaves the last good checkpoint and no litter."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mtx import cli
from mtx.storage import disk, durable
from mtx.storage.run_files import RunLayout, checkpoint_steps
from tests.integration.commands import ENVIRONMENT, MTX, TINY, check_error, mtx, tree, write_tsv
from tests.reliability.conftest import NIGHTLY

Tally = Callable[[str, int, int], None]
SHORT = ["training.max_steps=20", "training.validate_every=10", "precision=fp32", "device=cpu"]
# which of the writes of a run: a few of 60, and one of them in `make test`
CALLS: Any = (
    range(1, 61) if NIGHTLY else [24, *(pytest.param(n, marks=pytest.mark.extended) for n in (1, 3, 12, 35, 60))]
)


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    corpus = write_tsv(tmp_path_factory.mktemp("corpus") / "digits.tsv", range(1000, 1120))
    return ["train", f"data.train={corpus}", *TINY, *SHORT]


@pytest.fixture(scope="module")
def whole(arguments: list[str], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What the undisturbed run ends with."""
    run = tmp_path_factory.mktemp("whole") / "run"
    assert mtx(*arguments, f"run_dir={run}").returncode == 0
    return last(run)


def last(run: Path) -> bytes:
    """The last checkpoint of a run; the model may lack one of those that are averaged, where that one was lost."""
    directory = run / "checkpoints" / "step-00000020"
    return (directory / "model.safetensors").read_bytes() + (directory / "optimizer.safetensors").read_bytes()


def failing(patch: pytest.MonkeyPatch, number: int, code: int, for_good: bool) -> list[int]:
    """Make a write to the disk fail, by its number; the list holds how many there were."""
    count, real = [0], disk.write

    def write(fd: int, data: memoryview) -> int:
        count[0] += 1
        if count[0] == number or (for_good and count[0] > number):
            raise OSError(code, os.strerror(code))
        return real(fd, data)

    patch.setattr(disk, "write", write)
    return count


def litter(run: Path) -> list[str]:
    return [name for name in (tree(run) if run.exists() else {}) if ".tmp-" in name]


def loads(run: Path) -> bool:
    """Whether every checkpoint that is there is whole."""
    steps = checkpoint_steps(RunLayout(run))
    for step in steps:
        durable.verify(RunLayout(run).checkpoint(step))
    return True


KINDS = [(errno.ENOSPC, False), (errno.EIO, True)] + [(errno.ENOSPC, True), (errno.EIO, False)] * NIGHTLY


@pytest.mark.parametrize("code, for_good", KINDS)
@pytest.mark.parametrize("number", CALLS)
def test_each_write(
    number: int, code: int, for_good: bool, arguments: list[str], whole: bytes, tmp_path: Path, tally: Tally,
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        count = failing(patch, number, code, for_good)
        returned = cli.run([*arguments, f"run_dir={run}"])
    assert count[0] >= number
    check_error(returned, capfd.readouterr().err, 1, os.strerror(code))
    assert loads(run)
    status = RunLayout(run).status
    assert not status.exists() or durable.read_json(status)["state"] != "running"
    assert cli.run([*arguments, f"run_dir={run}"]) == 0, "the same command goes on"
    assert not litter(run)
    what = f"a write {'fails' if code == errno.EIO else 'finds the disk full'}{', and all after it' * for_good}"
    tally(what, 1, last(run) == whole)


@pytest.mark.parametrize("command, output", [
    (["translate", "RUN", "TEXT"], "out.txt"),
    (["logprob", "RUN", "TEXT", "TEXT"], "out.txt"),
    (["encode", "RUN", "TEXT"], "out.npy"),
    (["report", "RUN"], "out.html"),
    (["attention", "RUN", "one two"], "out.html"),
    (["export", "RUN", "--to", "huggingface"], "out"),
    (["export", "RUN", "--to", "ctranslate2"], "out"),
])  # fmt: skip
def test_the_error_names_the_output(
    command: list[str], output: str, trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    if "ctranslate2" in command:
        pytest.importorskip("ctranslate2")
    (tmp_path / "text").write_text("one two\n")
    places = {"RUN": str(trained), "TEXT": str(tmp_path / "text")}
    failing(monkeypatch, 1, errno.ENOSPC, True)
    returned = cli.run([*(places.get(word, word) for word in command), "-o", str(tmp_path / output)])
    err = capfd.readouterr().err
    check_error(returned, err, 1, "No space left on device")
    assert f"error: {tmp_path / output}" in err and durable.TEMPORARY_PREFIX not in err
    rows = {f"{output}.part"} if command[0] == "translate" else set()  # with which it goes on
    assert {path.name for path in tmp_path.iterdir()} - rows == {"text"}


def test_the_error_names_a_file_that_cannot_be_made_or_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(OSError) as made:
        durable.write_text(tmp_path / "nowhere" / "out", "text")
    assert made.value.filename == str(tmp_path / "nowhere" / "out")
    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError) as synced:
        durable.write_text(tmp_path / "out", "text")
    assert synced.value.filename == str(tmp_path / "out")


# --- real faults ---


def test_the_error_names_the_export_that_ctranslate2_could_not_write(trained: Path, tmp_path: Path) -> None:
    """CTranslate2 writes its files itself; a limit on their size makes that fail."""
    resource = pytest.importorskip("resource")
    pytest.importorskip("ctranslate2")
    result = mtx(
        "export", trained, "--to", "ctranslate2", "-o", tmp_path / "out",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
    )  # fmt: skip
    check_error(result.returncode, result.stderr.decode(), 1, f"error: {tmp_path / 'out'}: File too large")
    assert not any(tmp_path.iterdir())


FILLS = """
import os, shutil, signal, subprocess, sys, time
from pathlib import Path
root, command = Path(sys.argv[1]), sys.argv[2:]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "none", str(root)], check=True)
run, ballast = root / "run", root / "ballast"
process = subprocess.Popen([*command, "run_dir=" + str(run)], stderr=subprocess.PIPE)
while not (run / "checkpoints" / "step-00000004").is_dir() and process.poll() is None:
    time.sleep(0.005)
process.send_signal(signal.SIGSTOP)
try:
    with ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
except OSError:
    pass
process.send_signal(signal.SIGCONT)
err = process.communicate()[1].decode()
assert process.returncode == 1, (process.returncode, err)
assert err.count("error: ") == 1 and "No space left on device" in err and "Traceback" not in err, err
assert ballast.stat().st_size > 0
ballast.unlink()
again = subprocess.run([*command, "run_dir=" + str(run)], stderr=subprocess.PIPE)
assert again.returncode == 0, again.stderr.decode()
assert not [p for p in run.rglob("*") if ".tmp-" in p.name]
for name in ("model.safetensors", "optimizer.safetensors"):
    sys.stdout.buffer.write((run / "checkpoints" / "step-00000020" / name).read_bytes())
"""


def can(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.extended
@pytest.mark.skipif(not can("unshare", "-rm", "mount", "-t", "tmpfs", "none", "/tmp"), reason="needs a disk of its own")
def test_a_real_disk_that_fills_while_training(
    arguments: list[str], whole: bytes, tmp_path: Path, tally: Tally
) -> None:
    command = ["unshare", "-rm", sys.executable, "-c", FILLS, str(tmp_path), *MTX, *arguments]
    filled = subprocess.run(command, env=ENVIRONMENT, capture_output=True, check=False)
    assert filled.returncode == 0, filled.stderr.decode()
    tally("a real disk that fills while training", 1, filled.stdout.endswith(whole))


def test_no_room_is_told_before_anything_is_trained(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(disk, "free_bytes", lambda path: 100_000)
    returned = cli.run([*arguments, f"run_dir={tmp_path / 'run'}"])
    check_error(returned, capfd.readouterr().err, 1, "its disk has 0 MB free, but this run needs")
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.extended
@pytest.mark.skipif(not can("strace", "-e", "inject=fsync:error=EIO:when=1", "true"), reason="needs strace")
def test_real_calls_that_fail(arguments: list[str], whole: bytes, tmp_path: Path, tally: Tally) -> None:
    tried = held = 0
    for call, most in (("fsync", 60), ("rename", 20)) if NIGHTLY else (("fsync", 1),):
        for number in range(1, most + 1) if NIGHTLY else (17,):
            run = tmp_path / f"{call}-{number}"
            inject = ["strace", "-f", "-o", os.devnull, "-e", f"trace={call}"]
            inject += ["-e", f"inject={call}:error=EIO:when={number}"]
            result = subprocess.run(
                [*inject, *MTX, *arguments, f"run_dir={run}"], env=ENVIRONMENT, capture_output=True, check=False
            )
            check_error(result.returncode, result.stderr.decode(), 1, "Input/output error")
            assert loads(run)
            again = mtx(*arguments, f"run_dir={run}")
            tried += 1
            held += again.returncode == 0 and last(run) == whole
            assert not litter(run)
            shutil.rmtree(run)
    tally("an fsync or a rename that fails for real", tried, held)
