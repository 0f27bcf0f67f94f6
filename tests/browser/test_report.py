"""The report of a run in a browser: tabs, charts, attention; by mouse, by keyboard, in both schemes, on a phone."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Open

PARTS = ["Overview", "Curves", "Samples", "Attention", "Scores", "Sentences", "Data", "Settings"]


@pytest.fixture
def path(trained: Path) -> Path:
    return trained / "report.html"


def visible(page: Any) -> list[str]:
    return [str(part.get_attribute("data-name")) for part in page.locator(".part").all() if part.is_visible()]


def tab(page: Any, name: str) -> Any:
    return page.get_by_role("tab", name=name, exact=True)


def test_tabs_by_mouse_by_keyboard_and_by_address(open_page: Open, path: Path) -> None:
    page = open_page(path)
    assert visible(page) == ["Overview"]
    for name in PARTS:
        tab(page, name).click()
        assert visible(page) == [name] and page.url.endswith(f"#{name.lower()}")
        assert tab(page, name).get_attribute("aria-selected") == "true"
    tab(page, "Overview").click()
    presses = {"ArrowRight": "Curves", "End": "Settings", "Home": "Overview", "ArrowLeft": "Settings"}
    for key, name in presses.items():
        page.keyboard.press(key)
        assert visible(page) == [name] and tab(page, name).evaluate("tab => tab === document.activeElement")
    page.reload()
    assert visible(page) == ["Settings"] and page.evaluate("scrollY") == 0


def test_charts_change_their_axis_and_tell_the_value_under_the_pointer(open_page: Open, path: Path) -> None:
    page = open_page(path)
    tab(page, "Curves").click()
    assert page.locator(".drawing svg").count() == 12
    shown = [drawing for drawing in page.locator(".drawing").all() if drawing.is_visible()]
    assert [drawing.get_attribute("data-axis") for drawing in shown] == ["step"] * 6
    loss = page.locator(".chart").first
    box = loss.locator(".plot").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.96, box["y"] + box["height"] / 2)
    text = loss.locator(".readout").inner_text()
    assert text.startswith("step 40, ") and "training, with label smoothing " in text and "(step" not in text
    page.mouse.move(box["x"] + box["width"] * 0.19, box["y"] + box["height"] / 2)
    assert re.match(r"step 1, .* validation [\d.]+ \(step 20\)$", loss.locator(".readout").inner_text())
    cursor = loss.locator(".cursor").bounding_box()
    assert abs(cursor["x"] - box["x"] - box["width"] * 0.21) < 0.02 * box["width"]
    page.mouse.move(0, 0)
    assert loss.locator(".readout").inner_text().strip() == "" and not loss.locator(".cursor").is_visible()
    page.get_by_label("time").check()
    shown = [drawing for drawing in page.locator(".drawing").all() if drawing.is_visible()]
    assert [drawing.get_attribute("data-axis") for drawing in shown] == ["hours"] * 6
    loss.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert loss.locator(".readout").inner_text().startswith("step 3, ")


def test_its_attention_has_layers_and_heads_to_pick_and_weights_to_read(open_page: Open, path: Path) -> None:
    page = open_page(path)
    tab(page, "Attention").click()
    page.get_by_role("button", name="layer 1 head 2").click()
    layer, head = page.locator("[data-part=layer]"), page.locator("[data-part=head]")
    assert (layer.input_value(), head.input_value()) != ("", "") and layer.is_visible()
    cells = page.locator("[data-part=cells]")
    box = cells.bounding_box()
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    before = page.get_by_role("status").inner_text()
    assert ": 0." in before or ": 1." in before
    head.select_option(index=0)
    page.mouse.move(box["x"] + 6, box["y"] + 6)
    assert page.get_by_role("status").inner_text() != before


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_schemes_have_text_that_can_be_read_in_them(open_page: Open, path: Path, scheme: str) -> None:
    page = open_page(path, color_scheme=scheme)
    tab(page, "Curves").click()
    colours = """() => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,
        ...[...document.querySelectorAll('.drawing:not([hidden]) svg text')].map((text) => getComputedStyle(text).fill),
        ...[...document.querySelectorAll('.legend i')].map((line) => getComputedStyle(line).borderTopColor)]"""
    background, *texts = page.evaluate(colours)
    assert (sum(channels(background)) > 600) == (scheme == "light")
    assert len(texts) > 60 and min(contrast(background, text) for text in texts) > 4.5


def channels(colour: str) -> list[int]:
    return [int(value) for value in colour.removeprefix("rgb(").removesuffix(")").split(",")]


def contrast(one: str, other: str) -> float:
    """WCAG 2.2's contrast ratio of two colours."""
    values = []
    for colour in (one, other):
        linear = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in channels(colour)]
        values.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(values) + 0.05) / (min(values) + 0.05)


def test_a_phone_scrolls_no_part_sideways(open_page: Open, path: Path) -> None:
    page = open_page(path, viewport={"width": 360, "height": 740})
    for name in PARTS:
        tab(page, name).click()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, name


def test_without_scripts_everything_is_there_in_order(open_page: Open, path: Path) -> None:
    page = open_page(path, java_script_enabled=False)
    assert visible(page) == PARTS
