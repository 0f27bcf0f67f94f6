"""Keeps the newest translation of each source: translation memories hold older ones too.

Flow: corpora -> one pass over their pairs -> corpora that leave the others out, and count them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from mtx.data.cleaning import Limits, clean_pair, clean_text, text_hashes
from mtx.data.corpora import Corpus, PairBlock, PairGroup

OLDER = "older translation"


@dataclass
class Newest:
    """The choice among the pairs of some corpora, made when the first of them is read.

    Of the pairs with one source the one with the latest date counts, or else the last. Pairs that cleaning will drop by
    these limits take no part in it.
    """

    corpora: Sequence[Corpus]
    limits: Limits

    def apply(self) -> list[Corpus]:
        """The corpora, each of which yields its chosen pairs alone."""
        return [replace(corpus, read=partial(self._read, number)) for number, corpus in enumerate(self.corpora)]

    def _read(self, number: int) -> Iterator[PairBlock]:
        position = 0
        for block in self.corpora[number].blocks():
            is_newest = self._choice[number][position : position + len(block.src)]
            position += len(block.src)
            yield block if is_newest.all() else _part(block, is_newest)

    @cached_property
    def _choice(self) -> list[NDArray[np.bool_]]:
        """For each pair of each corpus, whether it is the newest of its source."""
        hashes, dates, sizes = [np.empty(0, np.uint64)], [np.empty(0, np.int64)], []
        dropped = [np.empty(0, np.bool_)]
        for corpus in self.corpora:
            sizes.append(0)
            for block in corpus.blocks():
                hashes.append(text_hashes(map(clean_text, block.src)))
                dates.append(np.array(block.dates, np.int64) if block.dates else np.zeros(len(block.src), np.int64))
                outcomes = (clean_pair(*pair, self.limits) for pair in zip(block.src, block.tgt, strict=True))
                dropped.append(np.array([isinstance(outcome, str) for outcome in outcomes], np.bool_))
                sizes[-1] += len(block.src)
        all_hashes, all_dates, is_dropped = np.concatenate(hashes), np.concatenate(dates), np.concatenate(dropped)
        del hashes, dates, dropped
        # stable, so that of equal dates the last pair is last
        order = np.lexsort((all_dates, ~is_dropped, all_hashes))
        is_last = np.ones(order.size, np.bool_)
        is_last[:-1] = all_hashes[order[1:]] != all_hashes[order[:-1]]
        is_newest = is_dropped  # they are counted for their own reasons
        is_newest[order[is_last]] = True
        return np.split(is_newest, np.cumsum(sizes)[:-1])


def _part(block: PairBlock, is_kept: NDArray[np.bool_]) -> PairBlock:
    """The pairs of a block that are kept; the others are counted."""
    kept, (first, *_) = np.flatnonzero(is_kept).tolist(), np.flatnonzero(~is_kept).tolist()
    older = PairGroup(int((~is_kept).sum()), block.lines[first], block.src[first], block.tgt[first])
    return PairBlock(
        [block.lines[row] for row in kept], [block.src[row] for row in kept], [block.tgt[row] for row in kept],
        [block.dates[row] for row in kept] if block.dates else (), {**block.left_out, OLDER: older},
    )  # fmt: skip
