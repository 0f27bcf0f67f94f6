"""Trials with faults put in, for tests. They run in other processes, so they are functions of a module."""

import os
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mtx.training import fast_path
from mtx.training.fast_path import Numbers, Outcome, Task
from mtx.training.trial_process import Stage

HANG_S = 1.0  # instead of the minute after which a trial counts as hanging


@dataclass(frozen=True)
class FaultyTrial:
    """`fast_path.trial`, but what has one of these parts has a fault; what a CPU has not is left out of its steps.

    Attributes:
        faults: the fault of each part: wrong, raises, hangs or crashes; for "plain" that of the plain step.
    """

    faults: Mapping[str, str]

    def __call__(self, task: Task) -> Generator[Stage, None, Outcome]:
        plain = replace(task, parts=tuple(part for part in task.parts if part == "bf16"))
        steps = fast_path.make_steps(plain)
        for part, fault in self.faults.items():
            if part in task.parts:
                steps = replace(steps, fast=partial(_FAULTS[fault], steps.fast))
            elif part == "plain":
                steps = replace(steps, plain=partial(_FAULTS[fault], steps.plain))
        compared = fast_path.compare(lambda: steps)
        try:
            while True:
                stage = next(compared)
                will_hang = stage == fast_path._FAST and "hangs" in [self.faults.get(part) for part in task.parts]
                yield replace(stage, limit_s=HANG_S) if will_hang else stage
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def wrong(step: Callable[[], Numbers]) -> Numbers:
    """One gradient is off by a fifth."""
    numbers = step()
    return Numbers(numbers.loss, [numbers.gradients[0] * 1.2, *numbers.gradients[1:]])


def raises(step: Callable[[], Numbers]) -> Numbers:
    raise RuntimeError("Failed to find C compiler.\nPlease specify via CC environment variable.\n\nSet LOGS=1 for more")


def hangs(step: Callable[[], Numbers]) -> Numbers:
    time.sleep(600)
    return step()


def crashes(step: Callable[[], Numbers]) -> Numbers:
    os.abort()


def not_finite(step: Callable[[], Numbers]) -> Numbers:
    return Numbers(float("nan"), step().gradients)


_FAULTS: dict[str, Callable[[Callable[[], Numbers]], Any]] = {
    "wrong": wrong, "raises": raises, "hangs": hangs, "crashes": crashes, "not finite": not_finite,
}  # fmt: skip
