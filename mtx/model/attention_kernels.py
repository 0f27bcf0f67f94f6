"""The kernels of attention over a packed batch; `mtx.model.attention` has the formula and the interface.

For bf16 on CUDA, `BlockLayout` serves the compiled training step with the kernels of `mtx.model.block_kernels`, and
`VarlenLayout` calls torch's varlen kernel. `TileLayout` serves everything else. It copies whole
sentences into tiles of equal width, computes the scores within each tile, and masks other sentences. Tiles have only
a few shapes, because a CPU's library compiles a kernel the first time it meets a shape, which takes longer than
using it.

Shapes: N packed positions, M sentences, R tiles of width W, H heads, K head size. A slot is a position within a tile.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Ints = npt.NDArray[np.int64]
TileShape = tuple[int, int]  # number of tiles, width

_TILE_WIDTH = 32  # the narrowest: two sentences of usual length; a CPU's bf16 softmax is fast from here on


@dataclass(frozen=True)
class VarlenLayout:
    """Where each sentence starts: int32 [M+1] on the device, for queries and for keys."""

    query_offsets: Tensor
    key_offsets: Tensor
    max_tokens: int
    causal: bool

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `attention`."""
        from torch.nn.attention.varlen import varlen_attn  # imported here: it needs a CUDA build

        window, longest = (-1, 0) if self.causal else (-1, -1), self.max_tokens
        out: Tensor = varlen_attn(q, k, v, self.query_offsets, self.key_offsets, longest, longest, window_size=window)  # type: ignore[assignment]
        return out


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
        queries, keys = (
            torch.arange(n, dtype=torch.int32, device=query_offsets.device) for n in (num_queries, num_keys)
        )
        key_ranges, query_ranges = (
            _ranges(queries, query_offsets, key_offsets),
            _ranges(keys, key_offsets, query_offsets),
        )
        if causal:
            key_ranges, query_ranges = (key_ranges[0], queries + 1), (keys, query_ranges[1])
        return cls(torch.stack(key_ranges), torch.stack(query_ranges))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `attention`."""
        return self.attend_joint(q[:, None], torch.stack([k, v], 1))

    def attend_joint(self, queries: Tensor, keys_values: Tensor | None) -> Tensor:
        """See `attention`; the gradients of what comes in one tensor are made as one tensor too.

        Args:
            queries: [N_q, 1, H, K], or queries, keys and values of self-attention, [N_q, 3, H, K].
            keys_values: [N_k, 2, H, K]; None for self-attention.
        """
        out: Tensor = _BlockAttention.apply(queries, keys_values, self.key_ranges, self.query_ranges)  # type: ignore[no-untyped-call]
        return out


def _ranges(rows: Tensor, offsets: Tensor, other_offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Returns first and last + 1 of the other side's positions of the sentence that each row belongs to, [N] each."""
    after = torch.searchsorted(offsets, rows, right=True)  # unused offsets equal N, so no row finds them
    return other_offsets[after - 1], other_offsets[after]


class _BlockAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys_values: Tensor | None, key_ranges: Tensor, query_ranges: Tensor
    ) -> Tensor:
        from mtx.model.block_kernels import attend  # imported here: it needs triton

        q, k, v = _parts(queries, keys_values)
        out: Tensor
        out, log_sums = attend(q, k, v, key_ranges)
        ctx.save_for_backward(queries, keys_values, out, log_sums, key_ranges, query_ranges)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from mtx.model.block_kernels import attend_backward

        queries, keys_values, out, log_sums, key_ranges, query_ranges = ctx.saved_tensors
        q, k, v = _parts(queries, keys_values)
        is_joint = keys_values is None
        dq, rest = attend_backward(q, k, v, out, log_sums, grad, key_ranges, query_ranges, is_joint)
        return (dq, None, None, None) if is_joint else (dq[:, None], rest, None, None)


def _parts(queries: Tensor, keys_values: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Returns queries, keys and values, each [N, H, K]."""
    q, *rest = queries.unbind(1)
    k, v = rest if keys_values is None else keys_values.unbind(1)
    return q, k, v


@dataclass(frozen=True)
class _Tiles:
    """All tiles of one width: their part of the rows in tiles, and a mask [R, 1, W, W] to add to scores: 0 or -inf."""

    width: int
    rows: slice
    mask: Tensor

    def of(self, rows: Tensor) -> Tensor:
        """Returns the part of rows [R * H * W, K] that lies in these tiles, as [R * H, W, K]."""
        return rows[self.rows].view(-1, self.width, rows.shape[-1])


@dataclass(frozen=True)
class _RowIndex:
    """How queries or keys, one row for each position and head, are copied into tiles and back.

    Attributes:
        to_tiles: for each row in tiles the packed row to copy. An empty slot copies a row that no query sees.
        to_packed: for each packed row of a real sentence the row in tiles, [N_real * H].
    """

    to_tiles: Tensor
    to_packed: Tensor

    def pack(self, rows: Tensor, shape: torch.Size) -> Tensor:
        """Returns rows in tiles as [N, H, K]; the positions of dummy sentences are zero."""
        packed = rows.new_zeros(shape)
        torch.index_select(rows, 0, self.to_packed, out=_rows(packed)[: len(self.to_packed)])
        return packed


@dataclass(frozen=True)
class TileLayout:
    """The place of each sentence's queries and keys in tiles."""

    tiles: tuple[_Tiles, ...]
    queries: _RowIndex
    keys: _RowIndex

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """See `attention`."""
        out: Tensor = _TileAttention.apply(q, k, v, self)  # type: ignore[no-untyped-call]
        return out


def make_tile_layout(
    query_starts: Ints, key_starts: Ints, num_heads: int, causal: bool, device: torch.device
) -> TileLayout:
    """Prepares tiles for sentences that start at these positions, [M+1] for queries and keys, dummies left out."""
    slots, shapes = _place(np.maximum(np.diff(query_starts), np.diff(key_starts)))
    queries, query_sentence = _index(query_starts, slots, shapes, num_heads, device)
    keys, key_sentence = queries, query_sentence
    if key_starts is not query_starts:
        keys, key_sentence = _index(key_starts, slots, shapes, num_heads, device)
    tiles, first = [], 0
    for number, width in shapes:
        end = first + number * width
        query_tiles, key_tiles = (s[first:end].reshape(number, width) for s in (query_sentence, key_sentence))
        hidden = _hidden(query_tiles, key_tiles, causal)
        mask = torch.from_numpy(np.where(hidden, np.float32(-math.inf), np.float32(0)))[:, None]
        tiles.append(_Tiles(width, slice(first * num_heads, end * num_heads), mask.to(device)))
        first = end
    return TileLayout(tuple(tiles), queries, keys)


def _place(lengths: Ints) -> tuple[Ints, list[TileShape]]:
    """Places whole sentences in tiles: always the longest one left, and beside it as many of the shortest as fit.

    Returns:
        The slot where each sentence starts, and the shapes of the tiles in the order of their slots.
    """
    order, needs = np.argsort(-lengths, kind="stable").tolist(), lengths.tolist()
    starts, shapes = np.empty(len(needs), dtype=np.int64), []
    slot = 0
    longest = 0
    shortest = len(order) - 1
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
        slot += -(slot - first) % (_TILE_WIDTH * 8)  # empty tiles are added, so that there are few shapes
        slot = first + -(-(slot - first) // width) * width
        shapes.append(((slot - first) // width, width))
    return starts, shapes


def _index(
    packed_starts: Ints, tile_starts: Ints, shapes: list[TileShape], num_heads: int, device: torch.device
) -> tuple[_RowIndex, Ints]:
    """Returns the index of queries or keys, and the sentence in each slot, -1 for an empty slot."""
    num_slots, lengths = sum(number * width for number, width in shapes), np.diff(packed_starts)
    slots = np.arange(packed_starts[-1]) + np.repeat(tile_starts - packed_starts[:-1], lengths)
    sentence = np.full(num_slots, -1)
    sentence[slots] = np.repeat(np.arange(len(lengths)), lengths)
    position = np.zeros(num_slots, dtype=np.int64)
    position[slots] = np.arange(len(slots))
    tile_row = np.empty((num_slots, num_heads), dtype=np.int64)
    heads = np.arange(num_heads)
    to_tiles = [np.empty(0, dtype=np.int64)]
    first = 0
    for number, width in shapes:
        part = slice(first, first + number * width)
        to_tiles.append((position[part].reshape(number, 1, width) * num_heads + heads[:, None]).reshape(-1))
        rows = first * num_heads + np.arange(len(to_tiles[-1])).reshape(number, num_heads, width)
        tile_row[part] = rows.swapaxes(1, 2).reshape(-1, num_heads)
        first = part.stop
    arrays = np.concatenate(to_tiles), tile_row[slots].reshape(-1)
    return _RowIndex(*(torch.from_numpy(array).to(device) for array in arrays)), sentence


def _hidden(queries: Ints, keys: Ints, causal: bool) -> npt.NDArray[np.bool_]:
    """Returns which keys each query must not see, bool [R, W, W]: other sentences and, if causal, the future."""
    hidden: npt.NDArray[np.bool_] = queries[:, :, None] != keys[:, None, :]
    if causal:
        hidden |= np.triu(np.ones(hidden.shape[1:], dtype=np.bool_), 1)
    hidden &= (queries >= 0)[:, :, None]  # an empty slot sees all keys: without any, its softmax would be NaN
    return hidden


class _TileAttention(torch.autograd.Function):
    """softmax(q k^T / sqrt(K) + mask) v in tiles. Its gradient, written by hand, moves far less memory on a CPU."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, layout: TileLayout) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):  # on CUDA, autocast would compute only the softmax in fp32
            return _forward(ctx, q, k, v, layout)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        layout: TileLayout = ctx.layout
        q_rows, k_rows, v_rows, *weights = ctx.saved_tensors
        to_packed = layout.queries.to_packed
        grad_rows = torch.zeros_like(q_rows)  # zero in empty slots: their gradient must not reach dK and dV
        grad_rows.index_copy_(0, to_packed, _rows(grad)[: len(to_packed)])
        dq_rows = torch.empty_like(q_rows)
        dk_rows = torch.empty_like(k_rows)
        dv_rows = torch.empty_like(v_rows)
        for tiles, p in zip(layout.tiles, weights, strict=True):
            grad_out = tiles.of(grad_rows)
            torch.bmm(p.transpose(1, 2), grad_out, out=tiles.of(dv_rows))
            dp = torch.bmm(grad_out, tiles.of(v_rows).transpose(1, 2))
            ds = torch.ops.aten._softmax_backward_data(dp, p, -1, p.dtype)
            torch.bmm(ds, tiles.of(k_rows), out=tiles.of(dq_rows))
            torch.bmm(ds.transpose(1, 2), tiles.of(q_rows), out=tiles.of(dk_rows))
        dq = layout.queries.pack(dq_rows.mul_(ctx.query_shape[-1] ** -0.5), ctx.query_shape)
        dk, dv = (layout.keys.pack(rows, ctx.key_shape) for rows in (dk_rows, dv_rows))
        return dq, dk, dv, None


def _forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, layout: TileLayout) -> Tensor:
    q_rows = _rows(q).index_select(0, layout.queries.to_tiles).mul_(q.shape[-1] ** -0.5)
    k_rows, v_rows = (_rows(x).index_select(0, layout.keys.to_tiles) for x in (k, v))
    out_rows = torch.empty_like(q_rows)
    weights = []
    for tiles in layout.tiles:
        scores = torch.bmm(tiles.of(q_rows), tiles.of(k_rows).transpose(1, 2))
        scores.view(len(tiles.mask), -1, tiles.width, tiles.width).add_(tiles.mask.to(scores.dtype))
        weights.append(torch.softmax(scores, -1))
        torch.bmm(weights[-1], tiles.of(v_rows), out=tiles.of(out_rows))
    ctx.layout = layout
    ctx.query_shape = q.shape
    ctx.key_shape = k.shape
    ctx.save_for_backward(q_rows, k_rows, v_rows, *weights)
    return layout.queries.pack(out_rows, q.shape)


def _rows(x: Tensor) -> Tensor:
    """Returns [N, H, K] as one row for each position and head."""
    return x.reshape(-1, x.shape[-1])
