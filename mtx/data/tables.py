"""Pairs in blocks, and their readers for text and tables: two parallel files, TSV, CSV, JSON lines, Parquet.

The columns of source and target come from data.columns, or from a header that names them by language (its code, its
name in English, or its own name) or by a word for source and target. A table of two columns needs no header.

A spreadsheet writes the cell `He said "no" twice` as `"He said ""no"" twice"`. In other TSV files a quote is an
ordinary character: `"Hello," he said.` is kept, and so is a sentence that is entirely in quotes. So mtx decides for
each TSV file, from its first lines with quotes, whether a spreadsheet wrote it: every quote there must follow the
spreadsheet's rules, and some cell must have a doubled quote, a TAB or a CR in its quotes, which only spreadsheets
write. In a CSV file quotes always follow these rules (RFC 4180), so a cell may contain a line break.

Every sentence is one line: no reader yields a line feed. A byte that is not UTF-8 becomes a lone surrogate (Python's
surrogateescape). Training drops such pairs; validation and test sets with such pairs are refused.
Errors name path:line. Flow: file -> rows -> `PairBlock`; `readers` chooses the function that reads a file.
"""

import contextlib
import csv
import functools
import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, starmap
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mtx.data.languages import KNOWN, Languages, code_of, key_of
from mtx.errors import DataError, first_line
from mtx.formatting import counted, shell_command
from mtx.storage.text_files import escaped, is_utf8, read_lines, replace_surrogates

log = logging.getLogger(__name__)

BLOCK_PAIRS = 16_384
ESCAPE: Literal["surrogateescape"] = "surrogateescape"  # keeps bytes that are not UTF-8, for cleaning to find
Columns = tuple[str, ...]  # data.columns: none, or those of source and target
Pair = tuple[str, str]
PLAIN_NAMES = ("src", "tgt")  # of columns, and of unnamed languages
_DECIDING_LINES = 16_384  # that decide whether a spreadsheet wrote a file, from the first line with a quote
_SEPARATORS = "\t;,"  # of CSV; if several fit equally well, the first one wins: commas are the most common in text
_SEPARATING_LINES = 1000  # that decide the separator
_CELL = r'(?:"[^"]*+(?:""[^"]*+)*+"|[^"\t\n]*+)'
_BY_RULES = re.compile(rf"{_CELL}(?:[\t\n]{_CELL})*+")  # lines, whose quoted cells may contain line breaks
_QUOTED_CELL = re.compile(r'(?:^|\t)"[^"\t\r\n]*+(?:""|[\t\r])', re.MULTILINE)  # up to what needed the quotes
# What a header says in addition to the language or the side, and its words for the sides: in English and in the most
# common interface languages of translation tools
_EXTRA = re.compile(r"[ /-]*\b(?:words?|sentences?|texts?|phrases?|segments?|strings?|terms?|language)\b[ /-]*")
_SOURCE = re.compile(
    r"src|source|ausgangs(?:text|sprache)|quelle|quelltext"
    r"|(?:texte|langue) source|originale?|texto (?:original|de origen|de partida)|origen|testo di partenza|origem"
)
_TARGET = re.compile(
    r"tgt|trg|target|translation|ziel(?:text|sprache)?|übersetzung"
    r"|(?:(?:texte|langue) )?cible|traduction|(?:texto de )?destino|traducción|testo di arrivo|traduzione"
    r"|texto de chegada|tradução"
)
_SHOWN_CHARS = 300  # of a list of columns
_SHOWN_CELL = 40  # of a cell in it
_COLUMNS_HINT = "set data.columns=SRC,TGT, each a number (from 1) or a name in the first line"


@dataclass
class PairGroup:
    """The number of pairs with something in common, such as a reason to drop them, and the first as an example."""

    count: int
    line: int
    src: str
    tgt: str
    file: int = 0  # see PairBlock

    @classmethod
    def of(cls, batch: Any, is_in: NDArray[np.bool_]) -> "PairGroup":
        """The pairs of a record batch that is not empty for which `is_in` is true."""
        first = int(is_in.argmax())
        return cls(int(is_in.sum()), *(batch[name][first].as_py() for name in ("line", "src", "tgt", "file")))


@dataclass(frozen=True)
class PairBlock:
    """Some pairs of one corpus, in its order.

    Attributes:
        lines: the 1-based line or record of each pair.
        dates: the last change of each pair, as a number that grows with time; 1 if unknown, UNREAD_DATE of `bilingual`
            if it cannot be read; empty for text that is not in units.
        skipped: what the reader skipped in addition to these pairs, by reason.
        file: the number of their file, in a corpus of a folder.
    """

    lines: Sequence[int]
    src: list[str]
    tgt: list[str]
    dates: Sequence[int] = ()
    skipped: Mapping[str, PairGroup] = field(default_factory=dict)
    file: int = 0


def in_blocks(pairs: Iterator[Pair], line: int = 1) -> Iterator[PairBlock]:
    """Group pairs into blocks of BLOCK_PAIRS; the last may be smaller."""
    while block := list(islice(pairs, BLOCK_PAIRS)):
        lines = range(line, line + len(block))
        yield PairBlock(lines, [src for src, _ in block], [tgt for _, tgt in block])
        line = lines.stop


def read_text(src_path: Path, tgt_path: Path) -> Iterator[PairBlock]:
    """The pairs of two parallel files: line n of one is the translation of line n of the other.

    Raises:
        DataError: with both line counts, if they differ.
    """
    try:
        yield from in_blocks(zip(read_lines(src_path, ESCAPE), read_lines(tgt_path, ESCAPE), strict=True))
    except ValueError:  # the strict `zip`
        src, tgt = (sum(1 for _ in read_lines(path)) for path in (src_path, tgt_path))
        hint = "line n of one file must be the translation of line n of the other"
        raise DataError(f"{src_path} has {src} lines, {tgt_path} has {tgt}", hint) from None


class ItemReader:
    """A `Reader` that opens a file as items, such as rows, and reads them on as pairs."""

    items: Any
    pairs: Any

    def __call__(self, path: Path, languages: Languages, columns: Columns = ()) -> Iterator[PairBlock]:
        """See `Reader`."""
        return self.pairs(path, self.items(path), languages, columns)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class TableReader(ItemReader):
    """A `Reader` of rows of cells; `find_text_columns` finds the columns, and whether there is a header to skip.

    Attributes:
        rows: returns the cells of each row, from the lines of a file; a line break in a cell becomes a space.
    """

    rows: Callable[[Path, Iterator[str]], Iterator[list[str]]]

    def items(self, path: Path) -> Iterator[list[str]]:
        """The rows of a file, with its header."""
        return self.rows(path, read_lines(path, ESCAPE))

    def pairs(
        self, path: Path, rows: Iterator[list[str]], languages: Languages, columns: Columns
    ) -> Iterator[PairBlock]:
        """The pairs of the rows of a file."""
        first_rows = list(islice(rows, 2))
        if not first_rows:
            return
        src, tgt, has_header = find_text_columns(path, first_rows, languages, columns)
        width = max(len(first_rows[0]), 2)

        def pair(number: int, row: list[str]) -> Pair:
            if max(src, tgt) < len(row) <= width:
                return _join_lines(row[src]), _join_lines(row[tgt])
            if not any(row):
                return "", ""
            hint = (
                "in .tsv files, cells are separated by one TAB and have no line breaks; in .csv files, cells are "
                "separated by commas, semicolons or TABs, and a cell that contains one is quoted"
            )
            raise DataError(f"{path}:{number}: {counted(len(row), 'column')}, expected {width}", hint)

        numbered = enumerate(chain(first_rows, rows), 1)
        start_line = 1
        if has_header:
            next(numbered)
            start_line = 2
        yield from in_blocks(starmap(pair, numbered), start_line)


def find_text_columns(
    path: Path, rows: list[list[str]], languages: Languages, columns: Columns
) -> tuple[int, int, bool]:
    """The columns of source and target, from 0, and whether the first row is a header.

    They come from data.columns or from a header; in two columns without a header, the first is the source. Logs a
    skipped header once.

    Args:
        rows: the first two rows, or the only one. If both name the sides, they are columns of language codes.

    Raises:
        DataError: with a list of the columns, if there are more than two and nothing identifies the two.
    """
    first_row = rows[0]
    sides = _header_sides(first_row, languages)
    if rows[1:] and sides == _header_sides(rows[1], languages):
        sides = None
    has_header = sides is not None
    if columns:
        sides = _index(path, first_row, columns[0]), _index(path, first_row, columns[1])
        if not all(map(str.isdecimal, columns)):  # a name is one of the first row
            has_header = True
    if sides is None and len(first_row) > 2:
        raise DataError(
            f"{path}: cannot find the columns of {' and '.join(languages)}; {_list_columns(first_row)}",
            _COLUMNS_HINT,
        )
    src, tgt = sides or (0, 1)
    if has_header:
        log_once(
            f"{path}: skipping the header in the first line; the source is column {src + 1}, {first_row[src]!r}, "
            f"the target is column {tgt + 1}, {first_row[tgt]!r}"
        )
    return src, tgt, has_header


def _header_sides(row: list[str], languages: Languages) -> tuple[int, int] | None:
    """The columns that a row names as source and target; None if it is not a header."""
    if tuple(row) == languages:
        return 0, 1
    cells = list(map(_bare_name, row))
    sides = list[list[int]]()
    for language, words in zip(languages, (_SOURCE, _TARGET), strict=True):
        key = key_of(language.casefold())
        sides.append([at for at, cell in enumerate(cells) if words.fullmatch(cell) or key_of(cell) == key])
    src, tgt = sides
    return (src[0], tgt[0]) if len(src) == len(tgt) == 1 and src != tgt else None


def language_of_column(name: str) -> str | None:
    """The language code for a column name that is a code or the name of a language; None for other words."""
    code = code_of(_bare_name(name))
    return code if key_of(code) in KNOWN else None


def _bare_name(cell: str) -> str:
    """What a cell of a header names: english for `English (US)`, en for `text_en` and `Term (EN)`."""
    name, _, in_brackets = cell.casefold().replace("_", "-").partition("(")
    return _EXTRA.sub("", name).strip() or in_brackets.rstrip(") ")


def _index(path: Path, row: list[str], column: str) -> int:
    """The column for an item of data.columns: a number from 1, or a name in the first row."""
    if column.isdecimal() and 0 < int(column) <= len(row):
        return int(column) - 1
    matches = [at for at, cell in enumerate(row) if cell.strip().casefold() == column.casefold()]
    if len(matches) != 1:
        problem = "several columns are named" if matches else "no header names the column"
        raise DataError(f"{path}: {problem} {column!r}; {_list_columns(row)}", _COLUMNS_HINT)
    return matches[0]


def _list_columns(row: list[str]) -> str:
    """The first row in a message, which does not say whether its cells are names."""
    cells = (f"{number} {cell[:_SHOWN_CELL]!r}" for number, cell in enumerate(row, 1))
    return f"its first line has {counted(len(row), 'cell')}: {join_names(cells)}"


def join_names(names: Iterable[str]) -> str:
    """Some names as a list in a message, cut if it is long."""
    text = ", ".join(names)
    if len(text) > _SHOWN_CHARS:
        return f"{text[:_SHOWN_CHARS]}..."
    return text or "nothing"


def rows_of_csv(path: Path, lines: Iterator[str]) -> Iterator[list[str]]:
    """The rows of a CSV file, separated by commas, semicolons or TABs; a blank line is a row without cells.

    Raises:
        DataError: at a row with invalid quotes.
    """
    deciding_lines = list(islice(lines, _SEPARATING_LINES))
    declared = re.fullmatch(r'"?(?i:sep)=(.)"?', "".join(deciding_lines[:1]))  # for Excel
    if declared:
        separator = declared[1]
        deciding_lines = deciding_lines[1:]
    else:
        separator = csv_separator(deciding_lines)
    reader = _csv_reader(chain(deciding_lines, lines), separator)
    line = 1
    try:
        for row in reader:
            yield row
            line = reader.line_num + 1
    except csv.Error as error:
        hint = 'quote cells that contain a quote, a separator or a line break: "He said ""no"", and left"'
        raise DataError(f"{path}:{line}: invalid CSV row: {error}", hint) from None


def _csv_reader(lines: Iterable[str], separator: str) -> Any:
    return csv.reader((f"{line}\n" for line in lines), delimiter=separator, strict=True)


def csv_separator(lines: list[str]) -> str:
    """The separator with which most rows, up to the first wrong quote, have the same number of columns, two or more."""

    def agreement(separator: str) -> int:
        widths = Counter[int]()
        with contextlib.suppress(csv.Error):
            widths.update(map(len, _csv_reader(lines, separator)))
        return max((number for width, number in widths.items() if width > 1), default=0)

    return max(_SEPARATORS, key=agreement)


def rows_of_tsv(path: Path, lines: Iterator[str]) -> Iterator[list[str]]:
    """The columns of each line of a TSV file, without the quotes of a spreadsheet if one wrote the file.

    Raises:
        DataError: if a cell of a spreadsheet contains a line break.
    """
    for number, line in enumerate(lines, 1):
        if '"' not in line:
            yield line.split("\t")
            continue
        deciding_lines = [line, *islice(lines, _DECIDING_LINES - 1)]
        is_quoted = is_spreadsheet(deciding_lines)
        if is_quoted:
            log_once(f"{path}: written by a spreadsheet; removing the quotes around cells")
        for row_number, row in enumerate(chain(deciding_lines, lines), number):
            yield _cells(path, row_number, row) if is_quoted else row.split("\t")


def is_spreadsheet(lines: list[str]) -> bool:
    """Whether a spreadsheet wrote these lines of a file; the last one may be cut inside a cell."""
    text = "\n".join(lines)
    is_cut = text.count('"') % 2 == 1
    closed = f'{text}"' if is_cut else text
    return bool(_BY_RULES.fullmatch(closed) and _QUOTED_CELL.search(text))


def _cells(path: Path, number: int, line: str) -> list[str]:
    try:
        return next(_csv_reader([line], "\t"))
    except csv.Error:
        if line.count('"') % 2 == 0:
            return line.split("\t")
        hint = "each line is one pair: replace the line breaks inside cells by spaces, and save the file again"
        raise DataError(f"{path}:{number}: a quoted cell continues on the next line", hint) from None


@functools.cache
def log_once(text: str, level: int = logging.INFO) -> None:
    """Log a message once, although the file is read several times."""
    log.log(level, "%s", text)


read_tsv = TableReader(rows_of_tsv)
read_csv = TableReader(rows_of_csv)
read_bars = TableReader(lambda _, lines: (re.split(r" *\|\|\| *", line) for line in lines))  # for word aligners


def read_jsonl(path: Path, languages: Languages, columns: Columns = ()) -> Iterator[PairBlock]:
    """The pairs of a file with a JSON object on each line, by the keys of `_find_names`."""
    hint = f"write one object per line: jq -c 'arrays[] // .' {shell_command(path)} > NEW.jsonl"

    def pair(number: int, line: str) -> Pair:
        place = f"{path}:{number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{place}: not a JSON object ({error})", hint) from None
        if not isinstance(row, dict):
            raise DataError(f"{place}: {type(row).__name__}, expected an object", hint)
        if isinstance(row.get("translation"), dict):
            row |= {f"translation.{key}": value for key, value in row.pop("translation").items()}
        names = _find_names(f"{place}: an object with", list(row), languages, columns)
        for name in names:
            if not isinstance(row[name], str | None):
                raise DataError(f"{place}: {name} is {type(row[name]).__name__}, expected text")
        clean = replace_surrogates if is_utf8(line) else str  # JSON can spell lone surrogates
        src, tgt = (clean(_join_lines(row[name] or "")) for name in names)
        return src, tgt

    return in_blocks(starmap(pair, enumerate(read_lines(path, ESCAPE), 1)))


def _join_lines(text: str) -> str:
    return text.replace("\r\n", " ").replace("\n", " ")


def _find_names(problem: str, names: list[str], languages: Languages, columns: Columns) -> Pair:
    """The keys or columns of source and target: data.columns alone, or the languages (if they differ) or src and tgt.

    They may be inside `translation`; then the name is `translation.KEY`. If there are none, names of languages count.

    Raises:
        DataError: with this problem and a list of the names, if there are no such names.
    """
    pairs = (columns,) if columns else (languages, PLAIN_NAMES)
    keys = [name.removeprefix("translation.") for name in names]
    inner_keys = [key for key in keys if key not in names] or keys
    for forms in (names, keys):
        for src, tgt in pairs:
            if src != tgt and forms.count(src) == forms.count(tgt) == 1:
                return names[forms.index(src)], names[forms.index(tgt)]
    sides = _header_sides(keys, languages)
    if sides and not columns:
        return names[sides[0]], names[sides[1]]
    expected = ", or ".join(dict.fromkeys(map(" and ".join, pairs)))
    hint = "give both, with null for no text"
    if len(names) > 1:
        hint += "; or set data.columns=SRC,TGT to other names"
    if len(inner_keys) == 2 and languages == PLAIN_NAMES:
        hint += f"; or name the languages: data.src={inner_keys[0]} data.tgt={inner_keys[1]}"
    raise DataError(
        f"{problem} {join_names(map(repr, names))}, expected {expected}, or translation: {{...}} with them", hint
    )


def read_parquet(path: Path, languages: Languages, columns: Columns = ()) -> Iterator[PairBlock]:
    """The pairs of a Parquet file, by the columns of `find_columns`."""
    with open_parquet(path) as file:
        sides = find_columns(str(path), file.schema_arrow, languages, columns)
        yield from column_blocks(str(path), file.iter_batches(BLOCK_PAIRS, columns=sides), sides)


@contextlib.contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    """A Parquet file in the block; raises DataError if it cannot be read."""
    import pyarrow.parquet  # takes a quarter of a second, which other text does not need

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: invalid Parquet file: {first_line(error)}") from None


def find_columns(place: str, schema: Any, languages: Languages, names: Columns) -> Pair:
    """The columns of source and target, from data.columns (`names`) or by `_find_names`.

    Raises:
        DataError: with a list of the columns, if there are no such columns.
    """
    columns = schema.empty_table().flatten().column_names
    return _find_names(f"{place}: the columns are", columns, languages, names)


def column_blocks(place: str, tables: Iterable[Any], columns: Pair) -> Iterator[PairBlock]:
    """The pairs of Arrow tables, or of record batches, by the columns of `find_columns`; null is an empty sentence."""
    import pyarrow as pa

    line = 1
    for table in tables:
        flat = pa.table(table).flatten()
        sides = []
        for name in columns:
            values = flat.column(name)
            if pa.types.is_dictionary(values.type):
                values = values.cast(values.type.value_type)
            if str(values.type) not in ("string", "large_string", "null"):
                raise DataError(f"{place}: column {name} holds {values.type}, expected text")
            sides.append([_join_lines(escaped(text or b"")) for text in values.cast("large_binary").to_pylist()])
        src, tgt = sides
        if src:
            yield PairBlock(range(line, line + len(src)), src, tgt)
        line += len(src)
