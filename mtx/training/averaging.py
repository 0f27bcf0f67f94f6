"""Checkpoint averaging: the mean of the last checkpoints, and the choice of the final model's weights.

The candidates are the mean of the last checkpoints (6.1 of the paper), that of the later half of them, the last one,
and the one of the best validation. They are compared on the validation set, and the best becomes the model.
Flow: checkpoints of a run -> `choose` -> `average` -> the model directory.
"""

import logging
import time
from collections.abc import Sequence

import torch

from mtx.config.schema import TrainingConfig
from mtx.decoding import model_directory
from mtx.errors import DamagedFileError, MtxError
from mtx.runs.run_directory import DECIDING_METRICS
from mtx.storage import durable
from mtx.storage.run_files import WEIGHTS, RunLayout, checkpoint_steps
from mtx.training.build import new_model
from mtx.training.checkpoint import START_AGAIN, State, averaged_steps
from mtx.training.events import Run
from mtx.training.validation import deciding_metric, validate_part, validation_of

Steps = tuple[int, ...]  # of the checkpoints whose mean may become the model
logger = logging.getLogger(__name__)


def average(paths: RunLayout, steps: Sequence[int]) -> model_directory.Tensors:
    """The mean of the weights of several checkpoints (paper, 6.1), accumulated in fp64.

    Raises:
        DamagedFileError: if one of them is damaged, or of another model.
    """
    total = dict[str, torch.Tensor]()
    expected = None
    for step in steps:
        path = paths.checkpoint(step) / WEIGHTS
        durable.verify(path.parent, (WEIGHTS,))
        tensors = model_directory.load_tensors(path, expected)
        if expected is None:
            expected = {name: tensor.to("meta") for name, tensor in tensors.items()}  # shapes without memory
        for name, tensor in tensors.items():
            total[name] = total[name] + tensor if name in total else tensor.double()
    return {name: (tensor / len(steps)).float() for name, tensor in total.items()}


def choose(run: Run) -> Steps:
    """The steps of the checkpoints whose mean translates the validation set best, by the metric that decides.

    Raises:
        MtxError: if there is no checkpoint.
    """
    config = run.config
    data = run.data
    paths = run.paths
    candidates = _candidates(paths, run.state, config.training)
    if not candidates:
        raise MtxError(f"{paths.root}: no checkpoint to average", "increase training.time_limit")
    if len(candidates) == 1:
        return next(iter(candidates))
    model = new_model(config, run.runtime, data)

    def validate(steps: Steps) -> float:
        model.load_state_dict(average(paths, steps))
        return validation_of(config, data, [validate_part(config, data, model)], time.monotonic()).score

    scores = {steps: validate(steps) if score is None else score for steps, score in candidates.items()}
    ranked = sorted(scores, key=scores.__getitem__, reverse=True)
    best, *worse = (f"{in_words(steps)} {abs(scores[steps]):.2f}" for steps in ranked)
    metric = deciding_metric(data, config)
    logger.info(f"the model is {best}, by validation {DECIDING_METRICS[metric]} ({'; '.join(worse)})")
    return ranked[0]


def in_words(steps: Steps) -> str:
    """What the mean of these checkpoints is."""
    if len(steps) == 1:
        return f"step {steps[0]}"
    return f"the average of {len(steps)} checkpoints, steps {steps[0]} to {steps[-1]}"


def _candidates(paths: RunLayout, state: State, training: TrainingConfig) -> dict[Steps, float | None]:
    """What may become the model, with the score of what was validated; that is the best one at most.

    Damaged checkpoints are skipped with a warning; raises DamagedFileError if all are damaged.
    """
    averaged = averaged_steps(paths, training)
    best = state.best_step
    intact = list[int]()
    damaged = ""
    for step in checkpoint_steps(paths):
        if step not in averaged and step != best:
            continue
        try:
            durable.verify(paths.checkpoint(step), (WEIGHTS,))
            intact.append(step)
        except DamagedFileError as error:
            damaged = str(error)
            logger.warning(f"{error}; skipping it in the average")
    if damaged and not intact:
        raise DamagedFileError(f"{damaged}; all checkpoints to average are damaged", START_AGAIN)
    newest = tuple(step for step in averaged if step in intact)
    later_half = newest[len(newest) // 2 :]
    scores: dict[Steps, float | None] = dict.fromkeys(steps for steps in (newest, later_half, newest[-1:]) if steps)
    if best in intact:
        if best != state.validated_step:
            scores.pop((state.validated_step,), None)
        scores[(best,)] = state.best_score
    return scores
