"""The quotes of a spreadsheet are taken off a TSV file, and no other file loses a quote."""

import csv
import io
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtx.data.sources import Corpus
from mtx.data.tables import is_spreadsheet, rows_of_tsv
from mtx.errors import DataError
from tests.unit.data.corpus_files import find, pairs_of, write

CELLS = st.text(st.sampled_from('"\t\r, ab\u2028é'), max_size=8)
ROWS = st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=12)


def columns(lines: list[str]) -> list[list[str]]:
    return list(rows_of_tsv(Path("t.tsv"), iter(lines)))


@given(ROWS)
def test_what_a_spreadsheet_writes_is_read_exactly(rows: list[tuple[str, str]]) -> None:
    file = io.StringIO(newline="")
    csv.writer(file, "excel-tab").writerows(rows)
    lines = [line.removesuffix("\r") for line in file.getvalue().split("\n")[:-1]]
    assert columns(lines) == [list(row) for row in rows]


@given(ROWS)
def test_text_that_no_spreadsheet_wrote_is_untouched(rows: list[tuple[str, str]]) -> None:
    """One cell with a quote that a spreadsheet would have doubled is enough."""
    lines = ['5" pipes\tRohre', *("\t".join(cell.replace("\t", " ") for cell in row) for row in rows)]
    assert columns(lines) == [line.split("\t") for line in lines]


NATURAL = {
    "speech": ['"Hello," he said.\tHallo', "yes\tja"],
    "whole sentences": ['"Hello, world."\t"Hallo, Welt."', "Well, yes\tNun, ja"],
    "whole sentences alone": ['"Hello."\t"Hallo."'] * 50,
    "a sentence in parts": ['"I know.\t"Ich weiß.', 'You do not."\tDu nicht."', "a, b\tc"],
    "speech with commas": [*['"Yes, please."\t"Ja, bitte."'] * 5, *["yes\tja"] * 95],
    "quotes never closed": ['"a\tb'] * 2000,
    "inches": ['5"\t5"', '"6""\t"7""'],
    "wholly quoted, and one that is not": ['"He said ""no"""\tx', 'a "b" c\tx'],
}


@pytest.mark.parametrize("name", NATURAL)
def test_natural_quotes_stay(name: str) -> None:
    assert not is_spreadsheet(NATURAL[name])


SPREADSHEETS = {
    "doubled quotes": ['"He said ""no"""\tEr sagte nein', "yes\tja"],
    "a TAB inside": ['"a\tb"\tc'],
    "a line break in another row": ['"a\tb', 'c"\td', '"He said ""no"""\tx'],
}


@pytest.mark.parametrize("name", SPREADSHEETS)
def test_spreadsheets_are_known(name: str) -> None:
    assert is_spreadsheet(SPREADSHEETS[name])


def test_quotes_are_taken_off_the_whole_file_and_a_line_of_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    text = 'en\tde\n"a ""dog"""\tein Hund\ncat\t"""Katze"""\n' + "x\ty\n" * 16_384 + '"a ""b"""\tc "d"\n"e"\t5"\n'
    corpus = find(tmp_path, train=(str(write(tmp_path / "t.tsv", text)),)).train[0]
    expected = [('a "dog"', "ein Hund"), ("cat", '"Katze"'), *[("x", "y")] * 16_384, ('a "b"', 'c "d"'), ("e", '5"')]
    assert pairs_of(corpus) == pairs_of(corpus) == expected
    assert sum("written by a spreadsheet" in message for message in caplog.messages) == 1


def test_the_first_quoted_cell_may_come_late() -> None:
    plain = ["a dog\tein Hund"] * 20_000
    found = columns([*plain, '"He said ""no""."\tx', "y\t5"])
    assert found == [*[["a dog", "ein Hund"]] * 20_000, ['He said "no".', "x"], ["y", "5"]]
    with pytest.raises(DataError, match=r"t\.tsv:20002: "):
        columns([*plain, '"He said ""no""."\tx', '"y\t5'])


@pytest.mark.parametrize(
    "text, line", [('"a ""dog"""\tb\nc\t"d\ne"\nf\tg\n', 2), ('"a ""dog"""\tb\n"c\nd"\te\n', 2), ('"c\nd"\te\n', 1)]
)
def test_a_line_break_in_a_cell_is_named(tmp_path: Path, text: str, line: int) -> None:
    corpus: Corpus = find(tmp_path, train=(str(write(tmp_path / "t.tsv", text)),)).train[0]
    with pytest.raises(DataError, match=rf"t\.tsv:{line}: ") as error:
        pairs_of(corpus)
    assert "line break" in (error.value.help or "")
