"""A decoder alone that translates: one causal stack reads the source and then the target (as GPT does).

A sentence pair is one sequence: the source with its `</s>`, pad, and the earlier tokens of the target. Each position
sees all positions before it, and those of the target predict the next token. Positions count through both sides.
`DecoderModel` is the model of training and scoring, `DecoderSearchModel` that of search: there the keys and values of a
source are stored once and shared by its beams, as those of cross attention are in the Transformer.

Shapes: N packed positions, B sentences or slots, J beams, S source, D d_model, H heads, K head size.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from mtx.config.limits import MAX_LEARNED_POSITIONS, MAX_TOKENS
from mtx.config.schema import ModelConfig
from mtx.model.inference import InferenceLayer, StackModel, attend
from mtx.model.kv_cache import EncodedSources, KVCache
from mtx.model.transformer import AttentionModel, EncoderLayer, make_final_norm, record_weights
from mtx.model.translation_model import Batch, Weights


class DecoderModel(AttentionModel):
    """The whole model: embeddings, a stack of layers with causal self-attention, and the weights of the output layer.

    Attributes:
        positions: the learned table, if positions are learned, for source and target together.
    """

    def __init__(self, config: ModelConfig, num_ids: int):
        super().__init__(config, num_ids)
        shape = 2 * MAX_LEARNED_POSITIONS, config.d_model
        self.positions = nn.Parameter(torch.empty(shape)) if config.positions == "learned" else None
        self.decoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_decoder_layers))
        self.decoder_norm = make_final_norm(config)
        if not self.embedding.is_meta:
            self.reset_parameters()

    def learned_positions(self, source: bool) -> Tensor | None:
        """See `AttentionModel.learned_positions`."""
        return self.positions

    def prepare_positions(self, num_positions: int) -> None:
        """See `AttentionModel.prepare_positions`: for a source and a target of that many tokens each."""
        super().prepare_positions(2 * num_positions)

    def encode(self, batch: Batch) -> Tensor:
        """Embeds the packed sources, [N_src, D]; they go through the stack with their targets."""
        return self.embed(batch.src_ids, batch.src_positions, source=True)

    def decode(self, batch: Batch, memory: Tensor) -> Tensor:
        """Runs the stack over sources and targets; returns the hidden states of the targets, [N_tgt, D]."""
        src_lengths = batch.src_offsets.diff()
        tgt_lengths = batch.tgt_offsets.diff()
        positions = batch.tgt_positions + src_lengths.repeat_interleave(tgt_lengths).to(memory.device)
        targets = self.embed(batch.tgt_in_ids, positions, source=False)
        pairs = zip(torch.split(memory, src_lengths.tolist()), torch.split(targets, tgt_lengths.tolist()), strict=True)
        x = torch.cat([side for pair in pairs for side in pair])
        offsets = batch.src_offsets + batch.tgt_offsets
        layout = self.layout(offsets, offsets, batch, causal=True)
        for layer in self.decoder:
            x = layer(x, layout)
        sides = torch.split(x, torch.stack([src_lengths, tgt_lengths], 1).flatten().tolist())
        return self.decoder_norm(torch.cat(sides[1::2]))  # type: ignore[no-any-return]

    def attention_weights(self, batch: Batch) -> Iterator[Sequence[Weights]]:
        """See `TranslationModel.attention_weights`.

        A target attends to source and target at once, so its two rows together are one distribution.
        """
        lengths = (batch.src_offsets + batch.tgt_offsets).diff().tolist()
        attentions = (layer.self_attention for layer in self.decoder)
        with record_weights(attentions, lengths, lengths, causal=True) as layers:
            self.decode(batch, self.encode(batch))
        for row, num_src in enumerate(batch.src_offsets.diff().tolist()[: batch.num_sentences]):
            weights = np.stack([layer[row] for layer in layers])
            target = weights[..., num_src:, :]
            yield [weights[..., :num_src, :num_src], target[..., num_src:], target[..., :num_src]]


class _Layer(InferenceLayer):
    def __call__(self, x: Tensor, cache: KVCache, number: int) -> Tensor:
        """Applies the layer at one target position of every beam; x is [B * J, D]."""
        queries_keys_values = self.project(x, cache.beam_size)
        cache.write(number, queries_keys_values[1:])
        source_keys, source_values = cache.source_kv[number]
        target_keys, target_values = cache.target_kv[number]
        keys = torch.cat([source_keys, target_keys], 2)
        values = torch.cat([source_values, target_values], 1)
        mask = torch.cat([cache.mask.expand(-1, -1, cache.beam_size, -1), cache.target_mask], 3)
        out = attend(queries_keys_values[0], keys, values, mask)
        return self.feed_forward(self.attention.leave(x, out))


class DecoderSearchModel(StackModel):
    """`model` in `dtype`, with the interface that `mtx.decoding.beam_search` expects."""

    is_causal = True

    def __init__(self, model: DecoderModel, dtype: torch.dtype = torch.float32):
        super().__init__(model, dtype)
        stack = [_Layer(layer, dtype) for layer in model.decoder]  # type: ignore[arg-type]
        self.readers = stack
        self.writers = stack
        self.source_norm = self._norm

    def encode(self, sources: Sequence[list[int]]) -> EncodedSources:
        """Reads sentences; returns their keys and values of every layer."""
        keys_values = torch.stack([layer for _, layer in self.read(sources)]).permute(2, 4, 0, 1, 3, 5)
        return EncodedSources(keys_values, [len(source) for source in sources])

    def start(self, num_slots: int, beam_size: int, max_length: int) -> KVCache:
        """See `StackModel.start`; targets follow their sources."""
        return super().start(num_slots, beam_size, MAX_TOKENS + max_length)

    def step(self, ids: Tensor, lengths: Tensor, cache: KVCache) -> Tensor:
        """See `StackModel.step`."""
        return super().step(ids, (cache.mask == 0).sum((1, 2, 3)) + lengths, cache)
