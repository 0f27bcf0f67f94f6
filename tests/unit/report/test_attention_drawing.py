"""Pictures of attention can be drawn for any pieces and any lengths, and do not depend on a matplotlibrc."""

import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Text

from mtx.decoding.attention_maps import AttentionMaps
from mtx.errors import UsageError
from mtx.report import attention_drawing
from mtx.report.attention_drawing import draw_map, draw_overview

PIECES = ("▁a", "$\\frac{$", "漢", "\x07", "</s>")


def maps_of(src: tuple[str, ...], tgt: tuple[str, ...], layers: int = 2, heads: int = 3) -> AttentionMaps:
    rng = np.random.default_rng(1)
    sizes = [(len(src), len(src)), (len(tgt), len(tgt)), (len(tgt), len(src))]
    kinds = [rng.dirichlet(np.ones(s), (layers, heads, t)).astype(np.float32) for t, s in sizes]
    return AttentionMaps(src, tgt, *kinds)


def size_of(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


@pytest.fixture(autouse=True)
def _ignore_missing_glyphs() -> None:
    warnings.simplefilter("ignore")


@pytest.mark.parametrize("kind", ["cross", "encoder", "decoder"])
def test_one_map_grows_with_its_pieces(kind: str) -> None:
    short, long = maps_of(PIECES, PIECES[2:]), maps_of(PIECES * 3, PIECES * 3)
    small, large = (size_of(draw_map(maps, kind, 2, 3)) for maps in (short, long))
    assert small[0] < large[0] and small[1] < large[1]


def test_the_same_maps_give_the_same_bytes_in_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maps = maps_of(PIECES, PIECES)
    first = draw_overview(maps), draw_map(maps, "cross", 1, 1)
    assert first[0] != first[1]
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "font.size", 30.0)
    assert (draw_overview(maps), draw_map(maps, "cross", 1, 1)) == first


@pytest.mark.parametrize(("num_src", "num_tgt"), [(1, 1), (2, 90), (90, 2), (150, 150)])
def test_long_and_short_texts_fit(num_src: int, num_tgt: int) -> None:
    overview = draw_overview(maps_of(("a",) * num_src, ("b",) * num_tgt))
    assert max(size_of(overview)) <= 8001


@pytest.mark.seconds
def test_a_map_of_a_long_text_is_drawn_coarser() -> None:
    assert 7990 < max(size_of(draw_map(maps_of(("a",) * 220, ("b",)), "cross", 1, 1))) <= 8001


def test_a_missing_layer_or_head_is_refused() -> None:
    maps = maps_of(PIECES, PIECES)
    with pytest.raises(UsageError, match="--layer 3: cross attention has layers 1 to 2"):
        draw_map(maps, "cross", 3, 1)
    with pytest.raises(UsageError, match="--head 4: encoder attention has heads 1 to 3"):
        draw_map(maps, "encoder", 1, 4)


def test_the_overview_has_titles_and_a_colour_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(attention_drawing, "_png", figures.append)
    draw_overview(maps_of(("▁the", "▁man", "</s>"), ("▁der", "▁$x$", "</s>")))
    texts = [text.get_text() for text in figures[0].findobj(Text)]
    assert "the man\nder $x$" in texts and texts.count("weight") == 3
    assert {"Cross attention", "source piece attended to →", "← piece being written", "layer 2", "head 3"} <= {*texts}
