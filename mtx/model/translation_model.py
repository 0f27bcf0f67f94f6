"""What all architectures have in common: embeddings, output weights, dropout, and what training and search call.

Training knows a model by `encode`, `decode`, `output_weight`, `output_bias`, `pad_id`, `start_id` and
`prepare_positions`, and calls it with the function that uses these; search knows a copy of another class.
`mtx.model.architectures` lists the models that there are, and their classes.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtx.config.schema import ModelConfig
from mtx.model.attention import Kernel

Weights = npt.NDArray[np.float32]
Batch = Any  # a `mtx.data.packing.PackedBatch` of tensors, which this folder must not import

_LEVELS = 1 << 8
_INT_OF_SIZE = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class _MaskedScale(torch.autograd.Function):
    """(x & mask) * scale; `mask` has all bits of an element set, or none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(mask)
        ctx.scale = scale
        return (x.contiguous().view(mask.dtype) & mask).view(x.dtype).mul_(scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _MaskedScale.apply(grad, *ctx.saved_tensors, ctx.scale), None, None  # type: ignore[no-untyped-call]


def dropout(x: Tensor, probability: float | Tensor, training: bool) -> Tensor:
    """Sets each element to zero with `probability` and scales the rest to keep the mean; only in training (5.4).

    A compiled step has the probability as a number on the device, so that a step without dropout is the same program.
    On a CPU, torch draws one random number per element and converts a mask from booleans, which takes a fifth of a
    training step. Here one 64-bit random number serves eight elements and the mask consists of bits, which takes a
    tenth of that time. The probability is rounded to a multiple of 1/256, and so is the scale.
    """
    if not training:
        return x
    if isinstance(probability, Tensor):
        return torch.where(torch.rand(x.shape, device=x.device) < probability, 0, x / (1 - probability))
    if probability == 0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, probability)
    num_kept = min(max(_LEVELS - round(probability * _LEVELS), 1), _LEVELS - 1)  # of the 256 values of a byte
    words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64)
    words.random_(-(1 << 63), None)  # None: up to the largest int64
    mask = words.view(torch.int8)[: x.numel()].view(x.shape).to(_INT_OF_SIZE[x.element_size()])
    mask.sub_(num_kept - _LEVELS // 2).bitwise_right_shift_(8 * x.element_size() - 1)  # copies the sign to all bits
    return _MaskedScale.apply(x, mask, _LEVELS / num_kept)  # type: ignore[no-any-return, no-untyped-call]


class TranslationModel(nn.Module):
    """A model of packed batches of sentence pairs.

    Args:
        num_ids: number of rows of the output layer, V. An embedding has one more row, for pad; it stays zero.

    Attributes:
        embedding: of the target's tokens and, unless there is a `src_embedding`, of the source's, [V + 1, D].
        projection: the weights of the output layer, if they are not those of `embedding`, [V, D].
        start_id: the token that the decoder starts from.
        num_tgt_positions: the most tokens of a translation; None means any number.
        kernel: how attention is computed.
    """

    def __init__(self, config: ModelConfig, num_ids: int):
        super().__init__()
        self.config = config
        self.pad_id = num_ids
        self.start_id = num_ids if config.start == "pad" else 0  # `</s>`
        self.kernel: Kernel = "padded"
        d_model = config.d_model
        self.embedding = nn.Parameter(torch.empty(num_ids + 1, d_model))
        self.src_embedding = None if config.tie == "all" else nn.Parameter(torch.empty(num_ids + 1, d_model))
        self.projection = nn.Parameter(torch.empty(num_ids, d_model)) if config.tie == "none" else None
        self.output_bias = nn.Parameter(torch.zeros(num_ids)) if config.output_bias else None
        self.num_tgt_positions: int | None = None

    @property
    def output_weight(self) -> Tensor:
        """The matrix [V, D] of the output layer: logits are hidden @ output_weight^T (+ output_bias)."""
        return self.embedding[:-1] if self.projection is None else self.projection

    @property
    def source_embedding(self) -> Tensor:
        """The embeddings of the source's tokens, [V + 1, D]."""
        return self.embedding if self.src_embedding is None else self.src_embedding

    @torch.no_grad()
    def reset_embeddings(self) -> None:
        """Draws the matrices with a row for each token from N(0, d_model^-1/2); the rows of pad are zero."""
        for table in (self.embedding, self.src_embedding, self.projection):
            if table is not None:
                nn.init.normal_(table, std=self.config.d_model**-0.5)
                table[self.pad_id :].zero_()

    def forward(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function that reads the weights; where ranks share them, they are whole within such a call only."""
        return function(*arguments)

    def prepare_positions(self, num_positions: int) -> None:
        """Makes ready for sentences of `num_positions` tokens; call it before `encode` and `decode`."""

    def encode(self, batch: Batch) -> Any:
        """Reads the packed sources; returns what `decode` needs of them."""
        raise NotImplementedError

    def decode(self, batch: Batch, memory: Any) -> Tensor:
        """Reads the earlier tokens of the reference; returns hidden states, [N_tgt, D]."""
        raise NotImplementedError

    def attention_weights(self, batch: Batch) -> Iterator[Sequence[Weights]]:
        """Yields the attention weights of each sentence, of L layers and H heads.

        They are three arrays: of the encoder [L, H, S, S], of the decoder [L, H, T, T], and from target to source,
        [L, H, T, S]. An attention that the model does not have has no layers.
        """
        raise NotImplementedError
