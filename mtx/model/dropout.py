"""Dropout (5.4 of the paper), which sets random elements to zero in training, with cheap random numbers on a CPU.

On a CPU, torch draws one random number per element and converts a mask from booleans, which takes a fifth of a training
step. Here one 64-bit random number serves eight elements and the mask consists of bits, which takes a tenth of that
time. The probability of a zero is rounded to a multiple of 1/256, and so is the scale, which keeps the mean.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_LEVELS = 1 << 8
_INT_OF_SIZE = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class _MaskedScale(torch.autograd.Function):
    """(x & mask) * scale; `mask` has all bits of an element set, or none."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(mask)
        ctx.scale = scale
        return _masked(x, mask, scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (mask,) = ctx.saved_tensors
        return _masked(grad, mask, ctx.scale), None, None


def _masked(x: Tensor, mask: Tensor, scale: float) -> Tensor:
    return (x.contiguous().view(mask.dtype) & mask).view(x.dtype).mul_(scale)


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """Sets each element to zero with `probability` and scales the rest to keep the mean; only in training."""
    if not training or probability == 0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, probability)
    kept_levels = min(max(_LEVELS - round(probability * _LEVELS), 1), _LEVELS - 1)  # of the 256 values of a byte
    words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(
        -(1 << 63), None
    )  # None: up to the largest int64
    bytes_ = words.view(torch.int8)[: x.numel()].view(x.shape).to(_INT_OF_SIZE[x.element_size()])
    mask = bytes_.sub_(kept_levels - _LEVELS // 2).bitwise_right_shift_(
        8 * x.element_size() - 1
    )  # copies the sign to all bits
    out: Tensor = _MaskedScale.apply(x, mask, _LEVELS / kept_levels)  # type: ignore[no-untyped-call]
    return out
