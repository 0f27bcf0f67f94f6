import re

import pytest

from mtx.report.charts import AXES, Line, draw_chart
from mtx.report.run_history import Curve


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("log", [False, True])
def test_a_chart_has_names_on_both_axes_and_the_colours_of_the_page(axis: str, log: bool) -> None:
    lines = [Line("training", Curve([1, 2, 3], [0.1, 0.2, 0.3], [5.0, 2.0, 1.0]), n, style)  # type: ignore[arg-type]
             for n, style in enumerate(("line", "dotted", "marked"))]  # fmt: skip
    svg = str(draw_chart('a "title" <b>', lines, "nats per token", axis, log)[0])  # type: ignore[arg-type]
    assert svg.startswith('<svg role="img" aria-label="a &#34;title&#34; &lt;b&gt;"')
    assert ">nats per token</text>" in svg and f">{'step' if axis == 'step' else 'minutes of training'}</text>" in svg
    colours = set(re.findall(r"(?:stroke|fill): ([^;\"]+)", svg))
    assert {"var(--s1)", "var(--s2)", "var(--s3)", "currentColor", "var(--line)"} <= colours
    assert not any(colour.startswith("#") for colour in colours), "a colour that does not change with the scheme"
    assert "<metadata" not in svg and "<script" not in svg and 'href="http' not in svg


def test_a_value_is_drawn_at_the_place_that_the_chart_tells() -> None:
    svg, scale = draw_chart("t", [Line("a", Curve([0, 100], [0, 1], [1.0, 2.0]), 0, "line")], "y", "step")
    ticks = dict(re.findall(r'id="xtick_(\d+)">.*?<use [^>]*x="([\d.]+)"', svg, re.DOTALL))
    width = float(re.search(r'viewBox="0 0 ([\d.]+)', svg)[1])  # type: ignore[index]
    part = (0 - scale["smallest"]) / (scale["largest"] - scale["smallest"])
    zero = scale["start"] + part * (scale["end"] - scale["start"])
    assert float(ticks["1"]) == pytest.approx(zero * width, abs=0.5)


def test_a_long_training_is_shown_in_hours() -> None:
    svg, scale = draw_chart("t", [Line("a", Curve([0, 100], [0, 5], [1.0, 2.0]), 0, "line")], "y", "hours")
    assert ">hours of training</text>" in svg and scale["largest"] == pytest.approx(5.25)
    _, short = draw_chart("t", [Line("a", Curve([0, 100], [0, 0.5], [1.0, 2.0]), 0, "line")], "y", "hours")
    assert short["largest"] == pytest.approx(0.525), "the data stays in hours"


def test_all_numbers_have_one_format() -> None:
    svg, _ = draw_chart("t", [Line("a", Curve([0, 20_000], [0, 1], [0.0, 0.002]), 0, "line")], "y", "step")
    texts = re.findall(r">([\d.,]+)</text>", svg)
    assert texts == ["0", "5,000", "10,000", "15,000", "20,000", "0", "0.0005", "0.001", "0.0015", "0.002"]
    log, _ = draw_chart("t", [Line("a", Curve([0, 1], [0, 1], [5.0, 20_000.0]), 0, "line")], "y", "step", log=True)
    assert ">10,000</text>" in log
