"""Packed batches as tensors: made from numpy arrays or from lists of ids, and moved to a device.

`mtx.data.packing` packs without torch; training, validation and forced scoring turn its batches into tensors here.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from mtx.data.packing import SLICES, PackedBatch, Shape, pack, slices


def pack_sentences(src: Sequence[list[int]], tgt: Sequence[list[int]], pad_id: int) -> PackedBatch:
    """Returns one batch of exactly these sentences, as tensors in host memory."""
    from mtx.data.token_store import Side  # loads pyarrow, which the search does without

    sides = Side.of(src, np.int64), Side.of(tgt, np.int64)
    num_src, num_tgt = (int(side.lengths.sum()) for side in sides)
    longest = int(max(sides[0].lengths.max(), sides[1].lengths.max()))
    shape = Shape(num_src, num_tgt, len(src), longest, 0)
    packed = pack(sides[0], sides[1], np.arange(len(src)), shape, pad_id)
    return to_tensors(packed)


def to_tensors(batch: PackedBatch, pin: bool = False) -> PackedBatch:
    """Returns the batch with tensors instead of arrays, in page-locked memory if `pin`."""
    if pin:
        return _with_buffer(batch, torch.from_numpy(batch.buffer).pin_memory())
    tensors: dict[str, Any] = {name: torch.from_numpy(getattr(batch, name)) for name in (*SLICES, "buffer")}
    return replace(batch, **tensors)


def to_device(batch: PackedBatch, device: torch.device) -> PackedBatch:
    """Copies a batch to `device`; except on CUDA, offsets stay in host memory, where attention reads them.

    A copy to CUDA may still be running on return. The caller may drop the batch in host memory anyway: torch reuses
    page-locked memory only when copies from it are done, and copies from other memory block.
    """
    if device.type == "cpu":
        return batch
    if device.type == "cuda":
        return _with_buffer(batch, batch.buffer.to(device, non_blocking=True))
    # This copy blocks, because the source could be freed before it is read (pytorch issue 189690).
    moved = _with_buffer(batch, batch.buffer.to(device))
    return replace(moved, src_offsets=batch.src_offsets, tgt_offsets=batch.tgt_offsets)


def twice(batch: PackedBatch) -> PackedBatch:
    """Returns a batch with its sentences twice: all of them, then the batch with its dummies. It has no buffer."""
    num_src, num_tgt = batch.num_src_tokens, batch.num_tgt_tokens
    num = batch.num_sentences
    fields: dict[str, Any] = {}
    for side, size in (("src", num_src), ("tgt", num_tgt)):
        offsets = getattr(batch, f"{side}_offsets")
        fields[f"{side}_offsets"] = torch.cat([offsets[:num], offsets + size])
        for name in (name for name in SLICES[:5] if name.startswith(side)):
            field = getattr(batch, name)
            fields[name] = torch.cat([field[:size], field])
    counts = {"num_sentences": 2 * num, "num_src_tokens": 2 * num_src, "num_tgt_tokens": 2 * num_tgt}
    return replace(batch, **fields, **counts, buffer=None)


def _with_buffer(batch: PackedBatch, buffer: torch.Tensor) -> PackedBatch:
    sizes = len(batch.src_ids), len(batch.tgt_out_ids), len(batch.src_offsets)
    return replace(batch, **slices(buffer, *sizes, torch.int32), buffer=buffer)
