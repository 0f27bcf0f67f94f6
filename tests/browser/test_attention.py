"""The viewer of attention weights in a browser: by mouse, by keyboard, in both colour schemes, on a phone."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtx.decoding.torch_engine import AttentionMaps
from mtx.report.html_page import attention_page
from tests.browser.conftest import Open
from tests.rig import PATIENCE_S

pytestmark = pytest.mark.extended

HOSTILE = "<script>alert(1)</script>"
SRC = ("▁A", "▁ma", "n", HOSTILE, "אב\u202e", "</s>")
TGT = ("▁Ein", "▁Mann", "▁漢字", "</s>")
LAYERS, HEADS = 2, 3


def maps_of(src: tuple[str, ...], tgt: tuple[str, ...], heads: int = HEADS) -> AttentionMaps:
    """Random weights of an encoder of one layer and a decoder of two."""
    rng = np.random.default_rng(1)
    sizes = [(len(src), len(src)), (len(tgt), len(tgt)), (len(tgt), len(src))]
    layers = 1, LAYERS, LAYERS
    kinds = [
        rng.dirichlet(np.ones(s), (n, heads, t)).astype(np.float32) for n, (t, s) in zip(layers, sizes, strict=True)
    ]
    kinds[1][:, :, 0] = np.eye(1, len(tgt))  # the first piece has seen <pad> alone
    return AttentionMaps(src, tgt, *kinds)


MAPS = [maps_of(SRC, TGT), maps_of(("▁two", "</s>"), ("▁zwei", "▁drei", "</s>"))]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "attention.html"
    path.write_text(attention_page(MAPS, "en", "de"), encoding="utf-8")
    return path


def status(page: Any) -> str:
    return str(page.get_by_role("status").inner_text())


def open_large(page: Any, name: str) -> None:
    page.get_by_role("button", name=name).click()


def pixel(page: Any, row: int, column: int) -> list[int]:
    """Red, green and blue of a weight, read from a copy of the canvas."""
    code = """(canvas, [x, y]) => {
        const copy = new OffscreenCanvas(1, 1).getContext("2d");
        copy.drawImage(canvas, -x, -y);
        return [...copy.getImageData(0, 0, 1, 1).data].slice(0, 3);
    }"""
    colour: list[int] = page.locator("[data-part=canvas]").evaluate(code, [column, row])
    return colour


def test_the_overview_shows_every_layer_and_head(open_page: Open, path: Path) -> None:
    page = open_page(path)
    assert page.title() == "Attention, en to de"
    names = [f"layer {layer + 1} head {head + 1}" for layer in range(LAYERS) for head in range(HEADS)]
    overview = page.get_by_role("group", name="All layers and heads")
    assert overview.get_by_role("button").all_inner_texts() == names
    sizes = overview.locator("canvas").evaluate_all("all => all.map(c => [c.width, c.height])")
    assert sizes == [[len(SRC), len(TGT)]] * len(names)
    tops = overview.get_by_role("button").evaluate_all("all => all.map(b => b.getBoundingClientRect().top)")
    assert tops[0] == tops[HEADS - 1] < tops[HEADS], "a row for each layer"


def test_the_overview_has_words_on_its_axes_and_says_what_to_do(open_page: Open, path: Path) -> None:
    page = open_page(path)
    assert "Select a map to enlarge it" in page.locator(".attention-about").inner_text()
    assert page.locator(".attention-above").inner_text().startswith("source subword attended to")
    assert page.locator(".attention-corner").inner_text().startswith("subword being written")
    rows = page.locator(".is-rows").first
    assert rows.locator("bdi").all_inner_texts() == list(TGT)
    assert page.locator(".attention-words.is-columns").count() == HEADS
    canvas = page.locator(".attention-small canvas").first.bounding_box()
    for row, word in enumerate(rows.locator("bdi").all()):
        box = word.bounding_box()
        middle = canvas["y"] + (row + 0.5) * canvas["height"] / len(TGT)
        assert box["y"] + box["height"] / 2 == pytest.approx(middle, abs=3), "a word stands beside its row"


def test_the_whole_width_is_used(open_page: Open, path: Path) -> None:
    page = open_page(path, viewport={"width": 1280, "height": 900})
    right = page.locator(".attention").evaluate("each => each.getBoundingClientRect().right")
    last = page.locator(".attention-small").nth(HEADS - 1).bounding_box()
    assert last["x"] + last["width"] == pytest.approx(right, abs=5)
    open_large(page, "layer 1 head 1")
    narrow = page.locator("[data-part=canvas]").bounding_box()
    assert narrow["width"] == pytest.approx(96 * len(SRC), abs=1), "cells are at most 96 pixels wide"
    page.set_viewport_size({"width": 600, "height": 900})
    canvas = page.locator("[data-part=canvas]")
    for _ in range(100):  # until it is drawn anew
        if canvas.evaluate("each => each.getBoundingClientRect().right") < 600:
            return
        page.wait_for_timeout(20)
    raise AssertionError("the map does not fit into a smaller window")


def test_tabs_by_mouse_and_keyboard(open_page: Open, path: Path) -> None:
    page = open_page(path)
    tabs = {name: page.get_by_role("tab", name=name) for name in ("Cross", "Encoder", "Decoder")}
    first = page.locator(".attention-small canvas").first

    def selected() -> str:
        (name,) = [name for name, tab in tabs.items() if tab.get_attribute("aria-selected") == "true"]
        assert [tab.get_attribute("tabindex") for tab in tabs.values()].count("0") == 1
        assert page.get_by_role("tabpanel", name=name).is_visible()
        return name

    assert selected() == "Cross"
    tabs["Encoder"].click()
    assert selected() == "Encoder" and first.evaluate("c => c.height") == len(SRC)
    for key, name in (("ArrowRight", "Decoder"), ("ArrowRight", "Cross"), ("ArrowLeft", "Decoder"), ("Home", "Cross")):
        page.keyboard.press(key)
        assert selected() == name and tabs[name].evaluate("tab => tab === document.activeElement")
    page.keyboard.press("End")
    assert first.evaluate("c => [c.width, c.height]") == [len(TGT)] * 2


def test_pointing_tells_the_weight(open_page: Open, path: Path) -> None:
    page = open_page(path)
    open_large(page, "layer 2 head 3")
    assert page.locator("[data-part=rows] bdi").all_inner_texts() == list(TGT)
    columns = page.locator("[data-part=columns] bdi").all_text_contents()
    assert columns == [*SRC[:4], "אב\\u202e", "</s>"]
    assert page.locator("[data-part=x]").inner_text().startswith("source subword attended to")
    assert "subword being written" in page.locator("[data-part=y]").inner_text()
    box = page.locator("[data-part=canvas]").bounding_box()
    cell = box["height"] / len(TGT)
    page.mouse.move(box["x"] + 3.5 * box["width"] / len(SRC), box["y"] + 1.5 * cell)
    assert status(page) == f"from ‘▁Mann’ to ‘{HOSTILE}’: {MAPS[0].cross[1, 2, 1, 3]:.3f}"
    assert page.locator(".is-current").all_text_contents() == [HOSTILE, "▁Mann"]
    band = page.locator("[data-part=row]").bounding_box()
    assert band["y"] == pytest.approx(box["y"] + cell, abs=1) and band["width"] == pytest.approx(box["width"], abs=1)
    frame = page.locator("[data-part=cell]").bounding_box()
    assert frame["x"] == pytest.approx(box["x"] + 3 * box["width"] / len(SRC), abs=1)
    assert frame["y"] == pytest.approx(box["y"] + cell, abs=1) and frame["height"] == pytest.approx(cell, abs=1)
    assert page.locator("script").count() == 3, "the page's own two and its data"


def test_a_map_is_saved_as_a_picture(open_page: Open, path: Path) -> None:
    page = open_page(path)
    open_large(page, "layer 2 head 3")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save picture").click()
    assert download.value.suggested_filename == "attention.png"
    assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")


def test_keys_move_the_cell_and_lead_back(open_page: Open, path: Path) -> None:
    page = open_page(path)
    page.locator(".attention-small").nth(1).focus()
    page.keyboard.press("Enter")
    cross = MAPS[0].cross[0, 1]
    assert status(page) == f"from ‘▁Ein’ to ‘▁A’: {cross[0, 0]:.3f}"
    for key, (row, column) in (
        ("ArrowDown", (1, 0)), ("ArrowRight", (1, 1)), ("ArrowUp", (0, 1)), ("ArrowUp", (0, 1)), ("ArrowLeft", (0, 0)),
    ):  # fmt: skip
        page.keyboard.press(key)
        assert status(page) == f"from ‘{TGT[row]}’ to ‘{SRC[column]}’: {cross[row, column]:.3f}"
    for _ in range(9):
        page.keyboard.press("ArrowDown")
    assert status(page).startswith("from ‘</s>’")
    page.keyboard.press("Escape")
    assert page.locator("[data-part=large]").is_hidden()
    assert page.get_by_role("button", name="layer 1 head 2").evaluate("b => b === document.activeElement")


def test_pickers_choose_sentence_layer_and_head(open_page: Open, path: Path) -> None:
    page = open_page(path)
    open_large(page, "layer 1 head 1")
    page.keyboard.press("ArrowRight")
    page.get_by_role("combobox", name="Layer").select_option("2")
    assert status(page) == f"from ‘▁Ein’ to ‘▁ma’: {MAPS[0].cross[1, 0, 0, 1]:.3f}", "the cell stays"
    page.get_by_role("combobox", name="Head").select_option("average of heads")
    assert status(page) == f"from ‘▁Ein’ to ‘▁ma’: {MAPS[0].cross[1, :, 0, 1].mean():.3f}"
    page.get_by_role("combobox", name="Sentence").select_option("two")
    assert status(page) == "cross attention, layer 2, average of heads"
    assert page.locator("[data-part=columns] bdi").all_text_contents() == ["▁two", "</s>"]
    page.get_by_role("tab", name="Decoder").click()
    assert page.locator("[data-part=columns] bdi").all_text_contents() == ["<pad>", "▁zwei", "▁drei"]
    page.get_by_role("tab", name="Encoder").click()
    assert status(page) == "encoder attention, layer 1, average of heads", "it has no other"
    page.get_by_role("button", name="All heads").click()
    assert page.locator(".attention-small").count() == HEADS


def test_colours_follow_the_scheme(open_page: Open, path: Path) -> None:
    page = open_page(path, color_scheme="light")
    open_large(page, "layer 1 head 1")
    page.get_by_role("tab", name="Decoder").click()
    background = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(background) == "rgb(255, 255, 255)"
    assert (pixel(page, 0, 0), pixel(page, 0, 3)) == ([6, 42, 82], [255, 255, 255])  # weights 1 and 0
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(background) == "rgb(15, 19, 24)"
    end = time.monotonic() + PATIENCE_S
    while pixel(page, 0, 0) == [6, 42, 82] and time.monotonic() < end:
        page.wait_for_timeout(10)  # the page draws the maps when it hears of the change
    assert (pixel(page, 0, 0), pixel(page, 0, 3)) == ([253, 243, 196], [16, 21, 27])


def test_a_phone_never_scrolls_sideways(open_page: Open, tmp_path: Path) -> None:
    path = tmp_path / "long.html"
    path.write_text(attention_page([maps_of(SRC * 9, TGT * 9, heads=16)], "en", "de"), encoding="utf-8")
    page = open_page(path, viewport={"width": 360, "height": 740})
    width = "document.documentElement.scrollWidth"
    assert page.evaluate(width) <= 360
    assert page.get_by_role("combobox", name="Sentence").is_hidden(), "there is one"
    open_large(page, "layer 2 head 2")
    assert page.evaluate(width) <= 360
    scroll = page.locator("[data-part=scroll]")
    assert scroll.evaluate("box => box.scrollWidth > box.clientWidth")
    page.locator("[data-part=scroll].more-right.more-below").wait_for()
    for _ in range(len(SRC) * 9 - 1):
        page.keyboard.press("ArrowRight")
    assert scroll.evaluate("box => box.scrollLeft") > 100 and page.evaluate(width) <= 360
    labels = page.locator("[data-part=rows]").bounding_box()
    assert labels["x"] >= 0 and labels["x"] + labels["width"] <= 180, "the rows' pieces stay in view"


def test_everything_has_a_name(open_page: Open, path: Path) -> None:
    page = open_page(path)
    open_large(page, "layer 1 head 1")
    tree = page.locator("main").aria_snapshot()
    for name in (
        'region "Attention weights"', 'tablist "Which attention"', 'tab "Cross" [selected]', 'combobox "Layer"',
        'combobox "Head"', 'combobox "Sentence"', 'img "Colours from weight 0 to weight 1"',
        'application "cross attention, layer 1, head 1: rows are subword being written',
    ):  # fmt: skip
        assert name in tree, tree


def test_a_script_that_is_not_ours_does_not_run(browser: Any, path: Path, tmp_path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    injected = "<script>document.title = 'run'</script><img src='x' onerror=\"document.title = 'run'\">"
    (tmp_path / "a.html").write_text(text.replace("<main>", f"<main>{injected}"), encoding="utf-8")
    page = browser.new_page()
    page.goto((tmp_path / "a.html").as_uri())
    page.get_by_role("tab", name="Encoder").click()
    assert page.title() == "Attention, en to de"
    page.context.close()
