"""How long a run takes: from what was measured, the steps and validations that are left, and a time limit.

Flow: seconds of a step, a validation, the scoring -> `Estimate`. Pure arithmetic.
"""

from dataclasses import dataclass

from mtx.config.schema import TrainingConfig
from mtx.dry_run.pace import StepPace


@dataclass(frozen=True)
class Measured:
    """Seconds, as measured.

    Attributes:
        prepare_s: of what is not prepared yet.
        save_s: by which one checkpoint delays training.
        validation_s: of one.
        scoring_s: of all test sets.
        reserve_s: that training leaves of a time limit.
    """

    prepare_s: float
    pace: StepPace
    save_s: float
    validation_s: float
    scoring_s: float
    reserve_s: float


@dataclass(frozen=True)
class Estimate:
    """What comes yet, in seconds where nothing else is said.

    Attributes:
        steps, saves, validations: so many are yet to be done.
        ends_by: max_steps or time_limit.
        may_end_sooner: training.patience can end it at any validation.
    """

    prepare_s: float
    start_s: float
    steps: int
    step_s: float
    tgt_tokens_per_s: float
    steps_s: float
    saves: int
    saves_s: float
    validations: int
    validation_s: float
    validations_s: float
    scoring_s: float
    total_s: float
    ends_by: str
    may_end_sooner: bool


def estimate(
    training: TrainingConfig, done: int, elapsed_s: float, measured: Measured, ended_by: str | None = None
) -> Estimate:
    """The time to the end of a run of which `done` steps are done, which took `elapsed_s`.

    Args:
        ended_by: the key of `training` that has ended it already.
    """
    pace, every, saved_every = measured.pace, training.validate_every, training.checkpoint_every
    last, ends_by = max(done, training.max_steps), "max_steps"
    if ended_by is not None:
        last, ends_by = done, ended_by
    elif training.time_limit is not None:
        left = training.time_limit - measured.reserve_s - elapsed_s - measured.prepare_s - pace.start_s
        per_step = pace.step_s + measured.save_s / saved_every + measured.validation_s / every
        in_time = done + max(1, int(left / per_step))
        if in_time < last:
            last, ends_by = in_time, "time_limit"
    steps = last - done
    saves, validations = (-(-last // n) - done // n if steps else 0 for n in (saved_every, every))
    validations += training.init_from is not None and not done  # the model as it came is validated first
    saves_s, validations_s = saves * measured.save_s, validations * measured.validation_s
    before_s, steps_s = measured.prepare_s + pace.start_s, steps * pace.step_s
    return Estimate(
        measured.prepare_s, pace.start_s, steps, pace.step_s, pace.tgt_tokens / pace.step_s, steps_s, saves, saves_s,
        validations, measured.validation_s, validations_s, measured.scoring_s,
        before_s + steps_s + saves_s + validations_s + measured.scoring_s, ends_by, training.patience is not None,
    )  # fmt: skip
