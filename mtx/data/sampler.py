"""Decides which sentence pairs make up which training step. No torch, no files.

The pairs of a step are a pure function of the seed, the position in the data and the token budget. They depend neither
on the memory of the device nor on the number of micro-batches, into which `packing` divides a step.
Flow: lengths in the token store -> `EpochOrder`, windows of pairs in random order -> `BatchSampler.step` -> `Step` ->
`mtx.data.packing`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt

from mtx.formatting import divide_up

Ints = npt.NDArray[np.int64]
Ids = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]
Lengths = npt.NDArray[np.int32]  # tokens of sentences, `</s>` included
Weights = npt.NDArray[np.float64]

CHUNK = 4096  # positions of an epoch that are re-encoded at once


@dataclass(frozen=True)
class SamplerState:
    """The position of training in its data: `index` pairs of epoch `epoch` have been used."""

    epoch: int = 0
    index: int = 0


# Consecutive sentences of a side: their number, where their ids begin in `tokens`, and their offsets in `offsets`
BLOCK = np.dtype([("size", np.int64), ("token_place", np.int64), ("offset_place", np.int64)])


@dataclass(frozen=True)
class Side:
    """One language's ids, in blocks of consecutive sentences, each ending in `</s>`.

    In a block with the token place t and the offset place o, sentence i is
    `tokens[t + offsets[o + i] : t + offsets[o + i + 1]]`. In a token store a block is a record batch, and `tokens` and
    `offsets` are views of the whole mapped file, so no array has an item for each sentence.

    Attributes:
        offsets: int32 or int64.
        blocks: an array of BLOCK.
    """

    tokens: Ids
    offsets: Any
    blocks: Any

    @classmethod
    def of(cls, sentences: Sequence[Sequence[int]], id_type: Any) -> "Side":
        """The sentences, one after the other, as one block."""
        lengths = [len(ids) for ids in sentences]
        tokens: Any = np.fromiter(chain.from_iterable(sentences), dtype=id_type, count=sum(lengths))
        return cls.cut(tokens, lengths)

    @classmethod
    def cut(cls, tokens: Ids, lengths: Any) -> "Side":
        """The sentences of these lengths, which `tokens` has one after the other, as one block."""
        offsets = np.append(0, np.cumsum(lengths, dtype=np.int64))
        return cls(tokens, offsets, np.array([(len(lengths), 0, 0)], BLOCK))

    @cached_property
    def first_sentences(self) -> Ints:
        """The number of the first sentence of each block, and that of all sentences."""
        return np.append(0, self.blocks["size"].cumsum())

    @property
    def num_sentences(self) -> int:
        """The number of sentences in all blocks."""
        return int(self.first_sentences[-1])

    @property
    def block_tokens(self) -> Ints:
        """The number of tokens of each block."""
        places = self.blocks["offset_place"]
        return np.asarray(self.offsets[places + self.blocks["size"]] - self.offsets[places], np.int64)

    @property
    def lengths(self) -> Lengths:
        """The tokens of every sentence, as a new array."""
        return np.concatenate([np.empty(0, np.int32), *map(self.block_lengths, range(len(self.blocks)))])

    def block_lengths(self, block: int) -> Lengths:
        """The tokens of the sentences of a block."""
        size, _, place = self.blocks[block].tolist()
        lengths: Lengths = np.diff(self.offsets[place : place + size + 1]).astype(np.int32)
        return lengths

    def blocks_of(self, numbers: Ints) -> Ints:
        """The number of the block of each of these sentences."""
        return self.first_sentences.searchsorted(numbers, side="right") - 1

    def locate(self, numbers: Ints) -> tuple[Ints, Lengths]:
        """Where the sentences with these numbers start in `tokens`, and their lengths."""
        blocks = self.blocks_of(numbers)
        places = self.blocks["offset_place"][blocks] + numbers - self.first_sentences[blocks]
        starts = self.offsets[places]
        return self.blocks["token_place"][blocks] + starts, (self.offsets[places + 1] - starts).astype(np.int32)

    def gather(self, numbers: Ints) -> "Side":
        """The sentences with these numbers, their ids copied one after the other."""
        starts, lengths = self.locate(numbers)
        gaps = starts - (np.cumsum(lengths, dtype=np.int64) - lengths)
        return Side.cut(self.tokens.take(np.arange(lengths.sum()) + gaps.repeat(lengths)), lengths)

    def sentences(self, numbers: Ints) -> list[list[int]]:
        """The ids of the sentences with these numbers."""
        starts, lengths = self.locate(numbers)
        places = zip(starts.tolist(), lengths.tolist(), strict=True)
        return [self.tokens[start : start + length].tolist() for start, length in places]


def join(sides: Sequence[Side]) -> Side:
    """The sentences of several sides that `Side.cut` made, one after the other."""
    lengths = np.concatenate([side.lengths for side in sides])
    return Side.cut(np.concatenate([side.tokens for side in sides]), lengths)


# A pair of an epoch's order: its number in the token store, and its tokens on both sides
ROW = np.dtype([("pair", np.int64), ("src", np.int32), ("tgt", np.int32)])


class EpochOrder:
    """The pairs of each epoch in their random order, a function of the seed and the epoch.

    An epoch is divided into windows, so that its order takes a bounded amount of memory, and a text larger than memory
    is read a window at a time. A window is a random permutation of its pairs. With W windows, each group of W
    neighbouring blocks gives one block to each window, at random. So every window has about as many pairs as the
    others, from all parts of the text.

    Args:
        src, tgt: the sides of the text, with the same blocks.
        weights: how often each pair of a block occurs in an epoch, float [blocks]. The fraction of a weight is the
            share of the pairs with one more occurrence (in one window, the probability of each), drawn again for each
            epoch.
        window_pairs: about how many pairs a window has.
    """

    def __init__(self, src: Side, tgt: Side, weights: Weights, seed: int, window_pairs: int):
        assert src.num_sentences > 0
        self.src = src
        self.tgt = tgt
        self.weights = weights
        self._seed = seed
        num_pairs = weights @ src.blocks["size"]
        self._num_windows = max(1, ceil(num_pairs / window_pairs))
        # In one window each pair is drawn by its weight, as in mtx 1.0; several windows draw parts of blocks
        self._draws_pairs = self._num_windows == 1 and (weights != 1).any()
        self._deal = lru_cache(maxsize=2)(self._deal_blocks)
        self._ends = lru_cache(maxsize=8)(self._find_ends)
        self._window = lru_cache(maxsize=1)(self._draw_window)

    def num_pairs(self, epoch: int) -> int:
        """The number of pairs of an epoch."""
        return int(self._ends(epoch)[-1])

    def mean_length(self, side: Side) -> float:
        """The mean number of tokens of a side of the pairs of an epoch."""
        sizes = side.blocks["size"]
        if self._draws_pairs:  # rounded as in mtx 1.0
            return float(np.average(side.lengths, weights=self.weights.repeat(sizes)))
        return float(self.weights @ side.block_tokens) / float(self.weights @ sizes)

    def rows(self, epoch: int, start: int, stop: int) -> npt.NDArray[Any]:
        """The pairs `start` to `stop` of an epoch, or to its end, as an array of `ROW`."""
        ends = self._ends(epoch)
        parts = [np.empty(0, ROW)]
        while start < min(stop, ends[-1]):
            number = int(ends.searchsorted(start, side="right"))
            window = self._window(epoch, number)
            window_start = int(ends[number]) - len(window)
            parts.append(window[start - window_start : stop - window_start])
            start += len(parts[-1])
        return np.concatenate(parts)

    def _find_ends(self, epoch: int) -> Ints:
        """The number of pairs of an epoch up to the end of each window."""
        if self._draws_pairs:  # each of its pairs is drawn
            return np.array([len(self._window(epoch, 0))])
        return np.cumsum([counts.sum() for _, counts in self._deal(epoch)])

    def _deal_blocks(self, epoch: int) -> list[tuple[Ints, Ints]]:
        """For each window of an epoch, its blocks and how many pairs of each it has."""
        sizes = self.src.blocks["size"]
        blocks = np.arange(len(sizes))
        counts = sizes
        rng = np.random.default_rng((self._seed, epoch))
        if not self._draws_pairs:  # a block occurs whole, by its weight, and once more in part
            num_whole = np.floor(self.weights).astype(np.int64)
            parts = np.floor((self.weights - num_whole) * sizes + rng.random(len(sizes))).astype(np.int64)
            blocks = blocks.repeat(num_whole + 1)
            counts = sizes[blocks]
            counts[np.cumsum(num_whole + 1) - 1] = parts
            blocks = blocks[counts > 0]
            counts = counts[counts > 0]
        num_rounds = divide_up(len(blocks), self._num_windows)
        places = np.arange(num_rounds * self._num_windows).reshape(num_rounds, self._num_windows)
        dealt = (column[column < len(blocks)] for column in rng.permuted(places, axis=1).T)
        return [(blocks[column], counts[column]) for column in dealt]

    def _draw_window(self, epoch: int, number: int) -> npt.NDArray[Any]:
        """The pairs of a window in their order, as an array of `ROW`."""
        blocks, counts = self._deal(epoch)[number]
        rng = np.random.default_rng((self._seed, epoch, number))
        rows = np.empty(counts.sum(), ROW)
        start = 0
        for block, count in zip(blocks.tolist(), counts.tolist(), strict=True):
            first, stop = self.src.first_sentences[block : block + 2]
            chosen = slice(None) if count == stop - first else rng.permutation(stop - first)[:count]
            block_rows = rows[start : start + count]
            block_rows["pair"] = np.arange(first, stop)[chosen]
            block_rows["src"] = self.src.block_lengths(block)[chosen]
            block_rows["tgt"] = self.tgt.block_lengths(block)[chosen]
            start += count
        if self._draws_pairs:
            draws = np.random.default_rng((self._seed, epoch)).random(len(rows))
            rows = rows.repeat(np.floor(self.weights.repeat(counts) + draws).astype(np.int64))
        rng.shuffle(rows)
        return rows


@dataclass(frozen=True)
class Chunk:
    """Consecutive pairs of an epoch's order.

    Attributes:
        rows: an array of `ROW`.
        sides: source and target of re-encoded pairs, where sentence i belongs to `rows[i]`; empty if the pairs are as
            in the store.
    """

    rows: npt.NDArray[Any]
    sides: tuple[Side, ...] = ()

    def take(self, places: slice) -> "Chunk":
        """The pairs at these positions."""
        numbers = np.arange(len(self.rows))[places]
        return Chunk(self.rows[places], tuple(side.gather(numbers) for side in self.sides))


Encode = Callable[[int, int, Ints], tuple[Side, ...]]  # epoch, number of the chunk in it, pairs -> source and target


@dataclass(frozen=True)
class Step:
    """The pairs of one optimizer update, as numbers in the token store, and the position after it.

    Attributes:
        src_lengths, tgt_lengths: tokens of each of these pairs.
        sides: see `Chunk`; they may have more sentences than the step.
    """

    pairs: Ints
    src_lengths: Lengths
    tgt_lengths: Lengths
    position_after: SamplerState
    sides: tuple[Side, ...]


class BatchSampler:
    """Cuts the endless sequence of epochs into steps.

    A step takes pairs in random order until the next one would exceed the budget: `batch_tokens` target tokens,
    `src_budget` source tokens, or batch_tokens / 4 pairs.

    Args:
        max_tokens: no source has more tokens.
        encode: re-encodes a chunk of an epoch (`mtx.data.augmentation`); None: use the pieces of the store.

    Attributes:
        ratio: source tokens per target token of an epoch.
        tokens_per_sentence: mean number of target tokens of the pairs of an epoch.
    """

    def __init__(self, order: EpochOrder, batch_tokens: int, max_tokens: int, encode: Encode | None = None):
        self.tokens_per_sentence = order.mean_length(order.tgt)
        self.ratio = order.mean_length(order.src) / self.tokens_per_sentence
        longest = max_tokens
        if encode is None and round(batch_tokens * self.ratio) < max_tokens:  # else it does not matter
            longest = max(int(order.src.block_lengths(block).max()) for block in range(len(order.src.blocks)))
        self._src_budget = src_budget(batch_tokens, self.ratio, longest)
        self._tgt_budget = batch_tokens
        self._max_sentences = max(1, batch_tokens // 4)
        usual = 1.2 * batch_tokens / self.tokens_per_sentence + 16
        self._usual_sentences = min(int(usual), self._max_sentences)
        self._order = order
        self._encode = encode
        self._chunk = lru_cache(maxsize=4)(self._make_chunk)

    def _make_chunk(self, epoch: int, number: int) -> Chunk:
        rows = self._order.rows(epoch, number * CHUNK, (number + 1) * CHUNK)
        if self._encode is None:
            return Chunk(rows)
        src, tgt = self._encode(epoch, number, rows["pair"])
        rows["src"] = src.lengths
        rows["tgt"] = tgt.lengths
        return Chunk(rows, (src, tgt))

    def _upcoming(self, position: SamplerState, num_pairs: int) -> Chunk:
        """The next `num_pairs` pairs, which may extend over several epochs."""
        parts: list[Chunk] = []
        epoch = position.epoch
        index = position.index
        while num_pairs > 0:
            if index >= self._order.num_pairs(epoch):
                epoch += 1
                index = 0
            start = index % CHUNK
            parts.append(self._chunk(epoch, index // CHUNK).take(slice(start, start + num_pairs)))
            index += len(parts[-1].rows)
            num_pairs -= len(parts[-1].rows)
        if len(parts) == 1:
            return parts[0]
        sides = map(join, zip(*(part.sides for part in parts), strict=True))
        return Chunk(np.concatenate([part.rows for part in parts]), tuple(sides))

    def epochs(self, position: SamplerState) -> float:
        """The number of epochs at `position`, including the fraction of the current one, which may be empty."""
        return position.epoch + position.index / max(1, self._order.num_pairs(position.epoch))

    def step(self, position: SamplerState) -> Step:
        """The step that starts at `position`."""
        for num_pairs in (self._usual_sentences, self._max_sentences):  # the first number is nearly always enough
            chunk = self._upcoming(position, num_pairs)
            rows = chunk.rows
            budgets = ("src", self._src_budget), ("tgt", self._tgt_budget)
            size = min(int(rows[side].cumsum().searchsorted(budget, side="right")) for side, budget in budgets)
            if size < num_pairs:  # a budget is used up, so further pairs do not matter
                break
        assert size > 0, "a budget below the longest sentence is refused by the configuration"
        epoch = position.epoch
        index = position.index + size
        while index >= (num_items := self._order.num_pairs(epoch)):
            epoch += 1
            index -= num_items
        return Step(
            pairs=rows["pair"][:size],
            src_lengths=rows["src"][:size],
            tgt_lengths=rows["tgt"][:size],
            position_after=SamplerState(epoch, index),
            sides=chunk.sides,
        )


def src_budget(batch_tokens: int, ratio: float, longest: int) -> int:
    """The maximum source tokens of a step: the target budget times the source/target ratio, at least one sentence."""
    return max(round(batch_tokens * ratio), longest)


def steps(sampler: BatchSampler, position: SamplerState, num_steps: int) -> Iterator[Step]:
    """The `num_steps` steps from `position` on."""
    for _ in range(num_steps):
        step = sampler.step(position)
        yield step
        position = step.position_after
