"""A Transformer for search: sources encoded, and the decoder one position at a time, for many sentences and beams.

It holds fused copies of the weights in the precision that is asked for (`mtx.model.prepared`); what it keeps of the
sentences is `mtx.model.cache`.

Shapes: B slots, J beams, S source, D d_model, H heads, K head size, L layers, V vocabulary.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mtx.model.cache import Cache, Sources
from mtx.model.prepared import Norm, PreparedEncoder, PreparedLayer, attend
from mtx.model.product import Product
from mtx.model.transformer import DecoderLayer, Transformer


class IncrementalModel:
    """`model` in `dtype`, as `mtx.decoding.slots` wants it.

    Attributes:
        max_positions: the longest target, where positions are learned.
        is_static: see `Cache`.
    """

    def __init__(self, model: Transformer, dtype: torch.dtype = torch.float32):
        config = model.config
        self.pad_id, self.device = model.pad_id, model.embedding.device
        self.is_static = self.device.type == "cuda"
        self.max_positions = None if model.tgt_positions is None else len(model.tgt_positions)
        self._model, self._dtype, self._scale = model, dtype, math.sqrt(config.d_model)
        self._shape = (config.num_decoder_layers, config.num_heads, config.d_model // config.num_heads)
        self._encoder = PreparedEncoder(model, dtype)
        self._layers = [_DecoderLayer(layer, dtype) for layer in model.decoder]  # type: ignore[arg-type]
        crosses = [layer.cross_attention for layer in model.decoder]
        parts = [part for cross in crosses for part in (cross.key, cross.value)]  # type: ignore[union-attr]
        self._project = Product.of(parts, dtype)  # type: ignore[arg-type]
        self._embedding = model.embedding.detach().to(dtype)
        self._norm = None if model.decoder_norm is None else Norm(model.decoder_norm, dtype)
        self._output = Product(*_padded(model), dtype)
        self._positions = torch.empty(0)

    def encode(self, sources: Sequence[list[int]]) -> Sources:
        """Keys and values of the encoder's output of these sentences, for all layers at once."""
        projected = self._project(self._encoder(list(sources)))
        layers, heads, size = self._shape
        return Sources(projected.view(len(sources), -1, layers, 2, heads, size), [len(s) for s in sources])

    def start(self, num_slots: int, beam_size: int, max_length: int) -> Cache:
        """An empty cache, for targets of at most `max_length`."""
        learned = self._model.tgt_positions
        self._positions = (self._model.sinusoids(max_length) if learned is None else learned.detach()).to(self._dtype)
        return Cache(self._embedding, self._shape, num_slots, beam_size, self.is_static)

    def step(self, ids: Tensor, ages: Tensor, cache: Cache) -> Tensor:
        """One more target position of every beam; `cache.prepare()` comes before.

        Args:
            ids: the last token of each hypothesis (pad at the start), [B, J].
            ages: how many tokens the hypotheses of each slot have, [B].

        Returns:
            Logits of the next token, [B, J, V]; V is a multiple of 64, and what is beyond the vocabulary is -inf.
        """
        x = F.embedding(ids, self._embedding).mul_(self._scale).add_(self._positions[ages][:, None]).flatten(0, 1)
        cache.begin()
        for number, layer in enumerate(self._layers):
            x = layer(x, cache, number)
        x = x if self._norm is None else self._norm(x)
        return self._output(x).view(*ids.shape, -1)


def _padded(model: Transformer) -> tuple[Tensor, Tensor]:
    """Weight and bias of the output layer with a multiple of 64 rows; those that are added are never chosen."""
    num_ids = len(model.output_weight)
    added = -num_ids % 64
    weight = F.pad(model.output_weight.detach(), (0, 0, 0, added))
    bias = weight.new_zeros(num_ids) if model.output_bias is None else model.output_bias.detach()
    return weight, F.pad(bias, (0, added), value=-math.inf)


class _DecoderLayer(PreparedLayer):
    """A decoder layer at one position: x is [B * J, D]."""

    def __init__(self, layer: DecoderLayer, dtype: torch.dtype):
        super().__init__(layer, dtype)
        cross = layer.cross_attention
        self.cross_in = Product.of([cross.query], dtype, self.scale)
        self.cross_out = Product.of([cross.output], dtype)
        self.cross_norm = Norm(layer.cross_attention_norm, dtype)

    def __call__(self, x: Tensor, cache: Cache, number: int) -> Tensor:
        beams = cache.beam_size
        own = self.split(self.before(self.own_norm, x), beams)
        cache.extend(number, own[1:])
        out = attend(own[0], *cache.of_targets[number], cache.mask)
        x = self.after(self.own_norm, self.own_out.plus(out, x))
        q = self.cross_in(self.before(self.cross_norm, x)).view(-1, beams, self.num_heads, x.shape[1] // self.num_heads)
        out = attend(q.transpose(1, 2), *cache.of_sources[number], cache.memory_mask)
        return self.feed_forward(self.after(self.cross_norm, self.cross_out.plus(out, x)))
