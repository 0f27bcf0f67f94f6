"""Turns the sentences of a step into micro-batches of one fixed shape. No torch, no files.

Which sentences a step has is decided in `sampler`. Memory and devices change only how the step is cut here.
Flow: `Step` -> `assign` to micro-batches -> `pack` into a `PackedBatch` -> the loader, which copies it to the device.
"""

import math
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from mtx.data.sampler import Ints, Lengths, src_budget

_MAX_KERNEL_SENTENCES = 65_535  # CUDA starts a block for each sentence in the second dimension of a grid
_MANY = 32  # micro-batches; from so many on `_distribute` takes longer than a step, so `_deal` is tried before it


@dataclass(frozen=True)
class Shape:
    """The one shape of all micro-batches of a run.

    Attributes:
        num_src, num_tgt: positions on each side.
        max_sentences: sentences, dummies included.
        max_tokens: tokens of the longest sentence, real or dummy.
        spare: positions and sentences that are reserved for dummies.
    """

    num_src: int
    num_tgt: int
    max_sentences: int
    max_tokens: int
    spare: int

    def fits(self, src: int, tgt: int, sentences: int) -> bool:
        """Whether these numbers of real tokens and sentences leave room for the dummy sentences."""
        room = src <= self.num_src - self.spare and tgt <= self.num_tgt - self.spare
        return room and sentences <= self.max_sentences - self.spare


def micro_batch_shape(
    batch_tokens: int,
    micro_batch_tokens: int,
    ratio: float,
    max_tokens: int,
    tokens_per_sentence: float | None,
    num_ranks: int = 1,
) -> tuple[int, Shape]:
    """The number of micro-batches of a step, a multiple of `num_ranks`, and their shape.

    Args:
        ratio: source tokens per target token.
        tokens_per_sentence: mean number of target tokens of a sentence, for an attention kernel whose work grows with
            `max_sentences`: there is room for a quarter more sentences than usual, at most as many as the kernel takes.
            A step of more sentences opens more micro-batches. None means room for all sentences that a step can have.
    """
    least = -(-batch_tokens // (micro_batch_tokens * num_ranks)) * num_ranks
    if tokens_per_sentence is None:
        return least, _shape(batch_tokens, least, ratio, max_tokens)
    for k in range(least, max(least, batch_tokens // max_tokens) + 1, num_ranks):
        shape = _shape(batch_tokens, k, ratio, max_tokens)
        sentences = math.ceil(1.25 * shape.num_tgt / tokens_per_sentence) + 16 + shape.spare
        if sentences <= _MAX_KERNEL_SENTENCES:
            break
    return k, replace(shape, max_sentences=min(sentences, shape.max_sentences, _MAX_KERNEL_SENTENCES))


def _shape(batch_tokens: int, k: int, ratio: float, max_tokens: int) -> Shape:
    """The shape of k micro-batches of a step, with room for as many sentences as a step can have."""
    margin = 1.02 if k > 1 else 1.0
    real_tgt = max(batch_tokens / k * margin, max_tokens)
    real_src = max(src_budget(batch_tokens, ratio, max_tokens) / k * margin, max_tokens)
    spare = 1
    while spare < -(-int(max(real_src, real_tgt) + spare) // max_tokens) - (-128 // max_tokens):  # 128: rounding
        spare += 1
    num_tgt, num_src = _round_up(real_tgt + spare), _round_up(real_src + spare)
    return Shape(num_src, num_tgt, max(num_tgt // 3, num_tgt // 4 + spare), max_tokens, spare)


def _round_up(size: float) -> int:
    multiple = 128 if size > 8192 else 16
    return -(-int(np.ceil(size)) // multiple) * multiple


def assign(src_lengths: Lengths, tgt_lengths: Lengths, k: int, shape: Shape) -> list[Ints]:
    """Cut a step into k micro-batches of consecutive sentences, or if one does not fit, distribute the sentences.

    The order of sentences within a micro-batch does not matter, because attention sorts them itself.

    Returns:
        For each of the k (rarely more) micro-batches, indices into the step's sentences.
    """
    lengths = src_lengths + tgt_lengths
    ends = lengths.cumsum()
    cuts = (ends - lengths / 2).searchsorted(ends[-1] / k * np.arange(1, k))  # a sentence goes where its middle lies
    places = np.arange(len(lengths))
    groups = [places[start:stop] for start, stop in pairwise((0, *cuts.tolist(), len(places)))]
    if _all_fit(src_lengths, tgt_lengths, groups, shape):
        return groups
    if k >= _MANY and _all_fit(src_lengths, tgt_lengths, groups := _deal(src_lengths, tgt_lengths, k), shape):
        return groups
    return _distribute(src_lengths, tgt_lengths, k, shape)


def _all_fit(src_lengths: Lengths, tgt_lengths: Lengths, groups: list[Ints], shape: Shape) -> bool:
    return all(shape.fits(int(src_lengths[g].sum()), int(tgt_lengths[g].sum()), len(g)) for g in groups)


def _deal(src_lengths: Lengths, tgt_lengths: Lengths, k: int) -> list[Ints]:
    """Deal sentences to micro-batches in rounds of one for each, longest first, without a look at the room.

    Rounds even out in turn how much longer the source side is than the target side, and the sum of both: the sentence
    with the largest such number goes to the micro-batch with the smallest.
    """
    lengths = np.stack([src_lengths - tgt_lengths, src_lengths + tgt_lengths]).astype(np.int64)
    order = np.argsort(-lengths[1], kind="stable")
    loads = np.zeros((2, k), dtype=np.int64)
    numbers = np.empty(len(order), dtype=np.int64)  # of the micro-batch that each sentence goes to
    for turn, start in enumerate(range(0, len(order), k)):
        sentences, measure = order[start : start + k], turn % 2
        sentences = sentences[np.argsort(-lengths[measure, sentences], kind="stable")]
        emptiest = np.argsort(loads[measure], kind="stable")[: len(sentences)]
        numbers[sentences] = emptiest
        loads[:, emptiest] += lengths[:, sentences]
    return np.split(np.argsort(numbers, kind="stable"), np.bincount(numbers, minlength=k).cumsum()[:-1])


def _distribute(src_lengths: Lengths, tgt_lengths: Lengths, k: int, shape: Shape) -> list[Ints]:
    """Assign sentences, longest first, to the emptiest micro-batch with room; add a micro-batch if none has room.

    The emptiest one has the smallest sum of its source tokens times the source length and its target tokens times the
    target length of the sentence to place, so that neither side fills up before the other.
    """
    src, tgt = src_lengths.tolist(), tgt_lengths.tolist()
    members: list[list[int]] = [[] for _ in range(k)]
    loads = [(0, 0)] * k
    for i in np.argsort(-(src_lengths + tgt_lengths), kind="stable").tolist():
        weighted = [s * src[i] + t * tgt[i] for s, t in loads]
        for j in sorted(range(len(members)), key=weighted.__getitem__):
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


# The fields of a `PackedBatch` that are slices of its buffer, in this order.
SLICES = ("src_ids", "src_positions", "tgt_in_ids", "tgt_out_ids", "tgt_positions", "src_offsets", "tgt_offsets")


@dataclass(frozen=True)
class PackedBatch:
    """One micro-batch: sentences end to end without padding between them; numpy arrays, or tensors after the loader.

    Dummy sentences (all pad, without loss) cover the tail, so every position belongs to a sentence.

    Attributes:
        src_ids, src_positions: int [N_src]; a position counts from 0 within its sentence.
        tgt_in_ids, tgt_out_ids, tgt_positions: int [N_tgt]; `tgt_out_ids` is pad at positions without loss.
        src_offsets, tgt_offsets: int32 [max_sentences + 1], the start of each sentence; unused entries equal N.
        num_sentences, num_src_tokens, num_tgt_tokens: counts without the dummies.
        max_tokens: an upper bound of the length of a sentence, on either side.
        buffer: int64, the memory of all of these arrays, so that one copy moves a batch.
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
    """The fields of a `PackedBatch` in `buffer`, which is an array or a tensor; `int32` is that library's type."""
    words = _offset_words(num_offsets)
    sizes = (num_src, num_src, num_tgt, num_tgt, num_tgt, words, words)
    parts = [buffer[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]
    parts[5:] = [part.view(int32)[:num_offsets] for part in parts[5:]]
    return dict(zip(SLICES, parts, strict=True))


def _offset_words(num_offsets: int) -> int:
    """The number of int64 words for these int32, a multiple of 16 bytes: kernels read aligned tensors faster."""
    return -(-num_offsets // 4) * 2


def pack(src: Any, tgt: Any, pairs: Ints, shape: Shape, pad_id: int) -> PackedBatch:
    """Gather sentences into one batch of `shape`.

    Args:
        src, tgt: the sides of a store (`tokens`, `starts`, `lengths`).
        pairs: the numbers of the sentences, in their order in the batch.
    """
    src_lengths, tgt_lengths = src.lengths[pairs], tgt.lengths[pairs]
    num_src, num_tgt = int(src_lengths.sum()), int(tgt_lengths.sum())
    tails = shape.num_src - num_src, shape.num_tgt - num_tgt
    num_dummies = max(-(-tail // shape.max_tokens) for tail in tails)
    assert num_dummies <= min(tails) or max(tails) == 0, "the spare positions hold every dummy"
    src_dummies, tgt_dummies = (_split_evenly(tail, num_dummies) for tail in tails)
    num_offsets = shape.max_sentences + 1
    buffer = np.empty(2 * shape.num_src + 3 * shape.num_tgt + 2 * _offset_words(num_offsets), dtype=np.int64)
    fields = slices(buffer, shape.num_src, shape.num_tgt, num_offsets, np.int32)
    counts = {"num_sentences": len(pairs), "num_src_tokens": num_src, "num_tgt_tokens": num_tgt}
    batch = PackedBatch(**fields, **counts, max_tokens=shape.max_tokens, buffer=buffer)
    _fill_offsets(batch.src_offsets, batch.src_positions, np.concatenate([src_lengths, src_dummies]))
    _fill_offsets(batch.tgt_offsets, batch.tgt_positions, np.concatenate([tgt_lengths, tgt_dummies]))
    _fill_ids(batch.src_ids, batch.src_positions, src.tokens, src.starts[pairs], src_lengths)
    _fill_ids(batch.tgt_out_ids, batch.tgt_positions, tgt.tokens, tgt.starts[pairs], tgt_lengths)
    batch.src_ids[num_src:] = batch.tgt_out_ids[num_tgt:] = pad_id
    batch.tgt_in_ids[1:] = batch.tgt_out_ids[:-1]
    batch.tgt_in_ids[batch.tgt_offsets[: len(pairs) + num_dummies]] = pad_id  # the decoder starts from pad
    return batch


def _fill_offsets(offsets: npt.NDArray[np.int32], positions: Ints, lengths: Ints) -> None:
    """Fill in the offsets and positions of one side; `lengths` are those of all its sentences, dummies included."""
    first = lengths.cumsum() - lengths
    offsets[: len(first)] = first
    offsets[len(first) :] = len(positions)
    np.subtract(np.arange(len(positions)), first.repeat(lengths), out=positions)


def _fill_ids(ids: Ints, positions: Ints, tokens: npt.NDArray[Any], starts: Ints, lengths: Lengths) -> None:
    # Touch each sentence first: these reads wait for memory together, those below would wait one by one. For pairs
    # scattered over 5M, a step of 25,000 tokens takes 65 us with this line and 144 us without it.
    tokens.take(np.concatenate([starts, starts + lengths - 1]))
    index = starts.repeat(lengths)
    index += positions[: len(index)]
    ids[: len(index)] = tokens.take(index)


def _split_evenly(total: int, parts: int) -> Ints:
    """Divide `total` into `parts` whole numbers that differ by at most one."""
    sizes = np.full(parts, total // max(parts, 1))
    sizes[: total % max(parts, 1)] += 1
    return sizes
