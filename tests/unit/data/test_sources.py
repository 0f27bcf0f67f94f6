"""Where text comes from: every form that it may have, and what is said when it is not there or not parallel."""

import errno
import gzip
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mtx.config.schema import DataConfig
from mtx.data import readers
from mtx.data.corpora import Corpora, Corpus, PairBlock
from mtx.data.sources import find_corpora
from mtx.errors import DataError, MtxError, UsageError

Pairs = list[tuple[str, str]]
PAIRS = [("a dog", "ein Hund"), ("a cat", "eine Katze"), ("", "leer")]


def find(directory: Path | None = None, **keys: Any) -> Corpora:
    values = {"src": "en", "tgt": "de", "dir": str(directory) if directory else None, **keys}
    return find_corpora(DataConfig.model_validate(values))


def pairs_of(corpus: Corpus | None) -> Pairs:
    assert corpus is not None
    pairs, line = [], None
    for block in corpus.blocks():
        assert line is None or block.first_line == line
        line = block.first_line + len(block.src)
        pairs += zip(block.src, block.tgt, strict=True)
    return pairs


def write(path: Path, text: str | bytes) -> Path:
    """Write bytes as they stand, compressed where the name says so."""
    data = text.encode() if isinstance(text, str) else text
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_sides(directory: Path, name: str, pairs: Pairs = PAIRS, ending: str = "") -> None:
    for side, language in enumerate(("en", "de")):
        write(directory / f"{name}.{language}{ending}", "".join(pair[side] + "\n" for pair in pairs))


def write_parquet(path: Path, columns: dict[str, Any]) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


# Local names


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_name_is_two_files(tmp_path: Path, ending: str) -> None:
    for name in ("train", "val", "test_2016"):
        write_sides(tmp_path, name, [(name, name.upper()), *PAIRS], ending)
    found = find(tmp_path, train=("train",), valid="val", test=("test_2016",))
    assert [(c.name, c.weight, c.tag) for c in found.train] == [("train", 1.0, None)]
    assert pairs_of(found.train[0]) == [("train", "TRAIN"), *PAIRS]
    assert pairs_of(found.train[0]) == [("train", "TRAIN"), *PAIRS]  # once more, from the start
    assert pairs_of(found.valid) == [("val", "VAL"), *PAIRS]
    assert list(found.tests) == ["test_2016"]
    assert pairs_of(found.tests["test_2016"]) == [("test_2016", "TEST_2016"), *PAIRS]


def test_names_are_looked_up_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sides(tmp_path, "parts/news.2014")
    monkeypatch.chdir(tmp_path)
    found = find(train=({"name": "parts/news.2014", "weight": "2", "tag": "BT"}, "parts/news.2014"))
    assert [(c.name, c.weight, c.tag) for c in found.train] == [
        ("parts/news.2014", 2.0, "BT"),
        ("parts/news.2014", 1.0, None),
    ]
    assert pairs_of(found.train[0]) == PAIRS
    assert found.valid is None
    assert found.tests == {}


@pytest.mark.parametrize("asked", ["val", "validation", "valid", "dev"])
@pytest.mark.parametrize("there", ["val", "validation", "valid", "dev"])
def test_valid_has_other_names(tmp_path: Path, asked: str, there: str) -> None:
    write_sides(tmp_path, "train")
    write_sides(tmp_path, there, [("x", there)], ".gz")
    assert pairs_of(find(tmp_path, train=("train",), valid=asked).valid) == [("x", there)]
    write_sides(tmp_path, asked, [("x", asked)])
    assert pairs_of(find(tmp_path, train=("train",), valid=asked).valid) == [("x", asked)]


def test_only_usual_names_have_other_names(tmp_path: Path) -> None:
    write_sides(tmp_path, "train")
    write_sides(tmp_path, "dev")
    with pytest.raises(UsageError, match=r"newstest2013\.en\[\.gz\] and no .*newstest2013\.de\[\.gz\]$"):
        find(tmp_path, train=("train",), valid="newstest2013")
    with pytest.raises(UsageError, match="data.test: 'val' was not found"):
        find(tmp_path, train=("train",), test=("val",))


def test_blocks_number_their_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "BLOCK_PAIRS", 2)
    write_sides(tmp_path, "train")
    write(tmp_path / "t.tsv", "en\tde\na\tb\nc\td\ne\tf\n")
    text, table = find(tmp_path, train=("train", "t.tsv")).train
    assert list(text.blocks()) == [
        PairBlock(1, ["a dog", "a cat"], ["ein Hund", "eine Katze"]),
        PairBlock(3, [""], ["leer"]),
    ]
    assert list(table.blocks()) == [PairBlock(2, ["a", "c"], ["b", "d"]), PairBlock(4, ["e"], ["f"])]


@pytest.mark.parametrize("num_src", [0, 1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("num_tgt", [0, 1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_sides_of_different_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_src: int, num_tgt: int, ending: str
) -> None:
    monkeypatch.setattr(readers, "BLOCK_PAIRS", 2)
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
    write(tmp_path / "train.en", "x\n" * (readers.BLOCK_PAIRS + 1))
    write(tmp_path / "train.de", "x\n" * readers.BLOCK_PAIRS)
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


def test_invalid_utf8_is_replaced(tmp_path: Path) -> None:
    write(tmp_path / "train.en", b"a\xff\xfe\n\xed\xa0\x80\n")
    write(tmp_path / "train.de", b"b\nc")
    pairs = pairs_of(find(tmp_path, train=("train",)).train[0])
    assert pairs[0] == ("a\ufffd\ufffd", "b")
    assert "\ufffd" in pairs[1][0]


@pytest.mark.parametrize("side", ["en", "de"])
def test_truncated_gzip(tmp_path: Path, side: str) -> None:
    write_sides(tmp_path, "train", PAIRS * 1000, ".gz")
    path = tmp_path / f"train.{side}.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=rf"train\.{side}\.gz: truncated"):
        pairs_of(find(tmp_path, train=("train",)).train[0])


# Single files


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
        ("a\tb\n\n", 2, "1 column, expected"),
        ("de\ten\na\tb\n", 1, "columns de TAB en, expected en TAB de"),
    ],
)
def test_tsv_that_is_none(tmp_path: Path, text: str, line: int, problem: str) -> None:
    path = write(tmp_path / "t.tsv", text)
    with pytest.raises(DataError) as error:
        pairs_of(find(train=(str(path),)).train[0])
    assert str(error.value).startswith(f"{path}:{line}: {problem}")
    assert ("TAB" in (error.value.help or "")) == (problem.startswith("1 "))


def test_the_folder_goes_before_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "t.tsv", "here\tx\n")
    write(tmp_path / "only.tsv", "only\tx\n")
    write(tmp_path / "d" / "t.tsv", "there\tx\n")
    monkeypatch.chdir(tmp_path)
    both, only = find(Path("d"), train=("t.tsv", "only.tsv")).train
    assert pairs_of(both) == [("there", "x")]
    assert pairs_of(only) == [("only", "x")]


def keyed(src: str, tgt: str, nested: bool) -> Callable[[str, str], dict[str, Any]]:
    return lambda a, b: {"id": 1, "translation": {src: a, tgt: b}} if nested else {tgt: b, src: a, "id": 1}


SHAPES = [keyed("src", "tgt", False), keyed("en", "de", False), keyed("en", "de", True), keyed("src", "tgt", True)]


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
        ("[1]", "list, expected en and de"),
        ("{}", "an object with nothing in it, expected en and de"),
        ('{"en": "a", "tgt": "b"}', "an object with 'en', 'tgt', expected en and de"),
        ('{"translation": "a"}', "an object with 'translation', expected"),
        ('{"en": "a", "de": 3}', "de is int, expected text"),
        ('{"translation": {"en": ["a"], "de": "b"}}', "en is list, expected text"),
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
        [("a\ufffd", "x"), ("b", "y")],
    ]


def test_parquet_that_is_none(tmp_path: Path) -> None:
    write(tmp_path / "text.parquet", "a\tb\n")
    write_parquet(tmp_path / "other.parquet", {"english": ["a"], "de": ["b"]})
    write_parquet(tmp_path / "number.parquet", {"en": [1], "de": ["b"]})
    pq.write_table(pa.Table.from_arrays([pa.array(["a"])] * 3, names=["en", "en", "de"]), tmp_path / "twice.parquet")
    whole = write_parquet(tmp_path / "whole.parquet", {"en": ["a"] * 999, "de": ["b"] * 999}).read_bytes()
    write(tmp_path / "damaged.parquet", whole[:4] + bytes(100) + whole[104:])
    for name, problem in {
        "text": "cannot be read as Parquet",
        "other": "has the columns 'english', 'de', expected en and de",
        "number": "column en holds int64, expected text",
        "twice": "has the columns 'en', 'en', 'de'",
        "damaged": "cannot be read as Parquet",
    }.items():
        with pytest.raises(DataError, match=f"{name}.parquet: {problem}") as error:
            pairs_of(find(tmp_path, train=(f"{name}.parquet",)).train[0])
        assert "\n" not in str(error.value)


# What is not there


def test_nothing_to_train_on() -> None:
    with pytest.raises(UsageError, match="^nothing to train on") as error:
        find()
    assert "mtx train own-text data.train=my.tsv data.src=en data.tgt=de" in (error.value.help or "")
    assert "data.train=train data.dir=DIR" in (error.value.help or "")


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"train": ["x"]}, r"data.train: 'x' was not found: there is no .*/x.en\[.gz\] and no .*/x.de\[.gz\]$"),
        ({"train": ["half"]}, r"there is no .*/half.de\[.gz\]$"),
        ({"train": ["train", "x.tsv"]}, r"data.train: 'x.tsv' was not found: there is no .*/x.tsv or x.tsv$"),
        ({"valid": "val"}, r"data.valid: 'val' was not found: .*val.de\[.gz\] \(nor as validation, valid, dev\)$"),
        ({"test": ["t1", "t2.jsonl"]}, "data.test: 't1' was not found"),
        ({"train": ["folder.tsv"]}, "folder.tsv: expected a file, this is a directory$"),
        ({"train": ["folder"]}, "folder.en: expected a file, this is a directory$"),
        ({"train": ["pipe.tsv"]}, "pipe.tsv: expected a file, this is a pipe"),
        ({"train": [""]}, "data.train: '' was not found"),
        ({"train": ["a" * 5000]}, "was not found"),
        ({"train": ["a\0b.tsv"]}, "was not found"),
        ({"train": ["loop.tsv"]}, "was not found"),
    ],
)
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes and links")
def test_what_is_missing_is_said_at_once(tmp_path: Path, keys: dict[str, Any], problem: str) -> None:
    write_sides(tmp_path, "train")
    write(tmp_path / "half.en", "a\n")
    for name in ("folder.tsv", "folder.en"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "pipe.tsv")
    (tmp_path / "loop.tsv").symlink_to("loop.tsv")
    with pytest.raises(UsageError, match=problem) as error:
        find(tmp_path, **{"train": ["train"], **keys})
    assert ("data.valid=null" in (error.value.help or "")) == ("train" not in keys)


def test_unreadable_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, mode: str) -> None:  # root reads every file, whatever its mode
        raise PermissionError(errno.EACCES, "Permission denied")

    write(tmp_path / "t.tsv", "a\tb\n")
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UsageError, match="t.tsv: cannot be read: Permission denied$"):
        find(tmp_path, train=("t.tsv",))


@pytest.mark.parametrize("directory", ["none", "file"])
def test_a_folder_that_is_none(tmp_path: Path, directory: str) -> None:
    write(tmp_path / "file", "")
    with pytest.raises(UsageError, match="^data.dir: .* is not a directory$"):
        find(tmp_path / directory, train=("train",))


def test_names_of_test_sets(tmp_path: Path) -> None:
    files = ["a/t.tsv", "b/t.tsv.gz", "c/T.tsv", "t-2.tsv", "né w*.jsonl", "run.tsv", "...tsv", "..x.tsv"]
    for name in files:
        write(tmp_path / name, "")
    write_sides(tmp_path, "news.2014")
    write(tmp_path / "train.tsv", "")
    found = find(tmp_path, train=("train.tsv",), test=(*files, "news.2014"))
    expected = ["t", "t-2", "T-3", "t-2-2", "n__w_", "run-2", "test", "x", "news.2014"]
    assert list(found.tests) == expected
    assert [corpus.name for corpus in found.tests.values()] == [*files, "news.2014"]


# The hub, with datasets' own code on a local folder


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("mtx.data.hub._unreachable", lambda _: None)  # no test asks the hub


def hub_dataset(directory: Path) -> dict[str, Any]:
    """A dataset with three splits in nested Parquet."""
    directory.mkdir()
    for split in ("train", "validation", "test"):
        rows = [{"translation": {"de": tgt, "en": src}} for src, tgt in [(split, split), *PAIRS]]
        pq.write_table(pa.Table.from_pylist(rows), directory / f"{split}.parquet")
    return {"name": str(directory), "valid": "validation", "test": ["test", "train[1:3]"]}


@pytest.mark.usefixtures("hub_cache")
def test_hub(tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    caplog.set_level(logging.INFO)
    found = find(hub=hub_dataset(tmp_path / "ds"), train=("elsewhere",), valid="val", test=("test_2016_flickr",))
    assert pairs_of(found.train[0]) == [("train", "train"), *PAIRS]
    assert pairs_of(found.train[0]) == [("train", "train"), *PAIRS]
    assert pairs_of(found.valid) == [("validation", "validation"), *PAIRS]
    assert list(found.tests) == ["test_2016_flickr", "train_1_3_"]
    assert pairs_of(found.tests["test_2016_flickr"]) == [("test", "test"), *PAIRS]
    assert pairs_of(found.tests["train_1_3_"]) == PAIRS[:2]
    assert f"{tmp_path / 'ds'}: an unknown amount to download" in caplog.text
    assert capfd.readouterr().err == ""  # no progress bar where stderr is not a terminal


@pytest.mark.usefixtures("hub_cache")
@pytest.mark.parametrize("shape", SHAPES)
def test_hub_with_json(tmp_path: Path, shape: Callable[[str, str], dict[str, Any]]) -> None:
    write(tmp_path / "ds" / "train.jsonl", "".join(json.dumps(shape(*pair)) + "\n" for pair in PAIRS))
    found = find(hub={"name": str(tmp_path / "ds")})
    assert pairs_of(found.train[0]) == PAIRS
    assert found.valid is None
    assert found.tests == {}


@pytest.mark.usefixtures("hub_cache")
def test_hub_with_subsets_in_folders(tmp_path: Path) -> None:
    """The hub's converted copy has no configurations; each subset is a folder there."""
    for subset in ("de-en", "de-fr"):
        for split in ("train", "validation"):
            path = tmp_path / "ds" / subset / split / "0000.parquet"
            path.parent.mkdir(parents=True)
            write_parquet(path, {"en": [subset], "de": [split]})
    hub = {"name": str(tmp_path / "ds"), "revision": "refs/convert/parquet", "valid": "validation"}
    for subset in ("de-en", "de-fr"):
        found = find(hub=hub | {"subset": subset})
        assert pairs_of(found.train[0]) == [(subset, "train")]
        assert pairs_of(found.valid) == [(subset, "validation")]
    with pytest.raises(MtxError, match="^data.hub: .* cannot be loaded: .*de-en"):
        find(hub=hub | {"subset": "de-en", "revision": "main"})


@pytest.mark.usefixtures("hub_cache")
def test_hub_without_validation(tmp_path: Path) -> None:
    found = find(hub=hub_dataset(tmp_path / "ds") | {"valid": None})
    assert found.valid is None
    assert list(found.tests) == ["test", "train_1_3_"]
    assert pairs_of(found.tests["test"]) == [("test", "test"), *PAIRS]


def test_a_folder_goes_before_the_hub(tmp_path: Path) -> None:
    write_sides(tmp_path, "train")
    found = find(tmp_path, hub={"name": "no/where", "valid": "x"}, train=("train",))
    assert pairs_of(found.train[0]) == PAIRS
    assert found.valid is None


@pytest.mark.usefixtures("hub_cache")
@pytest.mark.parametrize(
    "changed",
    [
        *({"valid": "dev"}, {"train": "train[1:x]"}, {"subset": "de-fr"}, {"name": "not an id"}),
        *(
            {"name": name, "valid": None, "test": ()}
            for name in ("script", "saved", "broken", "invalid", "empty", "none")
        ),
    ],
)
def test_hub_that_refuses(tmp_path: Path, changed: dict[str, Any]) -> None:
    write(tmp_path / "script" / "script.py", "raise SystemExit")
    write(tmp_path / "saved" / "state.json", "{}")
    write(tmp_path / "broken" / "train.parquet", "no Parquet")
    write(tmp_path / "invalid" / "train.jsonl", '{"en": "a", "de": "b"}\n{"en": \n')
    (tmp_path / "empty").mkdir()
    hub = hub_dataset(tmp_path / "ds") | changed
    if not hub["name"].startswith("not"):  # absolute, so that nothing asks the hub
        hub["name"] = str(tmp_path / hub["name"])
    with pytest.raises(MtxError, match="^data.hub: .* cannot be loaded: .") as error:
        find(hub=hub)
    assert type(error.value) is MtxError
    assert "\n" not in str(error.value)
    assert "An error occurred" not in str(error.value)  # but which
    assert "data.dir=DIR" in (error.value.help or "")


@pytest.mark.usefixtures("hub_cache")
def test_hub_with_other_columns(tmp_path: Path) -> None:
    write(tmp_path / "ds" / "train.jsonl", '{"english": "a", "de": "b"}\n')
    with pytest.raises(DataError, match="ds train: has the columns 'english', 'de', expected en and de"):
        find(hub={"name": str(tmp_path / "ds")})


UNREACHABLE = """
import sys, time
sleeps = []
time.sleep = sleeps.append  # huggingface_hub sleeps for 23 s in all between its tries
from mtx.config.schema import DataConfig
from mtx.data.sources import find_corpora
from mtx.errors import MtxError
data = {"train": sys.argv[1:2], "valid": "val", "test": sys.argv[2:]}
try:
    corpora = find_corpora(DataConfig(src="en", tgt="de", hub={"name": "no/where"}, **data))
    print([pair for block in corpora.train[0].blocks() for pair in zip(block.src, block.tgt)])
except MtxError as error:
    print(error, error.help, sep="|")
print(len(sleeps))
"""


def load_from(endpoint: str, home: Path, *names: str) -> list[str]:
    """What a process prints that loads no/where from a hub: the pairs or the error, and the number of sleeps."""
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0"}
    environment |= {"HF_HUB_ETAG_TIMEOUT": "1", "NO_PROXY": "*"}
    command = [sys.executable, "-c", UNREACHABLE, *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.stdout.splitlines()


CLOSED = "http://127.0.0.1:9"


@pytest.mark.seconds
def test_hub_that_cannot_be_reached_is_told_at_the_first_try(tmp_path: Path) -> None:
    error, sleeps = load_from(CLOSED, tmp_path, "train", "flickr", "news.tsv.gz")
    message, _, help = error.partition("|")
    assert message.startswith(f"data.hub: no/where cannot be loaded: {CLOSED} cannot be reached (")
    assert "Connection refused" in message and message.endswith("), and it is not in the cache")
    assert "data.dir=DIR" in help and "HTTPS_PROXY=URL" in help and "HF_HOME=DIR" in help
    assert " train.en, train.de, val.en, val.de, flickr.en, flickr.de, news.tsv.gz in DIR" in help
    assert sleeps == "0"


@pytest.mark.seconds
def test_hub_that_never_answers_is_asked_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hole:
        endpoint = f"http://127.0.0.1:{hole.getsockname()[1]}"
        error, sleeps = load_from(endpoint, tmp_path, "train")
        hole.settimeout(0)
        hole.accept()[0].close()
        with pytest.raises(BlockingIOError):
            hole.accept()
    assert f"{endpoint} cannot be reached (timed out), and it is not in the cache|" in error and sleeps == "0"


@pytest.mark.seconds
def test_what_is_in_the_cache_needs_no_hub(tmp_path: Path) -> None:
    dataset = tmp_path / "where"
    dataset.mkdir()
    write_parquet(dataset / "train.parquet", {"en": ["a"], "de": ["x"]})
    load = "import sys, datasets; datasets.load_dataset(sys.argv[1])"
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home")}
    subprocess.run([sys.executable, "-c", load, str(dataset)], env=environment, capture_output=True, check=True)
    [local] = (tmp_path / "home" / "datasets" / "where").iterdir()
    of_hub = tmp_path / "home" / "datasets" / "no___where"  # as a dataset of the hub lies there
    of_hub.mkdir()
    local.rename(of_hub / "default")
    assert load_from(CLOSED, tmp_path / "home") == ["[('a', 'x')]", "0"]


# The demo


def test_the_demo_s_text_is_in_the_package() -> None:
    found = find(generator="grammar")
    assert list(found.tests) == ["grammar"]
    for _ in range(2):
        train, valid, test = (pairs_of(corpus) for corpus in (found.train[0], found.valid, found.tests["grammar"]))
        assert (len(train), len(valid), len(test)) == (24_000, 500, 600)
    assert train[0][1] == "Gestern um 11.35 Uhr haben seine ruhigen Onkel keine Zeitung gelesen."
    assert valid[0][1] == "Dieser junge Mann stiehlt den Computer im ruhigen Museum."
    assert test[0] == (
        "Where has the young actress lost the beautiful key?",
        "Wo hat die junge Schauspielerin den schönen Schlüssel verloren?",
    )
    assert [next(corpus.blocks()).first_line for corpus in (found.train[0], *found.tests.values())] == [1, 1]
