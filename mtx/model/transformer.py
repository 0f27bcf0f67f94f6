"""The Transformer (section 3 of the paper) over packed batches, to be read along with the paper.

The layers are the form of the paper, for scoring and for steps on CUDA that are not compiled. Other steps compute the
same by `hidden_states`, and search by the copy that `mtx.model.inference` makes; `mtx.model.translation_model` has what
other architectures share with this one.

Shapes: N packed positions, B sentences, J beams, S source, T target, D d_model, H heads, K head size, V vocabulary.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtx.config.limits import MAX_LEARNED_POSITIONS
from mtx.config.schema import ModelConfig
from mtx.model.attention import BlockLayout, Kernel, Layout, TileLayout, attention_weights, make_layout
from mtx.model.device import onednn
from mtx.model.translation_model import Batch, TranslationModel, Weights, dropout

# With it, early training with post-norm needs half as many tokens (docs/archive/decisions-2026.md, 2026-11-21).
RESIDUAL_GAIN = 0.25
_ONEDNN_HAS_BF16 = onednn(torch.bfloat16) is not None  # asked here, because a compiler cannot follow the question
_ACTIVATIONS = {"relu": F.relu, "swish": F.silu, "gelu": F.gelu}


def sinusoidal_positions(num_positions: int, d_model: int, is_fairseq: bool = False) -> Tensor:
    """Returns the table of 3.5, [num_positions, D]: sines, then cosines (Marian's order; the paper alternates them).

    fairseq's positions begin with 2, and the lowest of its frequencies is 1 / 10000.
    """
    first_position = 2 if is_fairseq else 0
    scale = -math.log(10000.0) / max(1, d_model - first_position)
    frequency = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * scale)
    angle = torch.arange(first_position, first_position + num_positions, dtype=torch.float64)[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=1).float()


class MultiHeadAttention(nn.Module):
    """Multi-head attention (3.2.2); the projections to query, key, value and output have biases."""

    def __init__(self, d_model: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.query, self.key, self.value, self.output = (nn.Linear(d_model, d_model) for _ in range(4))

    def split(self, x: Tensor) -> Tensor:
        """Views x [..., D] as [..., H, K]."""
        return x.view(*x.shape[:-1], self.num_heads, -1)

    def forward(self, x: Tensor, memory: Tensor, layout: Layout) -> Tensor:
        q, k, v = map(self.split, (self.query(x), self.key(memory), self.value(memory)))
        return self.output(layout.attend(q, k, v).flatten(-2))  # type: ignore[no-any-return]


class EncoderLayer(nn.Module):
    """A self-attention and a feed-forward sub-layer, each with a residual sum and LayerNorm (3.1)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        d_model = config.d_model
        self.pre_norm = config.norm == "pre"
        self.dropout: float | Tensor = config.dropout
        self.activation = _ACTIVATIONS[config.activation]
        self.self_attention = MultiHeadAttention(d_model, config.num_heads)
        self.self_attention_norm = nn.LayerNorm(d_model)
        self.inner = nn.Linear(d_model, config.d_ff)
        self.outer = nn.Linear(config.d_ff, d_model)
        self.feed_forward_norm = nn.LayerNorm(d_model)

    def add(self, norm: nn.LayerNorm, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Adds the output of a sub-layer to its input x, with dropout on that output (5.4).

        LayerNorm is applied to the input of the sub-layer if the model is pre-norm, else to the sum.
        """
        total = x + dropout(sublayer(norm(x) if self.pre_norm else x), self.dropout, self.training)
        return total if self.pre_norm else norm(total)

    def attend_self(self, x: Tensor, layout: Layout) -> Tensor:
        """Applies the self-attention sub-layer to x [N, D]."""
        return self.add(self.self_attention_norm, x, lambda y: self.self_attention(y, y, layout))

    def feed_forward(self, x: Tensor) -> Tensor:
        """Applies the feed-forward sub-layer (3.3) to x [N, D]."""
        return self.add(self.feed_forward_norm, x, lambda y: self.outer(self.activation(self.inner(y))))  # type: ignore[operator]

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return self.feed_forward(self.attend_self(x, layout))


class DecoderLayer(EncoderLayer):
    """An encoder layer with attention over the encoder's output between its two sub-layers."""

    def __init__(self, config: ModelConfig):
        super().__init__(config)
        self.cross_attention = MultiHeadAttention(config.d_model, config.num_heads)
        self.cross_attention_norm = nn.LayerNorm(config.d_model)

    def forward(self, x: Tensor, layout: Layout, memory: Tensor, cross: Layout) -> Tensor:  # type: ignore[override]
        x = self.attend_self(x, layout)
        x = self.add(self.cross_attention_norm, x, lambda y: self.cross_attention(y, memory, cross))
        return self.feed_forward(x)


def make_final_norm(config: ModelConfig) -> nn.Module:
    """The norm after the last layer, which only a model with pre-norm has."""
    return nn.LayerNorm(config.d_model) if config.norm == "pre" else nn.Identity()


@contextlib.contextmanager
def record_weights(
    attentions: Iterable[Any], query_lengths: list[int], key_lengths: list[int], causal: bool = False
) -> Iterator[list[list[Weights]]]:
    """Records the weights of these attentions while they run: for each layer those of each sentence, [H, T, S]."""
    layers: list[list[Weights]] = []

    def record(module: MultiHeadAttention, inputs: tuple[Tensor, Tensor, object]) -> None:
        q = torch.split(module.split(module.query(inputs[0])), query_lengths)
        k = torch.split(module.split(module.key(inputs[1])), key_lengths)
        weights = (attention_weights(*rows, causal) for rows in zip(q, k, strict=True))
        layers.append([sentence.float().cpu().numpy() for sentence in weights])

    with contextlib.ExitStack() as stack:
        for module in attentions:
            stack.enter_context(module.register_forward_pre_hook(record))
        yield layers


class AttentionModel(TranslationModel):
    """Embeddings with positions, and what else models of attention layers have in common."""

    def __init__(self, config: ModelConfig, num_ids: int):
        super().__init__(config, num_ids)
        self.dropout: float | Tensor = config.dropout
        self.num_tgt_positions = MAX_LEARNED_POSITIONS if config.positions == "learned" else None
        self._sinusoids: Tensor
        self.register_buffer("_sinusoids", torch.empty(0, config.d_model, device="cpu"), persistent=False)

    def learned_positions(self, source: bool) -> Tensor | None:
        """The learned table of positions of a side, [n, D]; None if positions are sinusoidal."""
        raise NotImplementedError

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draws embeddings from N(0, d_model^-1/2) and matrices from Xavier's uniform; biases and pad rows are zero.

        Matrices that feed a residual sum are multiplied by `RESIDUAL_GAIN`, so that each layer starts close to the
        identity.
        """
        self.reset_embeddings()
        for name, parameter in self.named_parameters():
            if name.endswith("positions"):
                nn.init.normal_(parameter, std=self.config.d_model**-0.5)
            elif "." in name and parameter.dim() == 2:
                residual = name.endswith(("outer.weight", "attention.output.weight"))
                nn.init.xavier_uniform_(parameter, gain=RESIDUAL_GAIN if residual else 1.0)
            elif name.endswith(".bias"):
                nn.init.zeros_(parameter)

    def embed(self, ids: Tensor, positions: Tensor, source: bool) -> Tensor:
        """Returns token embeddings times sqrt(D) plus positions (3.4, 3.5), with dropout on the sum (5.4), [N, D]."""
        table = self.source_embedding if source else self.embedding
        learned = self.learned_positions(source)
        x = F.embedding(ids, table, padding_idx=self.pad_id) * math.sqrt(self.config.d_model)
        x = x + F.embedding(positions, self._sinusoids if learned is None else learned)
        return dropout(x, self.dropout, self.training)

    def prepare_positions(self, num_positions: int) -> None:
        """Extends the sinusoidal table to at least `num_positions`; call it before `encode` and `decode`.

        A longer table replaces the one before, which a recorded training step still reads: `RecordedStep` holds it.
        """
        if len(self._sinusoids) < num_positions:
            table = sinusoidal_positions(num_positions, self.config.d_model, self.config.positions == "fairseq")
            self._sinusoids = table.to(self.embedding.device)

    def layout(self, queries: Tensor, keys: Tensor, batch: Batch, causal: bool) -> Layout:
        """Prepares attention of sentences that begin at these offsets, see `make_layout`."""
        device = self.embedding.device
        kernel: Kernel = self.kernel if torch.is_autocast_enabled(device.type) else "padded"  # varlen needs bf16
        sizes = batch.num_sentences, batch.max_tokens, self.config.num_heads
        return make_layout(queries, keys, *sizes, causal, kernel, device)


class Transformer(AttentionModel):
    """The whole model: embeddings, encoder, decoder, and the weights of the output layer."""

    def __init__(self, config: ModelConfig, num_ids: int):
        super().__init__(config, num_ids)
        shape = (MAX_LEARNED_POSITIONS, config.d_model)
        is_learned = config.positions == "learned"
        tables = (nn.Parameter(torch.empty(shape)) if is_learned else None for _ in range(2))
        self.src_positions, self.tgt_positions = tables
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_decoder_layers))
        self.encoder_norm = make_final_norm(config)
        self.decoder_norm = make_final_norm(config)
        if not self.embedding.is_meta:  # on the meta device torch would load 800 modules to do nothing
            self.reset_parameters()

    def learned_positions(self, source: bool) -> Tensor | None:
        """See `AttentionModel.learned_positions`."""
        return self.src_positions if source else self.tgt_positions

    def encode(self, batch: Batch) -> Tensor:
        """Runs the encoder over the packed sources; returns hidden states, [N_src, D]."""
        layout = self.layout(batch.src_offsets, batch.src_offsets, batch, causal=False)
        x = self.embed(batch.src_ids, batch.src_positions, source=True)
        for layer in self.encoder:
            x = layer(x, layout)
        return self.encoder_norm(x)  # type: ignore[no-any-return]

    def decode(self, batch: Batch, memory: Tensor) -> Tensor:
        """Runs the decoder, which sees the earlier tokens of the reference; returns hidden states, [N_tgt, D]."""
        self_layout = self.layout(batch.tgt_offsets, batch.tgt_offsets, batch, causal=True)
        cross_layout = self.layout(batch.tgt_offsets, batch.src_offsets, batch, causal=False)
        x = self.embed(batch.tgt_in_ids, batch.tgt_positions, source=False)
        for layer in self.decoder:
            x = layer(x, self_layout, memory, cross_layout)
        return self.decoder_norm(x)  # type: ignore[no-any-return]

    def attention_weights(self, batch: Batch) -> Iterator[Sequence[Weights]]:
        """See `TranslationModel.attention_weights`."""
        src_lengths = batch.src_offsets.diff().tolist()
        tgt_lengths = batch.tgt_offsets.diff().tolist()
        with (
            record_weights((layer.self_attention for layer in self.encoder), src_lengths, src_lengths) as encoder,
            record_weights(
                (layer.self_attention for layer in self.decoder), tgt_lengths, tgt_lengths, causal=True
            ) as decoder,
            record_weights((layer.cross_attention for layer in self.decoder), tgt_lengths, src_lengths) as cross,
        ):
            self.decode(batch, self.encode(batch))
        for row in range(batch.num_sentences):
            yield [np.stack([layer[row] for layer in layers]) for layers in (encoder, decoder, cross)]


# The form of a training step: the same numbers with less work for the machine. Layers that read the same input are one
# product; ReLU is a part of its product; and in autocast the residual sums are stored in bf16, while LayerNorm computes
# in fp32. On CUDA attention takes blocks of neighbouring positions (`BlockLayout`), and a compiler fuses what lies
# between the products; without one the plain form is faster there. Tests compare both forms.


def hidden_states(model: Transformer, batch: Batch) -> Tensor:
    """Returns `model.decode(batch, model.encode(batch))`, [N_tgt, D], in the type of autocast."""
    src = batch.src_offsets
    tgt = batch.tgt_offsets
    num_src = len(batch.src_ids)
    num_tgt = len(batch.tgt_in_ids)

    def layout_of(queries: Tensor, keys: Tensor, num_queries: int, num_keys: int, causal: bool) -> Any:
        if model.kernel == "padded":
            return model.layout(queries, keys, batch, causal)
        return BlockLayout.of(queries, keys, num_queries, num_keys, causal)

    layout = layout_of(src, src, num_src, num_src, causal=False)
    x = _round(model.embed(batch.src_ids, batch.src_positions, source=True))
    readers: list[EncoderLayer] = list(model.encoder)  # type: ignore[arg-type]
    for reader in readers:
        x = _attention(reader, reader.self_attention, reader.self_attention_norm, x, None, layout)
        x = _feed_forward(reader, x)
    memory = _round(model.encoder_norm(x))
    layers: list[DecoderLayer] = list(model.decoder)  # type: ignore[arg-type]
    crosses = [layer.cross_attention for layer in layers]
    joint = _project(memory, [part for cross in crosses for part in (cross.key, cross.value)])
    keys_values = joint.view(num_src, len(layers), 2, crosses[0].num_heads, -1).unbind(1)
    layout = layout_of(tgt, tgt, num_tgt, num_tgt, causal=True)
    cross_layout = layout_of(tgt, src, num_tgt, num_src, causal=False)
    x = _round(model.embed(batch.tgt_in_ids, batch.tgt_positions, source=False))
    for layer, cross_keys_values in zip(layers, keys_values, strict=True):
        x = _attention(layer, layer.self_attention, layer.self_attention_norm, x, None, layout)
        x = _attention(layer, layer.cross_attention, layer.cross_attention_norm, x, cross_keys_values, cross_layout)
        x = _feed_forward(layer, x)
    return _round(model.decoder_norm(x))


def _round(x: Tensor) -> Tensor:
    """Returns x in the type of autocast; as it is, if there is none."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


def _project(x: Tensor, layers: Sequence[nn.Linear]) -> Tensor:
    """Returns the outputs of layers that read the same x [N, D] side by side, from one product."""
    weight = torch.cat([layer.weight for layer in layers])
    bias = torch.cat([layer.bias for layer in layers])
    if not _is_for_onednn(x):
        return F.linear(x, weight, bias)
    return _Linear.apply(x, _round(weight), _round(bias), False)  # type: ignore[no-any-return, no-untyped-call]


def _is_for_onednn(x: Tensor) -> bool:
    """Whether oneDNN can add the bias within a product with x, and gains by it."""
    return x.device.type == "cpu" and x.dtype == torch.bfloat16 and _ONEDNN_HAS_BF16


def _attention(
    layer: EncoderLayer,
    attention: MultiHeadAttention,
    norm: nn.LayerNorm,
    x: Tensor,
    keys_values: Tensor | None,
    layout: BlockLayout | TileLayout,
) -> Tensor:
    """Applies a sub-layer of attention to x [N, D], over x itself or over keys and values [N_src, 2, H, K]."""

    def attend(y: Tensor) -> Tensor:
        parts = [attention.query]
        if keys_values is None:
            parts += [attention.key, attention.value]
        queries = _project(y, parts).view(len(x), -1, attention.num_heads, x.shape[1] // attention.num_heads)
        return _project(layout.attend_joint(queries, keys_values).flatten(-2), [attention.output])

    return _round(layer.add(norm, x, attend))


def _feed_forward(layer: EncoderLayer, x: Tensor) -> Tensor:
    """Applies the feed-forward sub-layer (3.3) to x [N, D]."""
    if layer.activation is not F.relu:
        return _round(layer.feed_forward(x))
    weight = _round(layer.inner.weight)
    bias = _round(layer.inner.bias)

    def feed_forward(y: Tensor) -> Tensor:
        return _project(_Linear.apply(_round(y), weight, bias, True), [layer.outer])  # type: ignore[no-untyped-call]

    return _round(layer.add(layer.feed_forward_norm, x, feed_forward))


class _Linear(torch.autograd.Function):
    """x W^T + b or its ReLU, [N, F], without a separate pass for either; torch does not differentiate the operation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, has_relu: bool) -> Tensor:
        if _is_for_onednn(x):
            out = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "relu" if has_relu else "none", [], "")
        else:
            out = torch._addmm_activation(bias, x, weight.T)
        ctx.save_for_backward(x, weight, out if has_relu else None)
        return out  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, hidden = ctx.saved_tensors
        if hidden is not None:
            grad = torch.ops.aten.threshold_backward(grad, hidden, 0)
        return grad @ weight, grad.T @ x, grad.sum(0), None
