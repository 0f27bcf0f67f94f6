"""The learning curves of a report, as SVG coordinates for report_macros.html.

Flow: `RunSummary` -> curves of its `TrainingHistory` -> places on a drawing of `WIDTH` x 180 points -> report.html.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mtx.report.run_history import RunSummary

NUM_COLOURS = 10  # of runs, in report.css
WIDTH = 288  # of a drawing, so that text stays readable on a phone
_LEFT = 43  # of the plot area
_RIGHT = 272
_BOTTOM = 150
_TOP = 22
_NUM_TICKS = 6  # on an axis, at most
# title, explanation, unit, and quantity of the events train and validation
_CHARTS = (
    ("Loss", "uncertainty about the next subword", "nats per target token", "nll"),
    ("Validation BLEU", "by greedy search", "BLEU", "bleu"),
    ("Validation chrF2", "selects the best checkpoint", "chrF2", "chrf"),
    ("Learning rate", "size of each step", "learning rate", "learning_rate"),
    ("Speed", "excluding validation and saving", "target tokens per second", "tgt_tokens_per_s"),
)


def learning_curves(runs: Sequence[RunSummary], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The charts of all quantities of the runs, as arguments of the macro `chart`.

    Each of several runs has a colour; in a single run, training and validation have one each.
    """
    for title, explanation, unit, key in _CHARTS:
        lines = list[dict[str, Any]]()
        for kind in ("train", "validation"):
            for number, run in enumerate(runs):
                curve = run.history.curve(kind, key)
                name = kind.replace("train", "training")
                colour = 2 if kind == "validation" else 1
                if len(runs) > 1:
                    name = f"{names[number]}, {name}"
                    colour = 1 + number
                if curve.steps:
                    lines.append({"name": name, "kind": kind, "colour": colour, **vars(curve)})
        if lines:
            last_step = max(line["steps"][-1] for line in lines)
            values = [value for line in lines for value in line["values"]]
            yield {
                "title": title,
                "explanation": explanation,
                "unit": unit,
                "lines": lines,
                "x": _axis(0, last_step, _LEFT, _RIGHT),
                "y": _axis(min(values), max(values), _BOTTOM, _TOP),
                # report.js shows the values under the pointer
                "data": {"lines": lines, "start": _LEFT / WIDTH, "end": _RIGHT / WIDTH, "last": last_step},
            }


def _axis(
    low: float, high: float, start: float, end: float
) -> tuple[Callable[[float], float], list[tuple[float, str]]]:
    """A function from values to places, `low` at `start` and `high` at `end`, and ticks at round values."""
    size = abs(high - low) or 1.0
    magnitude = 10.0 ** math.floor(math.log10(size / _NUM_TICKS))
    step = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude * _NUM_TICKS >= size)

    def place(value: float) -> float:
        return round(start + (value - low) / size * (end - start), 2)

    ticks = [number * step for number in range(math.ceil(low / step), math.floor((low + size) / step) + 1)]
    return place, [(place(tick), f"{tick:,.12g}") for tick in ticks]
