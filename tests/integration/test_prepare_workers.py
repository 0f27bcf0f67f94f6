"""`mtx prepare` with workers ends with one line and no process left, whether it is stopped or a worker is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.integration.commands import ENVIRONMENT, check_error, hears_signals, process_state, write_tsv
from tests.rig import PATIENCE_S

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in Linux's /proc")

# The `mtx` command with two workers from the second of many small blocks on.
MTX_WITH_WORKERS = (
    "from mtx.data import tables, workers; tables.BLOCK_PAIRS = 500; workers.FEW_ITEMS = 1\n"
    "workers.num_cores = lambda: 2\n"
    "from mtx.cli import main; main()"
)


def children(pid: int) -> list[int]:
    """The processes that a process has started and that still run."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it has ended
            continue
        if int(parent) == pid and state != "Z":
            pids.append(int(path.parent.name))
    return pids


def start_preparing(tmp_path: Path) -> tuple["subprocess.Popen[bytes]", list[int]]:
    """Start `mtx prepare` in a process group of its own, as a terminal does; returns it with its two workers."""
    corpus = write_tsv(tmp_path / "large.tsv", range(10**6, 10**6 + 60_000))
    settings = [f"data.train={corpus}", "data.src=en", "data.tgt=de", f"run_dir={tmp_path / 'runs' / 'run'}"]
    process = subprocess.Popen(
        [sys.executable, "-c", MTX_WITH_WORKERS, "prepare", *settings],
        env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0,
        preexec_fn=hears_signals,
    )  # fmt: skip
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        workers = children(process.pid)
        if len(workers) == 2 and any((tmp_path / "runs" / "run").glob(".tmp-*/.tmp-cleaned.arrow")):
            return process, workers
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    raise AssertionError("it never came")


def still_there(pids: list[int]) -> list[int]:
    return [pid for pid in pids if process_state(pid) not in ("", "Z", "X")]


@pytest.mark.extended
@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("to_all", [True, False])
def test_a_signal_ends_the_workers_too(number: signal.Signals, code: int, to_all: bool, tmp_path: Path) -> None:
    process, workers = start_preparing(tmp_path)
    (os.killpg if to_all else os.kill)(process.pid, number)
    out, err = process.communicate(timeout=PATIENCE_S)
    check_error(process.returncode, err.decode(), code)
    assert out == b"" and not (tmp_path / "runs").exists() and not still_there(workers)


def test_a_killed_worker_ends_the_command_with_one_line(tmp_path: Path) -> None:
    process, workers = start_preparing(tmp_path)
    os.kill(workers[1], signal.SIGKILL)
    out, err = process.communicate(timeout=PATIENCE_S)
    check_error(process.returncode, err.decode(), 1, "worker process was killed by SIGKILL", "memory")
    assert out == b"" and not (tmp_path / "runs").exists() and not still_there(workers)
