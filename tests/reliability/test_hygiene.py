"""Unclean training text, row by row: the pair is cleaned and used, or it is dropped and counted for a reason."""

import gzip
import itertools
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mtx.config import settings
from mtx.config.schema import TokenizerConfig
from mtx.data.prepare import prepare
from mtx.data.token_store import PreparedData, load_prepared
from mtx.data.tokenizer import Tokenizer, train_tokenizer
from mtx.errors import DataError
from tests.integration.commands import TINY, tree, write_sides
from tests.reliability import fuzzed
from tests.reliability.properties import Tally

Pair = tuple[bytes, bytes]
GOOD = [(f"{n} dogs run".encode(), f"{n} Hunde laufen".encode()) for n in ("one", "two", "three", "four", "five")]
MAX_TOKENS = 24  # of at most 16 characters: 384 characters are too many for any tokenizer


@dataclass
class Row:
    """A line of one side and the line of the other; the pair is expected to become `cleaned`, or to be `dropped`."""

    line: bytes
    cleaned: str | None = None
    dropped: str | None = None
    other: bytes | None = None


ROWS = {
    "invalid UTF-8": Row(b"a \xff dog", dropped="not UTF-8"),
    "a cut character": Row(b"a dog \xe2\x80", dropped="not UTF-8"),
    "surrogates": Row(b"a \xed\xa0\x80\xed\xb0\x80 dog", dropped="not UTF-8"),
    "U+FFFD": Row("a \ufffd dog".encode(), dropped="control characters"),
    "NUL": Row(b"a\x00dog", dropped="control characters"),
    "ESC": Row(b"a \x1b[31mdog", dropped="control characters"),
    "C1": Row("a \x9bdog".encode(), dropped="control characters"),
    **{f"separator {s!r}": Row(f"a{s}dog{s}".encode(), cleaned="a dog") for s in fuzzed.SEPARATORS[1:]},
    "TAB": Row(b"\ta\tdog", cleaned="a dog"),
    "CR at the end": Row(b"a dog\r", cleaned="a dog"),
    "two CR at the end": Row(b"a dog\r\r", cleaned="a dog"),
    "a BOM inside": Row("a \ufeffdog".encode(), cleaned="a \ufeffdog"),
    "direction marks": Row("\u200f\u202ea dog\u202c".encode(), cleaned="\u200f\u202ea dog\u202c"),
    "emoji with ZWJ": Row("a \U0001f469\u200d\U0001f680".encode(), cleaned="a \U0001f469\u200d\U0001f680"),
    "no-break space": Row("a\u00a0dog".encode(), cleaned="a\u00a0dog"),
    "not composed": Row("cafe\u0301 dog".encode(), cleaned="cafe\u0301 dog"),
    "▁": Row("a▁dog".encode(), cleaned="a▁dog"),
    "nothing": Row(b"", dropped="empty"),
    "spaces": Row(b" \t ", dropped="empty"),
    "what is seen as nothing": Row("\u200b\u3000\u2060\ufeff".encode(), dropped="empty"),
    "1 MB": Row(b"dog " * 250_000, dropped="too long"),
    "many characters": Row(b"a" * 385, dropped="too long", other=b"b" * 300),
    "many pieces": Row("犬猫鳥魚馬".encode() * 3, dropped="too long"),
    "both sides alike": Row(b"the same", dropped="identical", other=b"the same"),
    "a long side": Row(b"a dog runs " * 12, dropped="length ratio"),
    "a pair again": Row(GOOD[0][0], dropped="duplicate", other=GOOD[0][1]),
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    texts = [text.decode() for pair in GOOD for text in pair]
    return train_tokenizer(texts * 20, TokenizerConfig(vocab_size=300), 1, [])


def write(directory: Path, name: str, pairs: list[Pair], ending: str, start: bytes = b"", end: bytes = b"\n") -> None:
    """Write two text files, whose last lines have no line end; gzip files have two members."""
    for side, language in enumerate(("xx", "yy")):
        data = start + end.join(pair[side] for pair in pairs)
        (directory / f"{name}.{language}{ending}").write_bytes(packed(data) if ending else data)


def packed(data: bytes) -> bytes:
    return gzip.compress(data[:30]) + gzip.compress(data[30:])


def prepared(directory: Path, tokenizer: Tokenizer) -> PreparedData:
    """The data prepared from `train` in `directory`."""
    write(directory, "dev", [(b"given", b"gegeben")], "")
    sets = ["data.train=train", "data.valid=dev", "data.test=dev"]
    keys = [f"data.dir={directory}", "data.src=xx", "data.tgt=yy", f"data.max_tokens={MAX_TOKENS}", *sets]
    prepare(settings.resolve(None, keys).config, directory / "out", tokenizer)
    return load_prepared(directory / "out")


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("side", [0, 1])
def test_what_becomes_of_unclean_lines(
    ending: str, side: int, tmp_path: Path, tokenizer: Tokenizer, tally: Tally, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for number, (name, row) in enumerate(ROWS.items()):
        (tmp_path / str(number)).mkdir()
        bad = [(row.line, row.other or other) for other in (b"a first", b"a second")]
        turned = [pair[::-1] if side and row.dropped != "duplicate" else pair for pair in bad]
        write(tmp_path / str(number), "train", [*GOOD[:3], *turned, *GOOD[3:]], ending)
        caplog.clear()
        data = prepared(tmp_path / str(number), tokenizer)
        lines = [1, 2, 3, 4, 5, 6, 7] if row.cleaned is not None else [1, 2, 3, 6, 7]
        assert data.train.lines(np.arange(data.train.num_pairs)) == lines, name
        texts = (data.train.src_texts, data.train.tgt_texts)[side]()
        good = [pair[side].decode() for pair in GOOD]
        assert texts == [*good[:3], *([] if row.cleaned is None else [row.cleaned] * 2), *good[3:]], name
        check_report(data.report, row, caplog.text)
    tally(f"unclean text, {('source', 'target')[side]}{ending}", len(ROWS), number + 1)


def check_report(report: dict[str, Any], row: Row, log_text: str) -> None:
    """Two of seven pairs are dropped for the row's reason, or none; the first of them is the example."""
    counts = {reason: entry["pairs"] for reason, entry in report["dropped"].items()}
    assert counts == ({row.dropped: 2} if row.dropped else {})
    assert (report["read"], report["held_out"]) == (7, 0) and report["kept"] + sum(counts.values()) == 7
    if row.dropped:
        assert report["dropped"][row.dropped]["example"]["line"] == 4
        assert re.search(rf"5 pairs (left|kept) of 7 read \(2 {row.dropped}\)", log_text), log_text
    else:
        assert "7 pairs kept of 7 read" in log_text and "7 pairs kept of 7 read" in log_text


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("start, end", [(fuzzed.BOM, b"\n"), (b"", b"\r\n"), (fuzzed.BOM, b"\r\n")])
def test_what_windows_writes_is_the_same_text(
    start: bytes, end: bytes, ending: str, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    write(tmp_path, "train", GOOD, ending, start, end)
    data = prepared(tmp_path, tokenizer)
    assert data.train.src_texts() == [src.decode() for src, _ in GOOD] and data.report["dropped"] == {}


@pytest.mark.parametrize("language", ["xx", "yy"])
@pytest.mark.parametrize("num_cut_bytes", [1, 8, 9, 25, 40])
def test_a_cut_gzip_file_is_refused_though_its_lines_are_good(
    language: str, num_cut_bytes: int, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    write(tmp_path, "train", GOOD, ".gz")
    path = tmp_path / f"train.{language}.gz"
    path.write_bytes(path.read_bytes()[:-num_cut_bytes])
    with pytest.raises(DataError, match=rf"train\.{language}\.gz: truncated or damaged gzip file"):
        prepared(tmp_path, tokenizer)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("name", ["train", "dev", "news"])
def test_sides_of_unequal_length_never_train(
    name: str, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., None], tally: Tally
) -> None:
    monkeypatch.chdir(tmp_path)
    for other in ("train", "dev", "news"):
        write_sides(tmp_path, other, range(1000, 1040))
    sides = {language: (tmp_path / f"{name}.{language}").read_bytes() for language in ("en", "de")}
    for path in tmp_path.glob(f"{name}.*"):
        path.unlink()
    tried = 0
    for language, change in itertools.product(("en", "de"), (1, -1, 2)):
        for other, data in sides.items():
            changed = data + b"more\n" * change if change > 0 else data[: data.rindex(b"\n", 0, -1) + 1]
            data = changed if other == language else data
            (tmp_path / f"{name}.{other}{ending}").write_bytes(packed(data) if ending else data)
        before = tree(tmp_path)
        words = [f"{name}.{language}{ending} has {40 + change} lines" if language == "en" else "", "has 40"]
        refused(1, [*words, str(40 + change)], "train", *TINY, "data.train=train", "data.valid=dev", "data.test=news")
        assert tree(tmp_path) == before and not (tmp_path / "runs").exists()
        tried += 1
    tally(f"sides of unequal length, {name}{ending}", 6, tried)
