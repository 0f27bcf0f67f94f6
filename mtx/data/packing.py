"""Which sentences make which step, and how a step becomes batches of one fixed shape. No torch, no files.

What a step learns from is a pure function of (seed, position) and the token budget. Memory, devices and micro-batches
decide only how it is cut. Flow: lengths -> `StepPlanner.step` -> `assign` -> `pack` -> the loader.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

WINDOW_BLOCK = 65_536
WINDOW_BLOCKS = 256  # a window of 16M pairs is shuffled at a time; a smaller corpus is one permutation


@dataclass(frozen=True)
class Position:
    """Where training stands in its data: `index` sentences of epoch `epoch` have been taken."""

    epoch: int = 0
    index: int = 0


@dataclass(frozen=True)
class Step:
    """The sentences of one optimizer update, and the position after it."""

    pairs: Ints
    num_src_tokens: int
    num_tgt_tokens: int
    after: Position


class EpochOrder:
    """The random order of one epoch: windows of shuffled blocks, each window one permutation.

    Args:
        weights: how often each pair is seen, float [num_pairs], or None for once each. The fraction of a weight is
            drawn anew each epoch.
    """

    def __init__(self, seed: int, epoch: int, num_pairs: int, weights: npt.NDArray[np.float64] | None = None):
        self._key = (seed, epoch)
        rng = np.random.default_rng(self._key)
        self._items: npt.NDArray[np.uint32] | None = None
        if weights is not None:
            copies = np.floor(weights + rng.random(num_pairs)).astype(np.int64)
            self._items = np.repeat(np.arange(num_pairs, dtype=np.uint32), copies)
        self.num_items = num_pairs if self._items is None else len(self._items)
        blocks = rng.permutation(-(-self.num_items // WINDOW_BLOCK))
        self._windows = [blocks[i : i + WINDOW_BLOCKS] for i in range(0, len(blocks), WINDOW_BLOCKS)]
        sizes = [sum(min(WINDOW_BLOCK, self.num_items - int(b) * WINDOW_BLOCK) for b in w) for w in self._windows]
        self._ends = np.cumsum(sizes, dtype=np.int64)
        self._window = lru_cache(maxsize=2)(self._shuffle)

    def _shuffle(self, number: int) -> Ints:
        parts = [
            np.arange(b * WINDOW_BLOCK, min((b + 1) * WINDOW_BLOCK, self.num_items), dtype=np.int64)
            for b in np.sort(self._windows[number])
        ]
        order = np.random.default_rng((*self._key, number)).permutation(np.concatenate(parts))
        return order if self._items is None else self._items[order].astype(np.int64)

    def take(self, start: int, stop: int) -> Ints:
        """The pairs at places start to stop (less at the epoch's end) of this order."""
        parts = []
        stop = min(stop, self.num_items)
        while start < stop:
            window = int(np.searchsorted(self._ends, start, side="right"))
            begin = int(self._ends[window - 1]) if window else 0
            end = min(stop, int(self._ends[window]))
            parts.append(self._window(window)[start - begin : end - begin])
            start = end
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


class StepPlanner:
    """Cuts the endless stream of epochs into steps.

    A step takes whole sentences in random order until the next one would exceed `batch_tokens` target tokens, that
    times the corpus's own source/target ratio in source tokens, or batch_tokens / 4 sentences.

    Args:
        src_lengths, tgt_lengths: tokens of each pair, </s> included, int [num_pairs].
        weights: see `EpochOrder`.
    """

    def __init__(
        self,
        src_lengths: npt.NDArray[np.int32],
        tgt_lengths: npt.NDArray[np.int32],
        weights: npt.NDArray[np.float64] | None,
        seed: int,
        batch_tokens: int,
    ):
        assert len(src_lengths) > 0
        self._src_lengths, self._tgt_lengths = src_lengths, tgt_lengths
        self._weights, self._seed = weights, seed
        self.ratio = src_lengths.sum(dtype=np.int64) / tgt_lengths.sum(dtype=np.int64)
        self._tgt_budget = batch_tokens
        self._src_budget = src_budget(batch_tokens, self.ratio, int(src_lengths.max()))
        self._max_sentences = max(1, batch_tokens // 4)
        self._order = lru_cache(maxsize=2)(self._make_order)

    def _make_order(self, epoch: int) -> EpochOrder:
        return EpochOrder(self._seed, epoch, len(self._src_lengths), self._weights)

    def _upcoming(self, position: Position) -> Ints:
        """The next `max_sentences` pairs, running on into the epochs that follow."""
        parts: list[Ints] = []
        missing, epoch, index = self._max_sentences, position.epoch, position.index
        while missing > 0:
            parts.append(self._order(epoch).take(index, index + missing))
            missing -= len(parts[-1])
            epoch, index = epoch + 1, 0
        return np.concatenate(parts)

    def step(self, position: Position) -> Step:
        """The step that starts at `position`."""
        pairs = self._upcoming(position)
        src, tgt = self._src_lengths[pairs].cumsum(), self._tgt_lengths[pairs].cumsum()
        taken = min(
            int(np.searchsorted(tgt, self._tgt_budget, side="right")),
            int(np.searchsorted(src, self._src_budget, side="right")),
        )
        assert taken > 0, "a budget below the longest sentence is refused by the configuration"
        epoch, index = position.epoch, position.index + taken
        while index >= (size := self._order(epoch).num_items):
            epoch, index = epoch + 1, index - size
        return Step(pairs[:taken], int(src[taken - 1]), int(tgt[taken - 1]), Position(epoch, index))


def src_budget(batch_tokens: int, ratio: float, longest: int) -> int:
    """Source tokens a step may hold: the target budget times the corpus's ratio, and at least one sentence."""
    return max(round(batch_tokens * ratio), longest)


@dataclass(frozen=True)
class Shape:
    """The one shape of all micro-batches: positions a side, sentences, and the longest dummy sentence."""

    num_src: int
    num_tgt: int
    max_sentences: int
    max_tokens: int
    spare: int

    def fits(self, src: int, tgt: int, sentences: int) -> bool:
        """Whether so many real tokens and sentences leave room for the dummies that the tail can need."""
        room = src <= self.num_src - self.spare and tgt <= self.num_tgt - self.spare
        return room and sentences <= self.max_sentences - self.spare


def micro_batch_shape(batch_tokens: int, micro_batch_tokens: int, ratio: float, max_tokens: int) -> tuple[int, Shape]:
    """The number of micro-batches of a step, and their shape (DESIGN 3)."""
    k = -(-batch_tokens // micro_batch_tokens)
    margin = 1.02 if k > 1 else 1.0
    wanted_tgt = max(batch_tokens / k * margin, max_tokens)
    wanted_src = max(src_budget(batch_tokens, ratio, max_tokens) / k * margin, max_tokens)
    spare = 1
    while spare < -(-int(max(wanted_src, wanted_tgt) + spare) // max_tokens) - (-128 // max_tokens):  # 128: rounding
        spare += 1
    num_tgt, num_src = _round_up(wanted_tgt + spare), _round_up(wanted_src + spare)
    return k, Shape(num_src, num_tgt, max(num_tgt // 3, num_tgt // 4 + spare), max_tokens, spare)


def _round_up(size: float) -> int:
    multiple = 128 if size > 8192 else 16
    return -(-int(np.ceil(size)) // multiple) * multiple


def assign(src_lengths: npt.NDArray[np.int32], tgt_lengths: npt.NDArray[np.int32], k: int, shape: Shape) -> list[Ints]:
    """Deal the sentences of a step to k micro-batches: longest first, to the emptiest; one more where none has room.

    Returns:
        For each micro-batch the indices into the step's sentences, longest first.
    """
    src, tgt = src_lengths.tolist(), tgt_lengths.tolist()
    members: list[list[int]] = [[] for _ in range(k)]
    loads = [(0, 0)] * k
    for i in np.argsort(-(src_lengths + tgt_lengths), kind="stable").tolist():
        for j in sorted(range(len(members)), key=lambda j: sum(loads[j])) if len(members) > 1 else (0,):
            after = (loads[j][0] + src[i], loads[j][1] + tgt[i])
            if shape.fits(*after, len(members[j]) + 1):
                break
        else:
            members.append([])
            loads.append((0, 0))
            j, after = len(members) - 1, (src[i], tgt[i])
        members[j].append(i)
        loads[j] = after
    return [np.array(m, dtype=np.int64) for m in members]


@dataclass(frozen=True)
class PackedBatch:
    """One micro-batch: sentences end to end, no padding between them; numpy arrays, or tensors after the loader.

    The tail is covered by dummy sentences (all pad, no loss), so that every position belongs to a sentence.

    Attributes:
        src_ids, src_positions: int [N_src]; a position counts from 0 within its sentence.
        tgt_in_ids, tgt_out_ids, tgt_positions: int [N_tgt]; `tgt_out_ids` is pad where there is no loss.
        src_offsets, tgt_offsets: int32 [M+1], where each sentence starts; unused entries equal N. Always in host
            memory.
        num_sentences, num_src_tokens, num_tgt_tokens: real ones, without the dummies.
        max_tokens: no sentence is longer, on either side.
    """

    src_ids: Any
    src_positions: Any
    tgt_in_ids: Any
    tgt_out_ids: Any
    tgt_positions: Any
    src_offsets: Any
    tgt_offsets: Any
    num_sentences: int
    num_src_tokens: int
    num_tgt_tokens: int
    max_tokens: int


@dataclass(frozen=True)
class _Packed:
    ids: Ints
    positions: Ints
    offsets: npt.NDArray[np.int32]
    first: Ints  # index of the first token of each sentence


def _pack_side(
    tokens: npt.NDArray[Any], starts: Ints, lengths: npt.NDArray[np.int32], dummies: Ints, n: int, m: int, pad_id: int
) -> _Packed:
    real = int(lengths.sum())
    all_lengths = np.concatenate([lengths.astype(np.int64), dummies])
    ends = all_lengths.cumsum()
    first = ends - all_lengths
    positions = np.arange(n, dtype=np.int64) - np.repeat(first, all_lengths)
    ids = np.full(n, pad_id, dtype=np.int64)
    ids[:real] = tokens[np.repeat(starts, lengths) + positions[:real]]
    offsets = np.full(m + 1, n, dtype=np.int32)
    offsets[: len(first)] = first
    return _Packed(ids, positions, offsets, first)


def pack(src: Any, tgt: Any, pairs: Ints, shape: Shape, pad_id: int) -> PackedBatch:
    """Gather sentences into one batch of `shape`.

    Args:
        src, tgt: the sides of a store (`tokens`, `starts`, `lengths`).
        pairs: which sentences, in the order in which they shall stand.
    """
    src_lengths, tgt_lengths = src.lengths[pairs], tgt.lengths[pairs]
    num_src, num_tgt = int(src_lengths.sum()), int(tgt_lengths.sum())
    tails = shape.num_src - num_src, shape.num_tgt - num_tgt
    num_dummies = max(-(-tail // shape.max_tokens) for tail in tails)
    assert num_dummies <= min(tails) or max(tails) == 0, "the spare positions hold every dummy"
    dummies = [_split_evenly(tail, num_dummies) for tail in tails]
    sides = [
        _pack_side(side.tokens, side.starts[pairs], lengths, dummy, n, shape.max_sentences, pad_id)
        for side, lengths, dummy, n in (
            (src, src_lengths, dummies[0], shape.num_src),
            (tgt, tgt_lengths, dummies[1], shape.num_tgt),
        )
    ]
    tgt_in = np.concatenate([[pad_id], sides[1].ids[:-1]])
    tgt_in[sides[1].first] = pad_id  # the decoder starts from pad
    return PackedBatch(
        sides[0].ids, sides[0].positions, tgt_in, sides[1].ids, sides[1].positions, sides[0].offsets, sides[1].offsets,
        len(pairs), num_src, num_tgt, shape.max_tokens,
    )  # fmt: skip


def _split_evenly(total: int, parts: int) -> Ints:
    """`total` as `parts` whole numbers that differ by one at most."""
    return np.diff(np.arange(parts + 1, dtype=np.int64) * total // max(parts, 1)) if parts else np.empty(0, np.int64)


def steps(planner: StepPlanner, position: Position, num_steps: int) -> Iterator[Step]:
    """The next `num_steps` steps from `position` on."""
    for _ in range(num_steps):
        step = planner.step(position)
        yield step
        position = step.after
