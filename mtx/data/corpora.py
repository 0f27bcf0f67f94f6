"""Types for streams of parallel text: blocks of pairs, a corpus that yields them, and the corpora of a run.

Every sentence is one line that UTF-8 can encode: no reader yields a line feed or a lone surrogate.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mtx.config.schema import FILE_ENDING


@dataclass(frozen=True)
class PairBlock:
    """Consecutive pairs of one corpus; `first_line` is the 1-based line or record of the first."""

    first_line: int
    src: list[str]
    tgt: list[str]


@dataclass(frozen=True)
class Corpus:
    """Parallel text under its name in the configuration; `weight` and `tag` are for training text only.

    Attributes:
        files: the local files that it is read from.
    """

    name: str
    weight: float
    tag: str | None
    read: Callable[[], Iterator[PairBlock]]
    files: tuple[Path, ...] = ()

    def blocks(self) -> Iterator[PairBlock]:
        """Stream the pairs; every call starts from the first.

        Raises:
            DataError: at a line or record that is not a pair, or if the sides have different lengths.
        """
        return self.read()


@dataclass(frozen=True)
class Corpora:
    """The text of a run. If `valid` is None or `tests` is empty, a part of `train` will be held out."""

    train: list[Corpus]
    valid: Corpus | None
    tests: dict[str, Corpus]


def name_test_sets(names: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of a key and a name: the key stands for the test set in file names and in scores.json."""
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
