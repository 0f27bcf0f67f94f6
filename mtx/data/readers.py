"""Reads one corpus as blocks of pairs: from two parallel text files, TSV, CSV, JSON lines, Parquet or Arrow tables.

Errors name path:line. Files are found by `sources`, not here. Arrow tables come from Parquet files and from `datasets`.
"""

import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mtx.data.columns import Layout, find_layout
from mtx.data.corpora import PairBlock
from mtx.data.spreadsheet import columns_of_lines, rows_of_csv
from mtx.errors import DataError
from mtx.formatting import counted
from mtx.storage.text_files import escaped, is_utf8, read_lines, replace_surrogates

BLOCK_PAIRS = 16_384
ESCAPE: Literal["surrogateescape"] = "surrogateescape"  # keeps bytes that are not UTF-8, for cleaning to find
PLAIN_KEYS = ("src", "tgt")  # column names for any two languages
Keys = tuple[tuple[str, str], ...]
_KEYS_HELP = "data.columns=SRC,TGT gives the names of the two"
_LINE_BREAK = re.compile("\r?\n")


def read_text(src_path: Path, tgt_path: Path) -> Iterator[PairBlock]:
    """The pairs of two files whose lines n are translations of each other.

    Raises:
        DataError: if the files have different numbers of lines; the message has both.
    """
    # Without `zip`, because that drops the extra lines of either side, and with `strict` it does not count the lines.
    src_lines, tgt_lines = read_lines(src_path, ESCAPE), read_lines(tgt_path, ESCAPE)
    first_line = 1
    while True:
        src, tgt = list(islice(src_lines, BLOCK_PAIRS)), list(islice(tgt_lines, BLOCK_PAIRS))
        if len(src) != len(tgt):
            num_src = first_line - 1 + len(src) + sum(1 for _ in src_lines)
            num_tgt = first_line - 1 + len(tgt) + sum(1 for _ in tgt_lines)
            raise DataError(
                f"{src_path} has {num_src} lines, {tgt_path} has {num_tgt}",
                "line n of one file must be the translation of line n of the other",
            )
        if not src:
            return
        yield PairBlock(range(first_line, first_line + len(src)), src, tgt)
        first_line += len(src)


def read_tsv(path: Path, languages: tuple[str, str], columns: tuple[str, ...] = ()) -> Iterator[PairBlock]:
    """The pairs of a file with TABs between its columns; `find_layout` says which columns count, and skips a header.

    The quotes that a spreadsheet put around cells are taken off, see `spreadsheet`.
    """
    return _table_pairs(path, columns_of_lines(path, read_lines(path, ESCAPE)), languages, columns)


def read_csv(path: Path, languages: tuple[str, str], columns: tuple[str, ...] = ()) -> Iterator[PairBlock]:
    """The pairs of a CSV file, as `read_tsv`; a line break in a cell becomes a space, a blank line is an empty pair."""
    return _table_pairs(path, rows_of_csv(path, read_lines(path, ESCAPE)), languages, columns)


def _table_pairs(
    path: Path, rows: Iterator[list[str]], languages: tuple[str, str], columns: tuple[str, ...]
) -> Iterator[PairBlock]:
    first_rows = list(islice(rows, 2))
    if not first_rows:
        return
    layout = find_layout(path, first_rows, languages, columns)
    start = 2 if layout.has_header else 1
    rest = chain(first_rows[start - 1 :], rows)
    yield from in_blocks((_row_pair(path, number, row, layout) for number, row in enumerate(rest, start)), start)


def _row_pair(path: Path, number: int, row: list[str], layout: Layout) -> tuple[str, str]:
    if layout.holds(row):
        return _one_line(row[layout.src]), _one_line(row[layout.tgt])
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
    got = f"an object with {_shown(row)}" if isinstance(row, dict) else type(row).__name__
    raise DataError(f"{where}: {got}, {_expected(keys)}", _KEYS_HELP)


def _json_text(where: str, key: str, value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{where}: {key} is {type(value).__name__}, expected text")
    return _one_line(value)


def in_blocks(pairs: Iterator[tuple[str, str]], first_line: int = 1) -> Iterator[PairBlock]:
    """Group pairs into blocks of BLOCK_PAIRS; the last may be smaller."""
    while block := list(islice(pairs, BLOCK_PAIRS)):
        lines = range(first_line, first_line + len(block))
        yield PairBlock(lines, [src for src, _ in block], [tgt for _, tgt in block])
        first_line = lines.stop


def _one_line(text: str) -> str:
    return _LINE_BREAK.sub(" ", text) if "\n" in text else text


def _keys(languages: tuple[str, str], columns: tuple[str, ...]) -> Keys:
    """The possible names of the two sides: data.columns alone, or the languages (if they differ) and src and tgt."""
    if columns:
        return ((columns[0], columns[1]),)
    return (languages, PLAIN_KEYS) if languages[0] != languages[1] else (PLAIN_KEYS,)


def _shown(names: Iterable[str]) -> str:
    names = [repr(name)[:40] for name in names]
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "") or "nothing in it"


def _expected(keys: Keys) -> str:
    names = ", or ".join(" and ".join(pair) for pair in keys)
    return f"expected {names}, or translation: {{...}} with {'either' if len(keys) > 1 else 'them'}"


def read_parquet(path: Path, languages: tuple[str, str], names: tuple[str, ...] = ()) -> Iterator[PairBlock]:
    """The pairs of a Parquet file, by the columns of `find_columns`."""
    try:
        with pq.ParquetFile(path) as file:
            columns = find_columns(str(path), file.schema_arrow, languages, names)
            batches = file.iter_batches(BLOCK_PAIRS, columns=sorted({column[0] for column in columns}))
            yield from column_blocks(str(path), batches, columns)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: cannot be read as Parquet: {short(error)}") from None


def find_columns(where: str, schema: Any, languages: tuple[str, str], names: tuple[str, ...] = ()) -> list[list[str]]:
    """The column of each side, as a path of names from the outermost field inwards.

    Args:
        names: data.columns; if there are none, the languages or src and tgt.

    Raises:
        DataError: if there are no such columns; the message lists the columns.
    """
    # get_field_index gives -1 if there is no such name, or more than one
    outer = schema.field("translation").type if schema.get_field_index("translation") >= 0 else None
    inner = outer if outer is not None and pa.types.is_struct(outer) else pa.struct([])
    for fields, prefix in ((schema, []), (inner, ["translation"])):
        for keys in _keys(languages, names):
            if all(fields.get_field_index(key) >= 0 for key in keys):
                return [[*prefix, key] for key in keys]
    raise DataError(
        f"{where}: has the columns {_shown(schema.names)}, {_expected(_keys(languages, names))}", _KEYS_HELP
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
    values = table.column(column[0])
    for name in column[1:]:
        values = pc.struct_field(values, [values.type.get_field_index(name)])
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if pa.types.is_null(values.type):
        return [""] * len(values)
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        raise DataError(f"{where}: column {'.'.join(column)} holds {values.type}, expected text")
    try:
        return [_one_line(text or "") for text in values.to_pylist()]
    except UnicodeDecodeError:
        raw = values.cast(pa.large_binary()).to_pylist()
        return [_one_line(escaped(text or b"")) for text in raw]


def short(error: BaseException) -> str:
    """The message of a library's error, on one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__
