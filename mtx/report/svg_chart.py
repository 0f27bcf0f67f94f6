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
_WIDTH, _HEIGHT = 4.0, 2.5  # inches; 288 points wide, so that text stays readable on a phone
_LEFT, _RIGHT, _BOTTOM, _TOP = 0.15, 0.98, 0.17, 0.88  # the plot area, as fractions of the chart
_MAX_MARKED = 50  # points of a curve that marks its points
_DASH = 6.0  # points of each colour where curves are equal
# matplotlib draws with these colours, and `_themed` replaces them by the style sheet's.
_FG, _LINE = "#010101", "#020202"
_SERIES = [f"#0300{number:02x}" for number in range(1, 11)]
_STYLES: dict[str, dict[str, Any]] = {
    "line": {"linewidth": 1.2},
    "dotted": {"linewidth": 1.2, "linestyle": ":"},
    "marked": {"linewidth": 1.2, "linestyle": "--", "marker": "o", "markersize": 3},
}
_RC_PARAMS = {
    "svg.fonttype": "none", "svg.hashsalt": "mtx", "font.size": 9, "font.family": "sans-serif",
    "axes.labelcolor": _FG, "axes.edgecolor": _FG, "xtick.color": _FG, "ytick.color": _FG,
    "axes.grid": True, "grid.color": _LINE, "grid.linewidth": 0.6, "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6,
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


def equal_lines(lines: Sequence[Line], axis: Axis) -> list[list[int]]:
    """The indices of `lines`, in groups of those that lie on each other."""
    groups: dict[Any, list[int]] = {}
    for index, line in enumerate(lines):
        x = line.curve.steps if axis == "step" else line.curve.hours
        groups.setdefault((line.style, tuple(x), tuple(line.curve.values)), []).append(index)
    return list(groups.values())


def draw_chart(title: str, lines: Sequence[Line], y_label: str, axis: Axis, log: bool = False) -> Chart:
    """Draw lines over steps or hours; `log` makes the y axis logarithmic. Equal lines take turns in one dashed line."""
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context(["default", _RC_PARAMS]):  # a matplotlibrc of the user has no effect
        figure = Figure(figsize=(_WIDTH, _HEIGHT))
        axes = figure.add_axes((_LEFT, _BOTTOM, _RIGHT - _LEFT, _TOP - _BOTTOM))
        is_short = axis == "hours" and max(max(line.curve.hours) for line in lines) < _SHORT_H
        scale = 60 if is_short else 1
        longest_first = sorted(equal_lines(lines, axis), key=lambda group: -lines[group[0]].curve.steps[-1])
        for group in longest_first:  # so that a shorter line lies on a longer one, which it may cover
            for turn, index in enumerate(group):
                line = lines[index]
                x = [scale * value for value in (line.curve.steps if axis == "step" else line.curve.hours)]
                looks = {**_STYLES[line.style], **({"marker": None} if len(x) > _MAX_MARKED else {}),
                         **(_taking_turns(line.style, turn, len(group)) if len(group) > 1 else {})}  # fmt: skip
                axes.plot(x, line.curve.values, color=_SERIES[line.colour], clip_on=False, **looks)
        if log:
            axes.set_yscale("log")
        _set_ticks(axes, log)
        axes.set_xlabel("minutes of training" if is_short else _LABELS[axis], loc="right")
        figure.text(0, 1, y_label, va="top", color=_FG)
        smallest, largest = axes.get_xlim()
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return Chart(_themed(text.getvalue(), title), _LEFT, _RIGHT, float(smallest) / scale, float(largest) / scale)


def _taking_turns(style: Style, turn: int, count: int) -> dict[str, Any]:
    """The dashes, and every `count`th point, by which one of `count` equal lines stays visible among the others."""
    dashes = {"linestyle": (-turn * _DASH, (_DASH, _DASH * (count - 1)))}
    return dashes | ({"markevery": (turn, count)} if style == "marked" else {})


def _set_ticks(axes: Any, log: bool) -> None:
    """Few ticks, and all numbers in one format: 10,000, and as many decimals as the axis needs."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

    for dimension in (axes.xaxis, axes.yaxis):
        if log and dimension is axes.yaxis:
            low, high = axes.get_ylim()
            dimension.set_major_locator(LogLocator(subs=(1.0,) if high > 100 * low else (1.0, 2.0, 5.0)))
            dimension.set_minor_locator(NullLocator())
            dimension.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.12g}"))
        else:
            low, high = dimension.get_view_interval()
            ticks = [tick for tick in MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(low, high) if low <= tick <= high]
            decimals = max(len(f"{tick:.9f}".rstrip("0").partition(".")[2]) for tick in ticks)
            dimension.set_major_locator(FixedLocator(ticks))
            dimension.set_major_formatter(FixedFormatter([f"{tick:,.{decimals}f}" for tick in ticks]))


def _themed(svg: str, title: str) -> Markup:
    """matplotlib's SVG as an element of the page, in the page's colours, with a label for screen readers."""
    svg = re.sub("<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    page_colours = {colour: f"var(--s{number})" for number, colour in enumerate(_SERIES, start=1)}
    for colour, page_colour in {_FG: "currentColor", _LINE: "var(--line)", **page_colours}.items():
        svg = svg.replace(colour, page_colour)
    svg = re.sub(
        r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), svg
    )  # hundredths of points are enough
    labelled = Markup('<svg role="img" aria-label="{}"').format(title)
    return labelled + Markup(svg.removeprefix("<svg"))
