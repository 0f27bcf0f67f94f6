"""HTML pages: one file with all its styles and scripts inside, which needs no network and no server.

Flow: values -> a template of this package -> `render` -> HTML. The values come from models and corpora, which are not
trusted: templates escape every value, data is embedded as JSON that cannot end its element, and the page's
Content-Security-Policy allows only the scripts of this package, by their hashes.
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
