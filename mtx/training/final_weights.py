"""Chooses the weights of the final model: candidates are compared on the validation set, and the best is shipped.

The candidates are the mean of the last checkpoints (6.1 of the paper), that of the later half of them, the last one,
and the one of the best validation. Flow: checkpoints of a run -> `choose` -> the model directory.
"""

import logging
import time

from mtx.config.schema import Config
from mtx.data.token_store import PreparedData
from mtx.errors import MtxError
from mtx.storage.run_contents import checkpoint_steps
from mtx.storage.run_files import RunLayout
from mtx.storage.run_status import DECIDING_METRICS
from mtx.training import checkpoint
from mtx.training.checkpoint import State
from mtx.training.runtime import RuntimeChoices, new_model
from mtx.training.validation import deciding_metric, validate_part, validation_of

logger = logging.getLogger(__name__)

NUM_MEANS = 2  # candidates that no validation has scored yet


def choose(
    config: Config, runtime: RuntimeChoices, data: PreparedData, paths: RunLayout, state: State
) -> tuple[int, ...]:
    """The steps of the checkpoints whose mean translates the validation set best, by the metric that decides.

    Raises:
        MtxError: if there is no checkpoint.
    """
    scores = _candidates(paths, state, config.training.checkpoint_every, config.training.average_last)
    if not scores:
        raise MtxError(f"{paths.root}: there is no checkpoint to average", "a larger training.time_limit")
    if len(scores) == 1:
        return next(iter(scores))
    metric = deciding_metric(data, config)
    model = new_model(config, runtime, data.tokenizer.num_ids)
    scored = list[tuple[float, tuple[int, ...]]]()
    for steps, score in scores.items():
        if score is None:
            started = time.monotonic()
            model.load_state_dict(checkpoint.average(paths, list(steps)))
            part = validate_part(model, data, config.data.max_tokens)
            score = validation_of([part], data, config.data.tgt, metric, started).score
        scored.append((score, steps))
    scored.sort(key=lambda pair: pair[0], reverse=True)
    best, *others = (f"{in_words(steps)} {abs(score):.2f}" for score, steps in scored)
    logger.info("the model is %s, by validation %s (%s)", best, DECIDING_METRICS[metric], "; ".join(others))
    return scored[0][1]


def in_words(steps: tuple[int, ...]) -> str:
    """What the mean of these checkpoints is."""
    if len(steps) == 1:
        return f"step {steps[0]}"
    return f"the mean of {len(steps)} checkpoints, steps {steps[0]} to {steps[-1]}"


def _candidates(
    paths: RunLayout, state: State, checkpoint_every: int, average_last: int
) -> dict[tuple[int, ...], float | None]:
    """What may become the model, with the score of what was validated; that is the best one at most."""
    steps = checkpoint.averaged_steps(paths, checkpoint_every, average_last)
    best = [step for step in checkpoint_steps(paths) if step == state.best_step]
    whole = checkpoint.whole_steps(paths, sorted({*steps, *best}))
    averaged = tuple(step for step in steps if step in whole)
    candidates = (averaged, averaged[len(averaged) // 2 :], averaged[-1:])
    scores: dict[tuple[int, ...], float | None] = dict.fromkeys(each for each in candidates if each)
    if state.best_step in whole:
        if state.best_step != state.validated_step:
            scores.pop((state.validated_step,), None)
        scores[(state.best_step,)] = state.best_bleu
    return scores
