"""Reads pairs from text and tables: two parallel files, TSV, CSV, JSON lines, Parquet and other Arrow tables.

Which columns hold the two sides follows from data.columns, or from a header: it names them by a language (its code, its
name in English, or its own name) or by a word for source and target. A table of two columns may do without.

A spreadsheet writes the cell `He said "no" twice` as `"He said ""no"" twice"`. In other TSV files a quote is a
character like any other: `"Hello," he said.` stays, and so does a sentence that is wholly in quotes. So a TSV file is
decided as a whole, from the first lines with quotes: it was written by a spreadsheet if every quote there follows the
spreadsheet's rules, and if some cell has a doubled quote, a TAB or a CR in its quotes, as only a spreadsheet writes it.
In a CSV file quotes always follow these rules (RFC 4180), so a cell may have a line break in it.

Errors name path:line. Flow: file -> rows -> `PairBlock`; `readers` says which function reads a file.
"""

import contextlib
import csv
import functools
import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from mtx.data.corpora import PairBlock
from mtx.data.languages import KNOWN, code_of, key_of
from mtx.errors import DataError
from mtx.formatting import counted
from mtx.storage.text_files import escaped, is_utf8, read_lines, replace_surrogates

log = logging.getLogger(__name__)

BLOCK_PAIRS = 16_384
ESCAPE: Literal["surrogateescape"] = "surrogateescape"  # keeps bytes that are not UTF-8, for cleaning to find
PLAIN_NAMES = ("src", "tgt")  # of columns, and of languages that are not named
Keys = tuple[tuple[str, str], ...]
_KEYS_HELP = "data.columns=SRC,TGT gives the names of the two"
_LINE_BREAK = re.compile("\r?\n")
_DECIDING_LINES = 16_384  # from which a file is decided, the first of them the first with a quote
_SEPARATORS = "\t;,"  # of CSV; where several fit equally well, the first counts: texts have commas more often
_SEPARATING_LINES = 1000  # from which the separator is decided
_CELL = r'(?:"[^"]*+(?:""[^"]*+)*+"|[^"\t\n]*+)'
_BY_RULES = re.compile(rf"{_CELL}(?:[\t\n]{_CELL})*+")  # lines, in which a quoted cell may have a line break in it
_QUOTED_CELL = re.compile(r'(?:^|\t)"([^"\n]*+(?:""[^"\n]*+)*+)"(?=\t|$)', re.MULTILINE)
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
_NUMBER = re.compile("[1-9][0-9]{0,3}")
_MOST_SHOWN, _SHOWN_CHARS = 8, 40
_HELP = "data.columns=SRC,TGT names the two, each by its number from 1 or by its name in the first line"


class Layout(NamedTuple):
    """The columns of the two sides, from 0, the number of columns, and whether the first row names them."""

    src: int
    tgt: int
    width: int
    has_header: bool


def read_text(src_path: Path, tgt_path: Path) -> Iterator[PairBlock]:
    """The pairs of two files whose lines n are translations of each other.

    Raises:
        DataError: if the files have different numbers of lines; the message has both.
    """
    # Without `zip`, because that drops the extra lines of either side, and with `strict` it does not count the lines.
    sides = read_lines(src_path, ESCAPE), read_lines(tgt_path, ESCAPE)
    first_line = 1
    while True:
        src, tgt = (list(islice(side, BLOCK_PAIRS)) for side in sides)
        if len(src) != len(tgt):
            rest = (sum(1 for _ in side) for side in sides)
            num_src, num_tgt = (first_line - 1 + len(block) + next(rest) for block in (src, tgt))
            raise DataError(
                f"{src_path} has {num_src} lines, {tgt_path} has {num_tgt}",
                "line n of one file must be the translation of line n of the other",
            )
        if not src:
            return
        yield PairBlock(range(first_line, first_line + len(src)), src, tgt)
        first_line += len(src)


@dataclass(frozen=True)
class TableReader:
    """A `Reader` of rows of cells; `find_layout` says which columns count, and skips a header.

    Attributes:
        rows: gives the cells of each row, from the lines of a file; a line break in a cell becomes a space.
    """

    rows: Callable[[Path, Iterator[str]], Iterator[list[str]]]

    def __call__(self, path: Path, languages: tuple[str, str], columns: tuple[str, ...] = ()) -> Iterator[PairBlock]:
        """See `Reader`."""
        rows = self.rows(path, read_lines(path, ESCAPE))
        if first_rows := list(islice(rows, 2)):
            layout = find_layout(path, first_rows, languages, columns)
            start = 2 if layout.has_header else 1
            numbered = enumerate(chain(first_rows[start - 1 :], rows), start)
            yield from in_blocks((_row_pair(path, number, row, layout) for number, row in numbered), start)


def _row_pair(path: Path, number: int, row: list[str], layout: Layout) -> tuple[str, str]:
    if max(layout.src, layout.tgt) < len(row) <= layout.width:
        return _join_lines(row[layout.src]), _join_lines(row[layout.tgt])
    if not row:
        return "", ""
    help = (
        "in .tsv, cells are separated by one TAB, and none has a line break in it; in .csv they are separated by a "
        "comma, a semicolon or a TAB, and a cell that has one in it is quoted"
    )
    raise DataError(f"{path}:{number}: {counted(len(row), 'column')}, expected {layout.width}", help)


def read_jsonl(path: Path, languages: tuple[str, str], columns: tuple[str, ...] = ()) -> Iterator[PairBlock]:
    """The pairs of a file with a JSON object on each line; `_keys` says which keys count."""
    lines, keys = enumerate(read_lines(path, ESCAPE), 1), _keys(languages, columns)
    return in_blocks(_json_pair(f"{path}:{number}", line, keys) for number, line in lines)


def _json_pair(where: str, line: str, keys: Keys) -> tuple[str, str]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not a JSON object ({error})") from None
    for fields in (row, row.get("translation")) if isinstance(row, dict) else ():
        for src, tgt in keys:
            if isinstance(fields, dict) and src in fields and tgt in fields:
                texts = _json_text(where, src, fields[src]), _json_text(where, tgt, fields[tgt])
                if not is_utf8(line):
                    return texts
                return replace_surrogates(texts[0]), replace_surrogates(texts[1])  # JSON can spell lone surrogates
    got = f"an object with {_list_names(row)}" if isinstance(row, dict) else type(row).__name__
    raise DataError(f"{where}: {got}, {_expected(keys)}", _KEYS_HELP)


def _json_text(where: str, key: str, value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{where}: {key} is {type(value).__name__}, expected text")
    return _join_lines(value)


def in_blocks(pairs: Iterator[tuple[str, str]], first_line: int = 1) -> Iterator[PairBlock]:
    """Group pairs into blocks of BLOCK_PAIRS; the last may be smaller."""
    while block := list(islice(pairs, BLOCK_PAIRS)):
        lines = range(first_line, first_line + len(block))
        yield PairBlock(lines, [src for src, _ in block], [tgt for _, tgt in block])
        first_line = lines.stop


def _join_lines(text: str) -> str:
    return _LINE_BREAK.sub(" ", text) if "\n" in text else text


def _keys(languages: tuple[str, str], columns: tuple[str, ...]) -> Keys:
    """The possible names of the two sides: data.columns alone, or the languages (if they differ) and src and tgt."""
    if columns:
        return ((columns[0], columns[1]),)
    return (languages, PLAIN_NAMES) if languages[0] != languages[1] else (PLAIN_NAMES,)


def _expected(keys: Keys) -> str:
    names = ", or ".join(" and ".join(pair) for pair in keys)
    return f"expected {names}, or translation: {{...}} with {'either' if len(keys) > 1 else 'them'}"


def read_parquet(path: Path, languages: tuple[str, str], columns: tuple[str, ...] = ()) -> Iterator[PairBlock]:
    """The pairs of a Parquet file, by the columns of `find_columns`."""
    with open_parquet(path) as file:
        found = find_columns(str(path), file.schema_arrow, languages, columns)
        batches = file.iter_batches(BLOCK_PAIRS, columns=sorted({column[0] for column in found}))
        yield from column_blocks(str(path), batches, found)


@contextlib.contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    """A Parquet file in the block; raises DataError if it cannot be read."""
    import pyarrow.parquet  # takes a quarter of a second, for which lines of text need not wait

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: cannot be read as Parquet: {short(error)}") from None


def find_columns(where: str, schema: Any, languages: tuple[str, str], names: tuple[str, ...] = ()) -> list[list[str]]:
    """The column of each side, as a path of names from the outermost field inwards.

    Args:
        names: data.columns; if there are none, the languages or src and tgt.

    Raises:
        DataError: if there are no such columns; the message lists the columns.
    """
    # get_field_index gives -1 if there is no such name, or more than one
    fields, prefix = schema, list[str]()
    while hasattr(fields, "get_field_index"):
        for keys in _keys(languages, names):
            if all(fields.get_field_index(key) >= 0 for key in keys):
                return [[*prefix, key] for key in keys]
        has_inner = not prefix and fields.get_field_index("translation") >= 0
        fields, prefix = fields.field("translation").type if has_inner else None, ["translation"]
    raise DataError(
        f"{where}: has the columns {_list_names(schema.names)}, {_expected(_keys(languages, names))}", _KEYS_HELP
    )


def column_blocks(where: str, tables: Iterable[Any], columns: list[list[str]]) -> Iterator[PairBlock]:
    """The pairs of Arrow tables, or of record batches, by the columns of `find_columns`; null is an empty sentence."""
    first_line = 1
    for table in tables:
        src, tgt = (_column_texts(where, table, column) for column in columns)
        if src:
            yield PairBlock(range(first_line, first_line + len(src)), src, tgt)
        first_line += len(src)


def _column_texts(where: str, table: Any, column: list[str]) -> list[str]:
    import pyarrow as pa
    import pyarrow.compute as pc

    values = table.column(column[0])
    for name in column[1:]:
        values = pc.struct_field(values, name)
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type) or pa.types.is_null(values.type)):
        raise DataError(f"{where}: column {'.'.join(column)} holds {values.type}, expected text")
    return [_join_lines(escaped(text or b"")) for text in values.cast(pa.large_binary()).to_pylist()]


def short(error: BaseException) -> str:
    """The message of a library's error, on one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__


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
        raise DataError(f"{path}: which are {' and '.join(languages)}? It has {_list_columns(first_row)}", _HELP)
    if has_header:
        sides = zip(("source", "target"), (src, tgt), strict=True)
        columns_found = ", ".join(f"the {side} is column {at + 1}, {_show(first_row[at])}" for side, at in sides)
        log_once(logging.INFO, f"{path}: its first line is a header and is left out; {columns_found}")
    return Layout(src, tgt, max(len(first_row), 2), has_header)


def _header_sides(row: list[str], languages: tuple[str, str]) -> tuple[int, int] | None:
    """The columns that a row names as source and target; None if it does not, and so is no header."""
    if tuple(row) == languages:
        return 0, 1
    named = [
        [at for at, cell in enumerate(map(_strip_brackets, row)) if cell in words or _is_name(cell, language)]
        for language, words in zip(languages, (_SOURCE, _TARGET), strict=True)
    ]
    (src, *other_src), (tgt, *other_tgt) = (columns or [-1] for columns in named)
    is_clear = not other_src and not other_tgt and -1 < src != tgt > -1
    return (src, tgt) if is_clear else None


def language_of_column(name: str) -> str | None:
    """The code of the language that a column is named by, as its code or its name; None for other words."""
    code = code_of(_strip_brackets(name))
    return code if key_of(code) in KNOWN else None


def _strip_brackets(cell: str) -> str:
    """A cell without what stands in brackets: english for `English (US)`."""
    return cell.partition("(")[0].strip().casefold().replace("_", "-")


def _is_name(text: str, language: str) -> bool:
    return text == language.casefold() or key_of(text) == key_of(language)


def _index(path: Path, row: list[str], column: str) -> int:
    """The column that an item of data.columns means: a number from 1, a name in the first row, or a language there."""
    if _NUMBER.fullmatch(column) and int(column) <= len(row):
        return int(column) - 1
    same = [at for at, cell in enumerate(row) if cell.strip().casefold() == column.casefold()]
    same = same or [at for at, cell in enumerate(row) if _is_name(_strip_brackets(cell), column)]
    if len(same) != 1:
        problem = "several columns are called" if same else "there is no column"
        raise DataError(f"{path}: {problem} {column!r}; it has {_list_columns(row)}", _HELP)
    return same[0]


def _list_columns(row: list[str]) -> str:
    return f"{counted(len(row), 'column')}: {_list_names(row, is_numbered=True)}"


def _list_names(names: Iterable[str], is_numbered: bool = False) -> str:
    shown = [f"{number} {_show(name)}" if is_numbered else _show(name) for number, name in enumerate(names, 1)]
    return ", ".join(shown[:_MOST_SHOWN]) + ", ..." * (len(shown) > _MOST_SHOWN) or "nothing in it"


def _show(cell: str) -> str:
    return repr(cell if len(cell) <= _SHOWN_CHARS else f"{cell[:_SHOWN_CHARS]}...")


def rows_of_csv(path: Path, lines: Iterator[str]) -> Iterator[list[str]]:
    """The rows of a CSV file, whose separator is a comma, a semicolon or a TAB; a blank line is a row without cells.

    Raises:
        DataError: at a row whose quotes are not those of CSV.
    """
    deciding = list(islice(lines, _SEPARATING_LINES))
    reader = csv.reader(
        (f"{line}\n" for line in chain(deciding, lines)), delimiter=csv_separator(deciding), strict=True
    )
    first_line = 1
    try:
        for row in reader:
            yield row
            first_line = reader.line_num + 1
    except csv.Error as error:
        help = 'in CSV, a cell with a quote, a separator or a line break in it is quoted: "He said ""no"", and left"'
        raise DataError(f"{path}:{first_line}: is no row of CSV: {error}", help) from None


def csv_separator(lines: list[str]) -> str:
    """The separator by which most of these rows have the same number of columns, and more than one.

    One by which all quotes are right goes first.
    """
    return max(_SEPARATORS, key=lambda separator: [_agreement(lines, separator, strict) for strict in (True, False)])


def _agreement(lines: list[str], separator: str, strict: bool) -> float:
    widths: Counter[int] = Counter()
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=separator, strict=strict)
    try:
        widths.update(len(row) for row in reader if row)
    except csv.Error:
        if reader.line_num < len(lines):  # else the last row is cut
            return 0.0
    return max((number for width, number in widths.items() if width > 1), default=0) / max(1, widths.total())


def rows_of_tsv(path: Path, lines: Iterator[str]) -> Iterator[list[str]]:
    """The columns of each line of a TSV file, without the quotes of a spreadsheet if one wrote the file.

    Raises:
        DataError: if a spreadsheet wrote a cell with a line break in it.
    """
    number = 1
    for line in lines:
        if '"' in line:
            break
        yield line.split("\t")
        number += 1
    else:
        return
    deciding = [line, *islice(lines, _DECIDING_LINES - 1)]
    if is_spreadsheet(deciding):
        log_once(logging.INFO, f"{path}: a spreadsheet wrote it; the quotes that it put around cells are taken off")
        yield from (_cells(path, at, line) for at, line in enumerate(chain(deciding, lines), number))
    else:
        yield from (line.split("\t") for line in chain(deciding, lines))


def is_spreadsheet(lines: list[str]) -> bool:
    """Whether a spreadsheet wrote these lines of a file; the last one may be cut inside of a cell."""
    text = "\n".join(lines)
    follows_rules = _BY_RULES.fullmatch(text + '"' * (text.count('"') % 2)) is not None
    return follows_rules and any(not {'"', "\t", "\r"}.isdisjoint(cell) for cell in _QUOTED_CELL.findall(text))


def _cells(path: Path, number: int, line: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter="\t", strict=True)) if '"' in line else line.split("\t")
    except csv.Error:
        if line.count('"') % 2 == 0:
            return line.split("\t")
        help = "a line is a pair: replace the line breaks inside the cells by spaces, and save the file again"
        raise DataError(f"{path}:{number}: a cell that a spreadsheet quoted continues on the next line", help) from None


@functools.cache
def log_once(level: int, text: str) -> None:
    """Log it once, although the file is read several times."""
    log.log(level, text)


read_tsv = TableReader(rows_of_tsv)
read_csv = TableReader(rows_of_csv)
