"""Decides which sentence pairs make up which training step. No torch, no files.

The pairs of a step are a pure function of the seed, the position in the data and the token budget. They depend neither
on the memory of the device nor on the number of micro-batches, into which `packing` divides a step.
Flow: lengths in the token store -> `BatchSampler.step` -> `Step` -> `mtx.data.packing`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, chain
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Ids = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]
Lengths = npt.NDArray[np.int32]  # tokens of sentences, `</s>` included
Weights = npt.NDArray[np.float64] | None

CHUNK = 4096  # positions of an epoch that are re-encoded at once


@dataclass(frozen=True)
class SamplerState:
    """The position of training in its data: `index` pairs of epoch `epoch` have been used."""

    epoch: int = 0
    index: int = 0


@dataclass(frozen=True)
class Side:
    """One language's ids: sentence i is `tokens[starts[i] : starts[i] + lengths[i]]`, ending in `</s>`.

    `tokens` is a view of the whole mapped file, so only the parts at `starts` and `lengths` are ids.
    """

    tokens: Ids
    starts: Ints
    lengths: Lengths

    @classmethod
    def of(cls, sentences: Sequence[Sequence[int]], id_type: Any) -> "Side":
        """The sentences, one after the other."""
        lengths = np.array([len(ids) for ids in sentences], dtype=np.int32)
        tokens: Any = np.fromiter(chain.from_iterable(sentences), dtype=id_type, count=int(lengths.sum()))
        return cls(tokens, np.cumsum(lengths, dtype=np.int64) - lengths, lengths)

    def take(self, pairs: Ints | slice) -> "Side":
        """The sentences with these numbers; the ids are not copied."""
        return Side(self.tokens, self.starts[pairs], self.lengths[pairs])

    def gather(self, pairs: Ints) -> "Side":
        """The sentences with these numbers, their ids copied one after the other."""
        lengths = self.lengths[pairs]
        starts = np.cumsum(lengths, dtype=np.int64) - lengths
        places = np.arange(lengths.sum()) + (self.starts[pairs] - starts).repeat(lengths)
        return Side(self.tokens.take(places), starts, lengths)

    def sentences(self, pairs: Ints) -> list[list[int]]:
        """The ids of the sentences with these numbers."""
        places = zip(self.starts[pairs].tolist(), self.lengths[pairs].tolist(), strict=True)
        return [self.tokens[start : start + length].tolist() for start, length in places]


def join(sides: Sequence[Side]) -> Side:
    """The sentences of several sides, each with its own `tokens`, one after the other."""
    offsets = accumulate((len(side.tokens) for side in sides), initial=0)
    return Side(
        np.concatenate([side.tokens for side in sides]),
        np.concatenate([side.starts + offset for side, offset in zip(sides, offsets, strict=False)]),
        np.concatenate([side.lengths for side in sides]),
    )


@dataclass(frozen=True)
class Chunk:
    """Consecutive pairs of an epoch's order.

    Attributes:
        sides: source and target of re-encoded pairs, where sentence i belongs to `pairs[i]`; empty if the pairs are as
            in the store.
    """

    pairs: Ints
    sides: tuple[Side, ...] = ()

    def take(self, places: slice) -> "Chunk":
        """The pairs at these positions."""
        return Chunk(self.pairs[places], tuple(side.take(places) for side in self.sides))


Encode = Callable[[int, int, Ints], Chunk]  # epoch, number of the chunk in it, pairs


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


def epoch_order(seed: int, epoch: int, num_pairs: int, weights: Weights = None) -> npt.NDArray[np.uint32]:
    """The pairs of one epoch in their random order.

    Args:
        weights: how often each pair occurs in an epoch, float [num_pairs], or None for once. The fraction of a weight
            is the probability of one more occurrence, drawn again for each epoch.
    """
    pairs = np.arange(num_pairs, dtype=np.uint32)
    if weights is not None:
        draws = np.random.default_rng((seed, epoch)).random(num_pairs)
        pairs = pairs.repeat(np.floor(weights + draws).astype(np.int64))
    np.random.default_rng((seed, epoch, 0)).shuffle(pairs)
    return pairs


class BatchSampler:
    """Cuts the endless sequence of epochs into steps.

    A step takes pairs in random order until the next one would exceed the budget: `batch_tokens` target tokens,
    `src_budget` source tokens, or batch_tokens / 4 pairs.

    Args:
        src_lengths, tgt_lengths: tokens of each pair, `</s>` included, int [num_pairs].
        weights: see `epoch_order`.
        encode: re-encodes a chunk of an epoch (`mtx.data.augmentation`); None: use the pieces of the store.
        longest: the maximum number of source tokens of a sentence; None: from these pairs.

    Attributes:
        ratio: source tokens per target token of an epoch.
        tokens_per_sentence: mean number of target tokens of the pairs of an epoch.
    """

    def __init__(
        self,
        src_lengths: Lengths,
        tgt_lengths: Lengths,
        weights: Weights,
        seed: int,
        batch_tokens: int,
        encode: Encode | None = None,
        longest: int | None = None,
    ):
        assert len(src_lengths) > 0
        self._src_lengths = src_lengths
        self._tgt_lengths = tgt_lengths
        self.tokens_per_sentence = float(np.average(tgt_lengths, weights=weights))
        self.ratio = float(np.average(src_lengths, weights=weights)) / self.tokens_per_sentence
        self._tgt_budget = batch_tokens
        self._src_budget = src_budget(batch_tokens, self.ratio, longest or int(src_lengths.max()))
        self._max_sentences = max(1, batch_tokens // 4)
        usual = 1.2 * batch_tokens / self.tokens_per_sentence + 16
        self._usual_sentences = min(int(usual), self._max_sentences)
        self._order = lru_cache(maxsize=2)(partial(epoch_order, seed, num_pairs=len(src_lengths), weights=weights))
        self._encode = encode
        self._chunk = lru_cache(maxsize=4)(self._make_chunk)

    def _make_chunk(self, epoch: int, number: int) -> Chunk:
        pairs = self._order(epoch)[number * CHUNK : (number + 1) * CHUNK].astype(np.int64)
        return self._encode(epoch, number, pairs) if self._encode else Chunk(pairs)

    def _upcoming(self, position: SamplerState, num_pairs: int) -> Chunk:
        """The next `num_pairs` pairs, which may extend over several epochs."""
        parts: list[Chunk] = []
        epoch = position.epoch
        index = position.index
        while num_pairs > 0:
            if index >= len(self._order(epoch)):
                epoch += 1
                index = 0
            start = index % CHUNK
            parts.append(self._chunk(epoch, index // CHUNK).take(slice(start, start + num_pairs)))
            index += len(parts[-1].pairs)
            num_pairs -= len(parts[-1].pairs)
        if len(parts) == 1:  # without a copy
            return parts[0]
        sides = map(join, zip(*(part.sides for part in parts), strict=True))
        return Chunk(np.concatenate([part.pairs for part in parts]), tuple(sides))

    def epochs(self, position: SamplerState) -> float:
        """The number of epochs at `position`, including the fraction of the current one, which may be empty."""
        return position.epoch + position.index / max(1, len(self._order(position.epoch)))

    def step(self, position: SamplerState) -> Step:
        """The step that starts at `position`."""
        for num_pairs in (self._usual_sentences, self._max_sentences):  # the first number is nearly always enough
            chunk = self._upcoming(position, num_pairs)
            if chunk.sides:
                src, tgt = (side.lengths for side in chunk.sides)
            else:
                src = self._src_lengths[chunk.pairs]
                tgt = self._tgt_lengths[chunk.pairs]
            budgets = (src, self._src_budget), (tgt, self._tgt_budget)
            size = min(int(lengths.cumsum().searchsorted(budget, side="right")) for lengths, budget in budgets)
            if size < num_pairs:  # a budget is used up, so further pairs do not matter
                break
        assert size > 0, "a budget below the longest sentence is refused by the configuration"
        epoch = position.epoch
        index = position.index + size
        while index >= (num_items := len(self._order(epoch))):
            epoch += 1
            index -= num_items
        return Step(
            pairs=chunk.pairs[:size],
            src_lengths=src[:size],
            tgt_lengths=tgt[:size],
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
