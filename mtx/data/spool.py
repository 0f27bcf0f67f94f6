"""Keeps what a slow reader has read: the pairs of a translation memory, whose XML takes most of the time of a pass.

Flow: corpus -> first pass, which also writes its pairs to a file -> later passes, which read that file. A pair takes
three lines: its number and date, its source, and its target.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from mtx.data.corpora import Corpus, PairBlock, PairGroup
from mtx.files import disk


@dataclass
class Spool:
    """The pairs of a corpus, which may be read any number of times, one after the other.

    Args:
        path: the file of the pairs, which the caller removes.
    """

    corpus: Corpus
    path: Path
    _blocks: list[tuple[int, Mapping[str, PairGroup]]] | None = None  # size and `left_out` of each, if all are written

    def blocks(self) -> Iterator[PairBlock]:
        """Stream the pairs; see `Corpus.blocks`."""
        if self._blocks is None:
            yield from self._first_pass()
            return
        with self.path.open("rb") as file:
            for size, left_out in self._blocks:
                lines = [line[:-1].decode("utf-8", "surrogateescape") for line in islice(file, 3 * size)]
                numbers = [tuple(map(int, line.split())) for line in lines[::3]]
                yield PairBlock([n for n, _ in numbers], lines[1::3], lines[2::3], [d for _, d in numbers], left_out)

    def _first_pass(self) -> Iterator[PairBlock]:
        blocks = list[tuple[int, Mapping[str, PairGroup]]]()
        with disk.create(self.path) as file:
            for block in self.corpus.blocks():
                size = len(block.src)
                rows = zip(block.lines, block.dates or [0] * size, block.src, block.tgt, strict=True)
                text = "".join(f"{line} {date}\n{src}\n{tgt}\n" for line, date, src, tgt in rows)
                file.write(text.encode("utf-8", "surrogateescape"))
                blocks.append((size, block.left_out))
                yield block
        self._blocks = blocks
