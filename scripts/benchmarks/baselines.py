"""The implementations that `train.py` compares mtx with: `torch.nn.Transformer` and transformers' MarianMTModel.

Each is written as a competent user would write it. Sentences of similar length are batched together, so that there is
little padding. Dropout is applied as in the paper. The output layer is the embedding without its pad row, as in mtx.

Shapes: B sentences, S source, T target, D d_model.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtx.config.schema import ModelConfig
from mtx.data.token_store import Side, TokenStore
from mtx.interop.huggingface import tensors_of
from mtx.model.transformer import Transformer, sinusoidal_positions

LABEL_SMOOTHING = 0.1
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PaddedBatch:
    """Sentences padded to the longest one: int64 src_ids [B, S], tgt_in_ids and tgt_out_ids [B, T]."""

    src_ids: Tensor
    tgt_in_ids: Tensor
    tgt_out_ids: Tensor
    num_src_tokens: int
    num_tgt_tokens: int

    @property
    def num_positions(self) -> int:
        """The number of positions that the model computes, padding included."""
        return self.src_ids.numel() + self.tgt_in_ids.numel()

    def to(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Copies the ids to `device`."""
        src, tgt_in, tgt_out = (x.to(device, non_blocking=True) for x in self._tensors())
        return src, tgt_in, tgt_out

    def pinned(self) -> "PaddedBatch":
        """Returns the same batch in page-locked memory."""
        return PaddedBatch(*(x.pin_memory() for x in self._tensors()), self.num_src_tokens, self.num_tgt_tokens)

    def _tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.src_ids, self.tgt_in_ids, self.tgt_out_ids


def bucketed(store: TokenStore, batch_tokens: int) -> list[Ints]:
    """Sorts all pairs by length and cuts them into batches of at most `batch_tokens` padded target positions."""
    src = store.src.lengths.astype(np.int64)
    tgt = store.tgt.lengths.astype(np.int64)
    # Source lengths rise and fall in turn, so that those of neighbours are similar when the target length grows.
    order = np.lexsort((np.where(tgt % 2, src, -src), tgt))
    return list(cut(order, tgt, batch_tokens))


def cut(order: Ints, tgt_lengths: Ints, batch_tokens: int) -> list[Ints]:
    """Cuts `order` into batches of at most `batch_tokens` padded target positions."""
    batches = []
    start = 0
    longest = 0
    for i, length in enumerate(tgt_lengths[order].tolist()):
        longest = max(longest, length)
        if i > start and longest * (i + 1 - start) > batch_tokens:
            batches.append(order[start:i])
            start = i
            longest = length
    return [*batches, order[start:]]


def padded_batch(store: TokenStore, pairs: Ints) -> PaddedBatch:
    """Returns the batch of these pairs; the decoder starts from pad."""
    pad_id = store.num_ids
    src = _padded(store.src, pairs, pad_id)
    tgt = _padded(store.tgt, pairs, pad_id)
    start = torch.full((len(pairs), 1), pad_id)
    num_src, num_tgt = (int(side.locate(pairs)[1].sum()) for side in (store.src, store.tgt))
    return PaddedBatch(src, torch.cat([start, tgt[:, :-1]], 1), tgt, num_src, num_tgt)


def _padded(side: Side, pairs: Ints, pad_id: int) -> Tensor:
    starts, lengths = (values[:, None] for values in side.locate(pairs))
    column = np.arange(lengths.max())
    is_token = column < lengths
    ids = side.tokens[np.where(is_token, starts + column, starts)].astype(np.int64)
    return torch.from_numpy(np.where(is_token, ids, pad_id))


class Baseline(nn.Module):
    """A model whose forward pass returns the label-smoothed loss, summed over the target tokens."""

    def hidden(self, src_ids: Tensor, tgt_in_ids: Tensor) -> Tensor:
        """Returns the decoder's output, [B, T, D]."""
        raise NotImplementedError

    def output_weight(self) -> Tensor:
        """Returns the weights of the output layer, [V, D], without pad."""
        raise NotImplementedError

    def forward(self, src_ids: Tensor, tgt_in_ids: Tensor, tgt_out_ids: Tensor) -> Tensor:
        weight = self.output_weight()
        logits = F.linear(self.hidden(src_ids, tgt_in_ids), weight).flatten(0, 1)
        return F.cross_entropy(
            logits.float(), tgt_out_ids.flatten(), ignore_index=len(weight), label_smoothing=LABEL_SMOOTHING,
            reduction="sum",
        )  # fmt: skip


class TorchBaseline(Baseline):
    """`torch.nn.Transformer` with post-norm and without final norms.

    Targets need no padding mask: padding comes after the sentence, and the causal mask hides it from all real queries.
    """

    def __init__(self, config: ModelConfig, num_ids: int, max_tokens: int):
        super().__init__()
        self.pad_id = num_ids
        self.dropout = config.dropout
        self.embedding = nn.Embedding(num_ids + 1, config.d_model, padding_idx=num_ids)
        nn.init.normal_(self.embedding.weight, std=config.d_model**-0.5)
        self.register_buffer("positions", sinusoidal_positions(max_tokens, config.d_model))
        self.transformer = nn.Transformer(
            config.d_model, config.num_heads, config.num_encoder_layers, config.num_decoder_layers, config.d_ff,
            config.dropout, batch_first=True,
        )  # fmt: skip
        self.transformer.encoder.norm = self.transformer.decoder.norm = None
        for layer in self.transformer.modules():  # the paper has no dropout on attention weights or inner activations
            if isinstance(layer, nn.MultiheadAttention):
                layer.dropout = 0.0
            elif isinstance(layer, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                layer.dropout.p = 0.0

    def output_weight(self) -> Tensor:
        return self.embedding.weight[:-1]

    def hidden(self, src_ids: Tensor, tgt_in_ids: Tensor) -> Tensor:
        length = tgt_in_ids.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=tgt_in_ids.device).triu(1)
        padding = src_ids == self.pad_id
        hidden: Tensor = self.transformer(
            self._embed(src_ids), self._embed(tgt_in_ids), tgt_mask=future, tgt_is_causal=True,
            src_key_padding_mask=padding, memory_key_padding_mask=padding,
        )  # fmt: skip
        return hidden

    def _embed(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) * math.sqrt(self.embedding.embedding_dim) + self.positions[: ids.shape[1]]
        return F.dropout(x, self.dropout, self.training)


class MarianBaseline(Baseline):
    """transformers' MarianMTModel with mtx's sizes and mtx's initial weights.

    Args:
        attention: the `attn_implementation` of transformers.
    """

    def __init__(self, ours: Transformer, max_tokens: int, attention: str):
        super().__init__()
        from transformers import MarianConfig, MarianMTModel  # only these systems need it

        c = ours.config
        num_rows = ours.pad_id + 1
        config = MarianConfig(
            vocab_size=num_rows, max_position_embeddings=max_tokens, d_model=c.d_model, dropout=c.dropout,
            encoder_layers=c.num_encoder_layers, encoder_attention_heads=c.num_heads, encoder_ffn_dim=c.d_ff,
            decoder_layers=c.num_decoder_layers, decoder_attention_heads=c.num_heads, decoder_ffn_dim=c.d_ff,
            attention_dropout=0.0, activation_dropout=0.0, activation_function="relu", scale_embedding=True,
            pad_token_id=ours.pad_id, decoder_start_token_id=ours.pad_id, eos_token_id=0, forced_eos_token_id=0,
            use_cache=False, attn_implementation=attention,
        )  # fmt: skip
        self.marian: Any = MarianMTModel(config)
        self.marian.load_state_dict(tensors_of(ours), strict=False)
        self.marian.tie_weights()

    def output_weight(self) -> Tensor:
        weight: Tensor = self.marian.model.shared.weight
        return weight[:-1]

    def hidden(self, src_ids: Tensor, tgt_in_ids: Tensor) -> Tensor:
        mask = src_ids != self.marian.config.pad_token_id
        out = self.marian.model(src_ids, attention_mask=mask, decoder_input_ids=tgt_in_ids, use_cache=False)
        hidden: Tensor = out.last_hidden_state
        return hidden
