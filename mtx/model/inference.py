"""The Transformer for translation: it encodes sources, and runs the decoder one position at a time for many beams.

Training uses `mtx.model.transformer`. This module copies its weights, in one precision, and fuses layers that read the
same input into one matrix product, which is several times as fast on small batches. Tests check that the two give the
same numbers. The keys and values of earlier positions are in `mtx.model.kv_cache`. The search that calls
`IncrementalModel` is in `mtx.decoding`.

Shapes: B sentences or slots, J beams (or rows of a sentence), S source, T attended positions, N rows, D d_model,
H heads, K head size, L layers, V vocabulary.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtx.model.device import onednn
from mtx.model.kv_cache import EncodedSources, KVCache
from mtx.model.transformer import AttentionModel, DecoderLayer, EncoderLayer, Transformer, sinusoidal_positions
from mtx.model.translation_model import TranslationModel

Norm = Callable[[Tensor], Tensor]


class PackedLinear:
    """An inference linear layer, x W^T + b for x [N, in], with weights pre-packed for oneDNN on a CPU.

    With few rows, reading the weights takes most of the time, and packing halves it; with many rows it saves a tenth to
    a quarter (docs/archive/decisions-2026.md, 2026-11-21). torch's own compiler uses the same operations. If this torch
    or this machine lacks them, the layer uses plain matrix products.
    """

    def __init__(self, weight: Tensor, bias: Tensor, dtype: torch.dtype):
        self.bias = bias.detach().to(dtype)
        weight = weight.detach().to(dtype)
        self._ops = onednn(dtype) if weight.device.type == "cpu" else None
        self._weight = weight.T.contiguous() if self._ops is None else self._ops._reorder_linear_weight(weight)

    @classmethod
    def of(cls, layers: Sequence[nn.Linear], dtype: torch.dtype, scale: float = 1.0) -> "PackedLinear":
        """Fuses layers that read the same input: their outputs side by side, the first layer's times `scale`."""
        first_layer, *other_layers = layers
        weights = [first_layer.weight * scale, *(layer.weight for layer in other_layers)]
        biases = [first_layer.bias * scale, *(layer.bias for layer in other_layers)]
        return cls(torch.cat(weights), torch.cat(biases), dtype)

    def __call__(self, x: Tensor) -> Tensor:
        if self._ops is None:
            return torch.addmm(self.bias, x, self._weight)
        return self._ops._linear_pointwise(x, self._weight, self.bias, "none", [], "")  # type: ignore[no-any-return]

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Returns residual + x W^T + b."""
        if self._ops is None:
            return self(x).add_(residual)
        return self._ops._linear_pointwise.binary(x, residual, self._weight, self.bias, "add")  # type: ignore[no-any-return]


def layer_norm(norm: Any, dtype: torch.dtype) -> Norm:
    """Returns a LayerNorm in `dtype` as a function of [N, D], faster than a module; of no norm, the identity."""
    if isinstance(norm, nn.Identity):
        return norm
    weight, bias = (parameter.detach().to(dtype) for parameter in norm.parameters())
    return lambda x: torch.layer_norm(x, weight.shape, weight, bias, norm.eps)


def attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Attention of queries that are already divided by sqrt(K).

    Args:
        q: [B, H, J, K].
        keys: transposed, [B * H, K, T].
        values: [B * H, T, K].
        mask: added to the scores, [B, 1, J or 1, T]; None if every position is visible.

    Returns:
        [B * J, D].
    """
    num_sentences, heads, rows, size = q.shape
    scores = torch.bmm(q.reshape(-1, rows, size), keys)
    if mask is not None:
        scores.view(num_sentences, heads, rows, -1).add_(mask)
    out = torch.bmm(torch.softmax(scores, -1), values)
    return out.view(num_sentences, heads, rows, size).transpose(1, 2).reshape(-1, heads * size)


class Sublayer:
    """The two products of a sub-layer, with its LayerNorm and its residual sum (3.1).

    Args:
        inputs: the layers that read its input; fused.
        scale: see `PackedLinear.of`.
    """

    def __init__(
        self,
        norm: Any,
        inputs: Sequence[nn.Linear],
        output: nn.Linear,
        pre_norm: bool,
        dtype: torch.dtype,
        scale: float,
    ):
        self._norm = layer_norm(norm, dtype)
        self._pre_norm = pre_norm
        self._in = PackedLinear.of(inputs, dtype, scale)
        self._out = PackedLinear.of([output], dtype)

    def enter(self, x: Tensor) -> Tensor:
        """Returns the first product of x, after LayerNorm if the model is pre-norm."""
        return self._in(self._norm(x) if self._pre_norm else x)

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        """Returns the sum of x and the second product, of y; after LayerNorm unless the model is pre-norm."""
        total = self._out.add_to(x, y)
        return total if self._pre_norm else self._norm(total)


class InferenceLayer:
    """An encoder layer, and the common part of decoder layers."""

    def __init__(self, layer: EncoderLayer, dtype: torch.dtype):
        attention = layer.self_attention
        pre_norm = layer.pre_norm
        self._activation = layer.activation
        self.num_heads = attention.num_heads
        self.scale = (attention.query.out_features // attention.num_heads) ** -0.5  # 1 / sqrt(K), 3.2.1; in the weights
        joint = attention.query, attention.key, attention.value
        self.attention = Sublayer(layer.self_attention_norm, joint, attention.output, pre_norm, dtype, self.scale)
        self._feed_forward = Sublayer(layer.feed_forward_norm, [layer.inner], layer.outer, pre_norm, dtype, 1.0)

    def read(self, x: Tensor, width: int, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Applies the layer to sources x [B * S, D]; returns their keys and values too, [2, B, H, S, K]."""
        q, k, v = queries_keys_values = self.project(x, width)
        out = attend(q, k.flatten(0, 1).transpose(1, 2), v.flatten(0, 1), mask)
        return self.feed_forward(self.attention.leave(x, out)), queries_keys_values[1:]

    def project(self, x: Tensor, rows: int) -> Tensor:
        """Returns the queries, keys and values of self-attention over x [B * J, D], as [3, B, H, J, K]."""
        joint = self.attention.enter(x)
        return joint.view(-1, rows, 3, self.num_heads, x.shape[1] // self.num_heads).permute(2, 0, 3, 1, 4)

    def feed_forward(self, x: Tensor) -> Tensor:
        """Applies the feed-forward sub-layer (3.3) to x [N, D]."""
        return self._feed_forward.leave(x, self._activation(self._feed_forward.enter(x)))  # type: ignore[operator]


class _DecoderLayer(InferenceLayer):
    def __init__(self, layer: DecoderLayer, dtype: torch.dtype):
        super().__init__(layer, dtype)
        cross = layer.cross_attention
        self.cross = Sublayer(
            layer.cross_attention_norm, [cross.query], cross.output, layer.pre_norm, dtype, self.scale
        )

    def __call__(self, x: Tensor, cache: KVCache, number: int) -> Tensor:
        """Applies the layer at one target position of every beam; x is [B * J, D]."""
        queries_keys_values = self.project(x, cache.beam_size)
        cache.write(number, queries_keys_values[1:])
        out = attend(queries_keys_values[0], *cache.target_kv[number], cache.target_mask)
        x = self.attention.leave(x, out)
        q = self.cross.enter(x).view(-1, cache.beam_size, *queries_keys_values.shape[2::2])
        out = attend(q.transpose(1, 2), *cache.source_kv[number], cache.mask)
        return self.feed_forward(self.cross.leave(x, out))


class Embeddings:
    """The token embeddings of one side in `dtype`, and its positions: learned ones, or a table of sinusoids.

    It is not the table of the model, which a recorded training step may be reading. Workers may share it.
    """

    def __init__(self, model: AttentionModel, source: bool, dtype: torch.dtype):
        tokens = model.source_embedding if source else model.embedding
        learned = model.learned_positions(source)
        self._tokens = tokens.detach().to(dtype)
        self._is_learned = learned is not None
        self._is_fairseq = model.config.positions == "fairseq"
        self._positions = torch.empty(0) if learned is None else learned.detach().to(dtype)

    def positions(self, num_positions: int) -> Tensor:
        """Returns a table of at least so many positions, [P, D], for `__call__`.

        A longer one replaces it later; whoever records a step that reads it must hold it.
        """
        positions = self._positions  # another worker may replace it
        if not self._is_learned and len(positions) < num_positions:
            table = sinusoidal_positions(num_positions, self._tokens.shape[1], self._is_fairseq)
            self._positions = positions = table.to(self._tokens)
        return positions

    def __call__(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Embeds tokens [B, J] at rows of a table of positions, [B, 1, D] or [J, D]; returns [B * J, D]."""
        x = F.embedding(ids, self._tokens).mul_(math.sqrt(self._tokens.shape[1]))
        return x.add_(positions).flatten(0, 1)


class SearchModel:
    """What search reads of a model in one precision, whatever its architecture.

    Attributes:
        is_static: see `SourceSlots`.
    """

    def __init__(self, model: TranslationModel, dtype: torch.dtype):
        self.pad_id = model.pad_id
        self.start_id = model.start_id
        self.device = model.embedding.device
        self.is_static = self.device.type == "cuda"
        self._config = model.config
        self._like = torch.empty(0, dtype=dtype, device=self.device)
        added = -model.pad_id % 64  # rows; their logits are -inf
        weight = F.pad(model.output_weight.detach(), (0, 0, 0, added))
        bias = weight.new_zeros(model.pad_id) if model.output_bias is None else model.output_bias.detach()
        self._output = PackedLinear(weight, F.pad(bias, (0, added), value=-math.inf), dtype)


class StackModel(SearchModel):
    """What the search of a Transformer and that of a decoder alone have in common; see `IncrementalModel`.

    Attributes:
        readers: the layers that read sources, and the norm after them.
        writers: those that are applied at one target position of every beam.
        is_causal: a source position sees no later ones.
    """

    readers: Sequence[InferenceLayer]
    source_norm: Norm
    writers: Sequence[Callable[[Tensor, KVCache, int], Tensor]]
    is_causal = False

    def __init__(self, model: AttentionModel, dtype: torch.dtype):
        super().__init__(model, dtype)
        self._norm = layer_norm(model.decoder_norm, dtype)
        self._source_embeddings = Embeddings(model, True, dtype)
        self._embeddings = Embeddings(model, False, dtype)

    def read(self, sources: Sequence[list[int]]) -> Iterator[tuple[Tensor, Tensor]]:
        """Reads sentences; yields each layer's output [B * S, D] and its keys and values [2, B, H, S, K].

        Rows of padding have no meaning.
        """
        width = max(map(len, sources))
        ids = torch.tensor([source + [self.pad_id] * (width - len(source)) for source in sources])
        is_hidden = (ids == self.pad_id)[:, None]
        if self.is_causal:
            is_hidden = is_hidden | torch.ones(width, width, dtype=torch.bool).triu(1)
        mask = None
        if is_hidden.any():
            mask = torch.where(is_hidden, -math.inf, 0.0)[:, None].to(self._like)
        embeddings = self._source_embeddings
        x = embeddings(ids.to(self.device), embeddings.positions(width)[:width])
        for layer in self.readers:
            x, keys_values = layer.read(x, width, mask)
            yield x, keys_values

    def states(self, sources: Sequence[list[int]]) -> Tensor:
        """Returns the output of the layers that read sources, [B, S, D]."""
        for x, _ in self.read(sources):  # noqa: B007
            pass
        return self.source_norm(x).view(len(sources), -1, x.shape[1])

    def source_states(self, sources: Sequence[list[int]]) -> list[Tensor]:
        """Returns the output of the layers that read sources for each sentence, [S, D], without padding."""
        return [row[: len(source)] for row, source in zip(self.states(sources), sources, strict=True)]

    def start(self, num_slots: int, beam_size: int, max_length: int) -> KVCache:
        """Returns an empty cache, for targets of at most `max_length` tokens."""
        cache = KVCache(self._config, num_slots, beam_size, self.is_static, self._like)
        cache.positions = self._embeddings.positions(max_length)
        return cache

    def step(self, ids: Tensor, lengths: Tensor, cache: KVCache) -> Tensor:
        """Runs the decoder at the next target position of every beam; call `cache.prepare()` first.

        Args:
            ids: the last token of each hypothesis (`start_id` at first), [B, J].
            lengths: the number of tokens that the hypotheses of each slot have, [B].

        Returns:
            Logits of the next token, [B, J, V]; V is rounded up to a multiple of 64; added logits are -inf.
        """
        x = self._embeddings(ids, cache.positions[lengths[:, None]])
        cache.begin_step()
        for number, layer in enumerate(self.writers):
            x = layer(x, cache, number)
        return self._output(self._norm(x)).view(*ids.shape, -1)


class IncrementalModel(StackModel):
    """`model` in `dtype`, with the interface that `mtx.decoding.beam_search` expects."""

    def __init__(self, model: Transformer, dtype: torch.dtype = torch.float32):
        super().__init__(model, dtype)
        self.readers = [InferenceLayer(layer, dtype) for layer in model.encoder]  # type: ignore[arg-type]
        self.source_norm = layer_norm(model.encoder_norm, dtype)
        self.writers = [_DecoderLayer(layer, dtype) for layer in model.decoder]  # type: ignore[arg-type]
        crosses: list[Any] = [layer.cross_attention for layer in model.decoder]
        keys_values = [part for cross in crosses for part in (cross.key, cross.value)]
        self._cross_keys_values = PackedLinear.of(keys_values, dtype)

    def encode(self, sources: Sequence[list[int]]) -> EncodedSources:
        """Encodes sentences; returns their keys and values for the cross attention of every layer."""
        states = self.states(sources)
        keys_values = self._cross_keys_values(states.flatten(0, 1))
        shape = *states.shape[:2], self._config.num_decoder_layers, 2, self._config.num_heads, -1
        return EncodedSources(keys_values.view(shape), [len(source) for source in sources])
