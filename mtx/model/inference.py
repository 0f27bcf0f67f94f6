"""The Transformer for translation: it encodes sources, and runs the decoder one position at a time for many beams.

Training uses `mtx.model.transformer`. This module copies its weights, in one precision, and fuses layers that read the
same input into one matrix product, which is several times as fast on small batches. Tests check that the two give the
same numbers. The keys and values of earlier positions are in `mtx.model.kv_cache`. The search that calls
`IncrementalModel` is in `mtx.decoding`.

Shapes: B sentences or slots, J beams (or rows of a sentence), S source, T attended positions, N rows, D d_model,
H heads, K head size, L layers, V vocabulary.
"""

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtx.model.kv_cache import EncodedSources, KVCache
from mtx.model.transformer import AttentionModel, DecoderLayer, EncoderLayer, Transformer, sinusoidal_positions
from mtx.model.translation_model import TranslationModel

Norm = Callable[[Tensor], Tensor]

_ONEDNN_TYPES = torch.float32, torch.bfloat16


class PackedLinear:
    """An inference linear layer, x W^T + b for x [N, in], with weights pre-packed for oneDNN on a CPU.

    With few rows, reading the weights takes most of the time, and packing halves it; with many rows it saves a tenth to
    a quarter (docs/decisions.md). torch's own compiler uses the same operations. If this torch or this machine lacks
    them, the layer uses plain matrix products.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype):
        self.bias = None if bias is None else bias.detach().to(dtype)
        weight = weight.detach().to(dtype)
        self._ops: Any = _onednn(dtype) if weight.device.type == "cpu" and dtype in _ONEDNN_TYPES else None
        self._weight = weight.T.contiguous() if self._ops is None else self._ops._reorder_linear_weight(weight)

    @classmethod
    def of(cls, layers: Sequence[nn.Linear], dtype: torch.dtype, scale: float = 1.0) -> "PackedLinear":
        """Fuses layers that read the same input: their outputs side by side, the first layer's times `scale`."""
        factors = [scale] + [1.0] * (len(layers) - 1)
        weights = [layer.weight * factor for layer, factor in zip(layers, factors, strict=True)]
        biases = [layer.bias * factor for layer, factor in zip(layers, factors, strict=True)]
        return cls(torch.cat(weights), torch.cat(biases), dtype)

    def __call__(self, x: Tensor, relu: bool = False) -> Tensor:
        if self._ops is not None:
            out: Tensor = self._ops._linear_pointwise(x, self._weight, self.bias, "relu" if relu else "none", [], "")
            return out
        out = torch.mm(x, self._weight) if self.bias is None else torch.addmm(self.bias, x, self._weight)
        return out.relu_() if relu else out

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Returns residual + x W^T + b."""
        if self._ops is not None:
            out: Tensor = self._ops._linear_pointwise.binary(x, residual, self._weight, self.bias, "add")
            return out
        return self(x).add_(residual)


def _onednn(dtype: torch.dtype) -> Any:
    """Returns torch's oneDNN operations, or None if this torch has none, or none for this type on this processor."""
    ops = torch.ops.mkldnn
    names = "_reorder_linear_weight", "_linear_pointwise"
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not has_onednn or not all(hasattr(ops, name) for name in names):
        return None
    return None if dtype == torch.bfloat16 and not ops._is_mkldnn_bf16_supported() else ops


def layer_norm(norm: nn.LayerNorm, dtype: torch.dtype) -> Norm:
    """Returns `norm` in `dtype`, as a function of [N, D]."""
    shape, eps = list(norm.normalized_shape), norm.eps
    weight, bias = norm.weight.detach().to(dtype), norm.bias.detach().to(dtype)
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)


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


class InferenceLayer:
    """The common part of encoder and decoder layers: the self-attention projections and the feed-forward sub-layer."""

    def __init__(self, layer: EncoderLayer, dtype: torch.dtype):
        self.pre_norm, self._activation = layer.pre_norm, layer.activation
        self._is_relu, attention = layer.activation is F.relu, layer.self_attention
        self.num_heads = attention.num_heads
        self.scale = (attention.query.out_features // attention.num_heads) ** -0.5  # 1 / sqrt(K), 3.2.1; in the weights
        self.self_in = PackedLinear.of([attention.query, attention.key, attention.value], dtype, self.scale)
        self.self_out = PackedLinear.of([attention.output], dtype)
        self._inner, self._outer = PackedLinear.of([layer.inner], dtype), PackedLinear.of([layer.outer], dtype)
        self.self_norm = layer_norm(layer.self_attention_norm, dtype)
        self._feed_forward_norm = layer_norm(layer.feed_forward_norm, dtype)

    def split(self, x: Tensor, rows: int) -> Tensor:
        """Returns the queries, keys and values of x [B * J, D], as [3, B, H, J, K]."""
        size = x.shape[1] // self.num_heads
        return self.self_in(x).view(-1, rows, 3, self.num_heads, size).permute(2, 0, 3, 1, 4)

    def before(self, norm: Norm, x: Tensor) -> Tensor:
        """Returns the input of a sub-layer: x, after LayerNorm if the model is pre-norm."""
        return norm(x) if self.pre_norm else x

    def after(self, norm: Norm, total: Tensor) -> Tensor:
        """Returns the output of a sub-layer, given the residual sum."""
        return total if self.pre_norm else norm(total)

    def feed_forward(self, x: Tensor) -> Tensor:
        """Applies the feed-forward sub-layer (3.3) to x [N, D]."""
        y = self.before(self._feed_forward_norm, x)
        hidden = self._inner(y, relu=self._is_relu)
        hidden = hidden if self._is_relu else self._activation(hidden)  # type: ignore[operator]
        return self.after(self._feed_forward_norm, self._outer.add_to(x, hidden))


class _EncoderLayer(InferenceLayer):
    def __call__(self, x: Tensor, width: int, mask: Tensor | None) -> Tensor:
        q, k, v = self.split(self.before(self.self_norm, x), width)
        out = attend(q, k.flatten(0, 1).transpose(1, 2), v.flatten(0, 1), mask)
        return self.feed_forward(self.after(self.self_norm, self.self_out.add_to(x, out)))


class _DecoderLayer(InferenceLayer):
    """A decoder layer at one target position; x is [B * J, D]."""

    def __init__(self, layer: DecoderLayer, dtype: torch.dtype):
        super().__init__(layer, dtype)
        self.cross_in = PackedLinear.of([layer.cross_attention.query], dtype, self.scale)
        self.cross_out = PackedLinear.of([layer.cross_attention.output], dtype)
        self.cross_norm = layer_norm(layer.cross_attention_norm, dtype)

    def __call__(self, x: Tensor, cache: KVCache, number: int) -> Tensor:
        beams = cache.beam_size
        queries_keys_values = self.split(self.before(self.self_norm, x), beams)
        cache.write(number, queries_keys_values[1:])
        out = attend(queries_keys_values[0], *cache.target_kv[number], cache.target_mask)
        x = self.after(self.self_norm, self.self_out.add_to(x, out))
        q = self.cross_in(self.before(self.cross_norm, x)).view(-1, beams, self.num_heads, x.shape[1] // self.num_heads)
        out = attend(q.transpose(1, 2), *cache.source_kv[number], cache.source_mask)
        return self.feed_forward(self.after(self.cross_norm, self.cross_out.add_to(x, out)))


class Embeddings:
    """The token embeddings of one side in `dtype` with its positions: learned ones, or a table of sinusoids that grows.

    It is not the table of the model, which a recorded training step may be reading. Workers may share it.
    """

    def __init__(self, model: TranslationModel, tokens: Tensor, learned: Tensor | None, dtype: torch.dtype):
        self.device = model.embedding.device
        self._dtype = dtype
        self._d_model = model.config.d_model
        self._tokens = tokens.detach().to(dtype)
        self._is_learned, self._lock = learned is not None, threading.Lock()
        self._positions = torch.empty(0) if learned is None else learned.detach().to(dtype)

    def extend(self, num_positions: int) -> None:
        """Makes a table of sinusoids at least this long."""
        with self._lock:
            if not self._is_learned and len(self._positions) < num_positions:
                self._positions = sinusoidal_positions(num_positions, self._d_model).to(self.device, self._dtype)

    def of_sources(self, ids: Tensor) -> Tensor:
        """Embeds sources [B, S] from their first position on; returns [B * S, D]."""
        self.extend(ids.shape[1])
        return self._scaled(ids.to(self.device)).add_(self._positions[: ids.shape[1]]).flatten(0, 1)

    def of_step(self, ids: Tensor, places: Tensor) -> Tensor:
        """Embeds the last tokens of the beams [B, J], which are at `places` [B]; returns [B * J, D]."""
        return self._scaled(ids).add_(self._positions[places][:, None]).flatten(0, 1)

    def _scaled(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self._tokens).mul_(math.sqrt(self._d_model))


def padded_ids(sources: Sequence[list[int]], pad_id: int) -> Tensor:
    """Sentences as one tensor on the CPU, [B, S]."""
    width = max(map(len, sources))
    return torch.tensor([source + [pad_id] * (width - len(source)) for source in sources])


class InferenceEncoder:
    """The encoder of `model` in `dtype`; it pads sentences to the longest."""

    def __init__(self, model: Transformer, dtype: torch.dtype):
        self._pad_id = model.pad_id
        self._dtype = dtype
        self._embeddings = Embeddings(model, model.source_embedding, model.src_positions, dtype)
        self._layers = [_EncoderLayer(layer, dtype) for layer in model.encoder]  # type: ignore[arg-type]
        self._norm = None if model.encoder_norm is None else layer_norm(model.encoder_norm, dtype)

    def __call__(self, sources: Sequence[list[int]]) -> Tensor:
        """Encodes these token ids; returns hidden states [B * S, D], in which rows of padding have no meaning."""
        ids = padded_ids(sources, self._pad_id)
        width = ids.shape[1]
        is_pad = ids == self._pad_id
        mask = None
        if is_pad.any():
            mask = torch.zeros(ids.shape, dtype=self._dtype).masked_fill_(is_pad, -math.inf)
            mask = mask[:, None, None].to(self._embeddings.device)
        x = self._embeddings.of_sources(ids)
        for layer in self._layers:
            x = layer(x, width, mask)
        return x if self._norm is None else self._norm(x)


class SearchModel:
    """What search reads of a model in one precision, whatever its architecture.

    Attributes:
        is_static: see `SourceSlots`.
    """

    def __init__(self, model: TranslationModel, dtype: torch.dtype):
        self.pad_id, self.device = model.pad_id, model.embedding.device
        self.is_static = self.device.type == "cuda"
        self._dtype = dtype
        self._output = PackedLinear(*padded_output(model), dtype)


class StackModel(SearchModel):
    """What the search of a Transformer and that of a decoder alone have in common; see `IncrementalModel`.

    Args:
        states: the output of the layers that read sources, [B * S, D], in which rows of padding have no meaning.
    """

    def __init__(
        self,
        model: AttentionModel,
        layers: Sequence[Callable[[Tensor, KVCache, int], Tensor]],
        states: Callable[[Sequence[list[int]]], Tensor],
        dtype: torch.dtype,
    ):
        super().__init__(model, dtype)
        config = model.config
        self._shape = (config.num_decoder_layers, config.num_heads, config.d_model // config.num_heads)
        self._layers = layers
        self._states = states
        norm: Any = model.decoder_norm
        self._norm = None if norm is None else layer_norm(norm, dtype)
        self._embeddings = Embeddings(model, model.embedding, model.learned_positions(source=False), dtype)

    def source_states(self, sources: Sequence[list[int]]) -> list[Tensor]:
        """Returns the output of the layers that read sources for each sentence, [S, D], without padding."""
        states = self._states(sources)
        rows = states.view(len(sources), -1, states.shape[1])
        return [row[: len(source)] for row, source in zip(rows, sources, strict=True)]

    def start(self, num_slots: int, beam_size: int, max_length: int) -> KVCache:
        """Returns an empty cache, for targets of at most `max_length` tokens."""
        self._embeddings.extend(max_length)
        return KVCache(self._shape, num_slots, beam_size, self.is_static, self._dtype, self.device)

    def step(self, ids: Tensor, lengths: Tensor, cache: KVCache) -> Tensor:
        """Runs the decoder at the next target position of every beam; call `cache.prepare()` first.

        Args:
            ids: the last token of each hypothesis (pad at the start), [B, J].
            lengths: the number of tokens that the hypotheses of each slot have, [B].

        Returns:
            Logits of the next token, [B, J, V]; V is rounded up to a multiple of 64; added logits are -inf.
        """
        x = self._embeddings.of_step(ids, lengths)
        cache.begin_step()
        for number, layer in enumerate(self._layers):
            x = layer(x, cache, number)
        x = x if self._norm is None else self._norm(x)
        return self._output(x).view(*ids.shape, -1)


class IncrementalModel(StackModel):
    """`model` in `dtype`, with the interface that `mtx.decoding.beam_search` expects."""

    def __init__(self, model: Transformer, dtype: torch.dtype = torch.float32):
        layers = [_DecoderLayer(layer, dtype) for layer in model.decoder]  # type: ignore[arg-type]
        super().__init__(model, layers, InferenceEncoder(model, dtype), dtype)
        crosses = [layer.cross_attention for layer in model.decoder]
        keys_values = [linear for cross in crosses for linear in (cross.key, cross.value)]  # type: ignore[union-attr]
        self._cross_keys_values = PackedLinear.of(keys_values, dtype)  # type: ignore[arg-type]

    def encode(self, sources: Sequence[list[int]]) -> EncodedSources:
        """Encodes sentences; returns their keys and values for the cross attention of every layer."""
        keys_values = self._cross_keys_values(self._states(sources))
        layers, heads, size = self._shape
        keys_values = keys_values.view(len(sources), -1, layers, 2, heads, size)
        return EncodedSources(keys_values, [len(source) for source in sources])


def padded_output(model: TranslationModel) -> tuple[Tensor, Tensor]:
    """Returns weight and bias of the output layer, padded to a multiple of 64 rows; added logits are -inf."""
    num_ids = len(model.output_weight)
    added = -num_ids % 64
    weight = F.pad(model.output_weight.detach(), (0, 0, 0, added))
    bias = weight.new_zeros(num_ids) if model.output_bias is None else model.output_bias.detach()
    return weight, F.pad(bias, (0, added), value=-math.inf)
