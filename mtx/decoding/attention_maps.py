"""The attention weights of a model on a pair of sentences: of every layer and head, with the pieces they belong to.

The model computes them, `mtx.report` draws the maps. Flow: ids of pairs -> `AttentionMaps`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mtx.data.batches import pack_sentences, to_device
from mtx.data.tokenizer import Tokenizer
from mtx.model.translation_model import TranslationModel, Weights


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """All attention weights of one pair; L layers, H heads, S source and T target pieces, each row a distribution.

    Row t of `decoder` and `cross` belongs to the position that predicts `tgt_tokens[t]` from `tgt_inputs[: t + 1]`.

    Attributes:
        src_tokens: [S] pieces as text, such as `▁the`, with `</s>`.
        tgt_tokens: [T] predicted pieces, with `</s>`.
        encoder: [L, H, S, S], from source pieces to source pieces.
        decoder: [L, H, T, T], from predicted pieces to the pieces before them, `tgt_inputs`.
        cross: [L, H, T, S], from predicted pieces to source pieces.
    """

    src_tokens: tuple[str, ...]
    tgt_tokens: tuple[str, ...]
    encoder: Weights
    decoder: Weights
    cross: Weights

    @property
    def kinds(self) -> list[str]:
        """Which of `cross`, `encoder` and `decoder` the model has."""
        return [kind for kind in ("cross", "encoder", "decoder") if getattr(self, kind).size]

    @property
    def tgt_inputs(self) -> tuple[str, ...]:
        """[T] pieces that the decoder reads: `<pad>` first, then the predicted pieces except the last."""
        return ("<pad>", *self.tgt_tokens[:-1])


@torch.inference_mode()
def attention_maps(
    model: TranslationModel, tokenizer: Tokenizer, src: Sequence[list[int]], tgt: Sequence[list[int]]
) -> list[AttentionMaps]:
    """Returns the maps of each pair of ids, both sides ending in `</s>`; the model must be in evaluation mode."""
    batch = to_device(pack_sentences(src, tgt, model.pad_id), model.output_weight.device)
    model.prepare_positions(batch.max_tokens)
    found = model.attention_weights(batch)
    return [
        AttentionMaps(tuple(tokenizer.pieces(one)), tuple(tokenizer.pieces(other)), *weights)
        for one, other, weights in zip(src, tgt, found, strict=True)
    ]
