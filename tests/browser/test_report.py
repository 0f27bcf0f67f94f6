"""The report of a run in a browser: tabs, charts, filters; by mouse, by keyboard, in both schemes, on a phone."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from mtx.report.report_page import report_page
from mtx.storage import durable
from tests.browser.conftest import Open
from tests.integration.commands import set_settings

pytestmark = pytest.mark.extended

PARTS = ["Overview", "Curves", "Samples", "Scores", "Sentences", "Data", "Settings"]


@pytest.fixture
def path(trained: Path) -> Path:
    return trained / "report.html"


@pytest.fixture(scope="module")
def both(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of the run and of a copy with a test set of 45 sentences, the copy with half of them translated well."""
    folder = tmp_path_factory.mktemp("both")
    runs = [Path(shutil.copytree(trained, folder / name)) for name in ("one", "two")]
    set_settings(runs[1], model__dropout=0.3)
    for number, run in enumerate(runs):
        for name, line in (("src", "s{}{}"), ("ref", "r{} of the test{}"), ("hyp", "{}")):
            texts = [line.format(n, " and more words" * (n % 20)) for n in range(45)]
            hyps = [f"r{n} of a test" if n % 2 and number else f"r{n} the" for n in range(45)]
            path = run / "evaluation" / "heldout" / f"{name}.txt"
            path.write_text("".join(f"{text}\n" for text in (hyps if name == "hyp" else texts)))
        durable.write_manifest(run / "evaluation" / "heldout")
    path = folder / "both.html"
    path.write_text(report_page(runs), encoding="utf-8")
    return path


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


def test_charts_tell_the_value_under_the_pointer(open_page: Open, path: Path) -> None:
    page = open_page(path)
    tab(page, "Curves").click()
    assert page.locator("#part-curves .plot svg").count() == 4
    loss = page.locator(".charts .chart").first
    box = loss.locator(".plot").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.96, box["y"] + box["height"] / 2)
    text = loss.locator(".readout").inner_text()
    assert text.startswith("step 40, ") and " training " in text and "(step" not in text
    page.mouse.move(box["x"] + box["width"] * 0.16, box["y"] + box["height"] / 2)
    assert re.match(r"step 1, .* validation [\d.]+ \(step 20\)$", loss.locator(".readout").inner_text())
    cursor = loss.locator(".cursor").bounding_box()
    assert abs(cursor["x"] - box["x"] - box["width"] * 0.16) < 0.02 * box["width"]
    page.mouse.move(0, 0)
    assert loss.locator(".readout").inner_text().strip() == "" and not loss.locator(".cursor").is_visible()
    loss.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert loss.locator(".readout").inner_text().startswith("step 3, ")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_schemes_have_text_that_can_be_read_in_them(open_page: Open, path: Path, scheme: str) -> None:
    page = open_page(path, color_scheme=scheme)
    tab(page, "Curves").click()
    colours = """() => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,
        ...[...document.querySelectorAll('.plot svg text')].map((text) => getComputedStyle(text).fill),
        ...[...document.querySelectorAll('.legend i')].map((line) => getComputedStyle(line).borderTopColor)]"""
    background, *texts = page.evaluate(colours)
    assert (sum(channels(background)) > 600) == (scheme == "light")
    assert len(texts) > 40 and min(contrast(background, text) for text in texts) > 4.5


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


def shown(page: Any) -> list[int]:
    """The line numbers of the sentences that are shown under Sentences."""
    articles = page.locator("#part-sentences article:not([hidden])")
    return [int(line) for line in articles.evaluate_all("all => all.map((each) => each.dataset.line)")]


def test_sentences_can_be_filtered_and_those_that_differ_come_first(open_page: Open, both: Path) -> None:
    page = open_page(both)
    tab(page, "Sentences").click()
    page.get_by_label("only where they differ").check()
    output = page.locator(".filters output")
    assert len(shown(page)) == 20 and output.inner_text() == "20 of 22 shown"
    page.get_by_role("button", name="Show more").click()
    assert sorted(shown(page)) == list(range(2, 45, 2)) and output.inner_text() == "22 of 22 shown"
    assert page.get_by_role("button", name="Show more").is_hidden()
    page.get_by_label("Containing").fill("R2 tes")
    assert sorted(shown(page)) == [22, 24, 26, 28, 30]
    page.get_by_label("Length").select_option("1 to 10 words")
    assert shown(page) == [22]
    page.get_by_label("only where they differ").uncheck()
    page.get_by_label("Containing").fill("")
    page.get_by_label("Order").select_option("as in the test set")
    assert shown(page) == [1, 2, 3, 21, 22, 23, 41, 42, 43]
    page.get_by_label("Order").select_option("where two is better")
    assert {*shown(page)[:3]} == {2, 22, 42}


def test_texts_have_one_left_edge(open_page: Open, both: Path) -> None:
    page = open_page(both)
    lefts = "all => [...new Set(all.map((each) => Math.round(each.getBoundingClientRect().left)))]"
    tab(page, "Sentences").click()
    assert len(page.locator("#part-sentences article:not([hidden]) p > :nth-child(2)").evaluate_all(lefts)) == 1


def test_charts_of_a_row_are_aligned_and_share_a_legend(open_page: Open, both: Path) -> None:
    page = open_page(both, viewport={"width": 1280, "height": 900})
    tab(page, "Curves").click()
    tops = [round(plot.bounding_box()["y"]) for plot in page.locator(".charts .plot").all()]
    assert tops[:3] == [tops[0]] * 3 and tops[0] < tops[3]
    heights = page.locator(".charts figcaption").evaluate_all("all => all.map((each) => each.clientHeight)")
    assert max(heights) < 30, "captions have one line"
    legend = page.locator("#part-curves .legend")
    assert legend.count() == 1 and legend.inner_text().split() == ["one", "two", "training", "validation"]


def test_a_phone_fades_what_is_cut(open_page: Open, both: Path) -> None:
    page = open_page(both, viewport={"width": 360, "height": 740})
    page.locator(".tabs.more-right:not(.more-left)").wait_for()
    tab(page, "Scores").click()
    page.locator(".tabs.more-left").wait_for()
    tab(page, "Settings").click()
    page.wait_for_function(
        "() => [...document.querySelectorAll('#part-settings > .scroll')].every("
        "(each) => each.matches('.more-right') === each.scrollWidth > each.clientWidth + 2)"
    )
