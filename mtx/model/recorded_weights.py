"""The attention weights of each architecture for a batch: of every sentence those of the encoder, the decoder and cross
attention, as arrays [L, H, S, S], [L, H, T, T] and [L, H, T, S] of L layers and H heads.

The model runs forward as in training, and hooks compute the weights from the inputs of each attention. A recurrent
model has one layer of cross attention with one head, and no other attention. In a decoder alone, whose target attends
to source and target at once, a row of `cross` and the same row of `decoder` make up one distribution.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from mtx.architectures.decoder_only import DecoderModel
from mtx.architectures.rnn import RecurrentModel
from mtx.model.attention import attention_weights
from mtx.model.transformer import MultiHeadAttention, Transformer
from mtx.model.translation_model import Batch

Weights = npt.NDArray[np.float32]


def of_transformer(model: Transformer, batch: Batch) -> Iterator[Sequence[Weights]]:
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


def of_decoder(model: DecoderModel, batch: Batch) -> Iterator[Sequence[Weights]]:
    starts = (batch.src_offsets + batch.tgt_offsets).tolist()
    with _recorded([layer.self_attention for layer in model.decoder], starts, starts, causal=True) as layers:
        model.decode(batch, model.encode(batch))
    for row, num_src in enumerate(batch.src_offsets.diff().tolist()[: batch.num_sentences]):
        weights = np.stack([layer[row] for layer in layers])
        source, target = weights[..., :num_src, :num_src], weights[..., num_src:, :]
        yield [source, target[..., num_src:], target[..., :num_src]]


def of_recurrent(model: RecurrentModel, batch: Batch) -> Iterator[Sequence[Weights]]:
    for weights in model.attention_weights(batch):
        num_tgt, num_src = weights.shape
        none = [np.empty((0, 1, length, length), np.float32) for length in (num_src, num_tgt)]
        yield [*none, weights.float().cpu().numpy()[None, None]]


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
