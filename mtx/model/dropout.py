"""Dropout whose random numbers are cheap on a CPU.

torch draws one random number per element there, and multiplies by a mask that it converts from booleans: a fifth of a
training step. Here one 64-bit number serves eight elements and the mask is one of bits, a tenth of that time; the
probability is rounded to 1/256, and the scale is that of the rounded one.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_LEVELS = 1 << 8
_INT_OF_SIZE = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class _MaskedScale(torch.autograd.Function):
    """(x & mask) * scale, where `mask` has all bits of an element set, or none."""

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
    """`x` with each element zero with `probability`, the rest scaled to keep the mean; `x` itself when not training."""
    if not training or probability == 0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, probability)
    num_kept = min(max(_LEVELS - round(probability * _LEVELS), 1), _LEVELS - 1)  # of 256 equally likely bytes
    words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(-(1 << 63), None)  # None: to the largest
    bytes_ = words.view(torch.int8)[: x.numel()].view(x.shape).to(_INT_OF_SIZE[x.element_size()])
    mask = bytes_.sub_(num_kept - _LEVELS // 2).bitwise_right_shift_(8 * x.element_size() - 1)  # the sign everywhere
    out: Tensor = _MaskedScale.apply(x, mask, _LEVELS / num_kept)  # type: ignore[no-untyped-call]
    return out
