"""Terms are found as whole words, the longest first, and files of strangers are refused with their line."""

from pathlib import Path

import pytest

from mtx.data.glossary import MAX_TERM_CHARS, TERM_MARKS, Glossary, find_words
from mtx.data.markup import clean_text
from mtx.errors import DataError, UsageError

EXPECTED = "expected source term TAB target term, each of 1 to 200 characters without control characters"
SHOWN = str.maketrans(dict(zip(TERM_MARKS, "<|>", strict=True)))


def annotated(terms: dict[str, str], text: str) -> str:
    return Glossary(terms).annotate(text).translate(SHOWN)


@pytest.mark.parametrize(
    ("terms", "text", "expected"),
    [
        ({"house": "Haus"}, "a house, houses, house-boat", "a <house|Haus>, houses, <house|Haus>-boat"),
        ({"truck": "Lkw", "fire truck": "Feuerwehrauto"}, "a fire truck", "a <fire truck|Feuerwehrauto>"),
        ({"fire truck": "Feuerwehrauto"}, "fire trucks", "fire trucks"),
        ({"a b": "1", "b c d": "2"}, "a b c d", "a <b c d|2>"),
        ({"house": "Haus"}, "House HOUSE", "<House|Haus> HOUSE"),
        ({"House": "Parlament"}, "a house", "a house"),
        ({"bank": "Ufer", "Bank": "Bank"}, "Bank bank", "<Bank|Bank> <bank|Ufer>"),
        ({"der Fluss": "x"}, "Der Fluss der fluss", "<Der Fluss|x> der fluss"),
        ({"iPhone": "x"}, "IPhone iPhone", "IPhone <iPhone|x>"),
        ({"C": "c", "C++": "cpp", ".NET": "net"}, "C++ .NET C", "<C++|cpp> <.NET|net> <C|c>"),
        ({"汽车": "car"}, "我的汽车是新的", "我的<汽车|car>是新的"),
        ({"รถ": "car"}, "ผมมีรถใหม่", "ผมมี<รถ|car>ใหม่"),
        ({"Windows": "W"}, "日本Windows版", "日本<Windows|W>版"),
        ({"कार": "car"}, "कार कारें", "<कार|car> कारें"),
        ({"é": "e"}, "un e\u0301 fin", "un <é|e> fin"),
        ({"house": "Haus"}, "no term e\u0301", "no term e\u0301"),
        ({}, "any", "any"),
    ],
)  # fmt: skip
def test_terms_are_found(terms: dict[str, str], text: str, expected: str) -> None:
    assert annotated(terms, text) == expected


def test_matches_are_in_the_order_of_the_text_and_keep_the_case_of_the_glossary() -> None:
    matches = Glossary({"sun": "Sonne", "red sun": "rote Sonne"}).matches("Sun, red sun")
    assert [(m.start, m.end, m.src, m.tgt) for m in matches] == [
        (0, 3, "sun", "Sonne"),
        (5, 12, "red sun", "rote Sonne"),
    ]


def test_text_of_users_cannot_hold_a_mark() -> None:
    assert clean_text(f"a{TERM_MARKS}b") == "a   b"


def test_occurrences_are_whole_words_in_this_case() -> None:
    assert find_words("Haus", "Haus Hausboot haus Haus") == [(0, 4), (19, 23)]
    assert find_words("aa", "aa aaa aa") == [(0, 2), (7, 9)]
    assert find_words("a a", "a a a") == [(0, 3)]
    assert find_words("车", "汽车车") == [(1, 2), (2, 3)]


def read(tmp_path: Path, content: bytes) -> Glossary:
    (tmp_path / "terms.tsv").write_bytes(content)
    return Glossary.read(tmp_path / "terms.tsv")


def test_a_file_is_read_and_written(tmp_path: Path) -> None:
    glossary = read(tmp_path, b"\xef\xbb\xbfhouse\tHaus\r\n\n fire truck \t Feuerwehrauto\nhouse\tHaus\ne\xcc\x81\tx\n")
    assert glossary.terms == {"house": "Haus", "fire truck": "Feuerwehrauto", "é": "x"}
    assert read(tmp_path, "".join(glossary.lines()).encode()).terms == glossary.terms


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\tb\nhouse\n", rf"terms\.tsv:2: {EXPECTED}"),
        (b"a\tb\tc\td\n", rf"terms\.tsv:1: {EXPECTED}"),
        (b"a\tb\nhouse\t \n", rf"terms\.tsv:2: {EXPECTED}"),
        (b"\thouse\n", rf"terms\.tsv:1: {EXPECTED}"),
        (b"a\tb\na\tc\n", r"terms\.tsv:2: a has two translations, b and c; expected one"),
        (b"a\tb\x1dc\n", rf"terms\.tsv:1: {EXPECTED}"),
        (b"a\x1b[2J\tb\n", rf"terms\.tsv:1: {EXPECTED}"),
        ("a\u2028b\tc\n".encode(), rf"terms\.tsv:1: {EXPECTED}"),
        (b"a\t\xff\n", r"terms\.tsv:1: not UTF-8"),
        (b"a" * (MAX_TERM_CHARS + 1) + b"\tb\n", rf"terms\.tsv:1: {EXPECTED}"),
        (b"\n", r"terms\.tsv: no terms"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        read(tmp_path, content)
    assert str(error.value).isprintable()


def test_a_table_of_a_spreadsheet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataError, match=EXPECTED) as error:
        read(tmp_path, b"house,Haus\n")
    assert error.value.help is not None and "tab delimited" in error.value.help
    assert read(tmp_path, b"Source\tTarget\nhouse\tHaus\nsource\ttarget\n").terms == {
        "house": "Haus", "source": "target",
    }  # fmt: skip
    assert caplog.messages == [f"{tmp_path / 'terms.tsv'}:1: skipping Source and Target, probably a heading"]


def test_a_third_column_is_notes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert read(tmp_path, b"house\tHaus\ta note\ndog\tHund\ncat\tKatze\t\n").terms == {
        "house": "Haus", "dog": "Hund", "cat": "Katze",
    }  # fmt: skip
    assert caplog.messages == [f"{tmp_path / 'terms.tsv'}: skipping the third column"]


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        Glossary.read(tmp_path / "nothing.tsv")
