"""The page of the server: one file with its styles, its script, the languages and the settings, made once at the start.

Its Content-Security-Policy allows this script and these styles, by their hashes, and requests to the server alone.
"""

import base64
import hashlib
from pathlib import Path

from jinja2 import Template


def render(languages: list[dict[str, object]], settings: dict[str, object]) -> tuple[str, str]:
    """The HTML of the page and its policy. Names of languages come from models, and are not trusted."""
    template, style, script = (
        Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("page.html", "page.css", "page.js")
    )
    text = Template(template).render(style=style, script=script, data={"languages": languages, "settings": settings})
    policy = (
        f"default-src 'none'; connect-src 'self'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text, policy


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
