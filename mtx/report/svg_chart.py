"""One line chart as SVG, drawn by matplotlib in the colours of the page, light or dark.

Flow: `Line`s, each with a `Curve` -> `draw_chart` -> `Chart`. Which charts a report has is decided in
learning_curves.py.
"""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from markupsafe import Markup

from mtx.report.training_history import Curve

Axis = Literal["step", "hours"]
Style = Literal["line", "dotted", "marked"]
AXES: tuple[Axis, ...] = ("step", "hours")
_LABELS = {"step": "step", "hours": "hours of training"}
_SHORT_H = 2.0  # a training of fewer hours is shown in minutes
_WIDTH, _HEIGHT = 4.4, 2.8  # inches; 317 points wide, so that text stays readable on a phone
_LEFT, _RIGHT, _BOTTOM, _TOP = 0.18, 0.97, 0.17, 0.96  # the plot area, as fractions of the chart
_Y_LABEL_X = -0.17  # where the label of the y axis stands, as a fraction of the width of the plot area
# matplotlib draws with these colours, and `_themed` replaces them by the style sheet's.
_FG, _LINE = "#010101", "#020202"
_SERIES = [f"#0300{number:02x}" for number in range(1, 9)]
_STYLES: dict[str, dict[str, Any]] = {
    "line": {"linewidth": 1.2},
    "dotted": {"linewidth": 1.2, "linestyle": ":"},
    "marked": {"linewidth": 1.2, "linestyle": "--", "marker": "o", "markersize": 3},
}
_RC_PARAMS = {
    "svg.fonttype": "none", "svg.hashsalt": "mtx", "font.size": 9, "font.family": "sans-serif",
    "axes.labelcolor": _FG, "axes.edgecolor": _FG, "xtick.color": _FG, "ytick.color": _FG,
    "axes.grid": True, "grid.color": _LINE, "grid.linewidth": 0.6, "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip
NUM_COLOURS = len(_SERIES)


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Attributes:
        colour: 0 to `NUM_COLOURS` - 1.
        style: `marked` is dashed and marks its points.
    """

    name: str
    curve: Curve
    colour: int
    style: Style


@dataclass(frozen=True)
class Chart:
    """A chart; the x value `smallest` is drawn at `start` and `largest` at `end`, fractions of the width."""

    svg: Markup
    start: float
    end: float
    smallest: float
    largest: float


def draw_chart(title: str, lines: Sequence[Line], y_label: str, axis: Axis, log: bool = False) -> Chart:
    """Draw lines over steps or hours; `log` makes the y axis logarithmic."""
    from matplotlib import style
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    with style.context(["default", _RC_PARAMS]):  # a matplotlibrc of the user has no effect
        figure = Figure(figsize=(_WIDTH, _HEIGHT))
        axes = figure.add_axes((_LEFT, _BOTTOM, _RIGHT - _LEFT, _TOP - _BOTTOM))
        is_short = axis == "hours" and max(max(line.curve.hours) for line in lines) < _SHORT_H
        scale = 60 if is_short else 1
        for line in lines:
            x = [scale * value for value in (line.curve.steps if axis == "step" else line.curve.hours)]
            axes.plot(x, line.curve.values, color=_SERIES[line.colour], clip_on=False, **_STYLES[line.style])
        if log:
            axes.set_yscale("log")
            low, high = axes.get_ylim()
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high > 100 * low else (1.0, 2.0, 5.0)))
            axes.yaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.set_xlabel("minutes of training" if is_short else _LABELS[axis])
        axes.set_ylabel(y_label)
        axes.yaxis.set_label_coords(_Y_LABEL_X, 0.5)
        smallest, largest = axes.get_xlim()
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return Chart(_themed(text.getvalue(), title), _LEFT, _RIGHT, float(smallest) / scale, float(largest) / scale)


def _themed(svg: str, title: str) -> Markup:
    """matplotlib's SVG as an element of the page, in the page's colours, with a label for screen readers."""
    svg = re.sub("<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    page_colours = {colour: f"var(--s{number})" for number, colour in enumerate(_SERIES, start=1)}
    for colour, page_colour in {_FG: "currentColor", _LINE: "var(--line)", **page_colours}.items():
        svg = svg.replace(colour, page_colour)
    labelled = Markup('<svg role="img" aria-label="{}"').format(title)
    return labelled + Markup(svg.removeprefix("<svg"))
