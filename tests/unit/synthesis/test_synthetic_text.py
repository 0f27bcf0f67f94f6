"""Synthetic pairs: what is dropped, what a student learns from, and a process that is killed resumes."""

import io
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mtx.data.token_store import TokenStore, store_batch, write_store
from mtx.decoding.options import SearchOptions
from mtx.decoding.translator import Hypothesis
from mtx.errors import DamagedFileError, DataError, UsageError
from mtx.scoring.metrics import TestSet
from mtx.storage.resumable import ResumableRows, Shard
from mtx.storage.text_files import LineParts, read_lines
from mtx.synthesis import synthetic_text
from mtx.synthesis.synthetic_text import (
    DISTILLED,
    KEPT,
    TRAIN,
    describe_counts,
    measure_teacher,
    source_lines,
    translate_text,
    write_pairs,
    write_text,
)
from mtx.synthesis.teachers import ExternalTeacher, ModelTeacher, nearest_by_chrf


class _Stopped(Exception):
    pass


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of lines that the progress is told of."""
    numbers = list[int]()

    @contextmanager
    def progress(description: str, total: int) -> Iterator[Callable[[int], None]]:
        yield numbers.append

    monkeypatch.setattr("mtx.storage.resumable.progress", progress)
    return numbers


class Translating:
    """A teacher that translates block by block with a function."""

    identity = dict[str, Any]()
    block_lines = 1000

    def __init__(self, translate: Callable[[list[str]], list[str]], language: str = ""):
        self.translate_lines, self.language = translate, language

    def translate(self, blocks: Iterator[list[LineParts]]) -> Iterator[list[str]]:
        return (self.translate_lines([line for line, *_ in block]) for block in blocks)


def work(directory: Path, lines: list[str], last: int = 1000, about: str = "a") -> tuple[Counter[str], str]:
    """The translation of a line is the line in other letters; the process dies after the line `last`.

    Returns the counts and the TSV.
    """
    (directory / "mono").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def translate(block: list[str]) -> list[str]:
        if lines.index(block[0]) >= last:
            raise _Stopped
        return [line.swapcase() for line in block]

    kept, sink = ResumableRows(directory / "out", {"model": about}, 3), io.BytesIO()
    text = Shard(lambda: zip(read_lines(directory / "mono")))
    counts = write_pairs(Translating(translate), text, kept, nullcontext(sink))
    return counts, sink.getvalue().decode()


def test_a_killed_process_goes_on_with_whole_blocks(tmp_path: Path, done: list[int]) -> None:
    lines = [f"line {n}" for n in range(8)]
    with pytest.raises(_Stopped):
        work(tmp_path, lines, last=4)
    part = tmp_path / "out.part"
    for cut in (b"", b'["half'):
        part.write_bytes(part.read_bytes() + cut)
        done.clear()
        with pytest.raises(_Stopped):
            work(tmp_path, lines, last=6)
        assert done == [6]
    counts, text = work(tmp_path, lines)
    assert counts == Counter({KEPT: 8}) and not part.exists()
    assert text == "".join(f"{line.swapcase()}\t{line}\n" for line in lines)
    assert work(tmp_path, lines) == (counts, text) and done == [6, 6, 2, 0, 3, 3, 2]


def test_a_process_that_was_killed_while_it_began(tmp_path: Path) -> None:
    part = tmp_path / "out.part"
    part.write_bytes(b'{"form')
    assert work(tmp_path, ["a b"])[0] == Counter({KEPT: 1})
    assert work(tmp_path, []) == (Counter(), "") and not part.exists()


def test_other_translations_are_not_continued(tmp_path: Path) -> None:
    lines = ["a b", "c d", "e f", "g h"]
    with pytest.raises(_Stopped):
        work(tmp_path, lines, last=3)
    with pytest.raises(UsageError, match="part: was started with another model, text or search"):
        work(tmp_path, lines, about="b")
    part = tmp_path / "out.part"
    part.write_bytes(part.read_bytes()[:-5] + b"\n")
    with pytest.raises(DamagedFileError, match="part: its row 3 is damaged"):
        work(tmp_path, lines)


def test_what_is_left_out(tmp_path: Path) -> None:
    lines = ["ein Hund läuft", "no no no", "Haus", "", "das ist gut", "c\td"]
    translations = ["a dog runs", "ja ja ja ja", "x" * 60, "", "das ist gut", "a b"]
    told = "2 pairs of 6 lines (repetition 1, length ratio 1, empty 1, identical 1)"
    for side, text in {
        "tgt": "a dog runs\tein Hund läuft\na b\tc d\n",
        "src": "ein Hund läuft\ta dog runs\nc d\ta b\n",
    }.items():
        sink: Any = io.BytesIO()
        counts = write_pairs(
            Translating(lambda _: translations), Shard(lambda: zip(lines)), ResumableRows(tmp_path / "out", {}, 9),
            nullcontext(sink), side=side,
        )  # type: ignore[arg-type]  # fmt: skip
        assert counts == Counter({KEPT: 2, "repetition": 1, "length ratio": 1, "empty": 1, "identical": 1})
        assert sink.getvalue().decode() == text
        assert sorted(describe_counts(counts)) == sorted(told)


def test_the_worst_by_a_forward_model_are_left_out(tmp_path: Path) -> None:
    lines, sink = [f"line {number}" for number in range(40)], io.BytesIO()
    counts = write_pairs(
        Translating(lambda block: [f"x {line}" for line in block]), Shard(lambda: zip(lines)),
        ResumableRows(tmp_path / "out", {}, 50), nullcontext(sink),
        score=lambda _, block: [None if line == "line 7" else -float(line.split()[1]) for line in block],
    )  # fmt: skip
    kept = {line.split("\t")[1] for line in sink.getvalue().decode().split("\n")[:-1]}
    assert set(lines) - kept == {"line 39"} and counts["improbable"] == 1


class Offering:
    """Offers three hypotheses for each line, of which the third is the line; dies at the line `last`."""

    options = SearchOptions(2)
    engine = SimpleNamespace(name="torch")

    def __init__(self, last: str = ""):
        self.last = last

    def translate(self, lines: list[str]) -> list[str]:
        return [ranked[0].text for ranked in self.hypotheses(lines)]

    def hypotheses(self, lines: list[str]) -> list[list[Hypothesis]]:
        if self.last in lines:
            raise _Stopped
        texts = [["first", "second", line] for line in lines]
        return [[Hypothesis([text], 0.0, []) for text in row] for row in texts]


def test_the_text_of_a_teacher_has_no_pairs_with_tags(tmp_path: Path) -> None:
    def store(*pairs: tuple[str, str]) -> TokenStore:
        """Pairs, each in a block; every second block is of another corpus."""
        path = tmp_path / f"{pairs[0][0]}.arrow"
        blocks = [store_batch(9, [[1, 0]], [[1, 0]], [1], [n % 2], [src], [tgt]) for n, (src, tgt) in enumerate(pairs)]
        write_store(path, 9, [1.0, 1.0], blocks)
        return TokenStore.load(path)

    train = store(("a", "b"), ("made", "up"), ("c\td", "e"))
    report = {"corpora": [{"tag": None}, {"tag": "BT"}]}
    data: Any = SimpleNamespace(train=train, valid=store(("v", "w")), tests={"t": store(("x", "y"))}, report=report)
    text = write_text(data, tmp_path, None)
    assert (text.train, text.tests, text.num_pairs) == (["train.tsv", "distilled.tsv"], ["tests/t.tsv"], 3)
    assert [*text.lines["distilled.tsv"]] == [("a", "b"), ("c d", "e")]
    found = {path.name: path.read_text() for path in tmp_path.rglob("*.tsv")}
    assert found == {"train.tsv": "a\tb\nc d\te\n", "valid.tsv": "v\tw\n", "t.tsv": "x\ty\n"}
    data.valid = store(("other", "text"))
    write_text(data, tmp_path, None)
    assert (tmp_path / "valid.tsv").read_text() == "v\tw\n", "what is there stays"


def test_the_hypothesis_nearest_to_the_reference() -> None:
    assert nearest_by_chrf(["a cat", "the dog runs", "the dog ran"], "the dog ran off") == "the dog ran"
    assert nearest_by_chrf(["x", "y"], "z") == nearest_by_chrf(["x", "y"], None) == "x"


def text_of(directory: Path, num_pairs: int, num_more: int) -> Path:
    """Sources of `num_pairs` pairs, whose references are the second hypothesis, and more lines."""
    (directory / TRAIN).write_text("".join(f"source {n}\tsecond\n" for n in range(num_pairs)))
    (directory / "mono").write_text("".join(f"more {n}\n" for n in range(num_more)))
    return directory / "mono"


def test_a_killed_translation_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: list[int]) -> None:
    monkeypatch.setattr(ModelTeacher, "block_lines", 4)
    mono, about = text_of(tmp_path, 10, 8), {"teacher": "t"}

    def translate(last: str = "") -> None:
        teacher = ModelTeacher(Offering(last))  # type: ignore[arg-type]
        translate_text(teacher, Shard(lambda: source_lines(tmp_path, mono)), tmp_path / DISTILLED, about)

    for last in ("source 8", "more 2"):
        with pytest.raises(_Stopped):
            translate(last)
    translate()
    assert done == [0, 4, 4, 8, 4, 12, 4, 2]
    expected = [f"source {n}\tsecond" for n in range(10)] + [f"more {n}\tfirst" for n in range(8)]
    assert (tmp_path / DISTILLED).read_text().split("\n")[:-1] == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == [DISTILLED, "mono", TRAIN]
    assert [*source_lines(tmp_path, None)] == [(f"source {n}", "second") for n in range(10)]


def test_text_without_a_usable_translation_leaves_no_file(tmp_path: Path) -> None:
    teacher: Any = Translating(lambda block: block)
    with pytest.raises(DataError, match="none of the translations is usable"):
        translate_text(teacher, Shard(lambda: zip(["a b", "c d"])), tmp_path / DISTILLED, {})
    assert [*tmp_path.iterdir()] == []


def test_an_external_teacher_is_measured_once(tmp_path: Path) -> None:
    asked = list[str]()

    class Program(ExternalTeacher):
        def translate(self, blocks: Iterator[list[LineParts]]) -> Iterator[list[str]]:
            for block in blocks:
                lines = [line for line, *_ in block]
                asked.extend(lines)
                self._record(lines, lines, time.monotonic() - 2)
                yield lines

    test_set = TestSet("t", "de", ["Ein Mann läuft dort."] * 12, ["Ein Mann läuft dort."] * 12)
    first = measure_teacher(Program("x", {}, "de"), test_set, tmp_path)
    assert first == measure_teacher(Program("x", {}, "de"), test_set, tmp_path)
    assert first["bleu"] == pytest.approx(100) and 0 < first["rate"] <= 6 and len(asked) == 12


def test_the_student_of_another_teacher_is_not_continued(tmp_path: Path) -> None:
    directory, mono = tmp_path / "distilled", text_of(tmp_path, 1, 1)
    about = synthetic_text.check_teacher(directory, "A", mono, [])
    others: list[tuple[str, Path | None, list[str]]] = [
        ("B", mono, []), ("A", None, []), ("A", mono, ["data.train=t.tsv"])
    ]  # fmt: skip
    for other in (*others[:2], ("A", mono, ["x"]), ("A", mono, [])):
        for name in ("train.tsv", "valid.tsv", "data"):
            (directory / name).write_text("")
        assert synthetic_text.check_teacher(directory, *other) != about or other[0] == "A"
        assert [path.name for path in directory.iterdir()] == ["teacher.json"], "nothing was translated"
    (directory / "valid.tsv.src").write_text("")
    for begun in (DISTILLED, "valid.tsv", "tests/x.tsv.part"):
        (directory / begun).parent.mkdir(exist_ok=True)
        (directory / begun).write_text("")
        assert synthetic_text.check_teacher(directory, "A", mono, []) == about
        for other in others:
            with pytest.raises(UsageError, match="made from another teacher or text"):
                synthetic_text.check_teacher(directory, *other)
        (directory / begun).unlink()
