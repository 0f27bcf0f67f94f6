"""Pages for a browser: one HTML file with all its styles and scripts inside, which needs no network and no server.

What stands in a page comes from models and corpora, which are not trusted: templates escape every value, data goes
into JSON that cannot end its element, and the page's policy lets no script run but those of this package, by their
hashes. Flow: values -> template of this package -> text of a page.
"""

import base64
import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from mtx.files.text_files import printable

_FOLDER = Path(__file__).parent


def render(template: str, **values: Any) -> str:
    """The text of a template of this package; it extends `page.html`, which says what a page consists of.

    Raises:
        UndefinedError: where the template needs a value that is not given.
    """
    return _environment().get_template(template).render(**values)


def embedded(value: Any) -> Markup:
    """A `<script type="application/json">` that holds a value; no text in it can end it."""
    return Markup('<script type="application/json">{}</script>').format(htmlsafe_json_dumps(value, allow_nan=False))


def shown(value: object) -> str:
    """A value as text with everything written out that has no shape of its own or would change the order of others."""
    return printable(str(value))


def shown_lines(text: str) -> str:
    """The same for a text of several lines."""
    return "\n".join(map(printable, text.split("\n")))


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"embedded": embedded, "shown": shown, "shown_lines": shown_lines}
    environment.globals |= {"inline": _inline, "policy": _policy}
    return environment


def _inline(name: str) -> Markup:
    """A style or script of this package as it is."""
    return Markup((_FOLDER / name).read_text(encoding="utf-8"))  # our own file, never what a stranger wrote


def _policy(scripts: Sequence[str]) -> str:
    """The Content-Security-Policy of a page with these scripts: nothing is loaded, and nothing else runs."""
    hashes = [base64.b64encode(hashlib.sha256(_inline(name).encode()).digest()).decode() for name in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes) or "'none'"
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}; img-src data:"
