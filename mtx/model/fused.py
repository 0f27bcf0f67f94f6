"""The Transformer of a training step: what `mtx.model.transformer` computes, with less work for the machine.

It uses the parameters of a `Transformer`. Layers that read the same input are one product; ReLU is a part of its
product; and in autocast the residual sums are stored in bf16, while LayerNorm computes in fp32. On CUDA attention takes
blocks of neighbouring positions (`BlockLayout`), and a compiler fuses what lies between the products; without one the
plain form is faster there. Tests check that both give the same numbers.

Shapes: N packed positions, D d_model, H heads, K head size, F d_ff, L decoder layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtx.model.attention import TileLayout
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
        """See `TileLayout.attend_joint`."""
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

    def make_layout(queries: Tensor, keys: Tensor, num_queries: int, num_keys: int, causal: bool) -> Any:
        if model.kernel == "padded":
            return model.layout(queries, keys, batch, causal)
        return BlockLayout.of(queries, keys, num_queries, num_keys, causal)

    layout = make_layout(src, src, num_src, num_src, causal=False)
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
    layout = make_layout(tgt, tgt, num_tgt, num_tgt, causal=True)
    cross_layout = make_layout(tgt, src, num_tgt, num_src, causal=False)
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
    weight, bias = (torch.cat([getattr(layer, name) for layer in layers]) for name in ("weight", "bias"))
    if not _is_for_onednn(x):
        return F.linear(x, weight, bias)
    return _Linear.apply(x, _round(weight), _round(bias), False)  # type: ignore[no-any-return, no-untyped-call]


def _is_for_onednn(x: Tensor) -> bool:
    """Whether oneDNN can add the bias within a product with x, and gains by it; not all builds of torch have it."""
    return x.device.type == "cpu" and x.dtype == torch.bfloat16 and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _attention(
    layer: EncoderLayer,
    attention: MultiHeadAttention,
    norm: nn.LayerNorm,
    x: Tensor,
    keys_values: Tensor | None,
    layout: BlockLayout | TileLayout,
) -> Tensor:
    """Applies a sub-layer of attention to x [N, D], over x itself or over keys and values [N_src, 2, H, K]."""

    def attend(y: Tensor) -> Tensor:
        parts = [attention.query, attention.key, attention.value][: 3 if keys_values is None else 1]
        queries = _project(y, parts).view(len(x), -1, attention.num_heads, x.shape[1] // attention.num_heads)
        return _project(layout.attend_joint(queries, keys_values).flatten(-2), [attention.output])

    return _round(layer.add(norm, x, attend))


def _feed_forward(layer: EncoderLayer, x: Tensor) -> Tensor:
    """Applies the feed-forward sub-layer (3.3) to x [N, D]."""
    if layer.activation is not F.relu:
        return _round(layer.feed_forward(x))
    weight, bias = _round(layer.inner.weight), _round(layer.inner.bias)

    def feed_forward(y: Tensor) -> Tensor:
        return _project(_Linear.apply(_round(y), weight, bias, True), [layer.outer])  # type: ignore[no-untyped-call]

    return _round(layer.add(layer.feed_forward_norm, x, feed_forward))


class _Linear(torch.autograd.Function):
    """x W^T + b or its ReLU, [N, F], without a separate pass for either; torch does not differentiate the operation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, has_relu: bool) -> Tensor:
        if _is_for_onednn(x):
            out = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "relu" if has_relu else "none", [], "")
        else:
            out = torch._addmm_activation(bias, x, weight.T)
        ctx.save_for_backward(x, weight, out if has_relu else None)
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, hidden = ctx.saved_tensors
        if hidden is not None:
            grad = torch.ops.aten.threshold_backward(grad, hidden, 0)
        return grad @ weight, grad.T @ x, grad.sum(0), None
