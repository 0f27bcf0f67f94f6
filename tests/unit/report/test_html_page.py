"""Untrusted values stand in a page as text, whatever they hold."""

import base64
import json
import re
from typing import Any

import numpy as np
import pytest
import torch
from jinja2 import UndefinedError

from mtx.config.schema import TokenizerConfig
from mtx.data.tokenizer import Tokenizer, train_tokenizer
from mtx.decoding.torch_engine import AttentionMaps, attention_maps
from mtx.report import html_page
from mtx.report.html_page import attention_page, printable_piece, text_of
from tests.attended import KINDS, largest_error, recorded
from tests.models import random_ids, tiny_model

ENDING = "</script><script>alert(1)</script><!-- & \u2028\u2029 ]]> \x00 '\""


def test_data_cannot_end_its_element() -> None:
    element = str(html_page.embedded({"token": ENDING}))
    inside = re.fullmatch(r'<script type="application/json">([^<>&\u2028\u2029]*)</script>', element)
    assert inside and json.loads(inside[1]) == {"token": ENDING}


def test_numbers_that_json_does_not_have_are_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        html_page.embedded(float("nan"))


def test_a_value_that_is_missing_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        html_page.render("page.html")


HOSTILE = ["</script><script>alert(1)</script>", "a\u202eb", "\x1b[31m", "\u2028", "<!--", "אב", "</s>"]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    lines = [" ".join(f"{a}{b}" for b in "abcdefgh") for a in "abcdefgh"] * 3
    return train_tokenizer(iter(lines), TokenizerConfig(vocab_size=290), 200, [])


def embedded(page: str) -> list[dict[str, Any]]:
    element = re.search(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    assert element
    pairs: list[dict[str, Any]] = json.loads(element[1])
    return pairs


def decoded(kind: dict[str, Any]) -> Any:
    return np.frombuffer(base64.b64decode(kind["data"]), "<f4").reshape(kind["shape"]).copy()


def hostile_maps() -> AttentionMaps:
    size = len(HOSTILE)
    weights = np.full((1, 1, size, size), 1 / size, np.float32)
    return AttentionMaps(tuple(HOSTILE), tuple(HOSTILE), weights, weights, weights)


def test_what_is_shown_reproduces_what_the_layers_gave(tokenizer: Tokenizer) -> None:
    model = tiny_model(tokenizer.num_ids, dtype=torch.float32, norm="pre")
    src, tgt = random_ids([7], 200, 1), random_ids([5], 200, 2)
    with recorded(model) as calls:
        maps = attention_maps(model, tokenizer, src, tgt)
    (pair,) = embedded(attention_page(maps, "en", "de"))
    assert pair["src"] == [printable_piece(piece) for piece in maps[0].src_tokens]
    assert pair["tgt"] == [printable_piece(piece) for piece in maps[0].tgt_tokens]
    assert pair["inputs"] == ["<pad>", *pair["tgt"][:-1]]
    for kind in KINDS:
        assert np.array_equal(decoded(pair["kinds"][kind]), getattr(maps[0], kind))
        assert largest_error(decoded(pair["kinds"][kind]), calls[kind]) < 1e-5


def test_pieces_stay_text() -> None:
    page = attention_page([hostile_maps()], "<b>", "\u202e")
    assert "alert(1)</script>" not in page and "<b>" not in page
    assert not set("\u202e\x1b\u2028") & set(page)
    (pair,) = embedded(page)
    assert pair["src"] == [HOSTILE[0], "a\\u202eb", "\\x1b[31m", "\\u2028", "<!--", "אב", "</s>"]


def test_a_page_asks_for_nothing() -> None:
    page = attention_page([hostile_maps()], "en", "de")
    assert re.search(r"""default-src 'none'[^"]*script-src 'sha256-[\w+/]{43}='""", page.replace("&#39;", "'"))
    assert not re.search(r"https?:|src=|href=|@import|url\(", page)


def test_invisible_characters_are_written_as_escapes() -> None:
    for piece, text in (("▁the", "▁the"), ("\u200d\t", r"\u200d\t"), ("é漢", "é漢")):
        assert printable_piece(piece) == text


def test_byte_pieces_are_the_characters_that_they_make_up() -> None:
    pieces = ("▁a", "<0xC3>", "<0xBC>", "<0x62>", "<0x95>", "<0xE6>", "<0xBC>", "<0xA2>", "▁<", "<0x0A>", "</s>")
    assert text_of(pieces) == "aüb\ufffd漢 <\\n"
