"""Attention maps as a page of their own, or as data for the viewer in another page.

Flow: `AttentionMaps` -> `viewer_data` -> the macro of attention.html, whose viewer attention.js draws. Weights are
stored as base64 of little-endian float32, so the page shows the model's exact weights.
"""

import base64
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from mtx.decoding.attention_maps import AttentionMaps
from mtx.model.translation_model import Weights
from mtx.report.page import render
from mtx.storage.text_files import printable

_BYTE = re.compile("<0x[0-9A-F]{2}>")  # a piece of SentencePiece for a byte of a character that has no piece


def attention_page(maps: Sequence[AttentionMaps], src: str, tgt: str) -> str:
    """The HTML of a page with one viewer for all sentence pairs, from the language `src` to `tgt`."""
    return render("attention_page.html", data=viewer_data(maps), src=printable_piece(src), tgt=printable_piece(tgt))


def viewer_data(maps: Sequence[AttentionMaps]) -> list[dict[str, Any]]:
    """The argument of attention.html's macro: for each sentence pair its pieces, and shape and data of each kind."""
    return [
        {
            "text": [text_of(pair.src_tokens), text_of(pair.tgt_tokens)],
            "src": piece_labels(pair.src_tokens),
            "tgt": piece_labels(pair.tgt_tokens),
            "inputs": piece_labels(pair.tgt_inputs),
            "kinds": {kind: _encoded(getattr(pair, kind)) for kind in pair.kinds},
        }
        for pair in maps
    ]


def piece_labels(pieces: Sequence[str]) -> list[str]:
    """What each piece of a sentence is called on the axes of a map.

    Byte pieces are called by the character that they make up, and by their place in it: the pieces `<0xC3>` and
    `<0xBC>` become `ü 1/2` and `ü 2/2`. Bytes that make up no character stay as they are.
    """
    return [
        name if size == 1 else f"{name} {place}/{size}"
        for name, size in _characters(pieces)
        for place in range(1, size + 1)
    ]


def text_of(pieces: Sequence[str]) -> str:
    """The pieces of a sentence as a line of text."""
    return "".join(name for name, _ in _characters(pieces) if name != "</s>").replace("▁", " ").strip()


def _characters(pieces: Sequence[str]) -> Iterator[tuple[str, int]]:
    """The pieces as they are shown; byte pieces that make up a character become one, with their number."""
    for is_byte, group in groupby(pieces, lambda piece: _BYTE.fullmatch(piece) is not None):
        if not is_byte:
            yield from ((printable_piece(piece), 1) for piece in group)
            continue
        codes = bytes.fromhex("".join(piece[3:5] for piece in group))
        for character in codes.decode("utf-8", "surrogateescape"):
            code = character.encode("utf-8", "surrogateescape")
            is_stray = "\udc80" <= character <= "\udcff"
            yield f"<0x{code[0]:02X}>" if is_stray else printable_piece(character), len(code)


def printable_piece(piece: str) -> str:
    """A piece with invisible characters written as escapes, joiners too, because a piece may consist of one alone."""
    return printable(piece).replace("\u200c", r"\u200c").replace("\u200d", r"\u200d")


def _encoded(weights: Weights) -> dict[str, Any]:
    return {"shape": weights.shape, "data": base64.b64encode(weights.astype("<f4").tobytes()).decode()}
