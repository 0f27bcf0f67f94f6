"""Plans a training: when its warmup ends, when its cooldown begins, and at which step it will end."""

import logging
import math
from dataclasses import replace

from mtx.config.schema import Config, TrainingConfig
from mtx.data.sampler import BatchSampler
from mtx.data.token_store import TokenStore
from mtx.training.checkpoint import State
from mtx.training.schedule import highest_rate, learning_rate
from mtx.training.stopping import StoppingCriteria

logger = logging.getLogger(__name__)

_WARMUP_SHARE = 0.1  # of the steps of a run with a time limit, at most


def steps_per_epoch(train: TokenStore, training: TrainingConfig) -> float:
    """The number of steps in an epoch, which has each pair as often as its corpus's weight says, and its copies."""
    if (train.weights == 1).all():  # a large corpus then needs no arrays of weights
        num_tokens = float(train.tgt.lengths.sum())
    else:
        num_tokens = float((train.weights[train.corpus] * train.tgt.lengths).sum())
    return (1 + training.copied_target_ratio) * num_tokens / training.batch_tokens


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


class Plan:
    """The plan of one start of a run, by its `State`.

    Attributes:
        steps_per_epoch: see the function.
    """

    def __init__(self, config: Config, train: TokenStore, sampler: BatchSampler, stopping: StoppingCriteria):
        self._training, self._d_model = config.training, config.model.d_model
        self._sampler, self._stopping = sampler, stopping
        self.steps_per_epoch = steps_per_epoch(train, config.training)

    def end(self, state: State) -> tuple[int, str]:
        """The step at which the run will end if nothing ends it sooner, and the key that ends it there."""
        if state.cooldown is not None:
            return state.cooldown.last, state.cooldown.reason
        return planned_end(self._training, self.steps_per_epoch, state.step, self._sampler.epochs(state.position))

    def learning_rate(self, state: State, step: int) -> float:
        """That of a step; a warmup that is shorter than planned leads to the same highest rate."""
        training = self._training
        peak = training.learning_rate or highest_rate(self._d_model, training.warmup_steps)
        return learning_rate(step, state.warmup_steps or training.warmup_steps, self._d_model, peak, state.cooldown)

    def update(self, state: State) -> State:
        """The state, with a cooldown when it is time for one, and with the warmup that a time limit has room for.

        That is at most a tenth of the steps, decided once for the rest of the run.
        """
        cooldown = self._stopping.plan_cooldown(state, self.end(state))
        last = self._stopping.end_by_time_limit(state) if state.warmup_steps is None else None
        if last is None:
            return replace(state, cooldown=cooldown)
        last, planned = min(last, self.end(state)[0]), self._training.warmup_steps
        steps = min(planned, max(1, round(_WARMUP_SHARE * last)))
        if steps < planned:
            logger.warning(
                f"training.time_limit has room for about {last:,} steps, which see the text "
                f"{last / self.steps_per_epoch:.1f} times; the learning rate rises for {steps} of them, not for "
                f"training.warmup_steps={planned}\n  help: a longer training.time_limit, or a smaller "
                "training.batch_tokens or model.preset"
            )
        return replace(state, cooldown=cooldown, warmup_steps=steps)
