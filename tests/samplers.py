"""Samplers of sentences that have lengths and no ids."""

from dataclasses import replace
from typing import Any

import numpy as np

from mtx.data.sampler import BLOCK, BatchSampler, EpochOrder, Side

MAX_TOKENS = 4096


def in_blocks(side: Side, size: int = 1) -> Side:
    """The sentences of a side of one block, in blocks of `size` sentences; the last may be smaller."""
    firsts = range(0, side.num_sentences, size)
    blocks = [(min(size, side.num_sentences - first), 0, first) for first in firsts]
    return replace(side, blocks=np.array(blocks, BLOCK))


def order_of(src: Any, tgt: Any, weights: Any, seed: int, window: int = 1 << 40, block: int = 1) -> EpochOrder:
    """The order of pairs of these lengths; `weights` are of blocks, or None for 1."""
    sides = [in_blocks(Side.cut(np.empty(0, np.uint16), lengths), block) for lengths in (src, tgt)]
    weights = np.ones(len(sides[0].blocks)) if weights is None else weights
    return EpochOrder(sides[0], sides[1], weights, seed, window)


def sampler_of(src: Any, tgt: Any, weights: Any, seed: int, batch_tokens: int, *window: Any) -> BatchSampler:
    return BatchSampler(order_of(src, tgt, weights, seed, *window), batch_tokens, MAX_TOKENS)


def epoch_order(seed: int, epoch: int, num_pairs: int, weights: Any = None) -> Any:
    """The pairs of an epoch in one window."""
    lengths = np.ones(num_pairs, np.int32)
    return order_of(lengths, lengths, weights, seed).rows(epoch, 0, 1 << 40)["pair"]
