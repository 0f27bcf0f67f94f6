"""What one of several ranks meets alone, all of them answer: they go on together, or end together with one error."""

import errno
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.integration.commands import TINY, check_error, events
from tests.ranks import Team, start_ranks

pytestmark = [
    pytest.mark.seconds, pytest.mark.skipif(not hasattr(os, "fork"), reason="ranks are forked")
]  # fmt: skip
LONG = [*TINY, "training.max_steps=100000", "training.validate_every=100000", "precision=fp32"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


def check_one_error(team: Team, code: int, *words: str) -> None:
    """All ranks end with this code, and rank 0 alone says why."""
    codes = team.wait()
    check_error(codes[0], team.starts[0].err(), code, *words)
    assert codes == [code] * len(codes), team.err()
    assert [start.err() + start.out() for start in team.starts[1:]] == [""] * (len(codes) - 1)


def at_step(step: int, action: Callable[[Any], object]) -> None:
    """In a new process: call `action` with the trainer within the micro-batches of a step, once."""
    from mtx.training.micro_step import MicroStep
    from mtx.training.trainer import Trainer

    original, done = MicroStep.__call__, list[int]()
    trainers = list[Any]()
    begin = Trainer.begin

    def remembered(self: Any) -> None:
        trainers.append(self)
        begin(self)

    def called(self: Any, batch: Any, scale: float) -> None:
        original(self, batch, scale)
        if trainers and trainers[-1].state.step + 1 == step and not done:
            done.append(step)
            action(self)

    Trainer.begin = remembered  # type: ignore[method-assign]
    MicroStep.__call__ = called  # type: ignore[method-assign]


def on_rank(rank: int, step: int, action: Callable[[Any], object]) -> Callable[[int], Any]:
    return lambda number: partial(at_step, step, action) if number == rank else None


def fail(error: Exception, _: Any) -> None:
    raise error


def spoil(micro_step: Any) -> None:
    micro_step.flat[3] = float("nan")


def has_saved(run: Path) -> bool:
    return any((run / "checkpoints").glob("step-*"))


@pytest.mark.parametrize("who", ["rank 0", "rank 1", "all"])
def test_a_signal_to_any_rank_saves_and_stops_all(who: str, run: Path, corpus: Path) -> None:
    team = start_ranks(2, *LONG, f"data.train={corpus}", f"run_dir={run}")
    assert team.wait_until(lambda: has_saved(run))
    for rank, start in enumerate(team.starts):
        if who in ("all", f"rank {rank}"):
            start.send(signal.SIGTERM)
    if who == "all":  # a launcher passes on what the ranks got themselves
        team.starts[0].send(signal.SIGTERM)
    check_one_error(team, 143, "stopped by signal 15", "everything is saved")
    stopped_at = max(int(path.name[5:]) for path in (run / "checkpoints").glob("step-*"))
    assert f"after step {stopped_at};" in team.err()


def test_a_signal_during_validation_stops_all(run: Path, corpus: Path) -> None:
    settings = [*LONG, "training.validate_every=3", f"data.train={corpus}", f"run_dir={run}"]
    team = start_ranks(2, *settings, first=lambda rank: slow_validation)
    status = run / "metrics.jsonl"
    assert team.wait_until(lambda: status.exists() and b'"step": 2' in status.read_bytes())
    time.sleep(1)
    for start in team.starts:
        start.send(signal.SIGINT)
    check_one_error(team, 130, "after step 3;")


def slow_validation() -> None:
    from mtx.training import trainer

    trainer.validate_part = lambda *_: time.sleep(60)  # type: ignore[assignment]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_request_to_save_goes_to_any_rank(rank: int, run: Path, corpus: Path) -> None:
    settings = [*LONG, "training.checkpoint_every=90000", f"data.train={corpus}", f"run_dir={run}"]
    team = start_ranks(2, *settings)
    metrics = run / "metrics.jsonl"
    assert team.wait_until(lambda: metrics.exists() and b'"train"' in metrics.read_bytes())
    assert not has_saved(run)
    team.starts[rank].send(signal.SIGUSR1)
    assert team.wait_until(lambda: has_saved(run))
    team.starts[1].send(signal.SIGTERM)
    check_one_error(team, 143, "everything is saved")


def test_a_time_limit_ends_all_ranks(run: Path, corpus: Path) -> None:
    team = start_ranks(2, *LONG, f"data.train={corpus}", f"run_dir={run}", "training.time_limit=20s")
    assert team.wait() == [0, 0], team.err()
    assert [event["reason"] for event in events(run) if event["event"] == "end"] == ["time_limit"]
    assert (run / "model" / "scores.json").exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_halve_their_micro_batches_together(rank: int, run: Path, corpus: Path) -> None:
    settings = [*TINY, "training.max_steps=6", "training.micro_batch_tokens=128", f"data.train={corpus}"]
    shortage = RuntimeError("CUDA out of memory: a test")
    team = start_ranks(2, *settings, f"run_dir={run}", first=on_rank(rank, 3, partial(fail, shortage)))
    assert team.wait() == [0, 0], team.err()
    warning = "CUDA out of memory: a test" if rank == 0 else "rank 1 on "
    assert f"warning: step 3: out of memory; micro-batches are halved from now on ({warning}" in team.err()
    assert b'"micro_batch_tokens": 64' in (run / "chosen.json").read_bytes()
    assert [event["step"] for event in events(run) if event["event"] == "train"] == [1, 2, 3, 4, 5, 6]


def test_a_second_shortage_ends_all_ranks(run: Path, corpus: Path) -> None:
    settings = [*TINY, "training.micro_batch_tokens=32", f"data.train={corpus}", f"run_dir={run}"]
    team = start_ranks(2, *settings, first=on_rank(1, 3, partial(fail, MemoryError("a test"))))
    check_one_error(team, 1, "step 3: out of memory with micro-batches of 32", "rank 1 on ", "is out of memory")


def short_in_the_update() -> None:
    """In a new process: out of memory in step 3, after the ranks have agreed that all of them have run it."""
    import torch

    original, calls = torch.nn.utils.get_total_norm, list[int]()

    def norm(*arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory, a test")
        return original(*arguments, **named)

    torch.nn.utils.get_total_norm = norm


@pytest.mark.parametrize("shard", ["false", "true"])
def test_memory_that_is_short_on_one_rank_in_an_update_ends_all(shard: str, run: Path, corpus: Path) -> None:
    team = start_ranks(
        2, *LONG, f"data.train={corpus}", f"run_dir={run}", f"training.shard={shard}",
        first=lambda rank: short_in_the_update if rank == 1 else None,
    )  # fmt: skip
    check_one_error(team, 1, "rank 1 on ", "step 3: out of memory with micro-batches of", "micro_batch_tokens=")


def test_numbers_that_are_not_finite_end_all_ranks(run: Path, corpus: Path) -> None:
    team = start_ranks(3, *TINY, f"data.train={corpus}", f"run_dir={run}", first=on_rank(2, 5, spoil))
    check_one_error(team, 1, "step 5: loss", "nothing was updated")
    assert (run / "refused.tsv").exists()


def test_an_error_of_one_rank_ends_all_and_is_named_once(run: Path, corpus: Path) -> None:
    team = start_ranks(
        3, *TINY, f"data.train={corpus}", f"run_dir={run}", first=on_rank(1, 5, partial(fail, ValueError("a test")))
    )
    began = time.monotonic()
    check_one_error(team, 1, "rank 1 on ", "ValueError: a test")
    assert time.monotonic() - began < 30


def test_bad_input_is_told_once(run: Path, corpus: Path) -> None:
    team = start_ranks(2, *TINY, f"data.train={corpus.parent / 'nothing.tsv'}", f"run_dir={run}")
    check_one_error(team, 2, "nothing.tsv")
    team = start_ranks(2, *TINY, f"data.train={corpus}", f"run_dir={run}", "device=cuda:1")
    check_one_error(team, 2, "device=cuda:1 names one device")


def full_disk() -> None:
    """In a new process: no checkpoint can be written."""
    from mtx.training import checkpoint

    def save(paths: Any, *_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(paths.checkpoints))

    checkpoint.save = save


def test_a_full_disk_on_rank_0_lets_all_train_on_and_ends_all_alike(run: Path, corpus: Path) -> None:
    team = start_ranks(
        2, *TINY, f"data.train={corpus}", f"run_dir={run}", first=lambda rank: full_disk if rank == 0 else None
    )
    check_one_error(team, 1, "could not be saved")
    assert [event["step"] for event in events(run) if event["event"] == "train"][-1] == 40


def test_ranks_with_other_settings_are_refused(run: Path, corpus: Path, tmp_path: Path) -> None:
    def elsewhere(rank: int) -> Any:
        return partial(os.chdir, tmp_path / str(rank))

    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
        (tmp_path / str(rank) / "own.yaml").write_text(f"training: {{clip_norm: {rank + 1}}}")
    team = start_ranks(2, "own.yaml", *TINY, f"data.train={corpus}", f"run_dir={run}", first=elsewhere)
    check_one_error(team, 2, "rank 1 on ", "training.clip_norm is 2.0 here and 1.0 on rank 0")


def test_a_disk_that_is_not_shared_is_told(run: Path, corpus: Path, tmp_path: Path) -> None:
    def elsewhere(rank: int) -> Any:
        return partial(os.chdir, tmp_path / str(rank))

    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
    team = start_ranks(2, *TINY, f"data.train={corpus}", "run_dir=run", first=elsewhere)
    check_one_error(team, 1, "rank 1 on ", "rank 0 has prepared it", "run_dir must be on a disk")
