"""Attention maps as a page that shows them, or as data of a viewer in another page.

Weights stand there as base64 of little-endian float32: what is shown is the model's weight and no rounding of it.
Flow: `AttentionMaps` -> `viewer_data` -> the macro of `attention.html`.
"""

import base64
from collections.abc import Sequence
from typing import Any

from mtx.decoding.attention_maps import AttentionMaps, Weights
from mtx.files.text_files import printable
from mtx.report.page import render


def attention_page(maps: Sequence[AttentionMaps], src: str, tgt: str) -> str:
    """The text of a page with one viewer of all these pairs, from the language `src` to `tgt`."""
    return render("attention_page.html", data=viewer_data(maps), src=shown(src), tgt=shown(tgt))


def viewer_data(maps: Sequence[AttentionMaps]) -> list[dict[str, Any]]:
    """What the macro of `attention.html` takes: for each pair its pieces, and of each kind shape and data."""
    return [
        {
            "src": list(map(shown, each.src_tokens)),
            "tgt": list(map(shown, each.tgt_tokens)),
            "inputs": list(map(shown, each.tgt_inputs)),
            "kinds": {"cross": _kind(each.cross), "encoder": _kind(each.encoder), "decoder": _kind(each.decoder)},
        }
        for each in maps
    ]


def shown(piece: str) -> str:
    """A piece with everything written out that has no shape of its own, joiners too: a piece may be nothing else."""
    return printable(piece).replace("\u200c", r"\u200c").replace("\u200d", r"\u200d")


def _kind(weights: Weights) -> dict[str, Any]:
    return {"shape": weights.shape, "data": base64.b64encode(weights.astype("<f4").tobytes()).decode()}
