"""Which sentences make which step, and how a step becomes batches of one fixed shape. No torch, no files.

What a step learns from is a pure function of (seed, position) and the token budget. Memory, devices and micro-batches
decide only how it is cut. Flow: lengths -> `BatchSampler.step` -> `assign` -> `pack` -> the loader.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

WINDOW_BLOCK = 65_536
WINDOW_BLOCKS = 256  # a window of 16M pairs is shuffled at a time; a smaller corpus is one permutation


@dataclass(frozen=True)
class SamplerState:
    """Where training stands in its data: `index` sentences of epoch `epoch` have been taken."""

    epoch: int = 0
    index: int = 0


@dataclass(frozen=True)
class Step:
    """The sentences of one optimizer update, and the position after it."""

    pairs: Ints
    num_src_tokens: int
    num_tgt_tokens: int
    after: SamplerState


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


class BatchSampler:
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
        usual = 1.2 * batch_tokens / tgt_lengths.mean() + 16
        self._usual_sentences = min(int(usual), self._max_sentences)
        self._order = lru_cache(maxsize=2)(self._make_order)

    def _make_order(self, epoch: int) -> EpochOrder:
        return EpochOrder(self._seed, epoch, len(self._src_lengths), self._weights)

    def _upcoming(self, position: SamplerState, num_pairs: int) -> Ints:
        """The next `num_pairs` pairs, running on into the epochs that follow."""
        parts: list[Ints] = []
        missing, epoch, index = num_pairs, position.epoch, position.index
        while missing > 0:
            parts.append(self._order(epoch).take(index, index + missing))
            missing -= len(parts[-1])
            epoch, index = epoch + 1, 0
        return np.concatenate(parts)

    def step(self, position: SamplerState) -> Step:
        """The step that starts at `position`."""
        for num_pairs in (self._usual_sentences, self._max_sentences):  # the first is nearly always enough
            pairs = self._upcoming(position, num_pairs)
            src, tgt = self._src_lengths[pairs].cumsum(), self._tgt_lengths[pairs].cumsum()
            taken = min(
                int(tgt.searchsorted(self._tgt_budget, side="right")),
                int(src.searchsorted(self._src_budget, side="right")),
            )
            if taken < num_pairs:  # a budget ends the step, whatever comes later
                break
        assert taken > 0, "a budget below the longest sentence is refused by the configuration"
        epoch, index = position.epoch, position.index + taken
        while index >= (size := self._order(epoch).num_items):
            epoch, index = epoch + 1, index - size
        return Step(pairs[:taken], int(src[taken - 1]), int(tgt[taken - 1]), SamplerState(epoch, index))


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
    """Cut a step into k micro-batches, in its order; where one does not fit, deal its sentences out instead.

    Nothing depends on the order of sentences within a micro-batch: attention sorts for itself.

    Returns:
        For each of k (rarely more) micro-batches the indices into the step's sentences.
    """
    lengths = src_lengths + tgt_lengths
    ends = lengths.cumsum()
    cuts = (ends - lengths / 2).searchsorted(ends[-1] / k * np.arange(1, k))  # a sentence goes where its middle lies
    places = np.arange(len(lengths))
    groups = [places[start:stop] for start, stop in pairwise((0, *cuts.tolist(), len(places)))]
    if all(shape.fits(int(src_lengths[g].sum()), int(tgt_lengths[g].sum()), len(g)) for g in groups):
        return groups
    return _deal(src_lengths, tgt_lengths, k, shape)


def _deal(src_lengths: npt.NDArray[np.int32], tgt_lengths: npt.NDArray[np.int32], k: int, shape: Shape) -> list[Ints]:
    """Longest first, to the emptiest micro-batch with room; one more where none has it.

    A load is weighed by what the sentence adds to each side, so that neither side fills up before the other.
    """
    src, tgt = src_lengths.tolist(), tgt_lengths.tolist()
    members: list[list[int]] = [[] for _ in range(k)]
    loads = [(0, 0)] * k
    for i in np.argsort(-(src_lengths + tgt_lengths), kind="stable").tolist():
        weighed = [s * src[i] + t * tgt[i] for s, t in loads]
        for j in sorted(range(len(members)), key=weighed.__getitem__):
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


# the fields of a `PackedBatch` that lie in its buffer, in this order
SLICES = ("src_ids", "src_positions", "tgt_in_ids", "tgt_out_ids", "tgt_positions", "src_offsets", "tgt_offsets")


@dataclass(frozen=True)
class PackedBatch:
    """One micro-batch: sentences end to end, no padding between them; numpy arrays, or tensors after the loader.

    The tail is covered by dummy sentences (all pad, no loss), so that every position belongs to a sentence.

    Attributes:
        src_ids, src_positions: int [N_src]; a position counts from 0 within its sentence.
        tgt_in_ids, tgt_out_ids, tgt_positions: int [N_tgt]; `tgt_out_ids` is pad where there is no loss.
        src_offsets, tgt_offsets: int32 [M+1], where each sentence starts; unused entries equal N.
        num_sentences, num_src_tokens, num_tgt_tokens: real ones, without the dummies.
        max_tokens: no sentence is longer, on either side.
        buffer: int64, the memory that all of these arrays are slices of, so that one copy moves a batch.
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
    buffer: Any


def slices(buffer: Any, num_src: int, num_tgt: int, num_offsets: int, int32: Any) -> dict[str, Any]:
    """The fields of a `PackedBatch` that lie in `buffer`, an array or a tensor; `int32` is that library's type."""
    words = _offset_words(num_offsets)
    sizes = (num_src, num_src, num_tgt, num_tgt, num_tgt, words, words)
    parts = [buffer[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]
    parts[5:] = [part.view(int32)[:num_offsets] for part in parts[5:]]
    return dict(zip(SLICES, parts, strict=True))


def _offset_words(num_offsets: int) -> int:
    """What so many int32 take of an int64 buffer, in whole 16 bytes: kernels read aligned tensors faster."""
    return -(-num_offsets // 4) * 2


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
    src_dummies, tgt_dummies = (_split_evenly(tail, num_dummies) for tail in tails)
    num_offsets = shape.max_sentences + 1
    buffer = np.empty(2 * shape.num_src + 3 * shape.num_tgt + 2 * _offset_words(num_offsets), dtype=np.int64)
    batch = PackedBatch(
        **slices(buffer, shape.num_src, shape.num_tgt, num_offsets, np.int32), buffer=buffer,
        num_sentences=len(pairs), num_src_tokens=num_src, num_tgt_tokens=num_tgt, max_tokens=shape.max_tokens,
    )  # fmt: skip
    _fill_offsets(batch.src_offsets, batch.src_positions, np.concatenate([src_lengths, src_dummies]))
    _fill_offsets(batch.tgt_offsets, batch.tgt_positions, np.concatenate([tgt_lengths, tgt_dummies]))
    _fill_ids(batch.src_ids, batch.src_positions, src.tokens, src.starts[pairs], src_lengths)
    _fill_ids(batch.tgt_out_ids, batch.tgt_positions, tgt.tokens, tgt.starts[pairs], tgt_lengths)
    batch.src_ids[num_src:] = batch.tgt_out_ids[num_tgt:] = pad_id
    batch.tgt_in_ids[1:] = batch.tgt_out_ids[:-1]
    batch.tgt_in_ids[batch.tgt_offsets[: len(pairs) + num_dummies]] = pad_id  # the decoder starts from pad
    return batch


def _fill_offsets(offsets: npt.NDArray[np.int32], positions: Ints, lengths: Ints) -> None:
    """`lengths`: of all sentences of a side, dummies too."""
    first = lengths.cumsum() - lengths
    offsets[: len(first)] = first
    offsets[len(first) :] = len(positions)
    np.subtract(np.arange(len(positions)), first.repeat(lengths), out=positions)


def _fill_ids(
    ids: Ints, positions: Ints, tokens: npt.NDArray[Any], starts: Ints, lengths: npt.NDArray[np.int32]
) -> None:
    # Touch each sentence first: these reads wait for memory together, those below would wait one by one. With it the
    # gather of 5M scattered pairs takes 65 us a step of 25,000 tokens, without it 144.
    tokens.take(np.concatenate([starts, starts + lengths - 1]))
    index = starts.repeat(lengths)
    index += positions[: len(index)]
    ids[: len(index)] = tokens.take(index)


def _split_evenly(total: int, parts: int) -> Ints:
    """`total` as `parts` whole numbers that differ by one at most."""
    sizes = np.full(parts, total // max(parts, 1))
    sizes[: total % max(parts, 1)] += 1
    return sizes


def steps(sampler: BatchSampler, position: SamplerState, num_steps: int) -> Iterator[Step]:
    """The next `num_steps` steps from `position` on."""
    for _ in range(num_steps):
        step = sampler.step(position)
        yield step
        position = step.after
