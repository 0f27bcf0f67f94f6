"""Scaled dot-product attention (3.2.1 of the paper), for one sentence and for a packed batch.

`reference_attention` is the formula for one sentence, to be read beside the paper; tests compare with it. The
model calls `attention`, which computes the same for a packed batch: its sentences lie end to end without padding, and a
layout says where each one starts. No other part of the model knows about sentences. The layouts and their kernels are
in `mtx.model.attention_kernels`.

Shapes: N packed positions, M sentences, T queries and S keys of one sentence, H heads, K head size.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from mtx.model.attention_kernels import BlockLayout, TileLayout, VarlenLayout, make_tile_layout

Kernel = Literal["padded", "varlen"]
Layout = TileLayout | VarlenLayout | BlockLayout


def attention_weights(q: Tensor, k: Tensor, causal: bool) -> Tensor:
    """Returns softmax(q k^T / sqrt(K)) of one sentence, [H, T, S], from q [T, H, K] and k [S, H, K]; rows sum to 1."""
    scores = torch.einsum("thk,shk->hts", q * q.shape[-1] ** -0.5, k)
    if causal:
        future = torch.ones_like(scores, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    return torch.softmax(scores, -1)


def reference_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Returns softmax(q k^T / sqrt(K)) v of one sentence, [T, H, K] (eq. 1); k and v are [S, H, K]."""
    return torch.einsum("hts,shk->thk", attention_weights(q, k, causal), v)


def make_layout(
    query_offsets: Tensor,
    key_offsets: Tensor,
    num_sentences: int,
    max_tokens: int,
    num_heads: int,
    causal: bool,
    kernel: Kernel,
    device: torch.device,
) -> Layout:
    """Prepares attention of each sentence's queries over its own keys, once per batch for all layers.

    Args:
        query_offsets, key_offsets: where each sentence starts, int32 [M+1], see `PackedBatch`. Pass the same tensor
            twice for self-attention.
        num_sentences: number of real sentences; with the `padded` kernel the output of dummy sentences is zero.
        max_tokens: no sentence is longer than this.
        causal: a query sees no later keys.
        kernel: `varlen` needs bf16 on CUDA; `padded` works everywhere.
    """
    is_self_attention = key_offsets is query_offsets
    if kernel == "varlen":
        query_offsets = query_offsets.to(device, non_blocking=True)
        key_offsets = query_offsets if is_self_attention else key_offsets.to(device, non_blocking=True)
        return VarlenLayout(query_offsets, key_offsets, max_tokens, causal)
    query_starts = query_offsets[: num_sentences + 1].cpu().long().numpy()
    key_starts = query_starts if is_self_attention else key_offsets[: num_sentences + 1].cpu().long().numpy()
    return make_tile_layout(query_starts, key_starts, num_heads, causal, device)


def attention(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """Returns `reference_attention` of every sentence of a packed batch, [N_q, H, K].

    Args:
        q: [N_q, H, K].
        k, v: [N_k, H, K].
    """
    return layout.attend(q, k, v)
