"""Draws a table of text cells for a terminal, in Markdown, or as a LaTeX tabular."""

from collections.abc import Callable, Sequence
from typing import Literal

Style = Literal["text", "markdown", "latex"]
_IN_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "±": r"$\pm$",
}


def draw(head: Sequence[str], rows: Sequence[Sequence[str]], style: Style) -> list[str]:
    """The lines of a table whose first column holds names and is aligned left, all others right.

    Each of `rows` has as many cells as `head`. LaTeX needs no package; its special characters are escaped.
    """
    draw_as: dict[Style, Callable[[Sequence[str], Sequence[Sequence[str]]], list[str]]]
    draw_as = {"text": _text, "markdown": _markdown, "latex": _latex}
    return draw_as[style](head, rows)


def _padded(rows: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    first, *others = zip(*rows, strict=True)
    columns = [_aligned(first, str.ljust), *(_aligned(column, str.rjust) for column in others)]
    return list(zip(*columns, strict=True))


def _aligned(column: Sequence[str], align: Callable[[str, int], str]) -> list[str]:
    width = max(map(len, column))
    return [align(cell, width) for cell in column]


def _text(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return ["  ".join(row).rstrip() for row in _padded([head, *rows])]


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    escaped = [[cell.replace("\\", "\\\\").replace("|", "\\|") for cell in row] for row in (head, *rows)]
    rule = [":--", *["--:"] * (len(head) - 1)]
    return ["| " + " | ".join(row) + " |" for row in _padded([escaped[0], rule, *escaped[1:]])]


def _latex(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    first, *others = [
        " & ".join(row) + r" \\" for row in _padded([[latex(cell) for cell in row] for row in (head, *rows)])
    ]
    columns = "l" + "r" * (len(head) - 1)
    return [rf"\begin{{tabular}}{{{columns}}}", r"\hline", first, r"\hline", *others, r"\hline", r"\end{tabular}"]


def latex(text: str) -> str:
    """Text with LaTeX's special characters escaped."""
    return "".join(_IN_LATEX.get(character, character) for character in text)
