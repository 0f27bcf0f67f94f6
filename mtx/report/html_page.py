"""HTML pages: one file with all its styles and scripts inside, which needs no network and no server.

Flow: values -> a template of this package -> `render` -> HTML. The values come from models and corpora, which are not
trusted: templates escape every value, data is embedded as JSON that cannot end its element, and the page's
Content-Security-Policy allows only the scripts of this package, by their hashes. `attention_page` shows the exact
attention weights of a model: they are stored as base64 of little-endian float32, and attention.js draws them.
"""

import base64
import functools
import hashlib
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from mtx.decoding.scoring import AttentionMaps
from mtx.model.translation_model import Weights
from mtx.storage.text_files import printable

_FOLDER = Path(__file__).parent


def render(template: str, **values: Any) -> str:
    """The HTML of a template of this package that extends page.html.

    Raises:
        UndefinedError: if a value that the template uses is missing.
    """
    return _environment().get_template(template).render(**values)


def embedded(value: Any) -> Markup:
    """A `<script type="application/json">` element that holds a value; no text in the value can end the element."""
    return Markup('<script type="application/json">{}</script>').format(htmlsafe_json_dumps(value, allow_nan=False))


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"embedded": embedded, "printable": _printable}
    environment.globals |= {"inline": _inline, "policy": _policy}
    return environment


def _printable(value: object) -> str:
    """A value as text with escapes for invisible characters and for those that change the direction of text."""
    return "\n".join(map(printable, str(value).split("\n")))


def _inline(name: str) -> Markup:
    """A style sheet or script of this package, without escaping: the files of the package are trusted."""
    return Markup((_FOLDER / name).read_text(encoding="utf-8"))


def _policy(scripts: Sequence[str]) -> str:
    """The Content-Security-Policy of a page: it loads nothing, and only these scripts run."""
    hashes = [base64.b64encode(hashlib.sha256(_inline(name).encode()).digest()).decode() for name in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes) or "'none'"
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}; img-src data:"


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
