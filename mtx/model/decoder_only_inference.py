"""The decoder alone for translation: it reads sources, and goes on one token at a time for many beams.

Training uses `mtx.model.decoder_only`. `DecoderSearchModel` has the methods of `mtx.model.inference.IncrementalModel`,
which documents them; tests check that the two models give the same numbers. The keys and values of a source are stored
once and shared by its beams, as those of cross attention are in the Transformer.

Shapes: B sentences or slots, J beams, S source, T target positions in the cache, D d_model, H heads, K head size.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mtx.config.limits import MAX_TOKENS
from mtx.model.decoder_only import DecoderModel
from mtx.model.inference import InferenceLayer, PackedLinear, Positions, attend, layer_norm, padded_output
from mtx.model.kv_cache import EncodedSources, KVCache


class SourceCache(KVCache):
    """The cache of the Transformer, whose sources are the beginning of the sequence.

    Attributes:
        source_lengths: the length of the source in each slot, [B].
    """

    source_lengths: Tensor

    def admit(self, slots: list[int], sources: EncodedSources, rows: list[int]) -> None:
        """Puts the sentences `rows` of `sources` into these slots."""
        super().admit(slots, sources, rows)
        device = self.source_lengths.device
        lengths = torch.tensor([sources.lengths[row] for row in rows]).to(device, non_blocking=True)
        self.source_lengths[torch.tensor(slots).to(device, non_blocking=True)] = lengths


class _Layer(InferenceLayer):
    def read(self, x: Tensor, width: int, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Applies the layer to sources x [B * S, D]; returns their keys and values too, [2, B, H, S, K]."""
        q, k, v = self.split(self.before(self.self_norm, x), width)
        out = attend(q, k.flatten(0, 1).transpose(1, 2), v.flatten(0, 1), mask)
        return self.feed_forward(self.after(self.self_norm, self.self_out.add_to(x, out))), torch.stack([k, v])

    def __call__(self, x: Tensor, cache: SourceCache, number: int) -> Tensor:
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


class DecoderSearchModel:
    """`model` in `dtype`, with the interface that `mtx.decoding.continuous_batching` expects.

    Attributes:
        is_static: see `KVCache`.
    """

    def __init__(self, model: DecoderModel, dtype: torch.dtype = torch.float32):
        config = model.config
        self.pad_id, self.device = model.pad_id, model.embedding.device
        self.is_static = self.device.type == "cuda"
        self._dtype, self._scale = dtype, math.sqrt(config.d_model)
        self._shape = (config.num_decoder_layers, config.num_heads, config.d_model // config.num_heads)
        self._layers = [_Layer(layer, dtype) for layer in model.decoder]  # type: ignore[arg-type]
        source = model.embedding if model.src_embedding is None else model.src_embedding
        self._source_embedding, self._embedding = source.detach().to(dtype), model.embedding.detach().to(dtype)
        self._norm = None if model.decoder_norm is None else layer_norm(model.decoder_norm, dtype)
        self._output = PackedLinear(*padded_output(model), dtype)
        self._source_positions = Positions(model, model.positions, dtype)
        self._positions = Positions(model, model.positions, dtype)

    def encode(self, sources: Sequence[list[int]]) -> EncodedSources:
        """Reads sentences; returns their keys and values of every layer."""
        _, keys_values = self._read(sources)
        return EncodedSources(keys_values, [len(source) for source in sources])

    def source_states(self, sources: Sequence[list[int]]) -> list[Tensor]:
        """Returns the output of the stack for each sentence, [S, D], without padding."""
        states, _ = self._read(sources)
        states = states if self._norm is None else self._norm(states)
        rows = states.view(len(sources), -1, states.shape[1])
        return [row[: len(source)] for row, source in zip(rows, sources, strict=True)]

    def _read(self, sources: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        """Returns the outputs of the last layer [B * S, D], and keys and values of all, [B, S, L, 2, H, K]."""
        lengths, pad_id = [len(source) for source in sources], self.pad_id
        width = max(lengths)
        ids = torch.tensor([source + [pad_id] * (width - len(source)) for source in sources])
        hidden = torch.ones(width, width, dtype=torch.bool).triu(1) | (ids == pad_id)[:, None]
        mask = torch.zeros(hidden.shape, dtype=self._dtype).masked_fill_(hidden, -math.inf)[:, None].to(self.device)
        self._source_positions.extend(width)
        x = F.embedding(ids.to(self.device), self._source_embedding).mul_(self._scale)
        x = x.add_(self._source_positions.table[:width]).flatten(0, 1)
        keys_values = list[Tensor]()
        for layer in self._layers:
            x, both = layer.read(x, width, mask)
            keys_values.append(both)
        return x, torch.stack(keys_values).permute(2, 4, 0, 1, 3, 5)

    def start(self, num_slots: int, beam_size: int, max_length: int) -> SourceCache:
        """Returns an empty cache, for targets of at most `max_length` tokens."""
        self._positions.extend(MAX_TOKENS + max_length)
        cache = SourceCache(self._shape, num_slots, beam_size, self.is_static, self._dtype, self.device)
        cache.source_lengths = torch.zeros(num_slots, dtype=torch.long, device=self.device)
        return cache

    def step(self, ids: Tensor, lengths: Tensor, cache: SourceCache) -> Tensor:
        """Runs the stack at the next target position of every beam; see `IncrementalModel.step`."""
        positions = self._positions.table[cache.source_lengths + lengths]
        x = F.embedding(ids, self._embedding).mul_(self._scale).add_(positions[:, None]).flatten(0, 1)
        cache.begin_step()
        for number, layer in enumerate(self._layers):
            x = layer(x, cache, number)
        x = x if self._norm is None else self._norm(x)
        return self._output(x).view(*ids.shape, -1)
