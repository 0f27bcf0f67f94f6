"""The Transformer of the compiled training step on CUDA: what `mtx.model.transformer` computes, with less work for it.

It uses the parameters of a `Transformer`. Layers that read the same input are one product; attention takes blocks of
neighbouring positions (`mtx.model.block_kernels`); ReLU is a part of its product; and the residual sums are stored in
bf16, while LayerNorm computes in fp32. It counts on a compiler, which fuses what lies between the products; without one
it would be the slower form. Tests check that both give the same numbers.

Shapes: N packed positions, D d_model, H heads, K head size, F d_ff, L decoder layers.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtx.model.attention_kernels import BlockLayout
from mtx.model.transformer import DecoderLayer, EncoderLayer, Transformer
from mtx.model.translation_model import Batch


def hidden_states(model: Transformer, batch: Batch) -> Tensor:
    """Returns `model.decode(batch, model.encode(batch))`, [N_tgt, D], in the type of autocast."""
    src, tgt = batch.src_offsets, batch.tgt_offsets
    num_src, num_tgt = len(batch.src_ids), len(batch.tgt_in_ids)
    layout = BlockLayout.of(src, src, num_src, num_src, causal=False)
    x = _rounded(model.embed(batch.src_ids, batch.src_positions, source=True))
    for layer in model.encoder:
        x = _feed_forward(layer, _self_attention(layer, x, layout))  # type: ignore[arg-type]
    memory = x if model.encoder_norm is None else _rounded(model.encoder_norm(x))
    layout = BlockLayout.of(tgt, tgt, num_tgt, num_tgt, causal=True)
    cross = BlockLayout.of(tgt, src, num_tgt, num_src, causal=False)
    x = _rounded(model.embed(batch.tgt_in_ids, batch.tgt_positions, source=False))
    layers: list[DecoderLayer] = list(model.decoder)  # type: ignore[arg-type]
    for layer, keys_values in zip(layers, _keys_values(layers, memory), strict=True):
        x = _self_attention(layer, x, layout)
        x = _feed_forward(layer, _cross_attention(layer, x, keys_values, cross))
    return x if model.decoder_norm is None else _rounded(model.decoder_norm(x))


def _rounded(x: Tensor) -> Tensor:
    """Returns x in the type of autocast; as it is, if there is none."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


def _joint(x: Tensor, layers: Sequence[nn.Linear]) -> Tensor:
    """Returns the outputs of layers that read the same x [N, D] side by side, from one product."""
    return F.linear(x, torch.cat([layer.weight for layer in layers]), torch.cat([layer.bias for layer in layers]))


def _self_attention(layer: EncoderLayer, x: Tensor, layout: BlockLayout) -> Tensor:
    """Applies the self-attention sub-layer to x [N, D]."""
    attention, norm = layer.self_attention, layer.self_attention_norm
    joint = _joint(layer.before(norm, x), [attention.query, attention.key, attention.value])
    rows = layout.attend_joint(joint.view(len(x), 3, attention.num_heads, -1), None)
    return _rounded(layer.after(norm, x, attention.output(rows.flatten(-2))))


def _keys_values(layers: Sequence[DecoderLayer], memory: Tensor) -> Sequence[Tensor]:
    """Returns the keys and values of the cross attention of all layers, each [N_src, 2, H, K]."""
    crosses = [layer.cross_attention for layer in layers]
    joint = _joint(memory, [part for cross in crosses for part in (cross.key, cross.value)])
    return joint.view(len(memory), len(layers), 2, crosses[0].num_heads, -1).unbind(1)


def _cross_attention(layer: DecoderLayer, x: Tensor, keys_values: Tensor, layout: BlockLayout) -> Tensor:
    """Applies the sub-layer of attention over the encoder's output to x [N, D]."""
    attention, norm = layer.cross_attention, layer.cross_attention_norm
    queries = attention.query(layer.before(norm, x)).view(len(x), 1, attention.num_heads, -1)
    rows = layout.attend_joint(queries, keys_values)
    return _rounded(layer.after(norm, x, attention.output(rows.flatten(-2))))


def _feed_forward(layer: EncoderLayer, x: Tensor) -> Tensor:
    """Applies the feed-forward sub-layer (3.3) to x [N, D]."""
    norm = layer.feed_forward_norm
    y, inner = layer.before(norm, x), layer.inner
    if layer.activation is F.relu:
        hidden = _LinearReLU.apply(*map(_rounded, (y, inner.weight, inner.bias)))  # type: ignore[no-untyped-call]
    else:
        hidden = layer.activation(inner(y))  # type: ignore[operator]
    return _rounded(layer.after(norm, x, layer.outer(hidden)))


class _LinearReLU(torch.autograd.Function):
    """ReLU(x W^T + b) [N, F] without a pass of its own for ReLU; torch does not differentiate that operation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        hidden = torch._addmm_activation(bias, x, weight.T)
        ctx.save_for_backward(x, weight, hidden)
        return hidden

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        x, weight, hidden = ctx.saved_tensors
        grad = torch.where(hidden > 0, grad, 0)
        return grad @ weight, grad.T @ x, grad.sum(0)
