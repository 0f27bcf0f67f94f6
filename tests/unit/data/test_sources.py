"""Text is found under the names of the configuration, and missing text is reported before any work starts."""

import errno
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from mtx.data.sources import Corpus
from mtx.errors import UsageError
from tests.unit.data.corpus_files import PAIRS, Pairs, find, pairs_of, write, write_sides
from tests.unit.data.sentences import sentences


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_name_is_two_files(tmp_path: Path, ending: str) -> None:
    for name in ("train", "val", "test_2016"):
        write_sides(tmp_path, name, [(name, name.upper()), *PAIRS], ending)
    corpora = find(tmp_path, train=("train",), valid="val", test=("test_2016",))
    assert [(c.name, c.weight, c.tag) for c in corpora.train] == [("train", None, None)]
    assert pairs_of(corpora.train[0]) == [("train", "TRAIN"), *PAIRS]
    assert pairs_of(corpora.train[0]) == [("train", "TRAIN"), *PAIRS]  # once more, from the start
    assert pairs_of(corpora.valid) == [("val", "VAL"), *PAIRS]
    assert list(corpora.tests) == ["test_2016"]
    assert pairs_of(corpora.tests["test_2016"]) == [("test_2016", "TEST_2016"), *PAIRS]


@pytest.mark.parametrize(("asked", "there"), [("valid", "val"), ("validation", "dev"), ("dev", "valid")])
def test_validation_text_is_found_under_its_usual_names(tmp_path: Path, asked: str, there: str) -> None:
    for name in ("train", there):
        write_sides(tmp_path, name)
    assert pairs_of(find(tmp_path, train=("train",), valid=asked).valid) == PAIRS


def test_names_are_looked_up_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sides(tmp_path, "parts/news.2014")
    monkeypatch.chdir(tmp_path)
    corpora = find(train=({"name": "parts/news.2014", "weight": "2", "tag": "BT"}, "parts/news.2014"))
    assert [(c.name, c.weight, c.tag) for c in corpora.train] == [
        ("parts/news.2014", 2.0, "BT"),
        ("parts/news.2014", None, None),
    ]
    assert pairs_of(corpora.train[0]) == PAIRS
    assert corpora.valid == []
    assert corpora.tests == {}


def test_the_folder_goes_before_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "t.tsv", "here\tx\n")
    write(tmp_path / "only.tsv", "only\tx\n")
    write(tmp_path / "d" / "t.tsv", "there\tx\n")
    monkeypatch.chdir(tmp_path)
    both, only = find(Path("d"), train=("t.tsv", "only.tsv")).train
    assert pairs_of(both) == [("there", "x")]
    assert pairs_of(only) == [("only", "x")]


SWAPPED = list(zip(sentences("de"), sentences("en"), strict=True))
ROWS = {
    "t.tsv": lambda tgt, src: f"{tgt}\t{src}\n",
    "t.csv": lambda tgt, src: f"1,{tgt},{src}\n",
    "t.jsonl": lambda tgt, src: json.dumps({"src": tgt, "tgt": src}) + "\n",
    "t.po": lambda tgt, src: f'\nmsgid "{tgt}"\nmsgstr "{src}"\n',
    "t.txt": lambda tgt, src: f"{tgt}\t{src}\n",
}


@pytest.mark.parametrize("name", ROWS)
def test_the_text_shows_which_side_is_the_source(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    header = "id,source,target\n" if name == "t.csv" else ""
    rows = "".join(ROWS[name](*pair) for pair in SWAPPED)
    path = write(tmp_path / name, header + rows)
    expected = [(src, tgt) for tgt, src in SWAPPED]
    for corpus in find(train=(str(path),), valid=str(path)).all_corpora():
        assert pairs_of_memory(corpus) == expected
    told = [message for message in caplog.messages if "the second text of each pair is en" in message]
    assert told == [f"{path}: the second text of each pair is en, so it is the source"]
    few = write(tmp_path / "few.tsv", "".join(ROWS["t.tsv"](*pair) for pair in SWAPPED[:9]))
    assert pairs_of_memory(find(train=(str(few),)).train[0]) == SWAPPED[:9], "too few to tell"


@pytest.mark.parametrize("name", ["t", "t.tsv", "t.jsonl", "t.po"])
def test_what_names_its_languages_is_refused_if_the_text_is_swapped(name: str, tmp_path: Path) -> None:
    rows = {
        "t.tsv": lambda tgt, src: f"{tgt}\t{src}\n",
        "t.jsonl": lambda tgt, src: json.dumps({"English": tgt, "de": src}) + "\n",
        "t.po": lambda tgt, src: f'\nmsgid "{tgt}"\nmsgstr "{src}"\n',
    }
    headers = {"t.tsv": "en\tGerman\n", "t.po": 'msgid ""\nmsgstr "X-Source-Language: en\\nLanguage: de\\n"\n'}
    if name == "t":
        write_sides(tmp_path, "t", SWAPPED)
    else:
        write(tmp_path / name, headers.get(name, "") + "".join(rows[name](*pair) for pair in SWAPPED))
    for corpus in find(tmp_path, train=(name,), valid=name).all_corpora():
        with pytest.raises(UsageError, match=f"^{name}: source and target are swapped$") as error:
            pairs_of_memory(corpus)
        assert error.value.help == "correct the names of its files, or the languages that its columns or units name"


@pytest.mark.parametrize("key", ["train", "valid", "test"])
def test_columns_that_swap_the_sides_are_refused_with_the_right_ones(key: str, tmp_path: Path) -> None:
    path = write(tmp_path / "t.tsv", "".join(f"7\t{tgt}\t{src}\n" for tgt, src in SWAPPED))
    names = {"train": ("x.tsv",), key: str(path) if key == "valid" else (str(path),)}
    write(tmp_path / "x.tsv", "7\tja\tyes\n")
    corpora = find(tmp_path, **names, columns="2,3")
    with pytest.raises(UsageError, match="t.tsv: source and target are swapped") as error:
        for corpus in corpora.all_corpora():
            list(corpus.blocks())
    assert error.value.help == "data.columns=3,2"
    corpora = find(tmp_path, **names, columns="3,2")
    assert [
        corpus for corpus in corpora.all_corpora() if pairs_of_memory(corpus) == [(src, tgt) for tgt, src in SWAPPED]
    ]


def test_nothing_to_train_on() -> None:
    with pytest.raises(UsageError, match="^nothing to train on") as error:
        find()
    assert "mtx train own-text data.train=my.tsv data.src=en data.tgt=de" in (error.value.help or "")
    assert "data.train=train data.dir=DIR" in (error.value.help or "")


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"train": ["x"]}, r"data.train: 'x' not found: there is no .*/x.en\[.gz\] and no .*/x.de\[.gz\]$"),
        ({"train": ["half"]}, r"there is no .*/half.de\[.gz\]$"),
        ({"train": ["train", "x.tsv"]}, r"data.train: 'x.tsv' not found: there is no .*/x.tsv or x.tsv$"),
        ({"valid": "val"}, r"data.valid: 'val' not found: .*val.de\[.gz\]$"),
        ({"test": ["t1", "t2.jsonl"]}, "data.test: 't1' not found"),
        ({"train": ["folder.tsv"]}, "folder.tsv: expected a file, got a directory$"),
        ({"train": ["folder"]}, "folder.en: expected a file, got a directory$"),
        ({"train": ["pipe.tsv"]}, "pipe.tsv: expected a file, got a pipe"),
        ({"train": [""]}, "data.train: '' not found"),
        ({"train": ["a" * 5000]}, "not found"),
        ({"train": ["loop.tsv"]}, "not found"),
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
    hold_out = {"train": "", "valid": "data.valid=null holds out", "test": "data.test=heldout holds out"}[[*keys][0]]
    hint = error.value.help or ""
    assert hint.startswith(hold_out) and (bool(hold_out) or "holds out" not in hint)


def test_text_with_another_ending_is_known_by_its_first_line(tmp_path: Path) -> None:
    write(tmp_path / "pairs.txt", "a\tb\n")
    write(tmp_path / "pairs.json", '{"en": "a", "de": "b"}\n')
    for corpus in find(tmp_path, train=("pairs.txt", "pairs.json")).train:
        assert pairs_of(corpus) == [("a", "b")]
    write_sides(tmp_path, "pairs.txt")  # two files of this name go before it
    assert pairs_of(find(tmp_path, train=("pairs.txt",)).train[0]) == PAIRS


@pytest.mark.parametrize(
    "name, text, problem, hint",
    [
        ("page.tsv", "<!DOCTYPE html><html>", "expected plain text, got XML or HTML", "save a page as plain text"),
        ("terms.tmx", "<martif>", "expected plain text, got XML or HTML", "save a page as plain text"),
        (
            "pairs.xlsx",
            "PK\x03\x04",
            "expected plain text, got an office document, an archive or another binary file",
            "save a spreadsheet as",
        ),
        (
            "pairs.txt",
            "a,b\n",
            "expected sentence pairs, got single sentences",
            "write one pair per line, as source TAB target",
        ),
        ("train.de", "a\n", "expected sentence pairs, got single sentences", "write one pair per line"),
    ],
)
@pytest.mark.parametrize("key", ["train", "valid", "test"])
def test_a_file_that_is_no_pairs_is_named_and_never_called_missing(
    tmp_path: Path, key: str, name: str, text: str, problem: str, hint: str
) -> None:
    path = write(tmp_path / name, text)
    write(tmp_path / "t.tsv", "a\tb\n")
    value = str(path) if key == "valid" else (str(path),)
    with pytest.raises(UsageError) as error:
        find(**{"train": (str(tmp_path / "t.tsv"),), key: value})
    assert str(error.value).startswith(f"{path}: {problem}") and (error.value.help or "").startswith(hint)


def test_unreadable_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, mode: str, buffering: int = -1) -> None:  # root reads every file, whatever its mode
        raise PermissionError(errno.EACCES, "Permission denied")

    write(tmp_path / "t.tsv", "a\tb\n")
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UsageError, match="t.tsv: cannot read it: Permission denied$"):
        find(tmp_path, train=("t.tsv",))


@pytest.mark.parametrize("directory", ["none", "file"])
def test_a_folder_that_is_none(tmp_path: Path, directory: str) -> None:
    write(tmp_path / "file", "")
    with pytest.raises(UsageError, match="^data.dir: .* is not a directory$"):
        find(tmp_path / directory, train=("train",))


def test_names_of_test_sets(tmp_path: Path) -> None:
    files = ["a/t.tsv", "b/t.tsv.gz", "c/T.tsv", "t-2.tsv", "né w*.jsonl", "run.tsv", "...tsv", "..x.tsv"]
    for name in files:
        write(tmp_path / name, "a\tb\n")
    write_sides(tmp_path, "news.2014")
    write(tmp_path / "train.tsv", "a\tb\n")
    corpora = find(tmp_path, train=("train.tsv",), test=(*files, "news.2014"))
    expected = ["t", "t-2", "T-3", "t-2-2", "n__w_", "run-2", "test", "x", "news.2014"]
    assert list(corpora.tests) == expected
    assert [corpus.name for (corpus,) in corpora.tests.values()] == [*files, "news.2014"]


def test_equal_languages_cannot_name_two_files(tmp_path: Path) -> None:
    write_sides(tmp_path, "train")
    with pytest.raises(UsageError, match=r"^data.src and data.tgt are both 'en': .*/train.en would be both sides"):
        find(tmp_path, tgt="en", train=("train",))


def test_a_folder_goes_before_the_hub(tmp_path: Path) -> None:
    write_sides(tmp_path, "train")
    corpora = find(tmp_path, hub={"name": "no/where", "valid": "x"}, train=("train",))
    assert pairs_of(corpora.train[0]) == PAIRS
    assert corpora.valid == []


def test_the_demo_s_text_is_in_the_package() -> None:
    corpora = find(generator="grammar")
    assert list(corpora.tests) == ["grammar"]
    for _ in range(2):
        sets = (corpora.train[0], corpora.valid, corpora.tests["grammar"])
        train, valid, test = map(pairs_of, sets)
        assert (len(train), len(valid), len(test)) == (24_000, 500, 600)
    assert train[0][1] == "Gestern um 11.35 Uhr haben seine ruhigen Onkel keine Zeitung gelesen."
    assert valid[0][1] == "Dieser junge Mann stiehlt den Computer im ruhigen Museum."
    assert test[0] == (
        "Where has the young actress lost the beautiful key?",
        "Wo hat die junge Schauspielerin den schönen Schlüssel verloren?",
    )
    assert [next(corpus.blocks()).lines[0] for corpus in (*corpora.train, *corpora.tests["grammar"])] == [1, 1]


MEMORY = """<tmx version="1.4"><header/><body>
<tu changedate="20250101T000000Z"><tuv xml:lang="en"><seg>a dog</seg></tuv><tuv xml:lang="de"><seg>{}</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>a cat</seg></tuv></tu>
</body></tmx>"""


def test_what_a_file_holds_counts_before_its_name(tmp_path: Path) -> None:
    for name in ("memory.tmx", "memory.xml", "memory.tsv", "memory", "MEMORY.TMX.gz"):
        write(tmp_path / name.replace("GZ", "gz"), MEMORY.format("ein Hund"))
        memory = find(tmp_path, train=(name,)).train[0]
        assert pairs_of_memory(memory) == [("a dog", "ein Hund")] and memory.pair_file and not memory.pair_file.is_table
        corpora = find(tmp_path, train=(name,), valid=name, test=(name,))
        assert all(pairs_of_memory(corpus) == [("a dog", "ein Hund")] for corpus in corpora.all_corpora())


def pairs_of_memory(corpus: Corpus) -> Pairs:
    return [pair for block in corpus.blocks() for pair in zip(block.src, block.tgt, strict=True)]


def test_a_memory_has_no_columns(tmp_path: Path) -> None:
    write(tmp_path / "m.tmx", MEMORY)
    with pytest.raises(UsageError, match="data.columns: "):
        find(tmp_path, train=("m.tmx",), columns=("en", "de"))
