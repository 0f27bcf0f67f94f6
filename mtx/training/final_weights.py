"""Chooses the weights of the final model: candidates are compared on the validation set, and the best is shipped.

The candidates are the mean of the last checkpoints (6.1 of the paper), that of the later half of them, the last one,
and the one of the best validation. Flow: checkpoints of a run -> `choose` -> the model directory.
"""

import logging
import time
from dataclasses import dataclass

from mtx.config.schema import Config
from mtx.data.preprocess import PreparedData
from mtx.errors import MtxError
from mtx.run.contents import checkpoint_steps
from mtx.run.events import DECIDING_METRICS
from mtx.run.layout import RunLayout
from mtx.training import checkpoint
from mtx.training.checkpoint import State
from mtx.training.runtime import RuntimeChoices, new_model
from mtx.training.validation import deciding_metric, validate_part, validation_of

logger = logging.getLogger(__name__)

NUM_MEANS = 2  # candidates that no validation has scored yet


@dataclass(frozen=True)
class FinalWeights:
    """The mean of the weights of the checkpoints of `steps`, with its score on the validation set if it is known."""

    steps: tuple[int, ...]
    score: float | None = None

    def __str__(self) -> str:
        first, last = self.steps[0], self.steps[-1]
        return (
            f"step {last}" if first == last else f"the mean of {len(self.steps)} checkpoints, steps {first} to {last}"
        )


def choose(
    config: Config, runtime: RuntimeChoices, data: PreparedData, paths: RunLayout, state: State
) -> FinalWeights:  # fmt: skip
    """The candidate that translates the validation set best, by the metric that decides in training.

    Raises:
        MtxError: if there is no checkpoint.
    """
    options = _candidates(paths, state, config.training.checkpoint_every, config.training.average_last)
    if not options:
        raise MtxError(f"{paths.root}: there is no checkpoint to average", "a larger training.time_limit")
    if len(options) == 1:
        return options[0]
    metric = deciding_metric(data, config)
    model = new_model(config, runtime, data.tokenizer.num_ids)
    scored = []
    for option in options:
        score = option.score
        if score is None:
            started = time.monotonic()
            model.load_state_dict(checkpoint.average(paths, list(option.steps)))
            part = validate_part(model, data, config.data.max_tokens)
            score = validation_of([part], data, config.data.tgt, metric, started).score
        scored.append(FinalWeights(option.steps, score))
    best, *others = sorted(scored, key=lambda option: option.score or 0.0, reverse=True)
    rest = "; ".join(f"{option} {abs(option.score or 0.0):.2f}" for option in others)
    name = DECIDING_METRICS[metric]
    logger.info("the model is %s: validation %s %.2f (%s)", best, name, abs(best.score or 0.0), rest)
    return best


def _candidates(paths: RunLayout, state: State, checkpoint_every: int, average_last: int) -> list[FinalWeights]:
    """What may become the model, without a checkpoint that was validated and is not the best."""
    steps = checkpoint.averaged_steps(paths, checkpoint_every, average_last)
    best = [step for step in checkpoint_steps(paths) if step == state.best_step]
    whole = checkpoint.whole_steps(paths, sorted({*steps, *best}))
    averaged = tuple(step for step in steps if step in whole)
    options = dict.fromkeys((averaged, averaged[len(averaged) // 2 :], averaged[-1:]))
    if state.best_step in whole:
        options[(state.best_step,)] = None
    known: dict[tuple[int, ...], float] = {(state.best_step,): state.best_bleu}
    if state.best_step in whole and state.best_step != state.validated_step:
        options.pop((state.validated_step,), None)
    return [FinalWeights(steps, known.get(steps)) for steps in options if steps]
