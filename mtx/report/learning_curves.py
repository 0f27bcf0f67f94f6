"""The learning curves of a report: loss, perplexity, BLEU, learning rate, gradient norm and speed.

Flow: `RunSummary` -> curves of its `TrainingHistory` -> `svg_chart.draw_chart` -> values for report.html.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from mtx.report.run_summary import RunSummary
from mtx.report.svg_chart import AXES, Line, Style, draw_chart, equal_lines
from mtx.report.training_history import MAX_POINTS, Curve

_MAX_POINTS_TOGETHER = 2000  # of the curves of all runs in a chart, so that the page stays small


def learning_curves(runs: Sequence[RunSummary], names: Sequence[str]) -> Iterable[dict[str, Any]]:
    """The charts that have data, as values for report.html.

    With several runs each has its colour; with one run, training and validation have theirs.
    """

    def lines(kind: str, key: str, largest: bool = False) -> list[Line]:
        curves = []
        name = "validation" if kind == "validation" else "training"
        style: Style = "marked" if kind == "validation" else "line"
        for number, run in enumerate(runs):
            curve = run.history.curve(kind, key, largest, min(MAX_POINTS, _MAX_POINTS_TOGETHER // len(runs)))
            if curve.steps:
                label = name if len(runs) == 1 else f"{names[number]}, {name}"
                colour = number if len(runs) > 1 else int(kind == "validation")
                curves.append(Line(label, curve, colour, style))
        return curves

    nll = [*lines("train", "nll"), *lines("validation", "nll")]
    perplexity = [Line(line.name, _exponential(line.curve), line.colour, line.style) for line in nll]
    smoothed = [Line(f"{line.name}, with label smoothing", line.curve, 2, "dotted") for line in lines("train", "loss")]
    for title, about, unit, is_log, drawn in (
        ("Loss", "how unsure it is of the right piece", "nats per target token", False,
         [*nll, *(smoothed if len(runs) == 1 else ())]),
        ("Perplexity", "pieces it hesitates between", "pieces", True, perplexity),
        ("Validation BLEU", "by greedy search", "BLEU", False, lines("validation", "bleu")),
        ("Validation chrF2", "decides which validation is the best", "chrF2", False, lines("validation", "chrf")),
        ("Learning rate", "how far each step goes", "learning rate", False,
         lines("train", "learning_rate")),
        ("Gradient norm", "largest of each interval", "norm before clipping", True,
         lines("train", "grad_norm", largest=True)),
        ("Speed", "without validation and saving", "target tokens per second", False,
         lines("train", "tgt_tokens_per_s")),
    ):  # fmt: skip
        if drawn:
            charts = {axis: draw_chart(title, drawn, unit, axis, is_log) for axis in AXES}
            axes = {axis: {k: v for k, v in vars(chart).items() if k != "svg"} for axis, chart in charts.items()}
            curve_values = [{"name": line.name, **asdict(line.curve)} for line in drawn]
            # report.js reads the values under the pointer from `data`.
            yield {"title": title, "about": about, "lines": drawn, "charts": charts, "same": _same_curves(drawn, names),
                   "data": {"axes": axes, "lines": curve_values}}  # fmt: skip


def _same_curves(lines: Sequence[Line], names: Sequence[str]) -> list[str]:
    """Which runs have the same curve, in words."""
    words, has_both = [], len({line.style for line in lines}) > 1
    for group in (group for group in equal_lines(lines, "step") if len(group) > 1):
        kind = (" in validation" if lines[group[0]].style == "marked" else " in training") if has_both else ""
        same = "all runs" if len(group) == len(names) else " and ".join(names[lines[index].colour] for index in group)
        words.append(f"The same for {same}{kind}.")
    return words


def _exponential(curve: Curve) -> Curve:
    return Curve(curve.steps, curve.hours, [round(math.exp(min(value, 30.0)), 4) for value in curve.values])
