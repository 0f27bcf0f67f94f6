"""Distillation: what the student learns from, what is said of it, and a killed command goes on."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mtx import distil
from mtx.config import settings
from mtx.decoding.options import SearchOptions
from mtx.decoding.text_translator import Hypothesis
from mtx.distil import DISTILLED, TRAIN, System, _References, doubts, source_lines, translate_text, verdict, write_text
from mtx.errors import UsageError
from mtx.evaluation.metrics import nearest_by_chrf
from mtx.model.architecture import num_parameters


class Store:
    def __init__(self, *pairs: tuple[str, str], corpus: Sequence[int] = ()):
        self.pairs, self.num_pairs, self.corpus = pairs, len(pairs), np.array(corpus, np.uint16)

    def texts(self, rows: Any) -> tuple[list[str], list[str]]:
        src, tgt = zip(*(self.pairs[row] for row in rows), strict=True)
        return list(src), list(tgt)


class _Stopped(Exception):
    pass


class Numbered:
    """Offers three hypotheses for each line, of which the third is the line with its number; dies after `last`."""

    options = SearchOptions(3)

    def __init__(self, last: int = 10_000):
        self.last = last

    def hypotheses(self, lines: list[str], prefixes: None, first: int) -> list[list[Hypothesis]]:
        if first > self.last:
            raise _Stopped
        texts = [["first", "second", f"{line} {number}"] for number, line in enumerate(lines, first)]
        return [[Hypothesis(text, 0.0, []) for text in row] for row in texts]


def test_the_text_of_a_teacher_has_no_pairs_with_tags(tmp_path: Path) -> None:
    train = Store(("a", "b"), ("made", "up"), ("c\td", "e"), corpus=[0, 1, 0])
    report = {"corpora": [{"tag": None}, {"tag": "BT"}]}
    data: Any = SimpleNamespace(train=train, valid=Store(("v", "w")), tests={"t": Store(("x", "y"))}, report=report)
    assert write_text(data, tmp_path) == ["tests/t.tsv"]
    found = {path.name: path.read_text() for path in tmp_path.rglob("*.tsv")}
    assert found == {"train.tsv": "a\tb\nc d\te\n", "valid.tsv": "v\tw\n", "t.tsv": "x\ty\n"}
    data.valid = Store(("other", "text"))
    write_text(data, tmp_path)
    assert (tmp_path / "valid.tsv").read_text() == "v\tw\n", "what is there stays"


def test_the_hypothesis_nearest_to_the_reference() -> None:
    assert nearest_by_chrf(["a cat", "the dog runs", "the dog ran"], "the dog ran off") == "the dog ran"
    assert nearest_by_chrf(["x", "y"], "z") == "x"


def test_references_follow_the_lines(tmp_path: Path) -> None:
    (tmp_path / TRAIN).write_text("".join(f"s{n}\tt{n}\n" for n in range(1, 6)))
    references = _References(tmp_path / TRAIN)
    assert references.of(3, 2) == ["t3", "t4"] and references.of(5, 3) == ["t5", None, None]
    assert references.of(1, 1) == ["t1"] and references.of(9, 2) == [None, None]


def text_of(directory: Path, num_pairs: int, num_more: int) -> Path:
    """Sources of `num_pairs` pairs, whose references are the second hypothesis, and more lines."""
    (directory / TRAIN).write_text("".join(f"source {n}\tsecond\n" for n in range(num_pairs)))
    (directory / "mono").write_text("".join(f"more {n}\n" for n in range(num_more)))
    return directory / "mono"


def test_a_killed_translation_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distil, "BLOCK_LINES", 4)
    mono, about, done = text_of(tmp_path, 10, 8), {"teacher": "t"}, list[int]()
    for last in (5, 9):
        with pytest.raises(_Stopped):
            translate_text(Numbered(last), tmp_path, mono, about, done.append)  # type: ignore[arg-type]
    translate_text(Numbered(), tmp_path, mono, about, done.append)  # type: ignore[arg-type]
    assert done == [0, 4, 4, 8, 4, 12, 4, 2]
    expected = [f"source {n}\tsecond" for n in range(10)] + [f"more {n}\tfirst" for n in range(8)]
    assert (tmp_path / DISTILLED).read_text().split("\n")[:-1] == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == [DISTILLED, "mono", TRAIN]
    translate_text(Numbered(0), tmp_path, mono, about, done.append)  # type: ignore[arg-type]
    assert [*source_lines(tmp_path, None)] == [f"source {n}" for n in range(10)]


def test_the_student_of_another_teacher_is_not_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distil, "model_identity", str)
    mono = text_of(tmp_path, 1, 1)
    about = distil.check_teacher(tmp_path, "A", mono, [])
    assert distil.check_teacher(tmp_path, "A", mono, []) == about
    for teacher, more, text in (("B", mono, []), ("A", None, []), ("A", mono, ["data.train=t.tsv"])):
        with pytest.raises(UsageError, match="is of another teacher or of other text"):
            distil.check_teacher(tmp_path, teacher, more, text)


def test_doubts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = settings.resolve("student", ["model.preset=student-small"]).config
    assert num_parameters(config.model, 8008) == 1_952_640
    for size, num_pairs, mono, words in (
        (2_000_000, 10, None, ["1,952,640 parameters and its teacher 2,000,000", "no text beyond the 10 pairs"]),
        (8_000_000, 10, tmp_path, []), (8_000_000, 2_000_000, None, []), (3_900_000, 10, tmp_path, ["1,952,640"]),
    ):  # fmt: skip
        monkeypatch.setattr(distil, "num_parameters", lambda teacher, size=size: size)
        found = list(doubts(config, "teacher", 8008, num_pairs, mono))
        assert len(found) == len(words) and all(word in str(doubt) for word, doubt in zip(words, found, strict=True))


def test_the_verdict(tmp_path: Path) -> None:
    teacher = System("teacher", 40.0, 60.0, 32.0, 100.0, 20.0)
    fast, slow, bad = (
        System("", bleu, 60.0, 2.0, rate, 2.0) for bleu, rate in ((39.5, 900.0), (39.5, 120.0), (38.0, 900.0))
    )
    assert verdict(teacher, fast, None) == "the student is 9.0 times as fast, 16.0 times smaller, -0.50 BLEU"
    assert verdict(teacher, slow, None).startswith("the student does not pay: 1.2 times as fast")
    assert "loses 2.00 BLEU: more source text (data.mono=FILE)" in verdict(teacher, bad, None)
    assert "loses 2.00 BLEU: still more source text" in verdict(teacher, bad, tmp_path)
    assert teacher.cells() == ["teacher", "40.00", "60.0", "32.0", "100", "20.0"]
