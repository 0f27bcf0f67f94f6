"""Updates the line ranges in the links of docs/paper.md when code has moved.

    python scripts/paper_links.py

A link such as [`Beams.advance`](../mtx/decoding/beam_search.py#L131-L156) leads to the lines that define the name.
"""

import ast
import re
from pathlib import Path

from mtx.files import durable

PAPER = Path(__file__).parents[1] / "docs" / "paper.md"
LINK = re.compile(r"\[`([\w.]+)`\]\(([\w./]+)#L\d+-L\d+\)")


def refreshed(link: re.Match[str]) -> str:
    """Returns the link with the lines that define its name; raises LookupError if the file does not define it."""
    name, path = link.groups()
    body: list[ast.stmt] = ast.parse((PAPER.parent / path).read_text(encoding="utf-8")).body
    for part in name.split("."):
        definitions = [node for node in body if part in _defined(node)]
        if not definitions:
            raise LookupError(f"{path} does not define {name}")
        body = getattr(definitions[0], "body", [])
    node = definitions[0]
    first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])
    return f"[`{name}`]({path}#L{first}-L{node.end_lineno})"


def _defined(node: ast.stmt) -> list[str]:
    """Returns the names that a statement defines: of a function, of a class, or of assigned variables."""
    targets = getattr(node, "targets", [getattr(node, "target", None)])
    return [getattr(node, "name", ""), *(target.id for target in targets if isinstance(target, ast.Name))]


if __name__ == "__main__":
    durable.write_text(PAPER, LINK.sub(refreshed, PAPER.read_text(encoding="utf-8")))
