"""The learning curves of a report: loss, perplexity, BLEU, learning rate, gradient norm and speed.

Flow: `RunSummary` -> curves of its `TrainingHistory` -> `svg_chart.draw_chart` -> values for report.html.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from mtx.report.run_summary import RunSummary
from mtx.report.svg_chart import AXES, Line, Style, draw_chart
from mtx.report.training_history import Curve


def learning_curves(runs: Sequence[RunSummary], names: Sequence[str]) -> Iterable[dict[str, Any]]:
    """The charts that have data, as values for report.html.

    With several runs each has its colour; with one run, training and validation have theirs.
    """

    def lines(kind: str, key: str, largest: bool = False) -> list[Line]:
        curves = []
        name = "validation" if kind == "validation" else "training"
        style: Style = "marked" if kind == "validation" else "line"
        for number, run in enumerate(runs):
            curve = run.history.curve(kind, key, largest)
            if curve.steps:
                label = name if len(runs) == 1 else f"{names[number]}, {name}"
                colour = number if len(runs) > 1 else int(kind == "validation")
                curves.append(Line(label, curve, colour, style))
        return curves

    nll = [*lines("train", "nll"), *lines("validation", "nll")]
    perplexity = [Line(line.name, _exponential(line.curve), line.colour, line.style) for line in nll]
    loss = [Line(f"{line.name}, with label smoothing", line.curve, 2 if len(runs) == 1 else line.colour, "dotted")
            for line in lines("train", "loss")]  # fmt: skip
    for title, about, unit, is_log, drawn in (
        ("Loss", "negative log-likelihood (nll) of the right piece, should fall; training minimises it with label "
         "smoothing", "nats per target token", False, [*loss, *nll]),
        ("Perplexity", "between how many pieces the model hesitates; should fall", "perplexity", True, perplexity),
        ("Validation BLEU", "by greedy search; should rise", "BLEU", False, lines("validation", "bleu")),
        ("Validation chrF2", "by greedy search; should rise; it decides, because the references are too short for BLEU",
         "chrF2", False, lines("validation", "chrf")),
        ("Learning rate", "how large the steps are", "learning rate", False, lines("train", "learning_rate")),
        ("Gradient norm", "the largest of each interval, before clipping; a lasting rise is a warning",
         "gradient norm", True, lines("train", "grad_norm", largest=True)),
        ("Speed", "without the time for validation and saving", "target tokens per second", False,
         lines("train", "tgt_tokens_per_s")),
    ):  # fmt: skip
        if drawn:
            charts = {axis: draw_chart(title, drawn, unit, axis, is_log) for axis in AXES}
            axes = {axis: {k: v for k, v in vars(chart).items() if k != "svg"} for axis, chart in charts.items()}
            curve_values = [{"name": line.name, **asdict(line.curve)} for line in drawn]
            # report.js reads the values under the pointer from `data`.
            yield {"title": title, "about": about, "lines": drawn, "charts": charts,
                   "data": {"axes": axes, "lines": curve_values}}  # fmt: skip


def _exponential(curve: Curve) -> Curve:
    return Curve(curve.steps, curve.hours, [round(math.exp(min(value, 30.0)), 4) for value in curve.values])
