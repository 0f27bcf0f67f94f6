"""Attention over packed streams (3.2.1 of the paper): the only part of the model that knows about sentences.

Queries, keys and values are [N, H, K] with sentences end to end. Two paths give the same numbers: `varlen`, a kernel
for bf16 on CUDA, and `padded`, the reference, which pads inside attention only and serves everything else.

Shapes: N packed positions, B sentences of a block, S queries, T keys, H heads, K head size.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Kernel = Literal["padded", "varlen"]


@dataclass(frozen=True)
class _Block:
    """Sentences of similar length, padded to one length; a slice of the padded rows."""

    num_sentences: int
    num_queries: int
    num_keys: int
    query_slice: slice
    key_slice: slice
    mask: Tensor | None  # added to the scores, [B or 1, 1, S or 1, T]; None where nothing is hidden

    def queries(self, rows: Tensor) -> Tensor:
        """The block's part of padded query rows, [B * H, S, K]."""
        return rows[self.query_slice].view(-1, self.num_queries, rows.shape[-1])

    def keys(self, rows: Tensor) -> Tensor:
        """The block's part of padded key rows, [B * H, T, K]."""
        return rows[self.key_slice].view(-1, self.num_keys, rows.shape[-1])


@dataclass(frozen=True)
class Layout:
    """Which queries see which keys, for one batch; built once and shared by all layers.

    Attributes:
        query_offsets, key_offsets: int32 [M+1] on the device, for `varlen`; None for `padded`.
        blocks, *_rows, *_back: for `padded`: rows of one head, packed -> padded [P] and padded -> packed [N_real * H].
    """

    causal: bool
    max_tokens: int
    query_offsets: Tensor | None = None
    key_offsets: Tensor | None = None
    blocks: tuple[_Block, ...] = ()
    query_rows: Tensor | None = None
    query_back: Tensor | None = None
    key_rows: Tensor | None = None
    key_back: Tensor | None = None


def make_layout(
    query_offsets: Tensor, key_offsets: Tensor, num_sentences: int, max_tokens: int, num_heads: int,
    causal: bool, kernel: Kernel, device: torch.device,
) -> Layout:  # fmt: skip
    """Prepare attention of each sentence's queries over the same sentence's keys.

    Args:
        query_offsets, key_offsets: int32 [M+1] in host memory, see `PackedBatch`.
        num_sentences: real ones; the `padded` path leaves the rows of dummy sentences zero.
    """
    same = key_offsets is query_offsets
    if kernel == "varlen":
        query_offsets = query_offsets.to(device, non_blocking=True)
        key_offsets = query_offsets if same else key_offsets.to(device, non_blocking=True)
        return Layout(causal, max_tokens, query_offsets, key_offsets)
    query_starts = query_offsets[: num_sentences + 1].numpy().astype(np.int64)
    key_starts = query_starts if same else key_offsets[: num_sentences + 1].numpy().astype(np.int64)
    return _padded_layout(query_starts, key_starts, max_tokens, num_heads, causal, device)


def _padded_layout(
    query_starts: npt.NDArray[np.int64], key_starts: npt.NDArray[np.int64], max_tokens: int, num_heads: int,
    causal: bool, device: torch.device,
) -> Layout:  # fmt: skip
    query_lengths, key_lengths = np.diff(query_starts), np.diff(key_starts)
    groups = _similar(query_lengths, key_lengths)
    widths = [(int(query_lengths[group].max()), int(key_lengths[group].max())) for group in groups]
    query_rows, query_back = _row_maps(query_starts, groups, [s for s, _ in widths], num_heads)
    if key_starts is query_starts:
        key_rows, key_back = query_rows, query_back
    else:
        key_rows, key_back = _row_maps(key_starts, groups, [t for _, t in widths], num_heads)
    blocks, queries, keys = [], 0, 0
    for group, (s, t) in zip(groups, widths, strict=True):
        next_queries, next_keys = queries + len(group) * num_heads * s, keys + len(group) * num_heads * t
        mask = _mask(key_lengths[group], s, t, causal)
        mask = None if mask is None else mask.to(device)
        blocks.append(_Block(len(group), s, t, slice(queries, next_queries), slice(keys, next_keys), mask))
        queries, keys = next_queries, next_keys
    tensors = [torch.from_numpy(rows).to(device) for rows in (query_rows, query_back, key_rows, key_back)]
    return Layout(causal, max_tokens, None, None, tuple(blocks), *tensors)


def _similar(query_lengths: npt.NDArray[np.int64], key_lengths: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Sentences in groups that waste little padding: sorted by length, cut where a quarter would be wasted."""
    longest = np.maximum(query_lengths, key_lengths)
    order = np.argsort(-longest, kind="stable")
    groups, start = [], 0
    for i in range(1, len(order) + 1):
        if i == len(order) or (longest[order[i]] < 0.75 * longest[order[start]] and i - start >= 8):
            groups.append(order[start:i])
            start = i
    return groups


def _mask(key_lengths: npt.NDArray[np.int64], s: int, t: int, causal: bool) -> Tensor | None:
    if causal:  # padding stands after the sentence, where no real query looks
        return torch.full((1, 1, s, t), -math.inf).triu(1)
    if key_lengths.min() == t:
        return None
    hidden = torch.from_numpy(np.arange(t) >= key_lengths[:, None])
    return torch.zeros(hidden.shape).masked_fill_(hidden, -math.inf)[:, None, None]


def _row_maps(
    starts: npt.NDArray[np.int64], groups: list[npt.NDArray[np.int64]], widths: list[int], num_heads: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """For rows of one head: padded row -> packed row (padding takes the sentence's first), and packed -> padded."""
    lengths, heads = np.diff(starts), np.arange(num_heads)
    rows, back, done = [], np.empty(int(starts[-1]) * num_heads, dtype=np.int64), 0
    for group, width in zip(groups, widths, strict=True):
        column = np.arange(width)
        real = column < lengths[group, None]  # [B, S]
        position = starts[group, None] + np.where(real, column, 0)
        row = position[:, None, :] * num_heads + heads[:, None]  # [B, H, S]
        place = done + np.arange(row.size).reshape(row.shape)
        seen = np.broadcast_to(real[:, None, :], row.shape)
        back[row[seen]] = place[seen]
        rows.append(row.reshape(-1))
        done += row.size
    return np.concatenate([np.empty(0, dtype=np.int64), *rows]), back


class _PaddedAttention(torch.autograd.Function):
    """softmax(q k^T / sqrt(K) + mask) v in blocks, its gradient written out: far less memory traffic on a CPU."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):  # on CUDA it would turn the softmax alone into fp32
            return _forward(ctx, q, k, v, layout)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        layout: Layout = ctx.layout
        back: Tensor = layout.query_back  # type: ignore[assignment]
        q_rows, k_rows, v_rows, *weights = ctx.saved_tensors
        grad_rows = torch.zeros_like(q_rows)  # the padding's gradient must not reach dK and dV
        grad_rows.index_copy_(0, back, _rows(grad)[: len(back)])
        dq_rows, dk_rows, dv_rows = torch.empty_like(q_rows), torch.empty_like(k_rows), torch.empty_like(v_rows)
        for block, p in zip(layout.blocks, weights, strict=True):
            grad_out = block.queries(grad_rows)
            torch.bmm(p.transpose(1, 2), grad_out, out=block.keys(dv_rows))
            dp = torch.bmm(grad_out, block.keys(v_rows).transpose(1, 2))
            ds = torch.ops.aten._softmax_backward_data(dp, p, -1, p.dtype)
            torch.bmm(ds, block.keys(k_rows), out=block.queries(dq_rows))
            torch.bmm(ds.transpose(1, 2), block.queries(q_rows), out=block.keys(dk_rows))
        dq = _unpad(dq_rows.mul_(ctx.query_shape[-1] ** -0.5), back, ctx.query_shape)
        dk, dv = (_unpad(rows, layout.key_back, ctx.key_shape) for rows in (dk_rows, dv_rows))
        return dq, dk, dv, None


def _forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    q_rows = _rows(q).index_select(0, layout.query_rows).mul_(q.shape[-1] ** -0.5)  # type: ignore[arg-type]
    k_rows = _rows(k).index_select(0, layout.key_rows)  # type: ignore[arg-type]
    v_rows = _rows(v).index_select(0, layout.key_rows)  # type: ignore[arg-type]
    out_rows = torch.empty_like(q_rows)
    weights = []
    for block in layout.blocks:
        scores = torch.bmm(block.queries(q_rows), block.keys(k_rows).transpose(1, 2))
        if block.mask is not None:
            scores.view(block.num_sentences, -1, block.num_queries, block.num_keys).add_(block.mask)
        weights.append(torch.softmax(scores, -1))
        torch.bmm(weights[-1], block.keys(v_rows), out=block.queries(out_rows))
    ctx.layout, ctx.query_shape, ctx.key_shape = layout, q.shape, k.shape
    ctx.save_for_backward(q_rows, k_rows, v_rows, *weights)
    return _unpad(out_rows, layout.query_back, q.shape)


def _rows(x: Tensor) -> Tensor:
    """[N, H, K] as one row per position and head."""
    return x.reshape(-1, x.shape[-1])


def _unpad(rows: Tensor, back: Tensor | None, shape: torch.Size) -> Tensor:
    """Padded rows -> [N, H, K]; positions of dummy sentences are zero."""
    assert back is not None
    packed = rows.new_zeros(shape)
    torch.index_select(rows, 0, back, out=_rows(packed)[: len(back)])
    return packed


def attention(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """Scaled dot-product attention of each sentence's queries over its own keys.

    Args:
        q: [N_q, H, K]. k, v: [N_k, H, K].

    Returns:
        [N_q, H, K].
    """
    if layout.query_offsets is None:
        result: Tensor = _PaddedAttention.apply(q, k, v, layout)  # type: ignore[no-untyped-call]
        return result
    from torch.nn.attention.varlen import varlen_attn  # imported here: it needs a CUDA build

    longest = layout.max_tokens
    window = (-1, 0) if layout.causal else (-1, -1)
    out: Tensor = varlen_attn(q, k, v, layout.query_offsets, layout.key_offsets, longest, longest, window_size=window)  # type: ignore[assignment]
    return out
