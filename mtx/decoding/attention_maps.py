"""The attention weights of a model on a pair of sentences: of every layer and head, with the pieces they belong to.

The model runs forward as in training, and hooks compute the weights from the inputs of each attention. A recurrent
model has one layer of cross attention with one head, and no other attention. In a decoder alone, whose target attends
to source and target at once, a row of `cross` and the same row of `decoder` make up one distribution.
`mtx.report` draws the maps. Flow: ids of pairs -> `AttentionMaps`.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from mtx.data.packing import PackedBatch
from mtx.data.tokenizer import Tokenizer
from mtx.decoding.batches import pack_sentences, to_device
from mtx.model.attention import attention_weights
from mtx.model.decoder_only import DecoderModel
from mtx.model.rnn import RecurrentModel
from mtx.model.transformer import MultiHeadAttention, Transformer
from mtx.model.translation_model import TranslationModel

Weights = npt.NDArray[np.float32]


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
    found = _WEIGHTS_OF[model.config.architecture](model, batch)
    return [
        AttentionMaps(tuple(tokenizer.pieces(one)), tuple(tokenizer.pieces(other)), *weights)
        for one, other, weights in zip(src, tgt, found, strict=True)
    ]


def _of_transformer(model: Transformer, batch: PackedBatch) -> Iterator[Sequence[Weights]]:
    """Yields the weights of each sentence: of the encoder, of the decoder, and cross attention."""
    src_starts, tgt_starts = batch.src_offsets.tolist(), batch.tgt_offsets.tolist()
    with (
        _recorded([layer.self_attention for layer in model.encoder], src_starts, src_starts) as encoder,
        _recorded([layer.self_attention for layer in model.decoder], tgt_starts, tgt_starts, causal=True) as decoder,
        _recorded([layer.cross_attention for layer in model.decoder], tgt_starts, src_starts) as cross,
    ):
        model.decode(batch, model.encode(batch))
    for row in range(batch.num_sentences):
        yield [np.stack([layer[row] for layer in layers]) for layers in (encoder, decoder, cross)]


def _of_decoder(model: DecoderModel, batch: PackedBatch) -> Iterator[Sequence[Weights]]:
    starts = (batch.src_offsets + batch.tgt_offsets).tolist()
    with _recorded([layer.self_attention for layer in model.decoder], starts, starts, causal=True) as layers:
        model.decode(batch, model.encode(batch))
    for row, num_src in enumerate(batch.src_offsets.diff().tolist()[: batch.num_sentences]):
        weights = np.stack([layer[row] for layer in layers])
        source, target = weights[..., :num_src, :num_src], weights[..., num_src:, :]
        yield [source, target[..., num_src:], target[..., :num_src]]


def _of_recurrent(model: RecurrentModel, batch: PackedBatch) -> Iterator[Sequence[Weights]]:
    for weights in model.attention_weights(batch):
        num_tgt, num_src = weights.shape
        none = [np.empty((0, 1, length, length), np.float32) for length in (num_src, num_tgt)]
        yield [*none, weights.float().cpu().numpy()[None, None]]


_WEIGHTS_OF: dict[str, Callable[[Any, PackedBatch], Iterator[Sequence[Weights]]]] = {
    "transformer": _of_transformer, "decoder": _of_decoder, "rnn": _of_recurrent,
}  # fmt: skip


@contextlib.contextmanager
def _recorded(
    modules: Sequence[Any], query_starts: list[int], key_starts: list[int], causal: bool = False
) -> Iterator[list[list[Weights]]]:
    """Records the weights of these attentions while they run: for each layer those of each sentence, [H, T, S]."""
    layers: list[list[Weights]] = []

    def record(module: MultiHeadAttention, inputs: tuple[Tensor, Tensor, object]) -> None:
        q, k = module.split(module.query(inputs[0])), module.split(module.key(inputs[1]))
        spans = zip(_spans(query_starts), _spans(key_starts), strict=True)
        weights = [attention_weights(q[rows], k[columns], causal) for rows, columns in spans]
        layers.append([sentence.float().cpu().numpy() for sentence in weights])

    hooks: list[RemovableHandle] = [module.register_forward_pre_hook(record) for module in modules]
    try:
        yield layers
    finally:
        for hook in hooks:
            hook.remove()


def _spans(starts: list[int]) -> list[slice]:
    return [slice(start, end) for start, end in zip(starts, starts[1:], strict=False)]
