"""The course of a run as curves: events -> at most some hundred points of each figure, against steps and hours.

What a killed start told of steps that were taken again is left out, and the time between two starts does not count.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MAX_POINTS = 400
_LARGEST = 1e15  # of what a run could have measured
_GAIN = 0.5  # BLEU that a third of the steps must bring, for it to be worth going on
Event = dict[str, Any]


@dataclass(frozen=True)
class Curve:
    """One figure against steps and hours of training; the three are equally long."""

    steps: list[float]
    hours: list[float]
    values: list[float]


@dataclass(frozen=True)
class History:
    """The events of a run that count, with the hours of training at each.

    Attributes:
        starts: the events of its starts, all of them.
    """

    starts: list[Event]
    events: list[tuple[Event, float]]

    def of(self, kind: str) -> list[Event]:
        """The events of one kind, in order."""
        return [event for event, _ in self.events if event["event"] == kind]

    @property
    def hours(self) -> float:
        """Hours of training so far."""
        return self.events[-1][1] if self.events else 0.0

    def curve(self, kind: str, key: str, largest: bool = False) -> Curve:
        """A figure of one kind of event; a long one is averaged, or its `largest` taken, over intervals of steps."""
        rows = [
            (float(event["step"]), hours, float(event[key]))
            for event, hours in self.events
            if event["event"] == kind and _is_number(event.get(key))
        ]
        table = np.array(rows, dtype=np.float64).reshape(-1, 3)
        if len(table) > _MAX_POINTS:
            table = _thinned(table, largest)
        return Curve(*([round(value, 6) for value in column] for column in table.T.tolist()))


def history(events: Sequence[Event]) -> History:
    """The course of a run, without what was taken back when it was resumed from an earlier step."""
    starts: list[Event] = []
    kept: list[tuple[Event, float]] = []
    began, hours_before = None, 0.0
    for event in events:
        if not (_is_number(event.get("time")) and _is_number(event.get("step"))):
            continue
        if event["event"] == "start":
            while kept and kept[-1][0]["step"] > event["step"]:
                kept.pop()
            began, hours_before = event["time"], kept[-1][1] if kept else 0.0
            starts.append(event)
        began = event["time"] if began is None else began
        kept.append((event, hours_before + max(0.0, event["time"] - began) / 3600))
    return History(starts, kept)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST


def _thinned(table: NDArray[np.float64], largest: bool) -> NDArray[np.float64]:
    parts = np.array_split(table, _MAX_POINTS)
    means = np.array([part.mean(axis=0) for part in parts])
    if largest:
        means[:, 2] = [part[:, 2].max() for part in parts]
    return means


def progress(found: History) -> str:
    """Whether a run is still getting better, in words, from the BLEU of its validations."""
    bleu = [(event["step"], event["bleu"]) for event in found.of("validation") if _is_number(event.get("bleu"))]
    if len(bleu) < 2:
        return "There are not enough validations yet to tell."
    best = max(range(len(bleu)), key=lambda number: float(bleu[number][1]))
    third = [value for step, value in bleu if step <= bleu[-1][0] * 2 / 3]
    gain = bleu[best][1] - max(third or [bleu[0][1]])
    at = f"the best validation has {bleu[best][1]:.2f} BLEU, at step {bleu[best][0]:,.0f}"
    since = len(bleu) - 1 - best
    after = f"{since} validation{'s after it were' if since != 1 else ' after it was'} not better"
    if gain > _GAIN:
        step = f", {bleu[-1][1] - bleu[-2][1]:.1f} of it at the last validation" if since == 0 else ""
        word, end = ("Yes", "which is the last") if since == 0 else ("Perhaps", f"and {after}")
        return f"{word}: validation BLEU rose by {gain:.1f} in the last third of the steps{step}; {at}, {end}."
    if since == 0:
        return f"Hardly: validation BLEU rose by {max(gain, 0.0):.1f} in the last third of the steps; {at}."
    return f"No: {at}, and {after}."
