"""Brings the line ranges in the links of docs/paper.md up to date, where code has moved.

    python scripts/paper_links.py

A link such as [`Beams.advance`](../mtx/decoding/search.py#L131-L156) names what is defined in exactly these lines.
"""

import ast
import re
from pathlib import Path

from mtx import files

PAPER = Path(__file__).parents[1] / "docs" / "paper.md"
LINK = re.compile(r"\[`([\w.]+)`\]\(([\w./]+)#L\d+-L\d+\)")


def refreshed(link: re.Match[str]) -> str:
    """The link with the lines in which its name is defined; LookupError where it is not."""
    name, path = link.groups()
    body: list[ast.stmt] = ast.parse((PAPER.parent / path).read_text(encoding="utf-8")).body
    for part in name.split("."):
        found = [node for node in body if part in _defined(node)]
        if not found:
            raise LookupError(f"{path} does not define {name}")
        body = getattr(found[0], "body", [])
    first = min([found[0].lineno, *(d.lineno for d in getattr(found[0], "decorator_list", []))])
    return f"[`{name}`]({path}#L{first}-L{found[0].end_lineno})"


def _defined(node: ast.stmt) -> list[str]:
    """The names that a statement defines: a function, a class, or what is assigned to."""
    targets = getattr(node, "targets", [getattr(node, "target", None)])
    return [getattr(node, "name", ""), *(target.id for target in targets if isinstance(target, ast.Name))]


if __name__ == "__main__":
    files.write_text(PAPER, LINK.sub(refreshed, PAPER.read_text(encoding="utf-8")))
