"""Keeps the newest translation of each source: translation memories hold older ones too.

Flow: corpora -> one pass over their pairs -> corpora that leave the others out, and count them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from mtx.data.cleaning import Limits, clean_pair, text_hashes
from mtx.data.corpora import Corpus, PairBlock, PairGroup

OLDER = "older translation"
_PART_BITS = 4  # hashes are sorted in 16 parts, one after the other, which saves memory


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
        choice, position = self._choice[number], 0  # made first: a corpus is read once at a time
        for block in self.corpora[number].blocks():
            is_newest = choice[position : position + len(block.src)]
            position += len(block.src)
            yield block if is_newest.all() else _part(block, is_newest)

    @cached_property
    def _choice(self) -> list[NDArray[np.bool_]]:
        """For each pair of each corpus, whether it is the newest of its source, or cleaning will drop it."""
        hashes, dates, kept, sizes = [np.empty(0, np.uint64)], [np.empty(0, np.int64)], [np.empty(0, np.bool_)], []
        for corpus in self.corpora:
            sizes.append(0)
            for block in corpus.blocks():
                outcomes = [clean_pair(*pair, self.limits) for pair in zip(block.src, block.tgt, strict=True)]
                kept.append(np.array([not isinstance(outcome, str) for outcome in outcomes], np.bool_))
                hashes.append(text_hashes(outcome[0] for outcome in outcomes if not isinstance(outcome, str)))
                block_dates = np.array(block.dates, np.int64) if block.dates else np.zeros(len(block.src), np.int64)
                dates.append(block_dates[kept[-1]])
                sizes[-1] += len(block.src)
        is_chosen = ~np.concatenate(kept)  # those that are dropped are counted for their own reasons
        is_chosen[~is_chosen] = _is_newest(hashes, dates)
        return np.split(is_chosen, np.cumsum(sizes)[:-1])


def _is_newest(hashes: Sequence[NDArray[np.uint64]], dates: Sequence[NDArray[np.int64]]) -> NDArray[np.bool_]:
    """For each pair whether its date is the latest of those with its hash; of equal dates the last pair's is.

    Both come in blocks of pairs: of a large memory, only the pairs with a repeated hash are put into one array.
    """
    repeated = np.concatenate([_repeated(hashes, part) for part in range(1 << _PART_BITS)])
    is_repeated = [_is_in(block, repeated) for block in hashes]
    src = np.concatenate([block[mask] for block, mask in zip(hashes, is_repeated, strict=True)])
    date = np.concatenate([block[mask] for block, mask in zip(dates, is_repeated, strict=True)])
    order = np.lexsort((date, src))  # stable, so that of equal dates the last pair is last
    is_last = np.ones(src.size, np.bool_)
    is_last[order[:-1]] = src[order[1:]] != src[order[:-1]]
    is_newest = ~np.concatenate(is_repeated)
    is_newest[~is_newest] = is_last
    return is_newest


def _repeated(hashes: Sequence[NDArray[np.uint64]], part: int) -> NDArray[np.uint64]:
    """The hashes that occur more than once, in order, among those whose first bits are the number `part`."""
    first_bits = np.uint64(64 - _PART_BITS)
    in_order = np.concatenate([block[block >> first_bits == part] for block in hashes])
    in_order.sort()
    return np.unique(in_order[1:][in_order[1:] == in_order[:-1]])


def _is_in(values: NDArray[np.uint64], sorted_values: NDArray[np.uint64]) -> NDArray[np.bool_]:
    if not sorted_values.size:
        return np.zeros(values.size, np.bool_)
    places = np.searchsorted(sorted_values, values).clip(max=sorted_values.size - 1)
    return np.asarray(sorted_values[places] == values)


def _part(block: PairBlock, is_kept: NDArray[np.bool_]) -> PairBlock:
    """The pairs of a block that are kept; the others are counted."""
    kept, (first, *_) = np.flatnonzero(is_kept).tolist(), np.flatnonzero(~is_kept).tolist()
    older = PairGroup(int((~is_kept).sum()), block.lines[first], block.src[first], block.tgt[first])
    return PairBlock(
        [block.lines[row] for row in kept], [block.src[row] for row in kept], [block.tgt[row] for row in kept],
        [block.dates[row] for row in kept] if block.dates else (), {**block.left_out, OLDER: older},
    )  # fmt: skip
