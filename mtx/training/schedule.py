"""The learning rate of the paper (5.3, Eq. 3): linear warmup, then the inverse square root of the step."""

import math


def learning_rate(step: int, warmup_steps: int, d_model: int, peak: float | None = None) -> float:
    """The learning rate of update `step`, counted from 1.

    Args:
        peak: the rate at `warmup_steps`; None means the paper's d_model^-0.5 * warmup_steps^-0.5.
    """
    highest = 1 / math.sqrt(d_model * warmup_steps) if peak is None else peak
    return highest * min(step / warmup_steps, math.sqrt(warmup_steps / step))
