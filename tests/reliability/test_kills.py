"""A run that is killed at random times, again and again, ends with the bits of one that never was.

Kills fall anywhere in the time that a run takes: preparation, steps, saves, validations, scoring; two of each run's
fall into one epoch, where the place in the data would be lost first.
"""

import bisect
import random
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.reliability import tiny
from tests.reliability.conftest import size
from tests.reliability.marks import num_marks, slow_within
from tests.reliability.tiny import Whole
from tests.rig import Rig, Start

KILLS = 5  # of each run
SEED = 7


def plan(whole: Whole, draw: random.Random, num_kills: int) -> list[float]:
    """When to kill one run, in seconds of the whole one: twice after steps of one epoch, else at any time, in order."""
    epoch = draw.randrange(whole.epochs[-1] + 1)
    steps = [number for number, found in enumerate(whole.epochs, 1) if found == epoch]
    steps = steps[: len(steps) // 2]  # a kill is never early, and late where the machine is busy
    kills = [whole.ends[step - 1] + draw.uniform(0, 0.02) for step in draw.sample(steps, 2)]
    return sorted(kills + [draw.uniform(0, whole.duration_s) for _ in range(num_kills - 2)])


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

    def kill(self, at: float) -> None:
        """Start, and kill as long after the same step as the whole run was then, or after the start."""
        step = bisect.bisect_right(self.whole.ends, at)
        since_s = at - self.whole.ends[step - 1] if step else at
        started = self.start()
        killed = started.wait_until(lambda: _reached(self.log, step)) and started.kill_at(time.monotonic() + since_s)
        assert killed or started.code == 0, started.err()
        self.num_kills += killed
        if killed and (done := tiny.steps_done(self.log)):
            self.epochs.append(done[-1].epoch)

    def finish(self) -> None:
        last = self.start()
        assert last.wait() == 0, last.err()


def _reached(log: Path, step: int) -> bool:
    return not step or (log.exists() and tiny.count_steps(log) >= step)


def test_killed_at_random_times_a_run_ends_with_the_same_bits(
    rig: Rig, whole: Whole, tmp_path: Path, tally: Any
) -> None:
    wanted, runs, kills, held = size(2, 40), 0, 0, 0
    failures: list[str] = []
    while runs < wanted or kills < wanted * KILLS:
        seed = SEED * 1000 + runs
        killed = Killed(rig, whole, tmp_path / f"run{runs}")
        missed = max(0, runs * KILLS - kills)  # a kill that comes when all is done is made up for by the next run
        for at in plan(whole, random.Random(seed), KILLS + missed):
            killed.kill(at)
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
    killed.kill(whole.ends[step - 1])
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
    slow_sync = partial(slow_within, marks, "mtx.storage.durable:remove_member", "mtx.storage.disk:sync", 20.0)
    started = rig.start(*arguments, first=slow_sync)
    assert started.wait_until(lambda: num_marks(marks, "mtx.storage.disk:sync"))
    assert started.kill_at(time.monotonic()) and tiny.left_over(run)
    again = rig.run(*arguments)
    assert again.code == 0, again.err()
    assert not tiny.left_over(run)
