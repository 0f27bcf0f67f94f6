"""The compiled training step with candidates in place of its own parts.

    with replaced(["norm", "loss"]):
        ...  # the first steps, in which torch compiles

`norm` takes dropout, residual sums and LayerNorm of a Transformer; `loss` takes the softmax of the loss. This module
needs no triton before a candidate is used.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtx.model.attention import BlockLayout
from mtx.model.transformer import MultiHeadAttention, Transformer, _Linear, _project, _round
from mtx.training import loss, micro_batch


@contextmanager
def replaced(names: Iterable[str]) -> Iterator[None]:
    """Compiles the steps within it with the candidates of these names: `norm`, `loss`.

    Raises:
        ValueError: for another name, and in the first step for a model that `norm` does not fit.
    """
    with ExitStack() as stack:
        for name in names:
            match name:
                case "norm":
                    stack.enter_context(mock.patch.object(micro_batch, "hidden_states", hidden_states))
                case "loss":
                    from scripts.first_light.candidates.loss import loss_chunk  # imported here: it needs triton

                    stack.enter_context(mock.patch.object(loss, "_compiled_chunk", loss_chunk))
                case _:
                    raise ValueError(f"no candidate {name}: expected norm, loss")
        yield


def hidden_states(model: Transformer, batch: Any) -> Tensor:
    """Returns the same as `mtx.model.transformer.hidden_states`, with the kernels of `norm`; only with `varlen`.

    Raises:
        ValueError: if the model has another architecture, pre-norm, another activation or width, or another kernel.
    """
    from scripts.first_light.candidates.norm import draw_words, threshold_of  # imported here: it needs triton

    _check(model)
    num_src = len(batch.src_ids)
    num_tgt = len(batch.tgt_in_ids)
    rows = [num_src, num_tgt] + 2 * len(model.encoder) * [num_src] + 3 * len(model.decoder) * [num_tgt]
    threshold = threshold_of(model.dropout)
    seed = torch.randint(1 << 62, (1,), device=threshold.device)
    words = draw_words(seed, threshold, sum(rows), model.config.d_model).split(rows)
    sublayers = _SubLayers(threshold, list(words))
    src, tgt = batch.src_offsets, batch.tgt_offsets
    layout = BlockLayout.of(src, src, num_src, num_src, causal=False)
    # Both at once: torch's compiler would store the mask of an embedding that it meets after the encoder.
    x = sublayers.embed(model, batch.src_ids, batch.src_positions, source=True)
    tgt_x = sublayers.embed(model, batch.tgt_in_ids, batch.tgt_positions, source=False)
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


def _check(model: Transformer) -> None:
    from scripts.first_light.candidates.norm import BITS, MAX_WIDTH

    config = model.config
    fits = {
        "a Transformer": type(model) is Transformer,
        "norm=post": config.norm == "post",
        "activation=relu": config.activation == "relu",
        f"a d_model of whole words and at most {MAX_WIDTH}": config.d_model % BITS.value == 0
        and config.d_model <= MAX_WIDTH,
        "kernel=varlen": model.kernel == "varlen",
    }
    lacking = [name for name, is_so in fits.items() if not is_so]
    if lacking:
        raise ValueError(f"the candidate norm needs {', '.join(lacking)}")


class _SubLayers:
    """The sub-layers of a step, each with the next words of dropout.

    A state is a pair: the output of the last sub-layer for the next product, and for the next residual sum.
    """

    def __init__(self, threshold: Tensor, words: list[Tensor]):
        self.threshold = threshold
        self.words = words

    def embed(self, model: Transformer, ids: Tensor, positions: Tensor, source: bool) -> tuple[Tensor, Tensor]:
        """See `AttentionModel.embed`."""
        from scripts.first_light.candidates.norm import drop

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
        state: tuple[Tensor, Tensor],
        keys_values: Tensor | None,
        layout: BlockLayout,
    ) -> tuple[Tensor, Tensor]:
        """Applies a sub-layer of attention over x itself, or over keys and values [N_src, 2, H, K]."""
        x, residual = state
        parts = [attention.query]
        if keys_values is None:
            parts += [attention.key, attention.value]
        queries = _project(x, parts).view(len(x), -1, attention.num_heads, x.shape[1] // attention.num_heads)
        y = layout.attend_joint(queries, keys_values).flatten(-2)
        return self._add(residual, y, attention.output, norm)

    def feed_forward(self, layer: Any, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Applies the feed-forward sub-layer (3.3)."""
        x, residual = state
        hidden = _Linear.apply(x, _round(layer.inner.weight), _round(layer.inner.bias), True)
        return self._add(residual, hidden, layer.outer, layer.feed_forward_norm)

    def _add(self, residual: Tensor, y: Tensor, linear: nn.Linear, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
        from scripts.first_light.candidates.norm import AddNorm

        product = F.linear(y, linear.weight)
        words = self.words.pop(0)
        return AddNorm.apply(residual, product, linear.bias, words, self.threshold, norm.weight, norm.bias, norm.eps)
