"""Attention maps as a page of their own, or as data for the viewer in another page.

Flow: `AttentionMaps` -> `viewer_data` -> the macro of attention.html, whose viewer attention.js draws. Weights are
stored as base64 of little-endian float32, so the page shows the model's exact weights.
"""

import base64
from collections.abc import Sequence
from typing import Any

from mtx.decoding.attention_maps import AttentionMaps, Weights
from mtx.files.text_files import printable
from mtx.report.page import render


def attention_page(maps: Sequence[AttentionMaps], src: str, tgt: str) -> str:
    """The HTML of a page with one viewer for all sentence pairs, from the language `src` to `tgt`."""
    return render("attention_page.html", data=viewer_data(maps), src=printable_piece(src), tgt=printable_piece(tgt))


def viewer_data(maps: Sequence[AttentionMaps]) -> list[dict[str, Any]]:
    """The argument of attention.html's macro: for each sentence pair its pieces, and shape and data of each kind."""
    return [
        {
            "src": list(map(printable_piece, pair.src_tokens)),
            "tgt": list(map(printable_piece, pair.tgt_tokens)),
            "inputs": list(map(printable_piece, pair.tgt_inputs)),
            "kinds": {kind: _encoded(getattr(pair, kind)) for kind in ("cross", "encoder", "decoder")},
        }
        for pair in maps
    ]


def printable_piece(piece: str) -> str:
    """A piece with invisible characters written as escapes, joiners too, because a piece may consist of one alone."""
    return printable(piece).replace("\u200c", r"\u200c").replace("\u200d", r"\u200d")


def _encoded(weights: Weights) -> dict[str, Any]:
    return {"shape": weights.shape, "data": base64.b64encode(weights.astype("<f4").tobytes()).decode()}
