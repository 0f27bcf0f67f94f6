"""The Transformer of the compiled training step on CUDA: what `mtx.model.transformer` computes, with less work for it.

It uses the parameters of a `Transformer`. Layers that read the same input are one product; attention takes blocks of
neighbouring positions (`BlockLayout`); ReLU is a part of its product; and the residual sums are stored in bf16, while
LayerNorm computes in fp32. It counts on a compiler, which fuses what lies between the products; without one it would be
the slower form. Tests check that both give the same numbers.

Shapes: N packed positions, D d_model, H heads, K head size, F d_ff, L decoder layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtx.model.transformer import DecoderLayer, EncoderLayer, MultiHeadAttention, Transformer
from mtx.model.translation_model import Batch


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
            key_ranges, query_ranges = (key_ranges[0], queries + 1), (keys, query_ranges[1])
        return cls(torch.stack(key_ranges), torch.stack(query_ranges))

    def attend_joint(self, queries: Tensor, keys_values: Tensor | None) -> Tensor:
        """See `TileLayout.attend`; the gradients of what comes in one tensor are made as one tensor too.

        Args:
            queries: [N_q, 1, H, K], or queries, keys and values of self-attention, [N_q, 3, H, K].
            keys_values: [N_k, 2, H, K]; None for self-attention.
        """
        return _BlockAttention.apply(queries, keys_values, self.key_ranges, self.query_ranges)  # type: ignore[no-any-return, no-untyped-call]


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
        dq, rest = attend_backward(q, k, v, out, log_sums, grad, key_ranges, query_ranges, is_joint)
        return (dq, None, None, None) if is_joint else (dq[:, None], rest, None, None)


def split_parts(queries: Tensor, keys_values: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Returns queries, keys and values, each [N, H, K]."""
    q, *rest = queries.unbind(1)
    k, v = rest if keys_values is None else keys_values.unbind(1)
    return q, k, v


def hidden_states(model: Transformer, batch: Batch) -> Tensor:
    """Returns `model.decode(batch, model.encode(batch))`, [N_tgt, D], in the type of autocast."""
    src, tgt = batch.src_offsets, batch.tgt_offsets
    num_src, num_tgt = len(batch.src_ids), len(batch.tgt_in_ids)
    def layout_of(queries, keys, causal):
        if model.kernel == "padded":
            return model.layout(queries, keys, batch, causal, is_joint=True)
        return BlockLayout.of(queries, keys, *(num_src if o is src else num_tgt for o in (queries, keys)), causal)

    layout = layout_of(src, src, False)
    x = _round(model.embed(batch.src_ids, batch.src_positions, source=True))
    readers: list[EncoderLayer] = list(model.encoder)  # type: ignore[arg-type]
    for reader in readers:
        x = _attention(reader, reader.self_attention, reader.self_attention_norm, x, None, layout)
        x = _feed_forward(reader, x)
    memory = _round(model.encoder_norm(x))
    layers: list[DecoderLayer] = list(model.decoder)  # type: ignore[arg-type]
    crosses = [layer.cross_attention for layer in layers]
    joint = _project(memory, [part for cross in crosses for part in (cross.key, cross.value)])
    keys_values = joint.view(num_src, len(layers), 2, crosses[0].num_heads, -1).unbind(1)
    layout, cross_layout = layout_of(tgt, tgt, True), layout_of(tgt, src, False)
    x = _round(model.embed(batch.tgt_in_ids, batch.tgt_positions, source=False))
    for layer, both in zip(layers, keys_values, strict=True):
        x = _attention(layer, layer.self_attention, layer.self_attention_norm, x, None, layout)
        x = _attention(layer, layer.cross_attention, layer.cross_attention_norm, x, both, cross_layout)
        x = _feed_forward(layer, x)
    return _round(model.decoder_norm(x))


def _round(x: Tensor) -> Tensor:
    """Returns x in the type of autocast; as it is, if there is none."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


def _project(x: Tensor, layers: Sequence[nn.Linear]) -> Tensor:
    """Returns the outputs of layers that read the same x [N, D] side by side, from one product."""
    return F.linear(x, torch.cat([layer.weight for layer in layers]), torch.cat([layer.bias for layer in layers]))


def _attention(
    layer: EncoderLayer,
    attention: MultiHeadAttention,
    norm: nn.LayerNorm,
    x: Tensor,
    keys_values: Tensor | None,
    layout: BlockLayout,
) -> Tensor:
    """Applies a sub-layer of attention to x [N, D], over x itself or over keys and values [N_src, 2, H, K]."""

    def attend(y: Tensor) -> Tensor:
        query = attention.query
        queries = query(y) if keys_values is not None else _project(y, [query, attention.key, attention.value])
        queries = queries.view(len(x), -1, attention.num_heads, x.shape[1] // attention.num_heads)
        return attention.output(layout.attend_joint(queries, keys_values).flatten(-2))  # type: ignore[no-any-return]

    return _round(layer.add(norm, x, attend))


def _feed_forward(layer: EncoderLayer, x: Tensor) -> Tensor:
    """Applies the feed-forward sub-layer (3.3) to x [N, D]."""
    if layer.activation is not F.relu:
        return _round(layer.feed_forward(x))
    weight, bias = _round(layer.inner.weight), _round(layer.inner.bias)

    def feed_forward(y: Tensor) -> Tensor:
        return layer.outer(_LinearReLU.apply(_round(y), weight, bias))  # type: ignore[no-any-return, no-untyped-call]

    return _round(layer.add(layer.feed_forward_norm, x, feed_forward))


class _LinearReLU(torch.autograd.Function):
    """ReLU(x W^T + b) [N, F] without a separate pass for ReLU; torch does not differentiate that operation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if x.device.type == "cpu":
            hidden = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "relu", [], "")
        else:
            hidden = torch._addmm_activation(bias, x, weight.T)
        ctx.save_for_backward(x, weight, hidden)
        return hidden

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x, weight, hidden = ctx.saved_tensors
        grad = torch.ops.aten.threshold_backward(grad, hidden, 0)
        return grad @ weight, grad.T @ x, grad.sum(0)
