"""Distillation: what the student learns from, and a killed command resumes."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mtx.decoding.metrics import nearest_by_chrf
from mtx.decoding.options import SearchOptions
from mtx.decoding.translator import Hypothesis
from mtx.errors import UsageError
from mtx.synthesis import distil
from mtx.synthesis.distil import DISTILLED, TRAIN, source_lines, translate_text, write_text


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
