"""Of several processes one owns a run directory; who looks at it, or translates with it, never waits."""

import json
import os
import random
import signal
import socket
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.integration.commands import check_error
from tests.reliability import tiny
from tests.reliability.conftest import size
from tests.reliability.marks import held, mark_calls, num_marks, slow, together
from tests.rig import PATIENCE_S, Rig

PREPARE, END = "mtx.data.prepare:prepare", "mtx.training.run:stored_scores"
OPENED = "mtx.runs.run_directory:_record_config"


@pytest.fixture(scope="module")
def settings(whole: tiny.Whole) -> list[str]:
    return [*whole.settings, "training.max_steps=2"]


def at_once(barrier: Path) -> None:
    """In a new process: wait until the file `barrier` is there, as all that shall start together do."""
    while not barrier.exists():
        time.sleep(0)


def held_back(barrier: Path, seconds: float) -> None:
    """`at_once`, and so much later; a busy machine may keep the other from its work and the lock for long."""
    from mtx.runs import run_directory

    run_directory._LOCK_TIMEOUT_S = PATIENCE_S
    at_once(barrier)
    time.sleep(seconds)


def test_of_two_starts_at_once_one_wins(rig: Rig, settings: list[str], tmp_path: Path, tally: Any) -> None:
    tried, failures = size(3, 20), []
    for number in range(tried):
        run, barrier = tmp_path / f"run{number}", tmp_path / f"barrier{number}"
        # the owner keeps the run until the other has ended
        gate = tmp_path / f"gate{number}"
        first = partial(together, partial(held, PREPARE, gate), partial(at_once, barrier))
        starts = [rig.start("train", *settings, f"run_dir={run}", first=first) for _ in range(2)]
        time.sleep(0.05)
        barrier.touch()
        assert starts[0].wait_until(lambda starts=starts: any(started.ended() for started in starts)) is not None
        gate.touch()
        codes = [started.wait() for started in starts]
        try:
            assert sorted(codes) == [0, 1], codes
            winner, loser = sorted(starts, key=lambda started: started.code or 0)
            check_error(1, loser.err(), 1, "in use by another process", "another run_dir")
            assert f"process {winner.pid} on {socket.gethostname()}" in loser.err()
            assert json.loads((run / "status.json").read_text())["state"] == "finished" and not tiny.left_over(run)
        except AssertionError as error:
            failures.append(f"pair {number}: {error} {[started.err() for started in starts]}")
    tally("two starts at once on one directory: one wins", tried, tried - len(failures))
    assert not failures


def test_a_lock_of_a_killed_process_does_not_block(rig: Rig, settings: list[str], tmp_path: Path) -> None:
    run, marks, draw = tmp_path / "run", tmp_path / "marks", random.Random(14)
    first = partial(together, partial(held, END, tmp_path / "never"), partial(mark_calls, marks, OPENED))
    for number in range(1, size(3, 10) + 1):
        started = rig.start("train", *settings, f"run_dir={run}", first=first)
        assert started.wait_until(lambda wanted=number: num_marks(marks, OPENED) >= wanted), started.err()
        assert started.kill_at(time.monotonic() + draw.uniform(0, 0.2))
    last = rig.run("train", *settings, f"run_dir={run}")
    assert last.code == 0, last.err()


def test_looking_and_translating_never_wait_for_the_owner(rig: Rig, settings: list[str], tmp_path: Path) -> None:
    run, marks = tmp_path / "run", tmp_path / "marks"
    assert rig.run("train", *settings, f"run_dir={run}").code == 0
    text, out = tmp_path / "text", tmp_path / "out"
    text.write_text("one two\n")
    first = partial(_mark_and_slow, marks)
    owner = rig.start("train", run, "training.max_steps=3", first=first)
    assert owner.wait_until(lambda: num_marks(marks, OPENED)), owner.err()
    starts = [rig.start("status", run, "--json") for _ in range(2)]
    starts += [rig.start("translate", run / "model", text, "-o", out.with_name(f"out{i}")) for i in range(2)]
    starts += [rig.start("translate", run, text, "-o", out)]
    assert [started.wait() for started in starts] == [0] * 5, [started.err() for started in starts]
    assert not owner.ended(), "the owner is still at it, they have not waited"
    assert json.loads(starts[0].out())["state"] == json.loads(starts[1].out())["state"] == "running"
    owner.send(signal.SIGKILL)
    owner.wait()
    looking = [rig.start(first=partial(look, run, "finished", 100)) for _ in range(4)]
    assert [started.wait() for started in looking] == [0] * 4, looking[0].err()


def look(run: Path, state: str, times: int) -> None:
    """In a new process: what `mtx status` tells, many times."""
    from mtx.runs.run_directory import read_status

    found = [read_status(run).state for _ in range(times)]
    assert found == [state] * times, found
    sys.exit(0)


def _mark_and_slow(marks: Path) -> None:
    slow("mtx.training.run:load_prepared", 1000.0)
    mark_calls(marks, OPENED)


def test_a_start_that_fails_takes_nothing_from_one_that_begins(
    rig: Rig, settings: list[str], tmp_path: Path, tally: Any
) -> None:
    """What fails removes what it made; whoever starts in these moments owns the directory, or is told who does."""
    tried, failures, draw = size(3, 40), [], random.Random(15)
    missing = [*settings, f"data.train={tmp_path / 'missing.tsv'}"]
    for number in range(tried):
        run, barrier = tmp_path / "runs" / f"run{number}", tmp_path / f"barrier{number}"
        failing = rig.start("train", *missing, f"run_dir={run}", first=partial(at_once, barrier))
        first = partial(held_back, barrier, draw.uniform(0, 0.03))
        good = rig.start("train", *settings, f"run_dir={run}", first=first)
        time.sleep(0.05)
        barrier.touch()
        codes = failing.wait(), good.wait()
        locked = "in use by another process" in failing.err()
        try:
            assert codes == (1 if locked else 2, 0), codes
            assert json.loads((run / "status.json").read_text())["state"] == "finished"
            assert (run / "config.yaml").is_file() and (run / "run.lock").is_file()
        except (AssertionError, OSError) as error:
            failures.append(f"{number}: {error}: {failing.err()} {good.err()}")
    tally("a start beside one that fails: it owns the run, and ends well", tried, tried - len(failures))
    assert not failures


def open_and_fail(run: Path, number: int, times: int, others: Path) -> None:
    """In a new process: own a run and fail, many times; no other may own it then, or take or refuse anything of it."""
    from mtx.config import schema, settings
    from mtx.errors import MtxError
    from mtx.runs import run_directory

    exists = Path.exists

    def slow_exists(path: Path) -> bool:  # so that others come between looking and doing
        found = exists(path)
        time.sleep(random.uniform(0, 0.002))
        return found

    Path.exists = slow_exists  # type: ignore[method-assign]
    config = schema.Config.model_validate({"run_dir": str(run), "seed": number})
    owned = 0
    while owned < times:
        try:
            with run_directory.open_run(config) as paths:
                owned += 1
                os.close(os.open(others, os.O_CREAT | os.O_EXCL))
                assert settings.load(paths.config).seed == number
                assert paths.lock.is_file()
                others.unlink()
                raise InterruptedError
        except InterruptedError:
            time.sleep(random.uniform(0, 0.003))
        except MtxError as error:
            assert "in use by another process" in str(error), error
    sys.exit(0)


def test_starts_that_fail_side_by_side_leave_nothing_and_take_nothing(rig: Rig, tmp_path: Path, tally: Any) -> None:
    times, others = size(25, 1000), tmp_path / "others"
    run = tmp_path / "above" / "runs" / "run"
    starts = [rig.start(first=partial(open_and_fail, run, number, times, others)) for number in (1, 2, 3)]
    codes = [started.wait(300) for started in starts]
    assert codes == [0] * 3, "\n".join(started.err() for started in starts)
    tally("starts that fail side by side", times * 3, times * 3)
    assert not [path for path in tmp_path.rglob("above/**/*") if path.is_file()] and not others.exists()
