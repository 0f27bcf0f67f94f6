"""The learning rate of each step, and when training ends: the paper's rate (5.3, Eq. 3), cooldown and early stopping.

The learning rate rises linearly in the warmup, then falls with the inverse square root of the step; with
`training.cooldown` it falls linearly to zero in the last steps. Training ends after its steps or epochs, when it no
longer improves (early stopping, `training.patience`), or early enough for scoring within `training.time_limit`.
"""

import logging
from dataclasses import replace
from math import ceil, inf, sqrt

from mtx.config.schema import Config, TrainingConfig
from mtx.data.sampler import BatchSampler
from mtx.data.token_store import PreparedData, TokenStore
from mtx.scoring.quality import FEWEST_FIT_LINES, FIT_TIME_SHARE, MOST_FIT_LINES
from mtx.training.checkpoint import Cooldown, State

logger = logging.getLogger(__name__)

# Seconds of beam search for a line and a beam, by those of a validation for a line. On six runs of Multi30k (beam 6,
# one busy core) averaging, search and scoring took 1.6 to 5.1 times as long as the last validation: 0.27 to 0.85.
_SEARCH_COST = 0.75
_NUM_MEANS = 2  # validations of `averaging.choose`: its candidates that none has scored yet
_MARGIN = 0.97  # of the steps that a time limit has room for, so that a cooldown ends before it
# The speed of a start is known after this share of a time limit and this number of steps.
_TIMED_SHARE = 0.01
_TIMED_STEPS = 3
# Writing the last checkpoint and the model directory takes this share of a time limit and these seconds.
_SAVING_SHARE = 0.03
_SAVING_S = 10
_DECODING_SHARE = 0.2  # of a time limit, after which a validation must have shown how long decoding takes
_LEAST_SCORING = 0.5  # of what it is reckoned with: one validation took 1.8 times as long as the one before it
_MOST_RESERVED = 0.5  # of a time limit; beyond it, a limit is too short to be kept, and training matters more
_MOST_USED = 0.9  # of a time limit, by what is not training, for the least one that works


def highest_rate(d_model: int, warmup_steps: int) -> float:
    """The learning rate of the paper at the end of the warmup: d_model^-0.5 * warmup_steps^-0.5."""
    return 1 / sqrt(d_model * warmup_steps)


def learning_rate(step: int, warmup_steps: int, peak: float, cooldown: Cooldown | None = None) -> float:
    """The learning rate of update `step`, counted from 1; `peak` is that of `warmup_steps`."""
    usual = peak * min(step / warmup_steps, sqrt(warmup_steps / step))
    return usual * cooldown.share(step) if cooldown else usual


def steps_per_epoch(train: TokenStore, training: TrainingConfig) -> float:
    """The number of steps in an epoch, which has each pair as often as its corpus's weight, and its copies."""
    tokens = train.weights[train.corpora] @ train.tgt.block_tokens
    return (1 + training.copied_target_ratio) * float(tokens) / training.batch_tokens


def planned_end(training: TrainingConfig, epoch_steps: float, step: int = 0, epochs: float = 0.0) -> tuple[int, str]:
    """The step at which training ends if nothing ends it sooner, and the key in `training` that ends it there.

    For training.max_epochs it is an estimate, which the steps done so far correct.

    Args:
        epoch_steps: the steps of an epoch, an estimate for a run that has not begun.
        step, epochs: how far the run has come; `epochs` counts parts of an epoch too.
    """
    candidates = [(training.max_steps, "max_steps")] if training.max_steps else []
    if training.max_epochs:
        if epochs:
            epoch_steps = step / epochs
        candidates.append((step + ceil(max(0.0, training.max_epochs - epochs) * epoch_steps), "max_epochs"))
    return min(candidates)


def count_validation(state: State, score: float, seconds: float) -> State:
    """The state after a validation, larger scores being better; early stopping counts those since the best one."""
    if state.best_score is None or score > state.best_score:
        state = replace(state, best_score=score, best_step=state.step, bad_validations=0)
    else:
        state = replace(state, bad_validations=state.bad_validations + 1)
    return replace(state, validated_step=state.step, validation_s=round(seconds, 3))


def drop_outdated_cooldown(state: State, training: TrainingConfig) -> State:
    """The state, without a cooldown whose limit has changed since it was planned: it will be planned again."""
    cooldown = state.cooldown
    is_outdated = cooldown and getattr(training, cooldown.reason) != cooldown.limit
    return replace(state, cooldown=None) if is_outdated else state


class Schedule:
    """The learning rate and the end of a run, by its `State` and the time.

    `now_s` is always the seconds of training so far, over all starts, the same on all ranks.

    Args:
        num_ranks: how many share a validation; the final weights are chosen by one.

    Attributes:
        steps_per_epoch: see the function.
    """

    def __init__(self, config: Config, data: PreparedData, sampler: BatchSampler, num_ranks: int = 1):
        self._training = config.training
        self._d_model = config.model.d_model
        self._sampler = sampler
        self.steps_per_epoch = steps_per_epoch(data.train, config.training)
        num_pairs = data.valid.num_pairs
        search = _SEARCH_COST * config.decoding.beam_size / max(1, num_pairs)  # of a line, in validations
        num_fit_lines = 0
        if num_pairs >= FEWEST_FIT_LINES:
            num_fit_lines = min(MOST_FIT_LINES * len(config.data.language_pairs), num_pairs)
        self._quality_validations = search * num_fit_lines
        # What follows the last step: a validation, those of `averaging`, and the translation of the test sets.
        num_tested = sum(store.num_pairs for store in data.tests.values())
        self._validations_at_end = 1 + _NUM_MEANS * num_ranks + search * num_tested
        self._timed_from: tuple[float, int] | None = None  # seconds of training at a step of this start
        self._last_in_time: int | None = None  # `_end_by_time_limit` of the newest step, the same on all ranks

    def learning_rate(self, state: State, step: int) -> float:
        """The learning rate of a step."""
        training = self._training
        peak = training.learning_rate or highest_rate(self._d_model, training.warmup_steps)
        return learning_rate(step, state.warmup_steps or training.warmup_steps, peak, state.cooldown)

    def end(self, state: State) -> tuple[int, str]:
        """The step at which the run will end unless something ends it sooner, and the key that ends it there."""
        if state.cooldown:
            return state.cooldown.last, state.cooldown.reason
        planned = planned_end(self._training, self.steps_per_epoch, state.step, self._sampler.epochs(state.position))
        return planned if self._last_in_time is None else min(planned, (self._last_in_time, "time_limit"))

    def known_end(self, state: State) -> int | None:
        """The step of `end`; with a time limit None until steps and a validation have shown how long they take."""
        is_known = self._training.time_limit is None or (self._last_in_time and state.validation_s)
        return self.end(state)[0] if is_known else None

    def reason_to_stop(self, state: State, now_s: float) -> str | None:
        """The key in the section `training` that ends the run in this state, such as "max_steps"; None to continue."""
        training = self._training
        cooldown = state.cooldown
        if state.step >= (training.max_steps or inf):
            return "max_steps"
        if cooldown and state.step >= cooldown.last:
            return cooldown.reason
        if state.step and now_s > self.usable_s(state, _LEAST_SCORING if cooldown else 1.0):
            if cooldown:
                logger.warning(f"training slowed down: the time limit ends it {cooldown.last - state.step} steps early")
            return "time_limit"
        if cooldown:  # it was planned for one of these, and follows its plan
            return None
        if state.position.epoch >= (training.max_epochs or inf):
            return "max_epochs"
        return "patience" if self._has_stalled(state) else None

    def _has_stalled(self, state: State) -> bool:
        """Early stopping: whether the last validations were no better than the best one."""
        return state.bad_validations >= (self._training.patience or inf)

    def plan_cooldown(self, state: State, now_s: float) -> Cooldown | None:
        """The cooldown that begins after `state`, if it is time for one; None if it has begun.

        It takes the share `training.cooldown` of all steps, whatever will end the training; it also begins when
        training.patience has run out. Its last step stays. All ranks call this at every step, which updates `end`.
        """
        self._last_in_time = self._end_by_time_limit(state, now_s)
        step = state.step
        share = self._training.cooldown
        if not share or state.cooldown or not step:
            return None
        last_step, reason = self.end(state)
        first_step = last_step - round(share * last_step)
        if self._has_stalled(state):
            last_step, reason = min((last_step, reason), (step + ceil(step * share / (1 - share)), "patience"))
        elif step < first_step or step >= last_step:
            return None
        elif reason == "time_limit" and first_step < step:  # a validation made the end seem nearer: use the margin
            latest = step + int((last_step - step) / _MARGIN)
            while last_step < latest and last_step - round(share * last_step) != step:
                last_step += 1
        return Cooldown(step + 1, last_step, reason, float(getattr(self._training, reason)))

    def _end_by_time_limit(self, state: State, now_s: float) -> int | None:
        """The step at which the time limit will end training, once a few steps of this start have shown its speed.

        It is planned with steps and validations that take as long as those before.
        """
        step = state.step
        if not step:
            return None
        if self._timed_from is None:
            self._timed_from = (now_s, step)
        first_s, first_step = self._timed_from
        shown_s = _TIMED_SHARE * self.usable_s(state)  # infinity without a limit
        if step < first_step + _TIMED_STEPS or now_s < first_s + shown_s:
            return None
        return self.step_in_time(state, now_s, (now_s - first_s) / (step - first_step))

    def step_in_time(self, state: State, now_s: float, step_s: float) -> int:
        """The last step within the time limit if each takes `step_s` seconds; one more at least if time is left."""
        left_s = _MARGIN * (self.usable_s(state) - now_s)
        step_s += state.validation_s / self._training.validate_every
        fewest_steps = 1 if left_s > 0 else 0
        return state.step + max(fewest_steps, int(left_s / step_s))

    def skip_validation(self, seconds: float) -> None:
        """Leave the time of a validation out of that of steps."""
        if self._timed_from:
            first_s, first_step = self._timed_from
            self._timed_from = first_s + seconds, first_step

    def is_validation_due(self, state: State, now_s: float) -> bool:
        """Whether to validate before the end: regularly, and once to learn early how long decoding takes."""
        time_limit = self._training.time_limit or inf
        needs_time = not state.validation_s and now_s > _DECODING_SHARE * time_limit
        return needs_time or state.step % self._training.validate_every == 0

    def usable_s(self, state: State, share: float = 1.0) -> float:
        """The seconds of the time limit in which steps can be taken; infinity without a limit.

        The rest, at most half of it, is for saving, averaging and scoring with beam search; see `scoring_s`.
        """
        limit = self._training.time_limit
        return inf if limit is None else limit - min(self.scoring_s(state, share), _MOST_RESERVED * limit)

    def scoring_s(self, state: State, share: float = 1.0) -> float:
        """The seconds from the last step to the end: of saving, averaging and scoring, by those of a validation.

        Args:
            share: of what averaging and scoring are expected to take.
        """
        limit = self._training.time_limit or 0
        quality_s = min(FIT_TIME_SHARE * limit, self._quality_validations * state.validation_s)
        return _SAVING_SHARE * limit + _SAVING_S + quality_s + share * self._validations_at_end * state.validation_s

    def least_limit_s(self, state: State, begun_s: float) -> float | None:
        """The least time limit, in whole minutes as seconds, that can be kept; None if the limit can, or without one.

        Args:
            begun_s: the seconds before the first step.
        """
        limit = self._training.time_limit
        scoring_s = self.scoring_s(state)
        if limit is None or (scoring_s <= _MOST_RESERVED * limit and begun_s + scoring_s < limit):
            return None
        shares = _SAVING_SHARE + FIT_TIME_SHARE  # of a longer limit, which scoring takes
        least_s = max(scoring_s / (_MOST_RESERVED - shares), (begun_s + scoring_s) / (_MOST_USED - shares))
        return 60.0 * ceil(least_s / 60)
