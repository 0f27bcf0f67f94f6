"""With copied weights, logits and gradients equal those of `torch.nn.Transformer`, an independent implementation."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mtx.data.packing import PackedBatch
from mtx.model.transformer import DecoderLayer, EncoderLayer, MultiHeadAttention, Transformer
from tests.models import random_batch, tiny_model

ACTIVATIONS: dict[str, Any] = {"relu": "relu", "gelu": "gelu", "swish": nn.functional.silu}


def copy_attention(theirs: nn.MultiheadAttention, ours: MultiHeadAttention) -> None:
    projections = (ours.query, ours.key, ours.value)
    theirs.in_proj_weight.copy_(torch.cat([p.weight for p in projections]))
    theirs.in_proj_bias.copy_(torch.cat([p.bias for p in projections]))
    theirs.out_proj.load_state_dict(ours.output.state_dict())


def copy_layer(theirs: Any, ours: EncoderLayer) -> None:
    copy_attention(theirs.self_attn, ours.self_attention)
    norms = [ours.self_attention_norm, ours.feed_forward_norm]
    if isinstance(ours, DecoderLayer):
        copy_attention(theirs.multihead_attn, ours.cross_attention)
        norms.insert(1, ours.cross_attention_norm)
    for number, norm in enumerate(norms, start=1):
        getattr(theirs, f"norm{number}").load_state_dict(norm.state_dict())
    theirs.linear1.load_state_dict(ours.inner.state_dict())
    theirs.linear2.load_state_dict(ours.outer.state_dict())


@torch.no_grad()
def torch_transformer(ours: Transformer) -> nn.Transformer:
    c = ours.config
    theirs = nn.Transformer(
        c.d_model, c.num_heads, c.num_encoder_layers, c.num_decoder_layers, c.d_ff, dropout=0.0,
        activation=ACTIVATIONS[c.activation], batch_first=True, norm_first=c.norm == "pre", dtype=torch.float64,
    )  # fmt: skip
    for stack, layers, norm in (
        (theirs.encoder, ours.encoder, ours.encoder_norm),
        (theirs.decoder, ours.decoder, ours.decoder_norm),
    ):
        for a, b in zip(stack.layers, layers, strict=True):
            copy_layer(a, b)
        if c.norm == "post":
            stack.norm = None
        else:
            stack.norm.load_state_dict(norm.state_dict())
    return theirs.train()  # its evaluation mode takes another path; there is no dropout


def padded(rows: Tensor, offsets: Tensor, num_sentences: int) -> tuple[Tensor, Tensor]:
    """[B, L, D] and where it is padding, [B, L]."""
    lengths = offsets[: num_sentences + 1].diff()
    parts = rows[: int(lengths.sum())].split(lengths.tolist())
    return nn.utils.rnn.pad_sequence(list(parts), batch_first=True), torch.arange(int(lengths.max())) >= lengths[
        :, None
    ]


def torch_logits(theirs: nn.Transformer, ours: Transformer, batch: PackedBatch) -> Tensor:
    n = batch.num_sentences
    src, src_pad = padded(ours.embed(batch.src_ids, batch.src_positions, source=True), batch.src_offsets, n)
    tgt, tgt_pad = padded(ours.embed(batch.tgt_in_ids, batch.tgt_positions, source=False), batch.tgt_offsets, n)
    future = torch.ones(tgt.shape[1], tgt.shape[1]).triu(1).bool()
    out = theirs(
        src, tgt, tgt_mask=future, src_key_padding_mask=src_pad, tgt_key_padding_mask=tgt_pad,
        memory_key_padding_mask=src_pad,
    )  # fmt: skip
    return out[~tgt_pad] @ ours.output_weight.T


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "pre"},
        {"activation": "gelu"},
        {"activation": "swish", "norm": "pre", "tie": "none", "positions": "learned"},
        {"num_encoder_layers": 3, "num_decoder_layers": 1, "num_heads": 2, "tie": "target"},
    ],
)
def test_logits_and_gradients_are_those_of_torch(changes: dict[str, Any]) -> None:
    ours = tiny_model(**changes)
    theirs = torch_transformer(ours)
    batch = random_batch([5, 9, 2, 1, 7], [6, 3, 8, 4, 1], tail=4)
    got = (ours.decode(batch, ours.encode(batch)) @ ours.output_weight.T)[: batch.num_tgt_tokens]
    expected = torch_logits(theirs, ours, batch)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)
    direction = torch.randn(got.shape, generator=torch.Generator().manual_seed(1), dtype=got.dtype)
    gradients = [torch.autograd.grad((x * direction).sum(), ours.embedding)[0] for x in (got, expected)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-9)
