"""The rows of CSV files, and of TSV files that a spreadsheet may have written. Flow: lines of a file -> rows of cells.

A spreadsheet writes the cell `He said "no" twice` as `"He said ""no"" twice"`. In other TSV files a quote is a
character like any other: `"Hello," he said.` stays, and so does a sentence that is wholly in quotes. So a file is
decided as a whole, from the first lines with quotes: it was written by a spreadsheet if every quote there follows the
spreadsheet's rules, and if some cell has a doubled quote, a TAB or a CR in its quotes, as only a spreadsheet writes it.

In a CSV file quotes always follow these rules (RFC 4180), so a cell may have a line break in it.
"""

import csv
import functools
import logging
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from mtx.errors import DataError

log = logging.getLogger(__name__)

_DECIDING_LINES = 16_384  # from which a file is decided, the first of them the first with a quote
_SEPARATORS = "\t;,"  # of CSV; where several fit equally well, the first counts: texts have commas more often
_SEPARATING_LINES = 1000  # from which the separator is decided
_MOST_BREAKS = 50  # line breaks of a cell; a quote that is not closed by then is no spreadsheet's
_QUOTED = re.compile('"[^"]*(?:""[^"]*)*"')
_CELL = f'{_QUOTED.pattern}|[^"\t]*'
_LINE = re.compile(f"(?:{_CELL})(?:\t(?:{_CELL}))*")
_CELLS = re.compile(f"(?:^|\t)({_QUOTED.pattern}(?=\t|$)|[^\t]*)")
_OPEN = re.compile(f'(?:(?:{_CELL})\t)*"[^"]*(?:""[^"]*)*')  # a line that ends within a quoted cell


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


def columns_of_lines(path: Path, lines: Iterator[str]) -> Iterator[list[str]]:
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
    """Whether a spreadsheet wrote these lines of a file."""
    is_shown, rest = False, iter(lines)
    for line in rest:
        if '"' not in line:
            continue
        record = _record(line, rest)
        if not _LINE.fullmatch(record):
            return False
        quoted = [cell[1:-1] for cell in _CELLS.findall(record) if cell.startswith('"')]
        is_shown |= "\n" not in record and any('"' in cell or "\t" in cell or "\r" in cell for cell in quoted)
    return is_shown


def _record(line: str, rest: Iterator[str]) -> str:
    """A line with the lines after it that the cell at its end goes on in; a cell that the last line cuts is closed."""
    record, num_breaks = line, 0
    while _OPEN.fullmatch(record) and num_breaks < _MOST_BREAKS:
        continuation = next(rest, None)
        if continuation is None:
            return f'{record}"'
        record, num_breaks = f"{record}\n{continuation}", num_breaks + 1
    return record


def _cells(path: Path, number: int, line: str) -> list[str]:
    if '"' not in line:
        return line.split("\t")
    if _OPEN.fullmatch(line):
        help = "a line is a pair: replace the line breaks inside the cells by spaces, and save the file again"
        raise DataError(f"{path}:{number}: a cell that a spreadsheet quoted goes on after the end of the line", help)
    cells = _CELLS.findall(line)
    return [cell[1:-1].replace('""', '"') if _QUOTED.fullmatch(cell) else cell for cell in cells]


@functools.cache
def log_once(level: int, text: str) -> None:
    """Log it once, although the file is read several times."""
    log.log(level, text)
