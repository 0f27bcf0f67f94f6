"""Turns the sentences of each step into micro-batches of one fixed shape, ahead of the device.

`sampler` decides the sentences of a step. Memory and devices only change how the step is divided here. This is the only
module of `data` that needs torch.
Flow: `Step` -> `assign` to micro-batches -> `pack` into a `PackedBatch` -> `load_steps`, a thread -> `to_device`.
"""

import math
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mtx.data.sampler import Ints, Lengths, SamplerState, Side, Step, src_budget
from mtx.formatting import divide_up

if TYPE_CHECKING:
    from mtx.data.token_store import TokenStore  # loads pyarrow, which the search does not need

_MAX_KERNEL_SENTENCES = 65_535  # CUDA starts a block for each sentence in the second dimension of a grid
_NUM_AHEAD = 5  # steps that are prepared before they are needed


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

    @property
    def room(self) -> Ints:
        """The source tokens, target tokens and sentences that leave room for the dummy sentences, int [3]."""
        return np.array([self.num_src, self.num_tgt, self.max_sentences]) - self.spare


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
            `max_sentences`: there is room for a quarter more sentences than usual, up to the limit of the kernel. A
            step with more sentences gets more micro-batches. None: room for all sentences that a step can have.
    """
    fewest = divide_up(batch_tokens, micro_batch_tokens * num_ranks) * num_ranks
    if tokens_per_sentence is None:
        return fewest, _shape(batch_tokens, fewest, ratio, max_tokens)
    most = max(fewest, batch_tokens // max_tokens)
    k = fewest
    while True:
        shape = _shape(batch_tokens, k, ratio, max_tokens)
        sentences = math.ceil(1.25 * shape.num_tgt / tokens_per_sentence) + 16 + shape.spare
        if sentences <= _MAX_KERNEL_SENTENCES or k + num_ranks > most:
            return k, replace(shape, max_sentences=min(sentences, shape.max_sentences, _MAX_KERNEL_SENTENCES))
        k += num_ranks


def _shape(batch_tokens: int, k: int, ratio: float, max_tokens: int) -> Shape:
    """The shape of k micro-batches of a step, with room for as many sentences as a step can have."""
    margin = 1.02 if k > 1 else 1.0
    real_tgt = max(batch_tokens / k * margin, max_tokens)
    real_src = max(src_budget(batch_tokens, ratio, max_tokens) / k * margin, max_tokens)
    rounding_dummies = divide_up(128, max_tokens)  # for the positions that `_round_up` adds: fewer than 128
    spare = 1
    while spare < divide_up(int(max(real_src, real_tgt) + spare), max_tokens) + rounding_dummies:
        spare += 1
    num_tgt = _round_up(real_tgt + spare)
    num_src = _round_up(real_src + spare)
    return Shape(num_src, num_tgt, max(num_tgt // 3, num_tgt // 4 + spare), max_tokens, spare)


def _round_up(size: float) -> int:
    multiple = 128 if size > 8192 else 16
    return math.ceil(size / multiple) * multiple


def assign(src_lengths: Lengths, tgt_lengths: Lengths, k: int, shape: Shape) -> list[Ints]:
    """Divide a step into k micro-batches of consecutive sentences, or if one does not fit, distribute the sentences.

    The order of sentences within a micro-batch does not matter, because attention sorts them itself.

    Returns:
        For each of the k (rarely more) micro-batches, indices into the step's sentences.
    """
    sizes = np.stack([src_lengths, tgt_lengths, np.ones_like(src_lengths)], axis=1).astype(np.int64)
    totals = sizes[:, :2].sum(axis=1)
    ends = totals.cumsum()
    cuts = (ends - totals / 2).searchsorted(ends[-1] / k * np.arange(1, k))  # a sentence goes where its middle lies
    groups = np.split(np.arange(len(totals)), cuts)
    fit = ((sizes[group].sum(axis=0) <= shape.room).all() for group in groups)
    return groups if all(fit) else _distribute(sizes, k, shape.room)


def _distribute(sizes: Ints, k: int, room: Ints) -> list[Ints]:
    """Assign sentences, longest first, to the emptiest micro-batch with room; add a micro-batch if none has room.

    The emptiest one has the smallest sum of its source tokens times the source length and its target tokens times the
    target length of the sentence to place, so that neither side fills up before the other.

    Args:
        sizes: int [sentences, 3]: source tokens, target tokens, and 1 for the sentence itself.
        room: of a micro-batch, see `Shape`.
    """
    members = [list[int]() for _ in range(k)]
    loads = np.zeros((k, 3), np.int64)
    for i in np.argsort(-sizes.sum(axis=1), kind="stable").tolist():
        has_room = (loads + sizes[i] <= room).all(axis=1)
        if not has_room.any():
            members.append([])
            loads = np.pad(loads, ((0, 1), (0, 0)))
            has_room = np.append(has_room, True)
        weighted = loads[:, :2] @ sizes[i, :2]
        j = min(np.flatnonzero(has_room), key=weighted.__getitem__)
        members[j].append(i)
        loads[j] += sizes[i]
    return [np.array(numbers, np.int64) for numbers in members]


# The fields of a `PackedBatch` that are slices of its buffer, in this order.
SLICES = ("src_ids", "src_positions", "tgt_in_ids", "tgt_out_ids", "tgt_positions", "src_offsets", "tgt_offsets")


@dataclass(frozen=True)
class PackedBatch:
    """One micro-batch: sentences end to end without padding between them.

    Dummy sentences (all pad, without loss) cover the tail, so every position belongs to a sentence.

    Attributes:
        src_ids, src_positions: int [N_src]; a position counts from 0 within its sentence.
        tgt_in_ids, tgt_out_ids, tgt_positions: int [N_tgt]; `tgt_out_ids` is pad at positions without loss.
        src_offsets, tgt_offsets: int32 [max_sentences + 1], the start of each sentence; unused entries equal N.
        num_sentences, num_src_tokens, num_tgt_tokens: counts without the dummies.
        max_tokens: an upper bound of the length of a sentence, on either side.
        buffer: int64, the memory of all of these tensors, so that one copy moves a batch.
    """

    src_ids: Tensor
    src_positions: Tensor
    tgt_in_ids: Tensor
    tgt_out_ids: Tensor
    tgt_positions: Tensor
    src_offsets: Tensor
    tgt_offsets: Tensor
    num_sentences: int
    num_src_tokens: int
    num_tgt_tokens: int
    max_tokens: int
    buffer: Tensor


def slices(buffer: Tensor, num_src: int, num_tgt: int, num_offsets: int) -> dict[str, Any]:
    """The fields of a `PackedBatch` in its buffer."""
    *ids, src, tgt = torch.split(buffer, _slice_sizes(num_src, num_tgt, num_offsets))
    offsets = (part.view(torch.int32)[:num_offsets] for part in (src, tgt))
    return dict(zip(SLICES, (*ids, *offsets), strict=True))


def _slice_sizes(num_src: int, num_tgt: int, num_offsets: int) -> list[int]:
    """The int64 words of each slice; int32 offsets get a multiple of 16 bytes: kernels read aligned tensors faster."""
    words = divide_up(num_offsets, 4) * 2
    return [num_src, num_src, num_tgt, num_tgt, num_tgt, words, words]


def pack(src: Side, tgt: Side, pairs: Ints, shape: Shape, pad_id: int, start_id: int | None = None) -> PackedBatch:
    """Gather sentences into one batch of `shape`, in host memory.

    Args:
        src, tgt: the sides of a store.
        pairs: the numbers of the sentences, in their order in the batch.
        start_id: what the decoder starts from, `start_id` of the model; None: pad.
    """
    src_starts, src_lengths = src.locate(pairs)
    tgt_starts, tgt_lengths = tgt.locate(pairs)
    num_src = int(src_lengths.sum())
    num_tgt = int(tgt_lengths.sum())
    tails = shape.num_src - num_src, shape.num_tgt - num_tgt
    num_dummies = max(divide_up(tail, shape.max_tokens) for tail in tails)
    assert num_dummies <= min(tails) or max(tails) == 0, "the spare positions hold every dummy"
    dimensions = shape.num_src, shape.num_tgt, shape.max_sentences + 1
    buffer = torch.empty(sum(_slice_sizes(*dimensions)), dtype=torch.int64)
    fields = slices(buffer, *dimensions)
    src_ids, src_positions, tgt_in_ids, tgt_ids, tgt_positions, src_offsets, tgt_offsets = (
        tensor.numpy() for tensor in fields.values()
    )
    for side, starts, lengths, tail, ids, positions, offsets in (
        (src, src_starts, src_lengths, tails[0], src_ids, src_positions, src_offsets),
        (tgt, tgt_starts, tgt_lengths, tails[1], tgt_ids, tgt_positions, tgt_offsets),
    ):
        dummies = (tail + np.arange(num_dummies)[::-1]) // max(num_dummies, 1)  # they differ by at most one
        sizes = np.concatenate([lengths, dummies])
        packed_starts = sizes.cumsum() - sizes
        offsets[: len(packed_starts)] = packed_starts
        offsets[len(packed_starts) :] = len(positions)
        np.subtract(np.arange(len(positions)), packed_starts.repeat(sizes), out=positions)
        # Touch each sentence first: these reads wait for memory together, those below would wait one by one. For pairs
        # scattered over 5M, a step of 25,000 tokens takes 65 us with this line and 144 us without it.
        side.tokens.take(np.concatenate([starts, starts + lengths - 1]))
        num_real = len(ids) - tail
        ids[:num_real] = side.tokens.take(starts.repeat(lengths) + positions[:num_real])
        ids[num_real:] = pad_id
    tgt_in_ids[1:] = tgt_ids[:-1]
    tgt_in_ids[tgt_offsets[: len(pairs) + num_dummies]] = pad_id if start_id is None else start_id
    return PackedBatch(
        **fields,
        num_sentences=len(pairs),
        num_src_tokens=num_src,
        num_tgt_tokens=num_tgt,
        max_tokens=shape.max_tokens,
        buffer=buffer,
    )


def pack_sentences(
    src: Sequence[list[int]], tgt: Sequence[list[int]], pad_id: int, start_id: int | None = None
) -> PackedBatch:
    """One batch of exactly these sentences, in host memory."""
    sides = Side.of(src, np.int64), Side.of(tgt, np.int64)
    num_src, num_tgt = (int(side.lengths.sum()) for side in sides)
    shape = Shape(num_src, num_tgt, len(src), max(map(len, (*src, *tgt))), 0)
    return pack(*sides, np.arange(len(src)), shape, pad_id, start_id)


def to_device(batch: PackedBatch, device: torch.device) -> PackedBatch:
    """Copy a batch to `device`; except on CUDA, offsets stay in host memory, where attention reads them.

    A copy to CUDA may still be running on return. The caller may drop the batch in host memory anyway: torch reuses
    page-locked memory only when copies from it are done, and copies from other memory block.
    """
    if device.type == "cpu":
        return batch
    is_cuda = device.type == "cuda"  # on others the source could be freed before it is read (pytorch issue 189690)
    moved = _in_buffer(batch, batch.buffer.to(device, non_blocking=is_cuda))
    return moved if is_cuda else replace(moved, src_offsets=batch.src_offsets, tgt_offsets=batch.tgt_offsets)


def _in_buffer(batch: PackedBatch, buffer: Tensor) -> PackedBatch:
    sizes = len(batch.src_ids), len(batch.tgt_out_ids), len(batch.src_offsets)
    return replace(batch, **slices(buffer, *sizes), buffer=buffer)


def twice(batch: PackedBatch) -> PackedBatch:
    """A batch with its sentences twice: all of them, then the batch with its dummies. It has no buffer."""
    num_src = batch.num_src_tokens
    num_tgt = batch.num_tgt_tokens
    num = batch.num_sentences
    fields = dict[str, Any]()
    for name in SLICES:
        tensor = getattr(batch, name)
        size = num_src if name.startswith("src") else num_tgt
        parts = [tensor[:num], tensor + size] if name.endswith("offsets") else [tensor[:size], tensor]
        fields[name] = torch.cat(parts)
    fields |= {"num_sentences": 2 * num, "num_src_tokens": 2 * num_src, "num_tgt_tokens": 2 * num_tgt}
    return replace(batch, **fields, buffer=torch.empty(0))


@dataclass(frozen=True)
class LoadedStep:
    """The micro-batches of one optimizer update, in host memory.

    Attributes:
        micro_batches: of this rank: with R ranks, rank r has the micro-batches r, r + R, r + 2R and so on.
        num_src_tokens, num_tgt_tokens: of the whole step, on all ranks.
        position_after: the data position of the next step.
    """

    micro_batches: list[PackedBatch]
    num_src_tokens: int
    num_tgt_tokens: int
    position_after: SamplerState


def load_steps(
    store: "TokenStore",
    planned: Iterator[Step],
    k: int,
    shape: Shape,
    pin: bool = False,
    rank: int = 0,
    num_ranks: int = 1,
    start_id: int | None = None,
) -> Generator[LoadedStep, None, None]:
    """The planned steps, each as k (rarely more) micro-batches of one shape; a thread prepares them ahead.

    All ranks have the same number; if sentences need more than k, empty micro-batches are added.

    Args:
        pin: whether to use page-locked memory, which belongs to the CUDA device of the caller.
        start_id: see `pack`.
    """

    def prepare() -> LoadedStep | None:
        if (step := next(planned, None)) is None:
            return None
        groups = assign(step.src_lengths, step.tgt_lengths, k, shape)
        groups += [np.empty(0, np.int64)] * (-len(groups) % num_ranks)
        rank_pairs = groups[rank::num_ranks]
        if not step.sides:
            rank_pairs = [step.pairs[group] for group in rank_pairs]
        src, tgt = step.sides or (store.src, store.tgt)
        packed = [pack(src, tgt, pairs, shape, store.num_ids, start_id) for pairs in rank_pairs]
        if pin:
            packed = [_in_buffer(batch, batch.buffer.pin_memory()) for batch in packed]
        return LoadedStep(packed, int(step.src_lengths.sum()), int(step.tgt_lengths.sum()), step.position_after)

    on_device = (torch.cuda.set_device, (torch.cuda.current_device(),)) if pin else (None, ())
    pool = ThreadPoolExecutor(1, "mtx-loader", *on_device)
    try:
        steps_ahead = deque(pool.submit(prepare) for _ in range(_NUM_AHEAD))
        while (loaded := steps_ahead.popleft().result()) is not None:
            steps_ahead.append(pool.submit(prepare))
            yield loaded
    finally:
        pool.shutdown(cancel_futures=True)
