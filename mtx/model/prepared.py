"""A Transformer's layers prepared for use only: fused weights in one precision, sentences padded to one width.

Training runs `mtx.model.transformer`; translation runs this, several times as fast on small batches. The tests hold the
two equal.

Shapes: B sentences, S source, J rows a sentence, T positions looked at, D d_model, H heads, K head size.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtx.model.product import Product
from mtx.model.transformer import EncoderLayer, Transformer


class Norm:
    """LayerNorm of [N, D]."""

    def __init__(self, norm: nn.LayerNorm, dtype: torch.dtype):
        self._shape = list(norm.normalized_shape)
        self._weight, self._bias, self._eps = norm.weight.detach().to(dtype), norm.bias.detach().to(dtype), norm.eps

    def __call__(self, x: Tensor) -> Tensor:
        return torch.layer_norm(x, self._shape, self._weight, self._bias, self._eps)


def attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Attention of scaled queries.

    Args:
        q: [B, H, J, K]. keys: transposed, [B * H, K, T]. values: [B * H, T, K].
        mask: added to the scores, [B, 1, J or 1, T]; None where all is seen.

    Returns:
        [B * J, D].
    """
    num_sentences, heads, rows, size = q.shape
    scores = torch.bmm(q.reshape(-1, rows, size), keys)
    if mask is not None:
        scores.view(num_sentences, heads, rows, -1).add_(mask)
    out = torch.bmm(torch.softmax(scores, -1), values)
    return out.view(num_sentences, heads, rows, size).transpose(1, 2).reshape(-1, heads * size)


class PreparedLayer:
    """Self-attention's products and the feed-forward sub-layer; what else a layer has stands in its subclasses."""

    def __init__(self, layer: EncoderLayer, dtype: torch.dtype):
        self.pre_norm, self._activation = layer.pre_norm, layer.activation
        self._is_relu, own = layer.activation is F.relu, layer.self_attention
        self.num_heads = own.num_heads
        self.scale = (own.query.out_features // own.num_heads) ** -0.5  # of 3.2.1, taken into the weights
        self.own_in = Product.of([own.query, own.key, own.value], dtype, self.scale)
        self.own_out = Product.of([own.output], dtype)
        self._inner, self._outer = Product.of([layer.inner], dtype), Product.of([layer.outer], dtype)
        self.own_norm = Norm(layer.self_attention_norm, dtype)
        self._feed_forward_norm = Norm(layer.feed_forward_norm, dtype)

    def split(self, x: Tensor, rows: int) -> Tensor:
        """Queries, keys and values of [B * J, D], as [3, B, H, J, K]."""
        size = x.shape[1] // self.num_heads
        return self.own_in(x).view(-1, rows, 3, self.num_heads, size).permute(2, 0, 3, 1, 4)

    def before(self, norm: Norm, x: Tensor) -> Tensor:
        """What a sub-layer reads."""
        return norm(x) if self.pre_norm else x

    def after(self, norm: Norm, total: Tensor) -> Tensor:
        """What comes of the residual sum."""
        return total if self.pre_norm else norm(total)

    def feed_forward(self, x: Tensor) -> Tensor:
        """The feed-forward sub-layer (3.3) of [N, D]."""
        y = self.before(self._feed_forward_norm, x)
        hidden = self._inner(y, relu=self._is_relu)
        hidden = hidden if self._is_relu else self._activation(hidden)  # type: ignore[operator]
        return self.after(self._feed_forward_norm, self._outer.plus(hidden, x))


class _EncoderLayer(PreparedLayer):
    def __call__(self, x: Tensor, width: int, mask: Tensor | None) -> Tensor:
        q, k, v = self.split(self.before(self.own_norm, x), width)
        out = attend(q, k.flatten(0, 1).transpose(1, 2), v.flatten(0, 1), mask)
        return self.feed_forward(self.after(self.own_norm, self.own_out.plus(out, x)))


class PreparedEncoder:
    """The encoder of `model` in `dtype`."""

    def __init__(self, model: Transformer, dtype: torch.dtype):
        self._model, self._dtype, self._scale = model, dtype, math.sqrt(model.config.d_model)
        table = model.embedding if model.src_embedding is None else model.src_embedding
        self._embedding = table.detach().to(dtype)
        self._layers = [_EncoderLayer(layer, dtype) for layer in model.encoder]  # type: ignore[arg-type]
        self._norm = None if model.encoder_norm is None else Norm(model.encoder_norm, dtype)

    def __call__(self, sources: list[list[int]]) -> Tensor:
        """The encoder's output of token ids, [B * S, D]; S is the longest, and rows of padding hold no meaning."""
        width, device = max(map(len, sources)), self._embedding.device
        ids = torch.full((len(sources), width), self._model.pad_id)
        for row, source in enumerate(sources):
            ids[row, : len(source)] = torch.tensor(source)
        mask = None
        if any(len(source) < width for source in sources):
            hidden = ids == self._model.pad_id
            mask = (
                torch.zeros(hidden.shape, dtype=self._dtype).masked_fill_(hidden, -math.inf)[:, None, None].to(device)
            )
        x = F.embedding(ids.to(device), self._embedding).mul_(self._scale)
        x = x.add_(self._positions(width)).flatten(0, 1)
        for layer in self._layers:
            x = layer(x, width, mask)
        return x if self._norm is None else self._norm(x)

    def _positions(self, width: int) -> Tensor:
        learned = self._model.src_positions
        table = self._model.sinusoids(width) if learned is None else learned.detach()
        return table[:width].to(self._dtype)
