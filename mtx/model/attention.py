"""Attention over packed streams (3.2.1 of the paper): the only part of the model that knows about sentences.

Queries, keys and values are [N, H, K] with sentences end to end. Two paths give the same numbers: `varlen`, a kernel
for bf16 on CUDA, and `padded`, the reference, which serves everything else. It gathers whole sentences into tiles of
one width, computes scores within each tile, and hides what belongs to another sentence. Tiles have few shapes: a CPU's
library makes its kernels for a shape when it first meets it, which takes longer than using them.

Shapes: N packed positions, R tiles of a width W, H heads, K head size.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Kernel = Literal["padded", "varlen"]
Ints = npt.NDArray[np.int64]

_TILE_WIDTH = 32  # the narrowest: two sentences of the usual length, and a CPU's bf16 softmax is fast from here on


@dataclass(frozen=True)
class _Tiles:
    """Tiles of one width: a slice of the gathered rows, and what is hidden in them."""

    width: int
    rows: slice
    mask: Tensor  # added to the scores, [R, 1, W, W]: 0 or -inf

    def of(self, rows: Tensor) -> Tensor:
        """These tiles' part of gathered rows, [R * H, W, K]."""
        return rows[self.rows].view(-1, self.width, rows.shape[-1])


@dataclass(frozen=True)
class Layout:
    """Which queries see which keys, for one batch; built once and shared by all layers.

    Attributes:
        query_offsets, key_offsets: int32 [M+1] on the device, for `varlen`; None for `padded`.
        tiles, *_rows, *_back: for `padded`: rows of one head, packed -> gathered and gathered -> packed [N_real * H].
    """

    causal: bool
    max_tokens: int
    query_offsets: Tensor | None = None
    key_offsets: Tensor | None = None
    tiles: tuple[_Tiles, ...] = ()
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
        query_offsets, key_offsets: int32 [M+1], see `PackedBatch`.
        num_sentences: real ones; the `padded` path leaves the rows of dummy sentences zero.
    """
    same = key_offsets is query_offsets
    if kernel == "varlen":
        query_offsets = query_offsets.to(device, non_blocking=True)
        key_offsets = query_offsets if same else key_offsets.to(device, non_blocking=True)
        return Layout(causal, max_tokens, query_offsets, key_offsets)
    query_starts = query_offsets[: num_sentences + 1].cpu().numpy().astype(np.int64)
    key_starts = query_starts if same else key_offsets[: num_sentences + 1].cpu().numpy().astype(np.int64)
    return _padded_layout(query_starts, key_starts, max_tokens, num_heads, causal, device)


def _padded_layout(
    query_starts: Ints, key_starts: Ints, max_tokens: int, num_heads: int, causal: bool, device: torch.device
) -> Layout:
    starts, widths = _place(np.maximum(np.diff(query_starts), np.diff(key_starts)))
    queries = _Side(query_starts, starts, widths, num_heads)
    keys = queries if key_starts is query_starts else _Side(key_starts, starts, widths, num_heads)
    tiles, first = [], 0
    for width, num_tiles in widths:
        slots = slice(first, first + width * num_tiles)
        shape = num_tiles, width
        hidden = _hidden(queries.sentence[slots].reshape(shape), keys.sentence[slots].reshape(shape), causal)
        mask = torch.from_numpy(np.where(hidden, np.float32(-math.inf), np.float32(0)))[:, None]
        tiles.append(_Tiles(width, slice(first * num_heads, slots.stop * num_heads), mask.to(device)))
        first = slots.stop
    maps = [torch.from_numpy(m).to(device) for m in (queries.rows, queries.back, keys.rows, keys.back)]
    return Layout(causal, max_tokens, None, None, tuple(tiles), *maps)


def _place(lengths: Ints) -> tuple[Ints, list[tuple[int, int]]]:
    """Whole sentences into tiles: the longest left, and with it as many of the shortest as fit.

    Returns:
        The slot where each sentence starts, and the tiles, (width, number) in the order of their slots.
    """
    order, needs = np.argsort(-lengths, kind="stable").tolist(), lengths.tolist()
    starts, widths = np.empty(len(needs), dtype=np.int64), []
    slot, longest, shortest = 0, 0, len(order) - 1
    while longest <= shortest:
        width, first = _TILE_WIDTH, slot
        while width < needs[order[longest]]:
            width *= 2
        while longest <= shortest and (width == _TILE_WIDTH or 2 * needs[order[longest]] > width):
            starts[order[longest]] = slot
            used = needs[order[longest]]
            longest += 1
            while longest <= shortest and used + needs[order[shortest]] <= width:
                starts[order[shortest]] = slot + used
                used += needs[order[shortest]]
                shortest -= 1
            slot += width
        slot += -(slot - first) % (_TILE_WIDTH * 8)  # empty tiles, so that there are few shapes
        slot = first + -(-(slot - first) // width) * width
        widths.append((width, (slot - first) // width))
    return starts, widths


class _Side:
    """Queries or keys in tiles.

    Attributes:
        sentence: the sentence of every slot, -1 where it is empty.
        rows, back: see `Layout`; an empty slot takes a row of the first sentence, which nobody sees.
    """

    def __init__(self, packed_starts: Ints, starts: Ints, widths: list[tuple[int, int]], num_heads: int):
        num_slots, lengths = sum(width * number for width, number in widths), np.diff(packed_starts)
        slots = np.arange(packed_starts[-1]) + np.repeat(starts - packed_starts[:-1], lengths)
        self.sentence = np.full(num_slots, -1)
        self.sentence[slots] = np.repeat(np.arange(len(starts)), lengths)
        packed = np.zeros(num_slots, dtype=np.int64)
        packed[slots] = np.arange(len(slots))
        row_of_slot = np.empty((num_slots, num_heads), dtype=np.int64)
        heads, rows, first = np.arange(num_heads), [np.empty(0, dtype=np.int64)], 0
        for width, number in widths:
            part = slice(first, first + width * number)
            rows.append((packed[part].reshape(number, 1, width) * num_heads + heads[:, None]).reshape(-1))
            places = first * num_heads + np.arange(len(rows[-1])).reshape(number, num_heads, width)
            row_of_slot[part] = places.swapaxes(1, 2).reshape(-1, num_heads)
            first = part.stop
        self.rows, self.back = np.concatenate(rows), row_of_slot[slots].reshape(-1)


def _hidden(queries: Ints, keys: Ints, causal: bool) -> npt.NDArray[np.bool_]:
    """What a tile's queries may not see: other sentences and, if causal, what follows. bool [R, W, W]."""
    hidden: npt.NDArray[np.bool_] = queries[:, :, None] != keys[:, None, :]
    if causal:
        hidden |= np.triu(np.ones(hidden.shape[1:], dtype=np.bool_), 1)
    hidden &= (queries >= 0)[:, :, None]  # an empty slot sees all: a row without any key would be NaN
    return hidden


class _PaddedAttention(torch.autograd.Function):
    """softmax(q k^T / sqrt(K) + mask) v in tiles, its gradient written out: far less memory traffic on a CPU."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):  # on CUDA it would turn the softmax alone into fp32
            return _forward(ctx, q, k, v, layout)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        layout: Layout = ctx.layout
        back: Tensor = layout.query_back  # type: ignore[assignment]
        q_rows, k_rows, v_rows, *weights = ctx.saved_tensors
        grad_rows = torch.zeros_like(q_rows)  # the gradient of empty slots must not reach dK and dV
        grad_rows.index_copy_(0, back, _rows(grad)[: len(back)])
        dq_rows, dk_rows, dv_rows = torch.empty_like(q_rows), torch.empty_like(k_rows), torch.empty_like(v_rows)
        for tiles, p in zip(layout.tiles, weights, strict=True):
            grad_out = tiles.of(grad_rows)
            torch.bmm(p.transpose(1, 2), grad_out, out=tiles.of(dv_rows))
            dp = torch.bmm(grad_out, tiles.of(v_rows).transpose(1, 2))
            ds = torch.ops.aten._softmax_backward_data(dp, p, -1, p.dtype)
            torch.bmm(ds, tiles.of(k_rows), out=tiles.of(dq_rows))
            torch.bmm(ds.transpose(1, 2), tiles.of(q_rows), out=tiles.of(dk_rows))
        dq = _unpad(dq_rows.mul_(ctx.query_shape[-1] ** -0.5), back, ctx.query_shape)
        dk, dv = (_unpad(rows, layout.key_back, ctx.key_shape) for rows in (dk_rows, dv_rows))
        return dq, dk, dv, None


def _forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    q_rows = _rows(q).index_select(0, layout.query_rows).mul_(q.shape[-1] ** -0.5)  # type: ignore[arg-type]
    k_rows = _rows(k).index_select(0, layout.key_rows)  # type: ignore[arg-type]
    v_rows = _rows(v).index_select(0, layout.key_rows)  # type: ignore[arg-type]
    out_rows = torch.empty_like(q_rows)
    weights = []
    for tiles in layout.tiles:
        scores = torch.bmm(tiles.of(q_rows), tiles.of(k_rows).transpose(1, 2))
        scores.view(len(tiles.mask), -1, tiles.width, tiles.width).add_(tiles.mask.to(scores.dtype))
        weights.append(torch.softmax(scores, -1))
        torch.bmm(weights[-1], tiles.of(v_rows), out=tiles.of(out_rows))
    ctx.layout, ctx.query_shape, ctx.key_shape = layout, q.shape, k.shape
    ctx.save_for_backward(q_rows, k_rows, v_rows, *weights)
    return _unpad(out_rows, layout.query_back, q.shape)


def _rows(x: Tensor) -> Tensor:
    """[N, H, K] as one row per position and head."""
    return x.reshape(-1, x.shape[-1])


def _unpad(rows: Tensor, back: Tensor | None, shape: torch.Size) -> Tensor:
    """Gathered rows -> [N, H, K]; positions of dummy sentences are zero."""
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


def attention_weights(q: Tensor, k: Tensor, causal: bool) -> Tensor:
    """The distributions by which `attention` weighs the values, of one sentence; to be looked at, it is not fast.

    Args:
        q: [T, H, K]. k: [S, H, K].

    Returns:
        [H, T, S]; each row sums to one.
    """
    scores = torch.einsum("thk,shk->hts", q * q.shape[-1] ** -0.5, k)
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    return torch.softmax(scores, -1)
