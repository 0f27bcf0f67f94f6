"""Types for streams of parallel text: blocks of pairs, a corpus that yields them, and the corpora of a run.

Every sentence is one line: no reader yields a line feed. A byte that is not UTF-8 is a lone surrogate in it (Python's
surrogateescape); training drops such pairs, and validation and test text is refused for them.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtx.config.schema import HELD_OUT_TEST
from mtx.errors import DataError
from mtx.storage.text_files import printable, read_lines, replace_invalid

_EXAMPLE_CHARS = 80


@dataclass
class PairGroup:
    """The number of pairs with something in common, such as a reason to drop them, and the first as an example."""

    count: int
    line: int
    src: str
    tgt: str

    @classmethod
    def of(cls, batch: Any, is_in: NDArray[np.bool_]) -> "PairGroup":
        """Of a record batch the pairs for which `is_in` is true."""
        if not is_in.any():
            return cls(0, 0, "", "")
        line, src, tgt = (batch[name][int(is_in.argmax())].as_py() for name in ("line", "src", "tgt"))
        return cls(int(is_in.sum()), line, src, tgt)

    def example(self, corpus: str) -> dict[str, Any]:
        """The first pair as report.json shows it, safe to print on a terminal; `corpus` is the corpus's name."""
        src, tgt = (printable(replace_invalid(text)[:_EXAMPLE_CHARS]) for text in (self.src, self.tgt))
        return {"corpus": corpus, "line": self.line, "src": src, "tgt": tgt}


@dataclass(frozen=True)
class PairBlock:
    """Some pairs of one corpus, in its order.

    Attributes:
        lines: the 1-based line or record of each pair.
        dates: when each pair was changed last, as a number that grows with time; empty if the corpus has no dates.
        left_out: what the reader found beside these pairs and left out, by reason.
    """

    lines: Sequence[int]
    src: list[str]
    tgt: list[str]
    dates: Sequence[int] = ()
    left_out: Mapping[str, PairGroup] = field(default_factory=dict)


@dataclass(frozen=True)
class Corpus:
    """Parallel text under its name in the configuration; `weight` and `tag` are for training text only.

    Attributes:
        weight: None means 1, or with `training.init_from` what keeps it from outweighing the own text.
        files: the local files that it is read from.
        is_memory: whether it is a translation memory or the like, which may have older translations too.
    """

    name: str
    read: Callable[[], Iterator[PairBlock]]
    files: tuple[Path, ...] = ()
    is_memory: bool = False
    weight: float | None = 1.0
    tag: str | None = None

    def blocks(self) -> Iterator[PairBlock]:
        """Stream the pairs; every call starts from the first.

        Raises:
            DataError: at a line or record that is not a pair, or if the sides have different lengths.
        """
        return self.read()

    def not_utf8(self, line: int) -> DataError:
        """The error for a corpus that is not UTF-8: it names the first such line of its files, or `line` of a table."""
        for file in self.files:
            if file.name.lower().endswith(".parquet"):
                continue  # a table, whose rows are counted
            try:
                for _ in read_lines(file, "strict"):
                    pass
            except DataError as error:
                return error
        return DataError(f"{self.name}:{line}: is not UTF-8")


@dataclass(frozen=True)
class Corpora:
    """The text of a run. For `valid` or a test set that is None, a part of `own` will be held out.

    Attributes:
        tests: if it is empty, the only test set is held out.
        is_adaptation: whether a model is adapted to the first text, beside which the others only keep what it knows.
    """

    train: list[Corpus]
    valid: Corpus | None
    tests: Mapping[str, Corpus | None]
    is_adaptation: bool = False

    @property
    def own(self) -> list[Corpus]:
        """The training text that translations are to be like: what has no tag; in an adaptation the first of it."""
        untagged = [corpus for corpus in self.train if corpus.tag is None] or self.train
        return untagged[:1] if self.is_adaptation else untagged

    @property
    def test_sets(self) -> Mapping[str, Corpus | None]:
        """Every test set by its name, in order; None is held out."""
        return self.tests or {HELD_OUT_TEST: None}

    def all(self) -> list[Corpus]:
        """Every corpus: of training, validation and test text."""
        return [corpus for corpus in (*self.train, self.valid, *self.tests.values()) if corpus]


def name_test_sets(names: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of a key and a name: the key stands for the test set in file names and in scores.json."""
    from mtx.data.readers import FILE_ENDING  # which needs the types of this module

    used = {"run", "format"}  # the other keys of scores.json
    keys = []
    for name in names:
        base = FILE_ENDING.sub("", Path(name).name)
        key = stem = re.sub(r"[^A-Za-z0-9._-]", "_", base).lstrip(".")[:100] or "test"
        number = 1
        while key.lower() in used:  # some file systems ignore case
            number += 1
            key = f"{stem}-{number}"
        used.add(key.lower())
        keys.append((key, name))
    return keys
