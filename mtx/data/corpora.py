"""What parallel text is while it streams: blocks of pairs, a corpus that gives them, and the corpora of a run.

Every text is one line that UTF-8 can express: it holds no LF and no lone surrogate, wherever it came from.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mtx.config.schema import FILE_ENDING


@dataclass(frozen=True)
class PairBlock:
    """A run of consecutive pairs of one corpus; `first_line` is the 1-based line or record of the first."""

    first_line: int
    src: list[str]
    tgt: list[str]


@dataclass(frozen=True)
class Corpus:
    """Parallel text under the name that the user gave it; `weight` and `tag` matter for training text only."""

    name: str
    weight: float
    tag: str | None
    read: Callable[[], Iterator[PairBlock]]

    def blocks(self) -> Iterator[PairBlock]:
        """Stream the pairs, from the first on at each call.

        Raises:
            DataError: at the line or record that is no pair, or where the sides turn out to differ in length.
        """
        return self.read()


@dataclass(frozen=True)
class Corpora:
    """The text of a run. Where `valid` is None or `tests` is empty, a part of `train` is to be held out."""

    train: list[Corpus]
    valid: Corpus | None
    tests: dict[str, Corpus]


def name_test_sets(names: Iterable[str]) -> list[tuple[str, str]]:
    """Each name with what the test set is called in file names and in scores.json."""
    taken = {"run", "format"}  # the other keys of scores.json
    keys = []
    for name in names:
        base = FILE_ENDING.sub("", Path(name).name)
        key = stem = re.sub(r"[^A-Za-z0-9._-]", "_", base).lstrip(".")[:100] or "test"
        number = 1
        while key.lower() in taken:  # not every file system tells A from a
            number += 1
            key = f"{stem}-{number}"
        taken.add(key.lower())
        keys.append((key, name))
    return keys
