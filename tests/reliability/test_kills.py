"""T1: a run that is killed at random times, again and again, ends with the bits of one that never was.

Kills fall anywhere in the time that a run takes: preparation, steps, saves, validations, scoring; two of each run's
fall into one epoch, where the place in the data would be lost first.
"""

import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.reliability import tiny
from tests.reliability.conftest import size
from tests.reliability.marks import num_marks, slow_within
from tests.reliability.rig import Rig, Start

KILLS = 5  # of each run
SEED = 7


@dataclass(frozen=True)
class Whole:
    """A run that nothing interrupted.

    Attributes:
        settings: of any run on its text, without run_dir.
        ends: seconds from its start to each step's end.
        epochs: the epoch that each step began in.
        duration_s: of all of it.
    """

    run: Path
    settings: list[str]
    ends: list[float]
    epochs: list[int]
    duration_s: float


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with Rig(tmp_path_factory.mktemp("starts")) as rig:
        yield rig


@pytest.fixture(scope="module")
def whole(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    directory = tmp_path_factory.mktemp("whole")
    settings, run, log = tiny.write_text(directory), directory / "run", directory / "log"
    assert rig.run("train", *settings, f"run_dir={directory / 'warm'}").code == 0
    started = rig.run("train", *settings, f"run_dir={run}", first=partial(tiny.log_steps, log))
    assert started.code == 0, started.err()
    duration_s, steps = time.monotonic() - started.began, tiny.steps_done(log)
    tiny.check_lineage(log, run)
    return Whole(run, settings, [s.time - started.began for s in steps], [s.epoch for s in steps], duration_s)


@dataclass(frozen=True)
class Kill:
    """When to kill, in the time of the whole run; and for those in one epoch, after which step."""

    at: float
    step: int | None = None


def plan(whole: Whole, draw: random.Random) -> list[Kill]:
    """The kills of one run: two after different steps of one epoch, the others anywhere, in order."""
    epoch = draw.randrange(whole.epochs[-1] + 1)
    steps = [number for number, found in enumerate(whole.epochs, 1) if found == epoch]
    steps = steps[: len(steps) // 2]  # a kill is never early, and late where the machine is busy
    kills = [Kill(whole.ends[step - 1] + draw.uniform(0, 0.02), step) for step in draw.sample(steps, 2)]
    kills += [Kill(draw.uniform(0, whole.duration_s)) for _ in range(KILLS - 2)]
    return sorted(kills, key=lambda kill: kill.at)


class Killed:
    """One run, started by the same command and killed as often as planned."""

    def __init__(self, rig: Rig, whole: Whole, run: Path):
        self.rig, self.whole, self.run, self.log = rig, whole, run, run.with_name(f"{run.name}.log")
        self.num_kills = 0
        self.epochs: list[int] = []  # in which the kills fell, as recorded; of those before the first step none

    def start(self) -> Start:
        return self.rig.start(
            "train", *self.whole.settings, f"run_dir={self.run}", first=partial(tiny.log_steps, self.log)
        )

    def kill(self, kill: Kill) -> None:
        """Start, and kill at that place of the run's time, as far as the last checkpoint lets one go back to it."""
        saved = max((int(path.name[5:]) for path in self.run.glob("checkpoints/step-*")), default=0)
        started = self.start()
        if kill.step is not None:
            killed = started.wait_until(lambda: _reached(self.log, kill.step)) and started.kill_at(time.monotonic())
        else:
            before_steps = self.whole.ends[0] if saved else 0.0
            done_s = self.whole.ends[saved - 1] if saved else 0.0
            killed = started.kill_at(started.began + max(kill.at - done_s, 0.0) + before_steps)
        assert killed or started.code == 0, started.err()
        self.num_kills += killed
        if killed and (done := tiny.steps_done(self.log)):
            self.epochs.append(done[-1].epoch)

    def finish(self) -> None:
        last = self.start()
        assert last.wait() == 0, last.err()


def _reached(log: Path, step: int | None) -> bool:
    return log.exists() and step is not None and tiny.count_steps(log) >= step


def test_killed_at_random_times_a_run_ends_with_the_same_bits(
    rig: Rig, whole: Whole, tmp_path: Path, tally: Any
) -> None:
    wanted, runs, kills, held = size(3, 40), 0, 0, 0
    failures: list[str] = []
    while runs < wanted or kills < wanted * KILLS:
        seed = SEED * 1000 + runs
        killed = Killed(rig, whole, tmp_path / f"run{runs}")
        for kill in plan(whole, random.Random(seed)):
            killed.kill(kill)
        killed.finish()
        runs, kills = runs + 1, kills + killed.num_kills
        assert runs <= 2 * wanted + 2, "kills come too late"
        wrong = tiny.same_bits(killed.run, whole.run) + tiny.left_over(killed.run)
        try:
            tiny.check_lineage(killed.log, killed.run)
            assert max(map(killed.epochs.count, killed.epochs)) >= 2, f"kills in epochs {killed.epochs}"
        except AssertionError as error:
            wrong.append(str(error))
        print(f"seed {seed}: {killed.num_kills} kills; {wrong or 'the same bits'}")
        failures += [f"seed {seed}: {text}" for text in wrong]
        held += not wrong
        if not wrong:
            shutil.rmtree(killed.run)
    print(f"{kills} kills")
    tally(f"runs killed {kills} times in all: the bits, the data, nothing left over", runs, held)
    assert not failures


@pytest.mark.parametrize("number", range(size(1, 5)))
def test_a_run_copied_to_another_place_goes_on_to_the_same_bits(
    rig: Rig, whole: Whole, tmp_path: Path, number: int
) -> None:
    draw = random.Random(SEED + number)
    killed = Killed(rig, whole, tmp_path / "here" / "run")
    killed.run.parent.mkdir()
    step = draw.randrange(4, tiny.MAX_STEPS - 10)
    killed.kill(Kill(0.0, step))
    assert killed.num_kills == 1
    there = tmp_path / "there"
    shutil.copytree(killed.run, there)
    shutil.rmtree(killed.run.parent)
    log = tmp_path / "log"
    moved = rig.run("train", there, first=partial(tiny.log_steps, log))
    assert moved.code == 0, moved.err()
    assert not tiny.same_bits(there, whole.run) and not tiny.left_over(there)
    assert tiny.steps_done(log)[0].step > 1


def test_killed_while_a_checkpoint_is_thinned_nothing_is_left_over(rig: Rig, whole: Whole, tmp_path: Path) -> None:
    run, marks = tmp_path / "run", tmp_path / "marks"
    arguments = ["train", *whole.settings, f"run_dir={run}", "training.average_last=60"]
    slow_sync = partial(slow_within, marks, "mtx.files:remove_member", "mtx.disk:sync", 20.0)
    started = rig.start(*arguments, first=slow_sync)
    assert started.wait_until(lambda: num_marks(marks, "mtx.disk:sync"))
    assert started.kill_at(time.monotonic()) and tiny.left_over(run)
    again = rig.run(*arguments)
    assert again.code == 0, again.err()
    assert not tiny.left_over(run)
