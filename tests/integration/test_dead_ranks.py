"""A rank that is dead or stuck is named, with its host, step and own error; all others end, and the next start goes on.

Ranks are killed, stopped, out of memory twice, or raise, each of four, at the start, in a step, in a save and in a
validation.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mtx.files import durable
from mtx.run.contents import full_checkpoint_steps
from mtx.run.layout import RunLayout
from tests.integration.commands import ENVIRONMENT, TINY, events, have_ended, process_state, start, wait_until
from tests.integration.test_devices import environment
from tests.ranks import Team, start_ranks

SIZE = 4
NAMED_S = 30.0
SETTINGS = [
    *TINY, "precision=fp32", "training.micro_batch_tokens=32", "training.batch_tokens=128", "training.max_steps=14",
    "training.checkpoint_every=5", "training.validate_every=7",
]  # fmt: skip
HOST = socket.gethostname()
HELP = "the same command goes on from the last checkpoint"

pytestmark = [
    pytest.mark.seconds, pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="ranks are forked, on Linux")
]  # fmt: skip


def once(mark: Path, action: Callable[[], object]) -> None:
    """Do what goes wrong, and leave behind when that was."""
    if not mark.exists():
        mark.with_suffix(".new").write_text(str(time.monotonic()))
        mark.with_suffix(".new").rename(mark)
        action()


def at(moment: str, mark: Path, action: Callable[[], object]) -> None:
    """In a new process: `action` at the start, in step 9, in the save of step 10, or in the validation of step 7."""
    from mtx.training.trainer import Trainer

    name = {"start": "begin", "step": "_run_micro_batches", "save": "_save", "validation": "_validation_part"}[moment]
    original = getattr(Trainer, name)

    def called(self: Any, *arguments: Any) -> Any:
        step = {"start": 0, "step": 8, "save": 10, "validation": 7}[moment]
        if self.state.step == step:
            once(mark, action)
        return original(self, *arguments)

    setattr(Trainer, name, called)


def kill(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def fail() -> None:
    raise ValueError("a test")


def no_memory() -> None:
    """In a new process: every micro-batch of step 9 and later is too large."""
    from mtx.training.micro_step import MicroStep

    def called(*_: Any) -> None:
        raise MemoryError("a test")

    MicroStep.__call__ = called  # type: ignore[method-assign]


ACTIONS: dict[str, Callable[[], object]] = {
    "killed": partial(kill, signal.SIGKILL),
    "stopped": partial(kill, signal.SIGSTOP) if hasattr(signal, "SIGSTOP") else fail,
    "raises": fail,
    "out of memory": no_memory,
}


def check_named(team: Team, rank: int, what: str, began: float) -> None:
    """All processes have gone within 30 s of what went wrong, and the messages name its rank."""
    codes = team.wait()
    print(f"rank {rank} {what}: all ended within {time.monotonic() - began:.1f} s")
    assert time.monotonic() - began < NAMED_S, team.err()
    assert all(codes), codes
    text = team.err()
    if what in ("killed", "stopped"):
        how = {"killed": "has ended without an error of its own", "stopped": "has stopped answering"}[what]
        assert f"error: rank {rank} on {HOST} (process {team.starts[rank].pid}) {how}" in text
        assert HELP in text
        assert codes[rank] == -signal.SIGKILL
        assert {code for number, code in enumerate(codes) if number != rank} == {1}
    elif what == "raises":
        assert "ValueError: a test" in text
        assert f"rank {rank} on {HOST}" in text or rank == 0
    else:
        assert "out of memory with micro-batches of" in text
        assert rank == 0 or f"rank {rank} on {HOST} (process {team.starts[rank].pid}) is out of memory" in text
    assert text.count("error: ") == (SIZE - 1 if rank == 0 and what in ("killed", "stopped") else 1), text


def check_case(directory: Path, corpus: Path, rank: int, what: str, moment: str) -> None:
    run, mark = directory / "run", directory / "mark"
    settings = [*SETTINGS, f"data.train={corpus}", f"run_dir={run}"]
    prepare = partial(at, moment, mark, ACTIONS[what])
    team = start_ranks(SIZE, *settings, first=lambda number: prepare if number == rank else None)
    assert team.wait_until(mark.exists), team.err()
    check_named(team, rank, what, float(mark.read_text()))
    paths = RunLayout(run)
    steps = full_checkpoint_steps(paths)
    for step in steps:
        durable.verify(paths.checkpoint(step), ("model.safetensors", "optimizer.safetensors", "state.json"))
    assert bool(steps) == (moment != "start")
    team = start_ranks(SIZE, *settings)
    assert team.wait() == [0] * SIZE, team.err()
    starts = [event["step"] for event in events(run) if event["event"] == "start"]
    assert starts[-1] == (steps[-1] if steps else 0)


@pytest.mark.parametrize(
    ("rank", "what", "moment"),
    [(3, "killed", "step"), (0, "killed", "validation"), (2, "stopped", "save"), (0, "stopped", "step"),
     (1, "raises", "start"), (2, "out of memory", "step")],
)  # fmt: skip
def test_a_dead_rank_is_named(rank: int, what: str, moment: str, corpus: Path, tmp_path: Path) -> None:
    check_case(tmp_path, corpus, rank, what, moment)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["start", "step", "save", "validation"])
@pytest.mark.parametrize("what", [*ACTIONS])
@pytest.mark.parametrize("rank", range(SIZE))
def test_whatever_happens_to_a_rank_it_is_named(
    rank: int, what: str, moment: str, corpus: Path, tmp_path: Path
) -> None:
    check_case(tmp_path, corpus, rank, what, moment)


def children(process: "subprocess.Popen[bytes]") -> list[int]:
    """The processes that a launcher has started, in the order of their ranks."""
    pids = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
    ranks = {environment(pid).get("RANK", ""): pid for pid in pids}
    return [ranks["0"], ranks["1"]]


def start_training(corpus: Path, run: Path, *devices: Any) -> "subprocess.Popen[bytes]":
    settings = [
        *TINY,
        "precision=fp32",
        "training.max_steps=600",
        "training.validate_every=600",
        f"data.train={corpus}",
    ]
    process = start("train", *settings, f"run_dir={run}", *devices)
    wait_until((run / "checkpoints" / "step-00000004").is_dir, process)
    return process


def test_a_stopped_first_rank_is_named_by_the_launcher_of_one_machine(corpus: Path, tmp_path: Path) -> None:
    process = start_training(corpus, tmp_path / "run", "--devices", 2)
    ranks = children(process)
    os.kill(ranks[0], signal.SIGSTOP)
    _, err = process.communicate(timeout=2 * NAMED_S)
    assert process.returncode in (1, 137)
    assert f"error: rank 0 on {HOST} (process {ranks[0]}) has stopped answering in step " in err.decode()
    assert have_ended(ranks)


def test_ctrl_z_stops_all_ranks_until_the_launcher_goes_on(corpus: Path, tmp_path: Path) -> None:
    process = start_training(corpus, tmp_path / "run", "--devices", 2)
    pids = [process.pid, *children(process)]
    process.send_signal(signal.SIGTSTP)
    wait_until(lambda: all(process_state(pid) == "T" for pid in pids), process)
    process.send_signal(signal.SIGCONT)
    wait_until(lambda: all(process_state(pid) != "T" for pid in pids), process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=2 * NAMED_S)
    assert process.returncode == 143, err.decode()


def test_ranks_without_their_launcher_end(corpus: Path, tmp_path: Path) -> None:
    process = start_training(corpus, tmp_path / "run", "--devices", 2)
    ranks = children(process)
    process.kill()
    _, err = process.communicate(timeout=2 * NAMED_S)  # until rank 0, which has the same stderr, has ended too
    assert "error: the launcher on 127.0.0.1 does not answer; rank 0 ends in step " in err.decode()
    assert have_ended(ranks, NAMED_S)


def test_torchrun_starts_again_from_the_last_checkpoint(corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts"]
    settings = [*TINY, "training.max_steps=300", "training.validate_every=300", f"data.train={corpus}"]
    process = subprocess.Popen(
        [*command, "1", "-m", "mtx", "train", *settings, f"run_dir={run}"], env=ENVIRONMENT, stderr=subprocess.PIPE
    )
    wait_until((run / "checkpoints" / "step-00000004").is_dir, process)
    ranks = children(process)
    os.kill(ranks[1], signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err.decode()
    assert (
        f"error: rank 1 on {HOST} (process {ranks[1]}) has ended without an error of its own in step " in err.decode()
    )
    starts = [event["step"] for event in events(run) if event["event"] == "start"]
    assert len(starts) == 2 and starts[1] >= 4
