"""Dropout whose random numbers are cheap on a CPU.

torch draws one random number per element there, a tenth of a training step. Here one 64-bit number serves four
elements: a quarter of the time, the probability rounded to 1/65536 and the scale that of the rounded one.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_LEVELS = 1 << 16


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """`x` with each element zero with `probability`, the rest scaled to keep the mean; `x` itself when not training."""
    if not training or probability == 0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, probability)
    threshold = round(probability * _LEVELS)
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)  # None: to the largest
    keep = words.view(torch.int16)[: x.numel()].view(x.shape) >= threshold - _LEVELS // 2
    return x * keep.to(x.dtype).mul_(_LEVELS / (_LEVELS - threshold))
