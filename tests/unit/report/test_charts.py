import re

import pytest

from mtx.report.charts import Line, draw_chart
from mtx.report.run_history import Curve


@pytest.mark.parametrize("log", [False, True])
def test_a_chart_has_names_on_both_axes_and_the_colours_of_the_page(log: bool) -> None:
    lines = [Line("training", Curve([1, 2, 3], [0.1, 0.2, 0.3], [5.0, 2.0, 1.0]), n, style)
             for n, style in enumerate(("line", "line", "marked"))]  # fmt: skip
    svg = str(draw_chart('a "title" <b>', lines, "nats per token", log)[0])
    assert svg.startswith('<svg role="img" aria-label="a &#34;title&#34; &lt;b&gt;"')
    assert ">nats per token</text>" in svg and ">step</text>" in svg
    colours = set(re.findall(r"(?:stroke|fill): ([^;\"]+)", svg))
    assert {"var(--s1)", "var(--s2)", "var(--s3)", "currentColor", "var(--line)"} <= colours
    assert not any(colour.startswith("#") for colour in colours), "a colour that does not change with the scheme"
    assert "<metadata" not in svg and "<script" not in svg and 'href="http' not in svg


def test_a_value_is_drawn_at_the_place_that_the_chart_tells() -> None:
    svg, scale = draw_chart("t", [Line("a", Curve([0, 100], [0, 1], [1.0, 2.0]), 0, "line")], "y")
    ticks = dict(re.findall(r'id="xtick_(\d+)">.*?<use [^>]*x="([\d.]+)"', svg, re.DOTALL))
    width = float(re.search(r'viewBox="0 0 ([\d.]+)', svg)[1])  # type: ignore[index]
    part = (0 - scale["smallest"]) / (scale["largest"] - scale["smallest"])
    zero = scale["start"] + part * (scale["end"] - scale["start"])
    assert float(ticks["1"]) == pytest.approx(zero * width, abs=0.5)


def test_all_numbers_have_one_format() -> None:
    svg, _ = draw_chart("t", [Line("a", Curve([0, 20_000], [0, 1], [0.0, 0.002]), 0, "line")], "y")
    texts = re.findall(r">([\d.,]+)</text>", svg)
    assert texts == ["0", "5,000", "10,000", "15,000", "20,000", "0", "0.0005", "0.001", "0.0015", "0.002"]
    log, _ = draw_chart("t", [Line("a", Curve([0, 1], [0, 1], [5.0, 20_000.0]), 0, "line")], "y", log=True)
    assert ">10,000</text>" in log
