"""What a model attends to while it translates: the weights of every attention of a pair of sentences, with its pieces.

Not a second model: the Transformer runs forward as it always does, and what enters each of its attentions is looked
at. How maps are shown is `mtx.report`'s. Flow: ids of pairs -> `AttentionMaps`.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mtx.data.tokenizer import Tokenizer
from mtx.decoding.batches import pack_sentences, to_device
from mtx.model.attention import Layout, attention_weights
from mtx.model.transformer import MultiHeadAttention, Transformer

Weights = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """All attention weights of one pair; L layers, H heads, S source and T target pieces, each row a distribution.

    Row t of `decoder` and `cross` is of the position that writes `tgt_tokens[t]`; it has read `tgt_inputs[: t + 1]`.

    Attributes:
        src_tokens: [S] pieces as they read, `▁the`, with `</s>`.
        tgt_tokens: [T] pieces that are written, with `</s>`.
        encoder: [L, H, S, S], from a source piece to source pieces.
        decoder: [L, H, T, T], from the writing of a piece to what stood before it, `tgt_inputs`.
        cross: [L, H, T, S], from the writing of a piece to source pieces.
    """

    src_tokens: tuple[str, ...]
    tgt_tokens: tuple[str, ...]
    encoder: Weights
    decoder: Weights
    cross: Weights

    @property
    def tgt_inputs(self) -> tuple[str, ...]:
        """[T] pieces that the decoder reads: `<pad>` to begin with, then what was written."""
        return ("<pad>", *self.tgt_tokens[:-1])


@torch.inference_mode()
def attention_maps(
    model: Transformer, tokenizer: Tokenizer, src: Sequence[list[int]], tgt: Sequence[list[int]]
) -> list[AttentionMaps]:
    """The maps of each target given its source, both ending in `</s>`; the model must be in evaluation mode."""
    device = model.output_weight.device
    batch = to_device(pack_sentences(src, tgt, model.pad_id), device)
    src_starts, tgt_starts = batch.src_offsets.tolist(), batch.tgt_offsets.tolist()
    model.prepare_positions(batch.max_tokens)
    with (
        _watched([layer.self_attention for layer in model.encoder], src_starts, src_starts) as encoder,
        _watched([layer.self_attention for layer in model.decoder], tgt_starts, tgt_starts) as decoder,
        _watched([layer.cross_attention for layer in model.decoder], tgt_starts, src_starts) as cross,
    ):
        model.decode(batch, model.encode(batch))
    return [
        AttentionMaps(
            tuple(tokenizer.pieces(src[row])), tuple(tokenizer.pieces(tgt[row])),
            *(np.stack([layer[row] for layer in kind]) for kind in (encoder, decoder, cross)),
        )
        for row in range(len(src))
    ]  # fmt: skip


@contextlib.contextmanager
def _watched(modules: Sequence[Any], query_starts: list[int], key_starts: list[int]) -> Iterator[list[list[Weights]]]:
    """While it lasts, the weights of each attention that runs, in that order, and in it of each sentence, [H, T, S]."""
    found: list[list[Weights]] = []

    def look(module: MultiHeadAttention, inputs: tuple[Tensor, Tensor, Layout]) -> None:
        x, memory, layout = inputs
        q, k = module.split(module.query(x)), module.split(module.key(memory))
        spans = zip(_spans(query_starts), _spans(key_starts), strict=True)
        weights = [attention_weights(q[rows], k[columns], layout.causal) for rows, columns in spans]
        found.append([each.float().cpu().numpy() for each in weights])

    hooks: list[Callable[[], None]] = [module.register_forward_pre_hook(look).remove for module in modules]
    try:
        yield found
    finally:
        for remove in hooks:
            remove()


def _spans(starts: list[int]) -> list[slice]:
    return [slice(start, end) for start, end in zip(starts, starts[1:], strict=False)]
