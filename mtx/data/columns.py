"""Which columns of a table hold the two sides, and is its first row a header? Flow: first rows -> `Layout` -> pairs.

A header names the sides by a language (its code, its name in English, or its own name) or by a word for source and
target. A table of two columns may do without; one with more needs a header or data.columns.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mtx.data.languages import KNOWN, code_of, key_of, languages_named
from mtx.data.spreadsheet import log_once
from mtx.errors import DataError
from mtx.formatting import counted

# In English, and in the languages that translation tools are most often set to
_SOURCE = {
    "src", "source", "source text", "source segment", "source sentence", "source language", "original",
    "ausgangstext", "quelltext", "quelle", "ausgangssprache", "texte source", "langue source", "texto de origen",
    "texto original", "origen", "testo di partenza", "originale", "texto de partida", "origem",
}  # fmt: skip
_TARGET = {
    "tgt", "trg", "target", "target text", "target segment", "target sentence", "target language", "translation",
    "zieltext", "ziel", "zielsprache", "übersetzung", "texte cible", "cible", "langue cible", "traduction",
    "texto de destino", "destino", "traducción", "testo di arrivo", "traduzione", "texto de chegada", "tradução",
}  # fmt: skip
_CODE = re.compile("[a-z]{2,3}([-_][a-z0-9]{2,8})*")
_NUMBER = re.compile("[1-9][0-9]{0,3}")
_MOST_SHOWN, _SHOWN_CHARS = 8, 40
_HELP = "data.columns=SRC,TGT names the two, each by its number from 1 or by its name in the first line"


@dataclass(frozen=True)
class Layout:
    """The columns of the two sides, from 0, the number of columns, and whether the first row names them."""

    src: int
    tgt: int
    width: int
    has_header: bool

    def holds(self, row: Sequence[str]) -> bool:
        """Whether a row has both sides, and not more columns than the first row."""
        return max(self.src, self.tgt) < len(row) <= self.width


def find_layout(path: Path, rows: list[list[str]], languages: tuple[str, str], columns: tuple[str, ...]) -> Layout:
    """The layout of a table, by data.columns or else by a header; of two columns without one, the first is the source.

    Says once in the log which header is left out.

    Args:
        rows: the first two rows, or the only one. If both name the sides, these are columns of language codes.

    Raises:
        DataError: if there are more than two columns and nothing says which; the message lists them.
    """
    first_row, named = rows[0], _header_sides(rows[0], languages)
    if named is not None and named == _header_sides(rows[-1], languages) and len(rows) > 1:
        named = None
    if columns:
        src, tgt = (_index(path, first_row, column) for column in columns)
        has_header = named is not None or not all(map(_NUMBER.fullmatch, columns))
    elif named is not None:
        (src, tgt), has_header = named, True
    elif len(first_row) <= 2:
        return Layout(0, 1, 2, has_header=False)
    else:
        raise DataError(f"{path}: which are {' and '.join(languages)}? It has {_listed(first_row)}", _HELP)
    if has_header:
        sides = zip(("source", "target"), (src, tgt), strict=True)
        columns_found = ", ".join(f"the {side} is column {at + 1}, {_shown(first_row[at])}" for side, at in sides)
        log_once(logging.INFO, f"{path}: its first line is a header and is left out; {columns_found}")
    return Layout(src, tgt, max(len(first_row), 2), has_header)


def _header_sides(row: list[str], languages: tuple[str, str]) -> tuple[int, int] | None:
    """The columns that a row names as source and target; None if it does not, and so is no header."""
    if tuple(row) == languages:
        return 0, 1
    named = [
        [at for at, cell in enumerate(map(_bare, row)) if cell in words or _is_name(cell, language)]
        for language, words in zip(languages, (_SOURCE, _TARGET), strict=True)
    ]
    (src, *other_src), (tgt, *other_tgt) = (columns or [-1] for columns in named)
    is_clear = not other_src and not other_tgt and -1 < src != tgt > -1
    return (src, tgt) if is_clear else None


def language_of_column(name: str) -> str | None:
    """The code of the language that a column is named by, as its code or its name; None for other words."""
    bare = _bare(name)
    if len(named := languages_named(bare)) == 1:
        return next(iter(named))
    code = bare.replace("_", "-")
    return code_of(code) if _CODE.fullmatch(bare) and key_of(code) in KNOWN else None


def _bare(cell: str) -> str:
    """A cell without what stands in brackets: english for `English (US)`."""
    return cell.partition("(")[0].strip().casefold()


def _is_name(text: str, language: str) -> bool:
    key = key_of(language)
    is_code = _CODE.fullmatch(text) is not None and key_of(text.replace("_", "-")) == key
    named = languages_named(text)
    return is_code or text == language.casefold() or key in named or bool(named & languages_named(language))


def _index(path: Path, row: list[str], column: str) -> int:
    """The column that an item of data.columns means: a number from 1, a name in the first row, or a language there."""
    if _NUMBER.fullmatch(column) and int(column) <= len(row):
        return int(column) - 1
    same = [at for at, cell in enumerate(row) if cell.strip().casefold() == column.casefold()]
    same = same or [at for at, cell in enumerate(row) if _is_name(_bare(cell), column)]
    if len(same) != 1:
        problem = "several columns are called" if same else "there is no column"
        raise DataError(f"{path}: {problem} {column!r}; it has {_listed(row)}", _HELP)
    return same[0]


def _listed(row: list[str]) -> str:
    shown = [f"{number} {_shown(cell)}" for number, cell in enumerate(row[:_MOST_SHOWN], 1)]
    return f"{counted(len(row), 'column')}: {', '.join(shown)}{', ...' * (len(row) > _MOST_SHOWN)}"


def _shown(cell: str) -> str:
    return repr(cell if len(cell) <= _SHOWN_CHARS else f"{cell[:_SHOWN_CHARS]}...")
