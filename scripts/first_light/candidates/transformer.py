"""`mtx.model.transformer.hidden_states` with the kernels of `norm`."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtx.model.attention import BlockLayout
from mtx.model.transformer import EncoderLayer, MultiHeadAttention, Transformer, _Linear, _project, _round
from scripts.first_light.candidates.norm import MAX_WIDTH, AddNorm, draw_words, drop, threshold_of

States = tuple[Tensor, Tensor]  # the same [N, D] for the next product and for the next residual sum


def hidden_states(model: Transformer, batch: Any) -> Tensor:
    """Returns the hidden states of the target, [N_tgt, D].

    Raises:
        ValueError: if the model is not one of the paper, or too wide.
    """
    config = model.config
    is_of_paper = type(model) is Transformer and config.norm == "post" and config.activation == "relu"
    if not is_of_paper or config.d_model % 32 or config.d_model > MAX_WIDTH:
        raise ValueError(
            "the candidate norm needs architecture=transformer, norm=post, activation=relu and a d_model that is a "
            f"multiple of 32 and at most {MAX_WIDTH}"
        )
    src, tgt = batch.src_offsets, batch.tgt_offsets
    num_src, num_tgt = len(batch.src_ids), len(batch.tgt_in_ids)
    sublayers = _SubLayers(model, num_src, num_tgt)
    # Both at once: torch's compiler would store the mask of an embedding that it meets after the encoder.
    x = sublayers.embed(batch.src_ids, batch.src_positions, source=True)
    tgt_x = sublayers.embed(batch.tgt_in_ids, batch.tgt_positions, source=False)
    layout = BlockLayout.of(src, src, num_src, num_src, causal=False)
    for layer in model.encoder:
        x = sublayers.attend(layer.self_attention, layer.self_attention_norm, x, None, layout)
        x = sublayers.feed_forward(layer, x)
    memory, _ = x
    crosses = [layer.cross_attention for layer in model.decoder]
    joint = _project(memory, [part for cross in crosses for part in (cross.key, cross.value)])
    keys_values = joint.view(num_src, len(crosses), 2, crosses[0].num_heads, -1).unbind(1)
    layout = BlockLayout.of(tgt, tgt, num_tgt, num_tgt, causal=True)
    cross_layout = BlockLayout.of(tgt, src, num_tgt, num_src, causal=False)
    x = tgt_x
    for layer, cross_keys_values in zip(model.decoder, keys_values, strict=True):
        x = sublayers.attend(layer.self_attention, layer.self_attention_norm, x, None, layout)
        x = sublayers.attend(layer.cross_attention, layer.cross_attention_norm, x, cross_keys_values, cross_layout)
        x = sublayers.feed_forward(layer, x)
    return x[0]


class _SubLayers:
    """The sub-layers of a step; each takes the next words of dropout, which are drawn here for all of them."""

    def __init__(self, model: Transformer, num_src: int, num_tgt: int):
        self.model = model
        self.threshold = threshold_of(model.dropout)
        rows = [num_src, num_tgt] + 2 * len(model.encoder) * [num_src] + 3 * len(model.decoder) * [num_tgt]
        seed = torch.randint(1 << 62, (1,), device=self.threshold.device)
        self.words = list(draw_words(seed, self.threshold, sum(rows), model.config.d_model).split(rows))

    def embed(self, ids: Tensor, positions: Tensor, source: bool) -> States:
        """See `AttentionModel.embed`."""
        model = self.model
        table = model.source_embedding if source else model.embedding
        learned = model.learned_positions(source)
        x = F.embedding(ids, table, padding_idx=model.pad_id) * math.sqrt(model.config.d_model)
        x = x + F.embedding(positions, model._sinusoids if learned is None else learned)
        x = _round(drop(x, self.words.pop(0), self.threshold))
        return x, x

    def attend(
        self,
        attention: MultiHeadAttention,
        norm: nn.LayerNorm,
        states: States,
        keys_values: Tensor | None,
        layout: BlockLayout,
    ) -> States:
        """Applies a sub-layer of attention, over its own states or over keys and values [N_src, 2, H, K]."""
        x, residual = states
        parts = [attention.query]
        if keys_values is None:
            parts += [attention.key, attention.value]
        queries = _project(x, parts).view(len(x), -1, attention.num_heads, x.shape[1] // attention.num_heads)
        return self._add(residual, layout.attend_joint(queries, keys_values).flatten(-2), attention.output, norm)

    def feed_forward(self, layer: EncoderLayer, states: States) -> States:
        """Applies the feed-forward sub-layer (3.3)."""
        x, residual = states
        hidden = _Linear.apply(x, _round(layer.inner.weight), _round(layer.inner.bias), True)
        return self._add(residual, hidden, layer.outer, layer.feed_forward_norm)

    def _add(self, residual: Tensor, x: Tensor, linear: nn.Linear, norm: nn.LayerNorm) -> States:
        dropout = self.words.pop(0), self.threshold
        return AddNorm.apply(
            residual, F.linear(x, linear.weight), linear.bias, *dropout, norm.weight, norm.bias, norm.eps
        )
