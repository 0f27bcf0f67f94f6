"""What one of several ranks meets alone, all of them answer: they go on together, or end together with one error."""

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


def check_all_ended(team: Team, rank: int, *words: str) -> None:
    """All ranks end with an error, this one with these words, and the others because they have lost a connection."""
    codes = team.wait()
    assert all(codes), codes
    check_error(codes[rank], team.starts[rank].err(), 1, *words)
    for other in team.starts[:rank] + team.starts[rank + 1 :]:
        assert "error: " in other.err() and "lost the connection to another rank" in other.err()


def at_step(step: int, action: Callable[[Any], object]) -> None:
    """In a new process: call `action` with the micro-step within the micro-batches of a step, once."""
    from mtx.training.micro_batch import MicroStep
    from mtx.training.ranks import Ranks

    original, begin = MicroStep.__call__, Ranks.begin_step
    steps = list[int]()

    def begun(self: Any, number: int) -> None:
        steps.append(number)
        begin(self, number)

    def called(self: Any, *micro_batch: Any) -> None:
        original(self, *micro_batch)
        if steps and steps[-1] == step:
            steps.clear()
            action(self)

    Ranks.begin_step = begun  # type: ignore[method-assign]
    MicroStep.__call__ = called  # type: ignore[method-assign]


def on_rank(rank: int, step: int, action: Callable[[Any], object]) -> Callable[[int], Any]:
    return lambda number: partial(at_step, step, action) if number == rank else None


def fail(error: Exception, _: Any) -> None:
    raise error


def send(number: signal.Signals, _: Any) -> None:
    os.kill(os.getpid(), number)


def spoil(micro_step: Any) -> None:
    micro_step.model.embedding.grad[0, 3] = float("nan")


def has_saved(run: Path) -> bool:
    return any((run / "checkpoints").glob("step-*"))


@pytest.mark.extended
@pytest.mark.parametrize("who", ["rank 0", "rank 1", "all"])
def test_a_signal_to_any_rank_saves_and_stops_all(who: str, run: Path, corpus: Path) -> None:
    team = start_ranks(2, *LONG, f"data.train={corpus}", f"run_dir={run}")
    assert team.wait_until(lambda: has_saved(run))
    for rank, start in enumerate(team.starts):
        if who in ("all", f"rank {rank}"):
            start.send(signal.SIGTERM)
    if who == "all":  # a launcher passes on what the ranks got themselves
        team.starts[0].send(signal.SIGTERM)
    check_one_error(team, 143, "stopped by SIGTERM", "the state is saved")
    stopped_at = max(int(path.name[5:]) for path in (run / "checkpoints").glob("step-*"))
    assert f"after step {stopped_at};" in team.err()


def slow_validation(mark: Path) -> None:
    """In a new process: a validation that does not end, and leaves a mark when it begins."""
    from mtx.training import build

    def validate(*_: Any) -> None:
        mark.touch()
        time.sleep(600)

    build.validate_part = validate  # type: ignore[assignment]


@pytest.mark.extended
def test_a_signal_during_validation_stops_all(run: Path, corpus: Path) -> None:
    settings = [*LONG, "training.validate_every=3", f"data.train={corpus}", f"run_dir={run}"]
    marks = [run.parent / f"validates-{rank}" for rank in range(2)]
    team = start_ranks(2, *settings, first=lambda rank: partial(slow_validation, marks[rank]))
    assert team.wait_until(lambda: all(mark.exists() for mark in marks))
    for start in team.starts:
        start.send(signal.SIGINT)
    check_one_error(team, 130, "after step 3;")


@pytest.mark.extended
def test_a_request_to_save_goes_to_any_rank(run: Path, corpus: Path) -> None:
    settings = [*LONG, "training.checkpoint_every=90000", f"data.train={corpus}", f"run_dir={run}"]
    team = start_ranks(2, *settings)
    metrics = run / "metrics.jsonl"
    assert team.wait_until(lambda: metrics.exists() and b'"train"' in metrics.read_bytes())
    assert not has_saved(run)
    team.starts[1].send(signal.SIGUSR1)
    assert team.wait_until(lambda: has_saved(run))
    team.starts[1].send(signal.SIGTERM)
    check_one_error(team, 143, "the state is saved")


@pytest.mark.extended
def test_a_time_limit_ends_all_ranks(run: Path, corpus: Path) -> None:
    team = start_ranks(2, *LONG, f"data.train={corpus}", f"run_dir={run}", "training.time_limit=20s")
    assert team.wait() == [0, 0], team.err()
    assert [event["reason"] for event in events(run) if event["event"] == "end"] == ["time_limit"]
    assert (run / "model" / "scores.json").exists()


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.extended), 1])
def test_a_killed_rank_ends_all_and_the_next_start_resumes(rank: int, run: Path, corpus: Path) -> None:
    settings = [*TINY, f"data.train={corpus}", f"run_dir={run}"]
    team = start_ranks(3, *settings, first=on_rank(rank, 10, partial(send, signal.SIGKILL)))
    codes = team.wait()
    assert codes == [-signal.SIGKILL if number == rank else 1 for number in range(3)], team.err()
    assert team.err().count("lost the connection to another rank") == 2
    team = start_ranks(2, *settings)
    assert team.wait() == [0, 0], team.err()
    starts = [event["step"] for event in events(run) if event["event"] == "start"]
    assert len(starts) == 2 and starts[1] in (4, 8)


def short_timeout(then: Callable[[], object] | None) -> None:
    """In a new process: a rank that does not answer within twenty seconds ends all."""
    from mtx.training import ranks

    ranks.TIMEOUT_S = 20.0
    if then is not None:
        then()


@pytest.mark.extended
@pytest.mark.parametrize("rank", [2, 0])
def test_a_rank_that_hangs_ends_all(rank: int, run: Path, corpus: Path) -> None:
    hangs = on_rank(rank, 10, partial(send, signal.SIGSTOP))
    team = start_ranks(
        4, *TINY, f"data.train={corpus}", f"run_dir={run}", first=lambda number: partial(short_timeout, hangs(number))
    )
    others = [start for number, start in enumerate(team.starts) if number != rank]
    assert [start.wait() for start in others] == [1, 1, 1], team.err()
    assert "lost the connection to another rank in step 10: " in others[0].err()
    team.starts[rank].send(signal.SIGKILL)


@pytest.mark.extended
def test_a_rank_without_memory_ends_all_and_the_next_start_takes_less(run: Path, corpus: Path) -> None:
    settings = [*TINY, "training.micro_batch_tokens=128", f"data.train={corpus}", f"run_dir={run}"]
    team = start_ranks(2, *settings, first=on_rank(1, 6, partial(fail, MemoryError("a test"))))
    words = ("rank 1 on ", "step 6: out of memory with micro-batches of 128", "to resume with micro-batches of 64")
    check_all_ended(team, 1, *words)
    team = start_ranks(2, *settings)
    assert team.wait() == [0, 0], team.err()
    assert b'"micro_batch_tokens": 64' in (run / "chosen.json").read_bytes()


@pytest.mark.extended
def test_numbers_that_are_not_finite_end_all_ranks(run: Path, corpus: Path) -> None:
    team = start_ranks(2, *TINY, f"data.train={corpus}", f"run_dir={run}", first=on_rank(1, 5, spoil))
    check_all_ended(team, 0, "step 5: loss", "nothing was updated")
    assert (run / "refused.tsv").exists()


@pytest.mark.parametrize("shard", ["false", pytest.param("true", marks=pytest.mark.extended)])
def test_an_error_of_one_rank_in_a_step_ends_all(shard: str, run: Path, corpus: Path) -> None:
    team = start_ranks(
        2, *TINY, f"data.train={corpus}", f"run_dir={run}", f"training.shard={shard}",
        first=on_rank(1, 5, partial(fail, ValueError("a test"))),
    )  # fmt: skip
    check_all_ended(team, 1, "rank 1 on ", "in step 5: ValueError: a test")


def test_bad_input_is_told_once(run: Path, corpus: Path) -> None:
    team = start_ranks(2, *TINY, f"data.train={corpus.parent / 'nothing.tsv'}", f"run_dir={run}")
    check_one_error(team, 2, "nothing.tsv")
    team = start_ranks(2, *TINY, f"data.train={corpus}", f"run_dir={run}", "device=cuda:1")
    check_one_error(team, 2, "device=cuda:1 names one device")


def test_a_disk_that_is_not_shared_is_told(run: Path, corpus: Path, tmp_path: Path) -> None:
    def elsewhere(rank: int) -> Any:
        return partial(os.chdir, tmp_path / str(rank))

    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
    team = start_ranks(2, *TINY, f"data.train={corpus}", "run_dir=run", first=elsewhere)
    check_one_error(team, 1, "rank 1 on ", "rank 0 prepared it", "run_dir must be on a disk")
