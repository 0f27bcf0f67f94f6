"""The decoder alone for translation: it reads sources, and goes on one token at a time for many beams.

Training uses `mtx.architectures.decoder_only`. `DecoderSearchModel` is called like
`mtx.model.inference.IncrementalModel`; tests check that the two models give the same numbers. The keys and values of
a source are stored once and shared by its beams, as those of cross attention are in the Transformer.

Shapes: B sentences or slots, J beams, S source, T target positions in the cache, D d_model, H heads, K head size.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mtx.architectures.decoder_only import DecoderModel
from mtx.config.limits import MAX_TOKENS
from mtx.model.inference import Embeddings, InferenceLayer, StackModel, attend, padded_ids
from mtx.model.kv_cache import EncodedSources, KVCache


class _Layer(InferenceLayer):
    def read(self, x: Tensor, width: int, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Applies the layer to sources x [B * S, D]; returns their keys and values too, [2, B, H, S, K]."""
        q, k, v = self.split(self.before(self.self_norm, x), width)
        out = attend(q, k.flatten(0, 1).transpose(1, 2), v.flatten(0, 1), mask)
        return self.feed_forward(self.after(self.self_norm, self.self_out.add_to(x, out))), torch.stack([k, v])

    def __call__(self, x: Tensor, cache: KVCache, number: int) -> Tensor:
        """Applies the layer at one target position of every beam; x is [B * J, D]."""
        queries_keys_values = self.split(self.before(self.self_norm, x), cache.beam_size)
        cache.write(number, queries_keys_values[1:])
        q = queries_keys_values[0]
        (source_keys, source_values), (keys, values) = cache.source_kv[number], cache.target_kv[number]
        flat = q.reshape(-1, *q.shape[2:])
        parts = [torch.bmm(flat, source_keys), torch.bmm(flat, keys)]
        for scores, mask in zip(parts, (cache.source_mask, cache.target_mask), strict=True):
            if mask is not None:
                scores.view(*q.shape[:3], -1).add_(mask)
        weights = torch.softmax(torch.cat(parts, -1), -1)
        width = source_values.shape[1]
        out = torch.bmm(weights[..., :width], source_values) + torch.bmm(weights[..., width:], values)
        out = out.view_as(q).transpose(1, 2).reshape(len(x), -1)
        return self.feed_forward(self.after(self.self_norm, self.self_out.add_to(x, out)))


class DecoderSearchModel(StackModel):
    """`model` in `dtype`, with the interface that `mtx.decoding.beam_search` expects."""

    def __init__(self, model: DecoderModel, dtype: torch.dtype = torch.float32):
        self._stack = [_Layer(layer, dtype) for layer in model.decoder]  # type: ignore[arg-type]
        super().__init__(model, self._stack, self._read_states, dtype)
        self._source_embeddings = Embeddings(model, model.source_embedding, model.positions, dtype)

    def encode(self, sources: Sequence[list[int]]) -> EncodedSources:
        """Reads sentences; returns their keys and values of every layer."""
        _, keys_values = self._read(sources)
        return EncodedSources(keys_values, [len(source) for source in sources])

    def _read_states(self, sources: Sequence[list[int]]) -> Tensor:
        states, _ = self._read(sources)
        return states if self._norm is None else self._norm(states)

    def _read(self, sources: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        """Returns the outputs of the last layer [B * S, D], and keys and values of all, [B, S, L, 2, H, K]."""
        ids = padded_ids(sources, self.pad_id)
        width = ids.shape[1]
        hidden = torch.ones(width, width, dtype=torch.bool).triu(1) | (ids == self.pad_id)[:, None]
        mask = torch.zeros(hidden.shape, dtype=self._dtype).masked_fill_(hidden, -math.inf)[:, None].to(self.device)
        x = self._source_embeddings.of_sources(ids)
        keys_values = list[Tensor]()
        for layer in self._stack:
            x, both = layer.read(x, width, mask)
            keys_values.append(both)
        return x, torch.stack(keys_values).permute(2, 4, 0, 1, 3, 5)

    def start(self, num_slots: int, beam_size: int, max_length: int) -> KVCache:
        """See `StackModel.start`; targets follow their sources."""
        return super().start(num_slots, beam_size, MAX_TOKENS + max_length)

    def step(self, ids: Tensor, lengths: Tensor, cache: KVCache) -> Tensor:
        """See `StackModel.step`."""
        return super().step(ids, cache.source_lengths + lengths, cache)
