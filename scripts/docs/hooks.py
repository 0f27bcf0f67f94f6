"""What mkdocs does with the links of a page that leave docs/, or lead to docs/archive.

They are relative, so that they work on GitHub and in a checkout. On the site they lead to the repository, whose address
is `Repository` in [project.urls] of pyproject.toml. As long as there is none, the name of the file appears on hovering.
mkdocs calls the functions that begin with `on_` (mkdocs.yml); the others need no mkdocs, and tests call them.
"""

import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ARCHIVE = DOCS / "archive"  # not on the site (`exclude_docs` in mkdocs.yml)
_FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2[ \t]*$\n?", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[([^\]\[]+)\]\(([^()\s#]+)(#[^()\s]*)?\)")


def on_config(config: Any) -> Any:
    """Take the addresses of the site and of the repository from pyproject.toml, where alone they are."""
    urls = project_urls()
    config.site_url = urls.get("Documentation")
    config.repo_url = urls.get("Repository")
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Change the links that lead away from the site."""
    return relinked(markdown, DOCS / page.file.src_uri, project_urls().get("Repository"))


def project_urls() -> dict[str, str]:
    """[project.urls] of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    urls: dict[str, str] = project.get("urls", {})
    return urls


def relinked(markdown: str, page: Path, repository: str | None) -> str:
    """The text of `page` with links that work outside of the repository."""

    def change(match: re.Match[str]) -> str:
        text = match[1]
        name = match[2]
        anchor = match[3] or ""
        path = Path(os.path.normpath(page.parent / name))
        is_page = path.is_relative_to(DOCS) and not path.is_relative_to(ARCHIVE)
        if re.match(r"[a-z]+:", name) or is_page or not path.exists():
            return match[0]  # an address, a page, or a mistake that mkdocs finds
        place = path.relative_to(ROOT).as_posix()
        if not repository:
            return f'<abbr title="{place}">{text}</abbr>'
        return f"[{text}]({repository}/{'tree' if path.is_dir() else 'blob'}/main/{place}{anchor})"

    return outside_code(markdown, lambda part: _LINK.sub(change, part))


def outside_code(markdown: str, change: Callable[[str], str]) -> str:
    """`markdown` with `change` applied to what is not a fenced block of code."""
    parts = []
    position = 0
    for match in _FENCE.finditer(markdown):
        parts += [change(markdown[position : match.start()]), match[0]]
        position = match.end()
    return "".join([*parts, change(markdown[position:])])
