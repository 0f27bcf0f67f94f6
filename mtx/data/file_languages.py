"""Which two languages does a file of pairs have? Its header names them, or else its text shows them.

A header is the first line of a table, the keys of JSON, the columns of Parquet, the attributes of XML, or the header of
PO. Flow: path -> `FileLanguages`, from which `mtx train FILE` makes data.src and data.tgt.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from mtx.config.schema import DataConfig
from mtx.data.bilingual import PLAIN_NAMES, UNKNOWN, Reader, two_languages
from mtx.data.columns import language_of_column
from mtx.data.language_guess import language_of
from mtx.data.readers import short
from mtx.data.sources import BILINGUAL, find_corpora, form_of
from mtx.data.spreadsheet import columns_of_lines, rows_of_csv
from mtx.errors import DataError, UsageError
from mtx.formatting import mtx_command
from mtx.storage.text_files import read_lines

_SAMPLE = 4_000  # pairs that are looked at
_ALSO_OTHER_WORDS = ("id", "no")  # Indonesian and Norwegian; beside two other languages an identifier and a number


@dataclass(frozen=True)
class FileLanguages:
    """The languages of a file of pairs, and what they were told by: its header or its text."""

    src: str
    tgt: str
    told_by: str


def find_languages(path: Path, columns: tuple[str, ...] = ()) -> FileLanguages:
    """The languages of a file of pairs, the first one the source.

    Args:
        columns: data.columns.

    Raises:
        UsageError: if they cannot be told; the help has the command that names them.
        DataError: if the file cannot be read.
    """
    form = form_of(path)
    names, texts = ["", ""], list[list[str]]()
    if form in BILINGUAL:
        names, texts = _unnamed_sides(path, BILINGUAL[form])
        if not texts:
            return FileLanguages(*two_languages(path, BILINGUAL[form]), "its header")
    else:
        named = _languages_of_columns(_column_names(path, form), columns)
        if len(named) > 2:
            raise _unknown(path, f"It has {', '.join(named)}")
        if len(named) == 2:
            is_by_key = form in ("jsonl", "parquet") and not columns  # there the names of the languages are the keys
            src, tgt = named.values() if is_by_key else named
            return FileLanguages(src, tgt, "its header")
        src, tgt = PLAIN_NAMES
        sample = DataConfig.model_validate({"train": [str(path)], "src": src, "tgt": tgt, "columns": columns})
        block = next(find_corpora(sample).train[0].blocks(), None)
        texts = [block.src[:_SAMPLE], block.tgt[:_SAMPLE]] if block else [[], []]
    found = [name or language_of(some) for name, some in zip(names, texts, strict=True)]
    if found[0] is None or found[1] is None or found[0] == found[1]:
        raise _unknown(path, "No header names them, and its text does not tell")
    return FileLanguages(found[0], found[1], "its text")


def _unknown(path: Path, why: str) -> UsageError:
    command = mtx_command("train", path, "data.src=en", "data.tgt=de")
    return UsageError(f"{path}: which languages are in it? {why}", command)


def _unnamed_sides(path: Path, reader: Reader) -> tuple[list[str], list[list[str]]]:
    """The names and texts of both sides of a file that does not name both; no texts if it does."""
    units = [unit.variants for unit in islice(reader(path), _SAMPLE) if len(unit.variants) == 2]
    sides = [[unit[side] for unit in units] for side in (0, 1)]
    names = [{variant.language for variant in side} for side in sides]
    if not any(UNKNOWN in some for some in names) or any(len(some) > 1 for some in names):
        return [], []
    return [some.pop() for some in names], [[variant.text for variant in side] for side in sides]


def _languages_of_columns(names: Sequence[str], columns: tuple[str, ...]) -> dict[str, str]:
    """The languages that the columns of both sides are named by, with these names; of data.columns, or of all."""
    if columns:
        chosen = [int(column) - 1 if column.isdecimal() else -1 for column in columns]
        names = [names[at] if 0 <= at < len(names) else name for at, name in zip(chosen, columns, strict=True)]
    named = {language: name for name in names if (language := language_of_column(name))}
    if len(named) > 2:
        named = {language: name for language, name in named.items() if name.casefold() not in _ALSO_OTHER_WORDS}
    return named


def _column_names(path: Path, form: str) -> list[str]:
    """What may name the columns of a table: its first row, the keys of its first object, or its columns."""
    if form == "parquet":
        try:
            schema = pq.read_schema(path)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{path}: cannot be read as Parquet: {short(error)}") from None
        inner = [field.type for field in schema if field.name == "translation" and pa.types.is_struct(field.type)]
        return [*schema.names, *(inside.name for struct in inner for inside in struct)]
    lines = read_lines(path)
    if form == "jsonl":
        try:
            row = json.loads(next(lines, "{}"))
        except (ValueError, RecursionError):
            return []  # the reader says what is wrong
        nested = row.get("translation") if isinstance(row, dict) else None
        return [*(row if isinstance(row, dict) else ()), *(nested if isinstance(nested, dict) else ())]
    rows = columns_of_lines(path, lines) if form == "tsv" else rows_of_csv(path, lines)
    return next(rows, [])
