"""Line charts as SVG by matplotlib, in the colours of the page: they change with its scheme. Flow: curves -> SVG."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from markupsafe import Markup

from mtx.report.history import Curve

Axis = Literal["step", "hours"]
Style = Literal["line", "dotted", "marked"]
AXES: tuple[Axis, ...] = ("step", "hours")
_LABELS = {"step": "step", "hours": "hours of training"}
_SHORT_H = 2.0  # hours of training, below which they are counted in minutes
_WIDTH, _HEIGHT = 4.4, 2.8  # inches; 317 points, so that text stays readable on a phone
_LEFT, _RIGHT, _BOTTOM, _TOP = 0.18, 0.97, 0.17, 0.96
_LABEL_AT = -0.17  # of the y axis, in shares of its width
# Colours that stand for those of the page; matplotlib wants real ones.
_FG, _LINE = "#010101", "#020202"
_SERIES = [f"#0300{number:02x}" for number in range(1, 9)]
_STYLES: dict[str, dict[str, Any]] = {
    "line": {"linewidth": 1.2},
    "dotted": {"linewidth": 1.2, "linestyle": ":"},
    "marked": {"linewidth": 1.2, "linestyle": "--", "marker": "o", "markersize": 3},
}
_STYLE = {"svg.fonttype": "none", "svg.hashsalt": "mtx", "font.size": 9, "font.family": "sans-serif"}
NUM_COLOURS = len(_SERIES)


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Attributes:
        colour: 0 to `NUM_COLOURS` - 1.
        style: `marked` is dashed and shows its points.
    """

    name: str
    curve: Curve
    colour: int
    style: Style


@dataclass(frozen=True)
class Drawing:
    """A chart on one axis; `smallest` x is at `start` and `largest` at `end`, shares of its width."""

    svg: Markup
    start: float
    end: float
    smallest: float
    largest: float


def draw(title: str, lines: Sequence[Line], y_label: str, axis: Axis, log: bool = False) -> Drawing:
    """One chart; `log` has a logarithmic y axis."""
    from matplotlib import style
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    with style.context(["default", _STYLE]):  # and not what a matplotlibrc says
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
        axes.set_xlabel("minutes of training" if is_short else _LABELS[axis], color=_FG)
        axes.set_ylabel(y_label, color=_FG)
        axes.yaxis.set_label_coords(_LABEL_AT, 0.5)
        axes.tick_params(which="both", colors=_FG)
        axes.grid(True, color=_LINE, linewidth=0.6)
        axes.set_axisbelow(True)
        for name, spine in axes.spines.items():
            spine.set_visible(name in ("left", "bottom"))
            spine.set_color(_FG)
        smallest, largest = axes.get_xlim()
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return Drawing(_themed(text.getvalue(), title), _LEFT, _RIGHT, float(smallest) / scale, float(largest) / scale)


def _themed(svg: str, title: str) -> Markup:
    """An SVG of matplotlib as an element of a page, in the page's colours, and named for those who cannot see it."""
    svg = svg[svg.index("<svg") :]
    start, end = svg.find("<metadata>"), svg.find("</metadata>")
    if start >= 0:
        svg = svg[:start] + svg[end + len("</metadata>") :]
    for colour, meant in ((_FG, "currentColor"), (_LINE, "var(--line)")):
        svg = svg.replace(colour, meant)
    for number, colour in enumerate(_SERIES, start=1):
        svg = svg.replace(colour, f"var(--s{number})")
    named = Markup('<svg role="img" aria-label="{}"').format(title)
    return named + Markup(svg.removeprefix("<svg"))
