"""At which step training will end, by training.max_steps and training.max_epochs, whichever comes first."""

import math

from mtx.config.schema import TrainingConfig


def planned_end(
    training: TrainingConfig, steps_per_epoch: float, step: int = 0, epochs: float = 0.0
) -> tuple[int, str]:
    """The step at which training ends if nothing ends it sooner, and the key in `training` that ends it there.

    For training.max_epochs it is an estimate, which the steps done so far correct.

    Args:
        steps_per_epoch: an estimate for a run that has not begun.
        step, epochs: how far the run has come; `epochs` counts parts of an epoch too.
    """
    ends = [] if training.max_steps is None else [(training.max_steps, "max_steps")]
    if training.max_epochs is not None:
        left = max(0.0, training.max_epochs - epochs)
        ends.append((step + math.ceil(left * (step / epochs if epochs else steps_per_epoch)), "max_epochs"))
    return min(ends)
