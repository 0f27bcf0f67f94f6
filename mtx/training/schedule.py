"""The learning rate of the paper (5.3, Eq. 3): linear warmup, then the inverse square root of the step.

With `training.cooldown`, it falls linearly to zero in the last part of the training.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Cooldown:
    """The last steps of a training, in which the learning rate falls linearly to zero.

    Attributes:
        first, last: the first and the last of these steps.
        reason: the key in `training` that ends the training after them, such as max_steps.
        limit: the value of this key when the cooldown was planned.
    """

    first: int
    last: int
    reason: str
    limit: float

    def share(self, step: int) -> float:
        """The part of the usual learning rate that is left at `step`."""
        left = (self.last + 1 - step) / (self.last + 2 - self.first)
        return min(1.0, max(0.0, left))


def highest_rate(d_model: int, warmup_steps: int) -> float:
    """The learning rate of the paper at the end of the warmup: d_model^-0.5 * warmup_steps^-0.5."""
    return 1 / math.sqrt(d_model * warmup_steps)


def learning_rate(
    step: int, warmup_steps: int, d_model: int, peak: float | None = None, cooldown: Cooldown | None = None
) -> float:
    """The learning rate of update `step`, counted from 1.

    Args:
        peak: the rate at `warmup_steps`; None means `highest_rate`.
    """
    highest = highest_rate(d_model, warmup_steps) if peak is None else peak
    usual = highest * min(step / warmup_steps, math.sqrt(warmup_steps / step))
    return usual if cooldown is None else usual * cooldown.share(step)
