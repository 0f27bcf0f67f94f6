"""The learning curves of a report as SVG, drawn by matplotlib in the colours of the page, light or dark.

Flow: `RunSummary` -> curves of its `TrainingHistory` -> `Line`s -> `draw_chart` -> values for report.html.
"""

import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from markupsafe import Markup

from mtx.report.run_history import MAX_POINTS, Curve, RunSummary

_MAX_POINTS_TOGETHER = 2000  # of the curves of all runs in a chart, so that the page stays small
_WIDTH, _HEIGHT = 4.0, 2.5  # inches; 288 points wide, so that text stays readable on a phone
_LEFT, _RIGHT = 0.15, 0.98  # the plot area, as fractions of the chart
_BOTTOM, _TOP = 0.17, 0.88
# matplotlib draws with colours that stand for these of the style sheet, by which `_themed` replaces them.
_COLOURS = ["currentColor", "var(--line)", *(f"var(--s{number})" for number in range(1, 11))]
_FG, _LINE, *_SERIES = (f"#0300{number:02}" for number in range(len(_COLOURS)))
_STYLES: dict[str, dict[str, Any]] = {
    "line": {},
    "marked": {"linestyle": "--", "marker": "o", "markersize": 3},
}
_RC_PARAMS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "mtx",
    "font.size": 9,
    "font.family": "sans-serif",
    "lines.linewidth": 1.2,
    "axes.labelcolor": _FG,
    "axes.edgecolor": _FG,
    "xtick.color": _FG,
    "ytick.color": _FG,
    "axes.grid": True,
    "grid.color": _LINE,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
}
NUM_COLOURS = len(_SERIES)


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Attributes:
        colour: 0 to `NUM_COLOURS` - 1.
        style: `line`, or `marked`, which is dashed and marks its points.
    """

    name: str
    curve: Curve
    colour: int
    style: str


def learning_curves(runs: Sequence[RunSummary], names: Sequence[str]) -> Iterable[dict[str, Any]]:
    """The charts that have data, as values for report.html.

    With several runs each has its colour; with one run, training and validation have theirs.
    """

    def lines(kind: str, key: str, largest: bool = False) -> list[Line]:
        is_validation, drawn = kind == "validation", []
        for number, run in enumerate(runs):
            curve = run.history.curve(kind, key, largest, min(MAX_POINTS, _MAX_POINTS_TOGETHER // len(runs)))
            label, colour = ("validation" if is_validation else "training"), int(is_validation)
            if len(runs) > 1:
                label, colour = f"{names[number]}, {label}", number
            if curve.steps:
                drawn.append(Line(label, curve, colour, "marked" if is_validation else "line"))
        return drawn

    nll = [*lines("train", "nll"), *lines("validation", "nll")]
    norm, speed = lines("train", "grad_norm", largest=True), lines("train", "tgt_tokens_per_s")
    for title, about, unit, is_log, drawn in (
        ("Loss", "how unsure it is of the right piece", "nats per target token", False, nll),
        ("Validation BLEU", "by greedy search", "BLEU", False, lines("validation", "bleu")),
        ("Validation chrF2", "decides which validation is the best", "chrF2", False, lines("validation", "chrf")),
        ("Learning rate", "how far each step goes", "learning rate", False, lines("train", "learning_rate")),
        ("Gradient norm", "largest of each interval", "norm before clipping", True, norm),
        ("Speed", "without validation and saving", "target tokens per second", False, speed),
    ):
        if drawn:
            svg, scale = draw_chart(title, drawn, unit, is_log)
            # report.js reads the values under the pointer from it
            data = {"scale": scale, "lines": [{"name": line.name, **asdict(line.curve)} for line in drawn]}
            yield {"title": title, "about": about, "lines": drawn, "svg": svg, "data": data}


def draw_chart(title: str, lines: Sequence[Line], y_label: str, log: bool = False) -> tuple[Markup, dict[str, float]]:
    """Draw lines over steps; `log` makes the y axis logarithmic.

    Returns:
        The SVG, and its scale: the step `smallest` is drawn at `start` and `largest` at `end`, as fractions of the
        width.
    """
    from matplotlib import style, ticker
    from matplotlib.figure import Figure

    with style.context(["default", _RC_PARAMS]):  # a matplotlibrc of the user has no effect
        figure = Figure(figsize=(_WIDTH, _HEIGHT))
        axes = figure.add_axes((_LEFT, _BOTTOM, _RIGHT - _LEFT, _TOP - _BOTTOM))
        for line in sorted(lines, key=lambda line: -line.curve.steps[-1]):  # a shorter line lies on a longer one
            x, y = line.curve.steps, line.curve.values
            axes.plot(x, y, color=_SERIES[line.colour], clip_on=False, **_STYLES[line.style])
        axes.xaxis.set_major_locator(ticker.MaxNLocator(6, steps=[1, 2, 5, 10]))
        if log:
            axes.set_yscale("log")
            low, high = axes.get_ylim()
            axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0,) if high > 100 * low else (1.0, 2.0, 5.0)))
            axes.yaxis.set_minor_locator(ticker.NullLocator())
        else:
            axes.yaxis.set_major_locator(ticker.MaxNLocator(6, steps=[1, 2, 5, 10]))
        for dimension in (axes.xaxis, axes.yaxis):
            dimension.set_major_formatter(ticker.StrMethodFormatter("{x:,.12g}"))
        axes.set_xlabel("step", loc="right")
        figure.text(0, 1, y_label, va="top", color=_FG)
        smallest, largest = axes.get_xlim()
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    scale = {"start": _LEFT, "end": _RIGHT, "smallest": float(smallest), "largest": float(largest)}
    return _themed(text.getvalue(), title), scale


def _themed(svg: str, title: str) -> Markup:
    """matplotlib's SVG as an element of the page, in the page's colours, with a label for screen readers."""
    svg = re.sub("<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r"#0300(\d\d)", lambda colour: _COLOURS[int(colour[1])], svg)
    # hundredths of points are enough
    svg = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), svg)
    labelled = Markup('<svg role="img" aria-label="{}"').format(title)
    return labelled + Markup(svg.removeprefix("<svg"))
