"""Every format is read as the same blocks of pairs, and text that is not parallel is refused with its line."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mtx.data import tables
from mtx.data.tables import PairBlock
from mtx.errors import DataError
from tests.unit.data.corpus_files import PAIRS, SHAPES, find, pairs_of, write, write_parquet, write_sides


def test_blocks_number_their_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "BLOCK_PAIRS", 2)
    write_sides(tmp_path, "train")
    write(tmp_path / "t.tsv", "en\tde\na\tb\nc\td\ne\tf\n")
    text, table = find(tmp_path, train=("train", "t.tsv")).train
    assert list(text.blocks()) == [
        PairBlock(range(1, 3), ["a dog", "a cat"], ["ein Hund", "eine Katze"]),
        PairBlock(range(3, 4), [""], ["leer"]),
    ]
    assert list(table.blocks()) == [
        PairBlock(range(2, 4), ["a", "c"], ["b", "d"]),
        PairBlock(range(4, 5), ["e"], ["f"]),
    ]


@pytest.mark.parametrize("num_src", [0, 1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("num_tgt", [0, 1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_sides_of_different_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_src: int, num_tgt: int, ending: str
) -> None:
    monkeypatch.setattr(tables, "BLOCK_PAIRS", 2)
    src = write(tmp_path / f"train.en{ending}", "x\n" * num_src)
    tgt = write(tmp_path / f"train.de{ending}", "y\n" * num_tgt)
    corpus = find(tmp_path, train=("train",)).train[0]
    if num_src == num_tgt:
        assert pairs_of(corpus) == [("x", "y")] * num_src
    else:
        with pytest.raises(DataError) as error:
            pairs_of(corpus)
        assert str(error.value) == f"{src} has {num_src} lines, {tgt} has {num_tgt}"


def test_a_difference_beyond_the_first_block(tmp_path: Path) -> None:
    write(tmp_path / "train.en", "x\n" * (tables.BLOCK_PAIRS + 1))
    write(tmp_path / "train.de", "x\n" * tables.BLOCK_PAIRS)
    with pytest.raises(DataError, match="train.en has 16385 lines, .*train.de has 16384$"):
        pairs_of(find(tmp_path, train=("train",)).train[0])


INSIDE = ["a\u2028b", "a\u2029b", "a\x85b", "a\rb", "a\vb\fc", "a\x1cb\x1db\x1eb", "\x00", "\ufeffa", "a\r"]


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_only_lf_ends_a_line(tmp_path: Path, inside: str, ending: str) -> None:
    pairs = [("first", "erste"), (inside, "x"), ("y", inside), ("last", "letzte")]
    for side, language in enumerate(("en", "de")):
        text = "\ufeff" + "\r\n".join(pair[side] for pair in pairs)
        write(tmp_path / f"train.{language}{ending}", text)
    write(tmp_path / f"all.tsv{ending}", "\ufeff" + "\r\n".join("\t".join(pair) for pair in pairs))
    for corpus in find(tmp_path, train=("train", f"all.tsv{ending}")).train:
        assert pairs_of(corpus) == pairs


def test_invalid_utf8_is_escaped(tmp_path: Path) -> None:
    """So that cleaning can tell it from U+FFFD in the text."""
    write(tmp_path / "train.en", b"a\xff\xfe\n\xed\xa0\x80\n")
    write(tmp_path / "train.de", b"b\nc")
    pairs = pairs_of(find(tmp_path, train=("train",)).train[0])
    assert pairs == [("a\udcff\udcfe", "b"), ("\udced\udca0\udc80", "c")]


@pytest.mark.parametrize("side", ["en", "de"])
def test_truncated_gzip(tmp_path: Path, side: str) -> None:
    write_sides(tmp_path, "train", PAIRS * 1000, ".gz")
    path = tmp_path / f"train.{side}.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=rf"train\.{side}\.gz: truncated"):
        pairs_of(find(tmp_path, train=("train",)).train[0])


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("header", ["", "src\ttgt\n", "en\tde\n"])
def test_tsv(tmp_path: Path, header: str, ending: str) -> None:
    write(tmp_path / f"t.tsv{ending}", header + "".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS))
    assert pairs_of(find(tmp_path, train=(f"t.tsv{ending}",)).train[0]) == PAIRS
    assert pairs_of(find(train=(str(tmp_path / f"t.tsv{ending}"),)).train[0]) == PAIRS


def test_gzip_is_known_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_bytes(gzip.compress(b"a\tb\n"))
    (tmp_path / "u.tsv.gz").write_bytes(b"a\tb\n")
    for corpus in find(tmp_path, train=("t.tsv", "u.tsv.gz")).train:
        assert pairs_of(corpus) == [("a", "b")]


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("a\tb\nc d\n", 2, "1 column, expected"),
        ("a\tb\nc\td\te\n", 2, "3 columns, expected"),
        ("a\tb\n\nc\n", 3, "1 column, expected"),
    ],
)
def test_tsv_that_is_none(tmp_path: Path, text: str, line: int, problem: str) -> None:
    path = write(tmp_path / "t.tsv", text)
    with pytest.raises(DataError) as error:
        pairs_of(find(train=(str(path),)).train[0])
    assert str(error.value).startswith(f"{path}:{line}: {problem}")
    assert "one TAB" in (error.value.help or "")


def test_a_blank_line_is_an_empty_pair(tmp_path: Path) -> None:
    for name, text in (("t.tsv", "a\tb\tc\r\n\r\nd\te\tf\n\t\t\n\n"), ("t.csv", "a,b,c\n\nd,e,f\n,,\n\n")):
        write(tmp_path / name, text)
        [corpus] = find(tmp_path, train=(name,), columns="1,2").train
        assert pairs_of(corpus) == [("a", "b"), ("", ""), ("d", "e"), ("", ""), ("", "")]


@pytest.mark.parametrize("shape", SHAPES)
def test_jsonl_and_parquet(tmp_path: Path, shape: Callable[[str, str], dict[str, Any]]) -> None:
    rows = [shape(src, tgt) for src, tgt in PAIRS]
    write(tmp_path / "t.jsonl.gz", "".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet", row_group_size=2)
    for corpus in find(tmp_path, train=("t.jsonl.gz", "t.parquet")).train:
        assert pairs_of(corpus) == PAIRS


def test_records_are_single_lines(tmp_path: Path) -> None:
    """A text of two lines would shift every later line of a file that it is written to."""
    write(tmp_path / "t.jsonl", '{"en": "a\\r\\nb\\nc", "de": "\\ud800 \\ud83d\\ude00"}\n{"en": null, "de": "x\\ny"}')
    write_parquet(tmp_path / "t.parquet", {"en": ["a\r\nb\nc", None], "de": ["\ufffd 😀", "x\ny"]})
    for corpus in find(tmp_path, train=("t.jsonl", "t.parquet")).train:
        assert pairs_of(corpus) == [("a b c", "\ufffd 😀"), ("", "x y")]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("", "not a JSON object"),
        ("{", "not a JSON object"),
        ("[" * 100_000, "not a JSON object"),
        ('{"en": %s}' % ("1" * 5000), "not a JSON object"),
        ("[1]", "list, expected an object"),
        ("{}", "an object with nothing, expected en and de"),
        ('{"en": "a", "fr": "b"}', "an object with 'en', 'fr', expected en and de"),
        ('{"translation": "a"}', "an object with 'translation', expected"),
        ('{"en": "a", "de": 3}', "de is int, expected text"),
        ('{"translation": {"en": ["a"], "de": "b"}}', "translation.en is list, expected text"),
    ],
)
def test_jsonl_that_is_none(tmp_path: Path, line: str, problem: str) -> None:
    path = write(tmp_path / "t.jsonl", '{"en": "a", "de": "b"}\n' + line + "\n")
    with pytest.raises(DataError) as error:
        pairs_of(find(train=(str(path),)).train[0])
    assert str(error.value).startswith(f"{path}:2: {problem}")
    assert "\n" not in str(error.value)


def test_one_language_on_both_sides(tmp_path: Path) -> None:
    """`en` would be the column of both sides."""
    rows = [{"en": "trap", "src": src, "tgt": tgt} for src, tgt in PAIRS]
    write(tmp_path / "t.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    write(tmp_path / "t.tsv", "en\ten\n" + "".join(f"{src}\t{tgt}\n" for src, tgt in PAIRS))
    for corpus in find(tmp_path, tgt="en", train=("t.jsonl", "t.parquet", "t.tsv")).train:
        assert pairs_of(corpus) == PAIRS


def test_parquet_types(tmp_path: Path) -> None:
    large = pa.array(["a", None], pa.large_string())
    write_parquet(tmp_path / "large.parquet", {"en": large, "de": pa.array(["x", "y"]).dictionary_encode()})
    write_parquet(tmp_path / "null.parquet", {"en": pa.nulls(2), "de": ["x", "y"]})
    rows = pa.array([{"en": "a", "de": "x"}, None, {"en": None, "de": "y"}])
    write_parquet(tmp_path / "struct.parquet", {"translation": rows})
    broken = pa.Array.from_buffers(pa.string(), 2, pa.array([b"a\xff", b"b"]).buffers())
    write_parquet(tmp_path / "broken.parquet", {"en": broken, "de": ["x", "y"]})
    names = ("large.parquet", "null.parquet", "struct.parquet", "broken.parquet")
    assert [pairs_of(corpus) for corpus in find(tmp_path, train=names).train] == [
        [("a", "x"), ("", "y")],
        [("", "x"), ("", "y")],
        [("a", "x"), ("", ""), ("", "y")],
        [("a\udcff", "x"), ("b", "y")],
    ]


def test_parquet_that_is_none(tmp_path: Path) -> None:
    write(tmp_path / "text.parquet", "a\tb\n")
    write_parquet(tmp_path / "other.parquet", {"first": ["a"], "de": ["b"]})
    write_parquet(tmp_path / "number.parquet", {"en": [1], "de": ["b"]})
    pq.write_table(pa.Table.from_arrays([pa.array(["a"])] * 3, names=["en", "en", "de"]), tmp_path / "twice.parquet")
    whole = write_parquet(tmp_path / "whole.parquet", {"en": ["a"] * 999, "de": ["b"] * 999}).read_bytes()
    write(tmp_path / "damaged.parquet", whole[:4] + bytes(100) + whole[104:])
    for name, problem in {
        "text": "invalid Parquet file",
        "other": "the columns are 'first', 'de', expected en and de",
        "number": "column en holds int64, expected text",
        "twice": "the columns are 'en', 'en', 'de'",
        "damaged": "invalid Parquet file",
    }.items():
        with pytest.raises(DataError, match=f"{name}.parquet: {problem}") as error:
            pairs_of(find(tmp_path, train=(f"{name}.parquet",)).train[0])
        assert "\n" not in str(error.value)
