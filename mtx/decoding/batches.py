"""Sentences that are at hand as lists of ids, as one packed batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mtx.data.loader import to_tensors
from mtx.data.packing import PackedBatch, Shape, pack


@dataclass(frozen=True)
class _Side:
    """Sentences in the form in which `pack` reads a store."""

    tokens: Any
    starts: Any
    lengths: Any

    @classmethod
    def of(cls, sentences: Sequence[list[int]]) -> "_Side":
        lengths = np.array([len(s) for s in sentences], dtype=np.int32)
        tokens = np.array([i for s in sentences for i in s], dtype=np.int64)
        return cls(tokens, lengths.cumsum(dtype=np.int64) - lengths, lengths)


def pack_sentences(src: Sequence[list[int]], tgt: Sequence[list[int]], pad_id: int) -> PackedBatch:
    """One batch that holds exactly these sentences, as tensors in host memory."""
    sides = _Side.of(src), _Side.of(tgt)
    num_src, num_tgt = (int(side.lengths.sum()) for side in sides)
    longest = int(max(sides[0].lengths.max(), sides[1].lengths.max()))
    shape = Shape(num_src, num_tgt, len(src), longest, 0)
    packed = pack(sides[0], sides[1], np.arange(len(src)), shape, pad_id)
    return to_tensors(packed)
