"""HTML pages: single files with inline styles and scripts, which need no network and no server.

Flow: values -> a template of this package -> `render` -> HTML. The values come from untrusted models and corpora:
templates escape every value, data is embedded as JSON that cannot end its element, and the page's
Content-Security-Policy allows only the scripts of this package, by their hashes. `attention_page` shows the exact
attention weights of a model: they are stored as base64 of little-endian float32, and attention.js draws them.
"""

import base64
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from mtx.decoding.torch_engine import AttentionMaps
from mtx.storage.text_files import printable

_FOLDER = Path(__file__).parent


def render(template: str, **values: Any) -> str:
    """The HTML of a template of this package that extends page.html.

    Raises:
        UndefinedError: if a value that the template uses is missing.
    """
    return _ENVIRONMENT.get_template(template).render(**values)


def embedded(value: Any) -> Markup:
    """A `<script type="application/json">` element that holds a value; no text in the value can end the element."""
    return Markup('<script type="application/json">{}</script>').format(htmlsafe_json_dumps(value, allow_nan=False))


def _printable(value: object) -> str:
    """A value as text with escapes for invisible characters and for those that change the direction of text."""
    return "\n".join(map(printable, str(value).split("\n")))


def _inline(name: str) -> Markup:
    """A style sheet or script of this package, without escaping: the files of the package are trusted."""
    return Markup((_FOLDER / name).read_text(encoding="utf-8"))


def _policy(scripts: Sequence[str]) -> str:
    """The Content-Security-Policy of a page: it loads nothing, and only these scripts run."""
    hashes = [base64.b64encode(hashlib.sha256(_inline(name).encode()).digest()).decode() for name in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}; img-src data:"


_ENVIRONMENT = Environment(
    loader=FileSystemLoader(_FOLDER),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters |= {"embedded": embedded, "printable": _printable}
_ENVIRONMENT.globals |= {"inline": _inline, "policy": _policy}


_BYTES = re.compile("(?:<0x[0-9A-F]{2}>)+")  # byte-fallback pieces of SentencePiece


def attention_page(maps: Sequence[AttentionMaps], src: str, tgt: str) -> str:
    """The HTML of a page with one viewer for all sentence pairs, from the language `src` to `tgt`."""
    data = []
    for pair in maps:
        kinds = dict[str, dict[str, Any]]()
        for kind in pair.kinds:
            weights = getattr(pair, kind)
            encoded = base64.b64encode(weights.astype("<f4").tobytes()).decode()
            kinds[kind] = {"shape": weights.shape, "data": encoded}
        data.append(
            {
                "text": [text_of(pair.src_tokens), text_of(pair.tgt_tokens)],
                "src": list(map(printable_piece, pair.src_tokens)),
                "tgt": list(map(printable_piece, pair.tgt_tokens)),
                "inputs": list(map(printable_piece, pair.tgt_inputs)),
                "kinds": kinds,
            }
        )
    return render("attention_page.html", data=data, src=printable_piece(src), tgt=printable_piece(tgt))


def text_of(pieces: Sequence[str]) -> str:
    """The pieces of a sentence as a line of text, with byte pieces joined to characters."""
    text = "".join(piece for piece in pieces if piece != "</s>").replace("▁", " ").strip()
    return printable_piece(
        _BYTES.sub(lambda match: bytes.fromhex(match[0][3:-1].replace("><0x", "")).decode("utf-8", "replace"), text)
    )


def printable_piece(piece: str) -> str:
    """A piece with invisible characters written as escapes, including joiners, since a piece may be a single joiner."""
    return printable(piece).replace("\u200c", r"\u200c").replace("\u200d", r"\u200d")
