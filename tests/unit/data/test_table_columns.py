"""Tables in CSV and TSV: separators, quotes, headers, and which of several columns count."""

import csv
import io
import json
import logging
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtx.data import tables
from mtx.data.tables import csv_separator, rows_of_csv
from mtx.errors import DataError, UsageError
from tests.unit.data.corpus_files import PAIRS, find, pairs_of, write, write_sides

CELLS = st.text(st.sampled_from('"\t\r\n, ;ab\u2028é'), max_size=8)


@given(st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=12), st.sampled_from(",;\t"))
def test_csv_is_read_exactly(rows: list[tuple[str, str, str]], separator: str) -> None:
    """`QUOTE_ALL`, because without quotes a single row may be separated in several ways."""
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=separator, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    lines = file.getvalue().split("\n")[:-1]
    assert list(rows_of_csv(Path("t.csv"), iter(lines))) == [list(row) for row in rows]


@pytest.mark.parametrize(
    "text, separator",
    [
        ("a,b\nc,d", ","),
        ("a;b\nHello, you;Hallo", ";"),
        ("a\tb\nHello, you\tHallo, du", "\t"),
        ('"a; b",c\n"d; e","f ""g"""', ","),
        ('source;target\n"Hello, ""you""\nthere, a, b";x\nYes, no;y', ";"),
    ],
)
def test_the_first_lines_show_the_separator(text: str, separator: str) -> None:
    assert csv_separator(text.split("\n")) == separator


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_csv_file_is_pairs(tmp_path: Path, ending: str) -> None:
    text = '\ufeffEnglish;Deutsch\r\n"a ""big"" dog;\r\nold";ein Hund\r\n\r\n5" pipe;Rohr\r\n'
    write(tmp_path / f"t.csv{ending}", text)
    corpora = find(tmp_path, train=(f"t.csv{ending}",), test=(f"t.csv{ending}",))
    assert pairs_of(corpora.train[0]) == [('a "big" dog; old', "ein Hund"), ("", ""), ('5" pipe', "Rohr")]
    assert list(corpora.tests) == ["t"]


@pytest.mark.parametrize("first", ["sep=|", '"SEP=|"'])
def test_the_first_line_may_name_the_separator(first: str, tmp_path: Path) -> None:
    write(tmp_path / "t.csv", f"\ufeff{first}\r\nEnglish|Deutsch\r\na, b|c; d\r\n")
    corpora = find(tmp_path, train=("t.csv",))
    assert pairs_of(corpora.train[0]) == [("a, b", "c; d")]


@pytest.mark.parametrize(
    "text, line, problem",
    [
        ("a,b\nc,d,e\n", 2, "3 columns, expected 2"),
        ("a,b\nc\n", 2, "1 column, expected 2"),
        ('a,b\n"c\nd",e\n"f"g,h\n', 4, "invalid CSV row"),
        ('a,b\n"c,d\ne,f\n', 2, "invalid CSV row: unexpected end"),
    ],
)
def test_csv_that_is_none(tmp_path: Path, text: str, line: int, problem: str) -> None:
    path = write(tmp_path / "t.csv", text)
    with pytest.raises(DataError) as error:
        pairs_of(find(train=(str(path),)).train[0])
    assert str(error.value).startswith(f"{path}:{line}: {problem}") and "quote" in (error.value.help or "")


HEADERS = [
    "en|de", "EN|DE", "en-US|de_AT", "eng|deu", "English|German", "English (US)|Deutsch", "Englisch|Deutsch",
    "Ausgangstext|Zieltext", "Texte source|Texte cible",
    "source|target", "src|tgt", "Source|Translation",
    "Source text|German", "source (en)|target (de)", "Term (EN)|Term (DE)", "text (en-US)|Strings (German)",
]  # fmt: skip


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("form", ["tsv", "csv", "txt"])
def test_a_header_is_left_out_and_gives_the_order(
    header: str, is_reversed: bool, form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rows = [header.split("|"), ["a dog", "ein Hund"], ["a cat", "eine Katze"]]
    rows = [row[::-1] for row in rows] if is_reversed else rows
    separator = "," if form == "csv" else "\t"
    path = write(tmp_path / f"t.{form}", "".join(separator.join(row) + "\n" for row in rows))
    corpus = find(train=(str(path),)).train[0]
    assert pairs_of(corpus) == pairs_of(corpus) == [("a dog", "ein Hund"), ("a cat", "eine Katze")]
    told = [message for message in caplog.messages if "skipping the header" in message]
    assert len(told) == 1 and f"the source is column {2 if is_reversed else 1}, '{header.split('|')[0]}'" in told[0]


@pytest.mark.parametrize("row", ["yes|ja", "English|Englisch", "it|es", "no|nein", "the source|das Ziel", "|", "en|en"])
def test_a_pair_is_no_header(row: str, tmp_path: Path) -> None:
    path = write(tmp_path / "t.tsv", row.replace("|", "\t") + "\na fox\tein Fuchs\n")
    assert pairs_of(find(train=(str(path),)).train[0]) == [tuple(row.split("|")), ("a fox", "ein Fuchs")]


THREE = "id|English|German\n1|a dog|ein Hund\n2|a cat|eine Katze\n"


@pytest.mark.parametrize("columns", ["", "2,3", "English,3", "english,German"])
@pytest.mark.parametrize("form", ["tsv", "csv"])
def test_columns_are_named_by_a_header_or_by_the_setting(columns: str, form: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"t.{form}", THREE.replace("|", "\t" if form == "tsv" else ";"))
    assert pairs_of(find(train=(str(path),), columns=columns).train[0]) == PAIRS[:2]


def test_columns_of_language_codes_are_no_header(tmp_path: Path) -> None:
    rows = "1\teng\tGo.\tdeu\tGeh.\n", "2\teng\tRun!\tdeu\tLauf!\n"
    path = write(tmp_path / "t.tsv", "".join(rows))
    with pytest.raises(DataError, match="cannot find the columns of en and de"):
        pairs_of(find(train=(str(path),)).train[0])
    assert pairs_of(find(train=(str(path),), columns="3,5").train[0]) == [("Go.", "Geh."), ("Run!", "Lauf!")]


@pytest.mark.parametrize("src, tgt", [("English", "Deutsch"), ("eng", "deu")])
@pytest.mark.parametrize("is_nested", [False, True])
def test_keys_may_be_names_of_languages(src: str, tgt: str, is_nested: bool, tmp_path: Path) -> None:
    pair = {src: "a dog", tgt: "ein Hund"}
    path = write(tmp_path / "t.jsonl", json.dumps({"id": "1", "translation": pair} if is_nested else pair) + "\n")
    assert pairs_of(find(train=(str(path),)).train[0]) == [("a dog", "ein Hund")]
    path = write(tmp_path / "t.jsonl", json.dumps({"en-GB": "a", "en-US": "b", "de": "c"}) + "\n")
    with pytest.raises(DataError, match="expected en and de"):
        pairs_of(find(train=(str(path),)).train[0])


def test_columns_by_number_need_no_header_and_may_exchange_the_sides(tmp_path: Path) -> None:
    path = write(tmp_path / "t.tsv", "Go.\tGeh.\tCC-BY\nRun!\tLauf!\n")
    assert pairs_of(find(train=(str(path),), columns="2,1").train[0]) == [("Geh.", "Go."), ("Lauf!", "Run!")]


@pytest.mark.parametrize(
    "columns, problem",
    [
        ("", "cannot find the columns of en and de; its first line has 3 cells: 1 'Go.', 2 'Geh.', 3 'CC-BY'"),
        ("1,4", "no header names the column '4'; its first line has 3 cells: 1 'Go.', 2 'Geh.', 3 'CC-BY'"),
        ("en,2", "no header names the column 'en'; its first line has 3 cells"),
        ("", "cannot find the columns of en and de; its first line has 3 cells: 1 'en', 2 'de', 3 'German'"),
        ("Same,1", "several columns are named 'Same'; its first line has 3 cells: 1 'en', 2 'same', 3 'Same'"),
    ],
)
def test_columns_that_are_missing_are_listed(columns: str, problem: str, tmp_path: Path) -> None:
    row = (
        "en\tde\tGerman\n" if "German" in problem else "en\tsame\tSame\n" if "Same" in columns else "Go.\tGeh.\tCC-BY\n"
    )
    path = write(tmp_path / "t.tsv", row)
    with pytest.raises(DataError) as error:
        pairs_of(find(train=(str(path),), columns=columns).train[0])
    assert str(error.value).startswith(f"{path}: {problem}")
    assert (error.value.help or "").startswith("set data.columns=SRC,TGT, each a number")


def test_keys_and_names_of_other_tables(tmp_path: Path) -> None:
    rows = [{"a": src, "b": tgt, "en": "trap", "de": "trap"} for src, tgt in PAIRS]
    write(tmp_path / "t.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    for corpus in find(tmp_path, train=("t.jsonl", "t.parquet"), columns="a,b").train:
        assert pairs_of(corpus) == PAIRS
    with pytest.raises(DataError, match="expected a and c, or translation: .* with them") as error:
        pairs_of(find(tmp_path, train=("t.jsonl",), columns="a,c").train[0])
    assert error.value.help == "give both, with null for no text; or set data.columns=SRC,TGT to other names"


@pytest.mark.parametrize("row", [{"src": "a lamp"}, {"messages": []}])
def test_one_key_alone_cannot_be_named(row: dict[str, object], tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", json.dumps({"src": "a", "tgt": None}) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(DataError) as error:
        pairs_of(find(train=(str(path),), src="src", tgt="tgt").train[0])
    names = f"an object with {[*row][0]!r}, expected src and tgt, or translation: {{...}} with them"
    assert str(error.value) == f"{path}:2: {names}" and error.value.help == "give both, with null for no text"


def test_a_header_is_no_pair_whatever_columns_are_named(tmp_path: Path) -> None:
    rows = "Term (DE);Term (EN);Note\nDach;roof;\nLampe;lamp;red\n"
    path = write(tmp_path / "t.csv", rows)
    assert pairs_of(find(train=(str(path),), columns="2,1").train[0]) == [("roof", "Dach"), ("lamp", "Lampe")]
    assert pairs_of(find(train=(str(path),)).train[0]) == [("roof", "Dach"), ("lamp", "Lampe")]


def test_two_files_have_no_columns(tmp_path: Path) -> None:
    write_sides(tmp_path, "train")
    with pytest.raises(UsageError, match="^data.columns: none of these files is a table$"):
        find(tmp_path, train=("train",), columns="2,1")


@pytest.mark.parametrize(
    ("names", "columns", "expected"),
    [
        (
            ["translation.en", "translation.de"],
            ("translation.en", "translation.de"),
            ("translation.en", "translation.de"),
        ),
        (["en", "de", "translation.en", "translation.de"], (), ("en", "de")),
        (["translation.en", "translation.de"], (), ("translation.en", "translation.de")),
    ],
)
def test_a_full_name_precedes_one_inside_translation(
    names: list[str], columns: tuple[str, ...], expected: tuple[str, str]
) -> None:
    assert tables._find_names("x", names, ("en", "de"), columns) == expected
