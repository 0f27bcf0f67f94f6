"""Scaled dot-product attention (3.2.1 of the paper), for one sentence and for a packed batch.

`reference_attention` is the formula for one sentence, to be read along with the paper; tests compare with it. The
model calls `attend` of a layout, which computes the same for a packed batch: its sentences lie end to end without
padding, and the layout says where each one starts. No other part of the model knows about sentences.

For bf16 on CUDA, `VarlenLayout` calls torch's varlen kernel, and `BlockLayout`, in a compiled training step, those of
`mtx.model.block_kernels`. `TileLayout` serves everything else. It copies whole sentences into tiles of equal width,
computes the scores within each tile, and masks other sentences. Tiles have only a few shapes, because a CPU's library
compiles a kernel the first time it meets a shape, which takes longer than using it.

Shapes: N packed positions, M sentences, T queries and S keys of one sentence, R tiles of width W, H heads, K head size.
A slot is a position within a tile.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mtx.formatting import round_up

Ints = npt.NDArray[np.int64]
Kernel = Literal["padded", "varlen"]

_TILE_WIDTH = 32  # the narrowest: two sentences of usual length; a CPU's bf16 softmax is fast from here on


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


@dataclass(frozen=True)
class VarlenLayout:
    """Where each sentence starts: int32 [M+1] on the device, for queries and for keys."""

    query_offsets: Tensor
    key_offsets: Tensor
    max_tokens: int
    causal: bool

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `TileLayout.attend`."""
        from torch.nn.attention.varlen import varlen_attn  # imported here: it needs a CUDA build

        window = (-1, 0 if self.causal else -1)
        longest = self.max_tokens
        return varlen_attn(q, k, v, self.query_offsets, self.key_offsets, longest, longest, window_size=window)  # type: ignore[return-value]


class _Tiles(NamedTuple):
    """All tiles of one width: their part of the rows in tiles, and a mask [R, 1, W, W] to add to scores: 0 or -inf."""

    rows: slice
    mask: Tensor

    def of(self, rows: Tensor) -> Tensor:
        """Returns the part of rows [R * H * W, K] that lies in these tiles, as [R * H, W, K]."""
        return rows[self.rows].view(-1, self.mask.shape[-1], rows.shape[-1])


class _RowIndex(NamedTuple):
    """How queries or keys, one row for each position and head, are copied into tiles and back.

    Queries, keys and values of a joint product are P parts of each position: all tiles of a part follow those before.

    Attributes:
        to_tiles: for each row in tiles the packed row to copy. An empty slot copies a row that no query sees.
        to_packed: for each packed row of a real sentence the row in tiles, [N_real * P * H].
    """

    to_tiles: Tensor
    to_packed: Tensor

    def pack(self, rows: Tensor, shape: torch.Size) -> Tensor:
        """Returns rows in tiles as packed rows of this shape; the positions of dummy sentences are zero."""
        packed = rows.new_empty(shape)
        real, dummies = _rows(packed).tensor_split([len(self.to_packed)])
        torch.index_select(rows, 0, self.to_packed, out=real)
        dummies.zero_()
        return packed


@dataclass(frozen=True)
class TileLayout:
    """The place of each sentence's queries and keys in tiles.

    Attributes:
        queries: where a query's output goes.
        inputs: of each tensor that `attend_joint` takes.
    """

    tiles: tuple[_Tiles, ...]
    queries: _RowIndex
    inputs: tuple[_RowIndex, ...]

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Returns `reference_attention` of every sentence of a packed batch, [N_q, H, K].

        Args:
            q: [N_q, H, K].
            k, v: [N_k, H, K].
        """
        if len(self.inputs) == 1:
            return self.attend_joint(torch.stack((q, k, v), 1), None)
        return self.attend_joint(q[:, None], torch.stack((k, v), 1))

    def attend_joint(self, queries: Tensor, keys_values: Tensor | None) -> Tensor:
        """Returns the same; no gradient is copied where queries, keys and values come from one product.

        Args:
            queries: [N_q, 1, H, K], or queries, keys and values of self-attention, [N_q, 3, H, K].
            keys_values: [N_k, 2, H, K]; None for self-attention.
        """
        inputs = (queries,) if keys_values is None else (queries, keys_values)
        return _TileAttention.apply(self, *inputs)  # type: ignore[no-any-return, no-untyped-call]


Layout = TileLayout | VarlenLayout


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
    if kernel == "varlen":
        queries, keys = (offsets.to(device, non_blocking=True) for offsets in (query_offsets, key_offsets))
        return VarlenLayout(queries, keys, max_tokens, causal)
    starts = [offsets[: num_sentences + 1].cpu().long().numpy() for offsets in (query_offsets, key_offsets)]
    slots, groups, num_slots = _place(np.maximum(*map(np.diff, starts)))
    rows = np.arange(num_slots * num_heads).reshape(-1, num_heads)  # in tiles, of each slot
    for first_slot, end_slot, width in groups:
        group_rows = rows[first_slot:end_slot].reshape(-1, num_heads, width)
        rows[first_slot:end_slot] = group_rows.swapaxes(1, 2).reshape(-1, num_heads)
    query_index, query_sentence = _index(starts[0], slots, rows, device)
    is_self = key_offsets is query_offsets
    joint, key_sentence = _index(starts[1], slots, rows, device, num_parts=3 if is_self else 2)
    tiles = []
    for first_slot, end_slot, width in groups:
        query_tiles = query_sentence[first_slot:end_slot].reshape(-1, width)
        key_tiles = key_sentence[first_slot:end_slot].reshape(-1, width)
        hidden = query_tiles[:, :, None] != key_tiles[:, None, :]
        if causal:
            hidden |= np.triu(np.ones((width, width), dtype=np.bool_), 1)
        hidden &= (query_tiles >= 0)[:, :, None]  # an empty slot sees all keys: without any, its softmax would be NaN
        mask = torch.from_numpy(np.where(hidden, np.float32(-math.inf), np.float32(0)))[:, None]
        tiles.append(_Tiles(slice(first_slot * num_heads, end_slot * num_heads), mask.to(device)))
    return TileLayout(tuple(tiles), query_index, (joint,) if is_self else (query_index, joint))


def _place(lengths: Ints) -> tuple[Ints, list[tuple[int, int, int]], int]:
    """Places whole sentences in tiles: always the longest that remains, then as many of the shortest as fit.

    Returns:
        The slot where each sentence starts; first slot, last + 1 and width of the tiles of each width; and the number
        of slots.
    """
    order = np.argsort(-lengths, kind="stable").tolist()
    needs = lengths.tolist()
    starts = np.empty(len(needs), dtype=np.int64)
    groups = []
    slot = 0
    longest = 0
    shortest = len(order) - 1
    while longest <= shortest:
        width = _TILE_WIDTH
        first_slot = slot
        while width < needs[order[longest]]:
            width *= 2
        while longest <= shortest and (width == _TILE_WIDTH or 2 * needs[order[longest]] > width):
            starts[order[longest]] = slot
            num_filled = needs[order[longest]]
            longest += 1
            while longest <= shortest and num_filled + needs[order[shortest]] <= width:
                starts[order[shortest]] = slot + num_filled
                num_filled += needs[order[shortest]]
                shortest -= 1
            slot += width
        size = round_up(slot - first_slot, _TILE_WIDTH * 8)  # with empty tiles: few shapes
        slot = first_slot + round_up(size, width)
        groups.append((first_slot, slot, width))
    return starts, groups, slot


def _index(
    packed_starts: Ints, tile_starts: Ints, rows: Ints, device: torch.device, num_parts: int = 1
) -> tuple[_RowIndex, Ints]:
    """Returns the index of queries or keys, and the sentence in each slot, -1 for an empty slot.

    Args:
        tile_starts: the slot where each sentence starts.
        rows: the row in tiles of each slot and head.
    """
    lengths = np.diff(packed_starts)
    slots = np.arange(packed_starts[-1]) + np.repeat(tile_starts - packed_starts[:-1], lengths)
    sentence = np.full(len(rows), -1)
    sentence[slots] = np.repeat(np.arange(len(lengths)), lengths)
    to_packed = (rows[slots][:, None] + rows.size * np.arange(num_parts)[:, None]).reshape(-1)
    to_tiles = np.zeros(num_parts * rows.size, dtype=np.int64)
    to_tiles[to_packed] = np.arange(len(to_packed))
    return _RowIndex(*(torch.from_numpy(array).to(device) for array in (to_tiles, to_packed))), sentence


class _TileAttention(torch.autograd.Function):
    """softmax(q k^T / sqrt(K) + mask) v in tiles. Its gradient, written by hand, moves far less memory on a CPU."""

    @staticmethod
    def forward(ctx: Any, layout: TileLayout, *inputs: Tensor) -> Tensor:
        with torch.autocast(inputs[0].device.type, enabled=False):  # on CUDA, it would compute only the softmax in fp32
            parts = list[Tensor]()
            for x, index in zip(inputs, layout.inputs, strict=True):
                parts += _rows(x).index_select(0, index.to_tiles).tensor_split(x.shape[1])
            q_rows, k_rows, v_rows = parts
            q_rows.mul_(q_rows.shape[1] ** -0.5)
            out_rows = torch.empty_like(q_rows)
            weights = []
            for tiles in layout.tiles:
                scores = torch.bmm(tiles.of(q_rows), tiles.of(k_rows).transpose(1, 2))
                scores.view(len(tiles.mask), -1, *scores.shape[1:]).add_(tiles.mask.to(scores.dtype))
                weights.append(torch.softmax(scores, -1))
                torch.bmm(weights[-1], tiles.of(v_rows), out=tiles.of(out_rows))
            ctx.layout = layout
            ctx.shapes = [x.shape for x in inputs]
            ctx.save_for_backward(q_rows, k_rows, v_rows, *weights)
            return layout.queries.pack(out_rows, inputs[0][:, 0].shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        layout: TileLayout = ctx.layout
        q_rows, k_rows, v_rows, *weights = ctx.saved_tensors
        to_packed = layout.queries.to_packed
        grad_rows = torch.zeros_like(q_rows)  # zero in empty slots: their gradient must not reach dK and dV
        grad_rows.index_copy_(0, to_packed, _rows(grad)[: len(to_packed)])
        d_inputs = [q_rows.new_empty(len(index.to_tiles), q_rows.shape[1]) for index in layout.inputs]
        d_parts = list[Tensor]()
        for d_input, shape in zip(d_inputs, ctx.shapes, strict=True):
            d_parts += d_input.tensor_split(shape[1])
        dq_rows, dk_rows, dv_rows = d_parts
        for tiles, p in zip(layout.tiles, weights, strict=True):
            grad_out = tiles.of(grad_rows)
            torch.bmm(p.transpose(1, 2), grad_out, out=tiles.of(dv_rows))
            dp = torch.bmm(grad_out, tiles.of(v_rows).transpose(1, 2))
            ds = torch.ops.aten._softmax_backward_data(dp, p, -1, p.dtype)
            torch.bmm(ds, tiles.of(k_rows), out=tiles.of(dq_rows))
            torch.bmm(ds.transpose(1, 2), tiles.of(q_rows), out=tiles.of(dk_rows))
        dq_rows.mul_(q_rows.shape[1] ** -0.5)
        packed = (i.pack(rows, shape) for i, rows, shape in zip(layout.inputs, d_inputs, ctx.shapes, strict=True))
        return None, *packed


def _rows(x: Tensor) -> Tensor:
    """Returns [N, H, K] as one row for each position and head."""
    return x.reshape(-1, x.shape[-1])


@dataclass(frozen=True)
class BlockLayout:
    """What each row of a packed batch sees: first and last + 1, int32 [2, N] on the device.

    Attributes:
        key_ranges: of the keys that each query sees.
        query_ranges: of the queries that see each key.
    """

    key_ranges: Tensor
    query_ranges: Tensor

    @classmethod
    def of(
        cls, query_offsets: Tensor, key_offsets: Tensor, num_queries: int, num_keys: int, causal: bool
    ) -> "BlockLayout":
        """Makes the layout of sentences with these offsets, all on the device; see `make_layout`."""
        device = query_offsets.device
        queries, keys = (torch.arange(n, dtype=torch.int32, device=device) for n in (num_queries, num_keys))
        key_ranges = _ranges(queries, query_offsets, key_offsets)
        query_ranges = _ranges(keys, key_offsets, query_offsets)
        if causal:
            key_ranges = (key_ranges[0], queries + 1)
            query_ranges = (keys, query_ranges[1])
        return cls(torch.stack(key_ranges), torch.stack(query_ranges))

    def attend_joint(self, queries: Tensor, keys_values: Tensor | None) -> Tensor:
        """See `TileLayout.attend_joint`."""
        return _BlockAttention.apply(queries, keys_values, self.key_ranges, self.query_ranges)  # type: ignore[no-any-return, no-untyped-call]


def _ranges(rows: Tensor, offsets: Tensor, other_offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Returns first and last + 1 of the other side's positions of the sentence that each row belongs to, [N] each."""
    next_sentence = torch.searchsorted(offsets, rows, right=True)  # unused offsets equal N, so no row finds them
    return other_offsets[next_sentence - 1], other_offsets[next_sentence]


class _BlockAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys_values: Tensor | None, key_ranges: Tensor, query_ranges: Tensor
    ) -> Tensor:
        from mtx.model.block_kernels import attend  # imported here: it needs triton

        q, k, v = split_parts(queries, keys_values)
        out, log_sums = attend(q, k, v, key_ranges)
        ctx.save_for_backward(queries, keys_values, out, log_sums, key_ranges, query_ranges)
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from mtx.model.block_kernels import attend_backward

        queries, keys_values, out, log_sums, key_ranges, query_ranges = ctx.saved_tensors
        q, k, v = split_parts(queries, keys_values)
        is_joint = keys_values is None
        d_queries, d_keys_values = attend_backward(q, k, v, out, log_sums, grad, key_ranges, query_ranges, is_joint)
        return (d_queries, None, None, None) if is_joint else (d_queries[:, None], d_keys_values, None, None)


def split_parts(queries: Tensor, keys_values: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Returns queries, keys and values, each [N, H, K]."""
    if keys_values is None:
        q, k, v = queries.unbind(1)
    else:
        [q] = queries.unbind(1)
        k, v = keys_values.unbind(1)
    return q, k, v
