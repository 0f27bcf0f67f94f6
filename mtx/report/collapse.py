"""A collapse of training: what shows it, and the settings that prevent it.

A collapsed model ignores its source, and often its context too. `training_hooks` warns of it, and `verdict` names it.
"""

import numpy as np

from mtx.config.schema import Config
from mtx.data.token_store import Side
from mtx.report.checks import spread
from mtx.training.schedule import highest_rate

_ALIKE = 0.2  # distinct translations for each distinct reference, below which a model ignores its source


def are_alike(hypotheses: list[str], references: list[str]) -> bool:
    """Whether translations are nearly all the same, although their references are not."""
    return len({*hypotheses}) < _ALIKE * len({*references})


def unigram_nll(tgt: Side) -> float:
    """The nll per token of a model that knows only how frequent each token is: the entropy, in nats."""
    ids = np.concatenate(tgt.sentences(spread(len(tgt.lengths), 20_000)))  # which show the frequencies well enough
    shares = np.unique(ids, return_counts=True)[1] / len(ids)
    return float(-shares @ np.log(shares))


def ramp_steps(config: Config) -> int:
    """The steps after which a healthy model's translations differ: the warmup that Eq. 3 has for the learning rate.

    A low learning rate needs more steps than training.warmup_steps, and a high one fewer.
    """
    rate = config.training.learning_rate
    return round(rate**-2 / config.model.d_model) if rate else config.training.warmup_steps


def remedy(config: Config) -> str:
    """The settings that prevent a collapse of this run."""
    warmup = config.training.warmup_steps
    paper = highest_rate(config.model.d_model, warmup)
    rate = config.training.learning_rate or paper
    if rate > 1.01 * paper:
        return f"in another run_dir, set training.learning_rate={paper:.2g} (the paper's for this warmup), not {rate:g}"
    longer = max(2 * warmup, min(ramp_steps(config), 4000))  # the warmup of the paper (5.3)
    return f"in another run_dir, set training.learning_rate={rate / 2:.2g} or training.warmup_steps={longer}"
