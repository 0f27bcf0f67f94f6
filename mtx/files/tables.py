"""Draws a table of text cells for a terminal, in Markdown, or as a LaTeX tabular."""

from collections.abc import Sequence
from typing import Literal

Style = Literal["text", "markdown", "latex"]
_NAMES = "backslash asciitilde asciicircum less greater bar quotedbl"  # of LaTeX, after \text
_ESCAPES: dict[Style, dict[int, str]] = {
    "text": {},
    "markdown": str.maketrans({"\\": "\\\\", "|": "\\|"}),
    "latex": str.maketrans(
        {character: f"\\{character}" for character in "&%$#_{}"}
        | {character: rf"\text{name}{{}}" for character, name in zip('\\~^<>|"', _NAMES.split(), strict=True)}
        | {"±": r"$\pm$"}
    ),
}


def draw(head: Sequence[str], rows: Sequence[Sequence[str]], style: Style) -> list[str]:
    """The lines of a table whose first column holds names and is aligned left, all others right.

    Each of `rows` has as many cells as `head`. LaTeX needs no package; its special characters are escaped.
    """
    cells = [[cell.translate(_ESCAPES[style]) for cell in row] for row in (head, *rows)]
    if style == "markdown":
        cells.insert(1, [":--", *["--:"] * (len(head) - 1)])
    columns: list[list[str]] = []
    for column in zip(*cells, strict=True):
        width = max(map(len, column))
        columns.append([cell.rjust(width) if columns else cell.ljust(width) for cell in column])
    padded = zip(*columns, strict=True)
    match style:
        case "text":
            return ["  ".join(row).rstrip() for row in padded]
        case "markdown":
            return [f"| {' | '.join(row)} |" for row in padded]
    first, *others = [rf"{' & '.join(row)} \\" for row in padded]
    begin = rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}"
    return [begin, r"\hline", first, r"\hline", *others, r"\hline", r"\end{tabular}"]
