"""The time of a run, by hand, and what a run needs."""

from typing import Any

import pytest

from mtx.config.schema import TrainingConfig
from mtx.dry_run.estimate import Estimate, Measured, estimate
from mtx.dry_run.memory import Memory
from mtx.dry_run.pace import StepPace

PACE = StepPace(start_s=3.0, step_s=0.5, tgt_tokens=1000.0, pairs=50.0, num_timed=10)
MEASURED = Measured(prepare_s=7.0, pace=PACE, save_s=2.0, validation_s=4.0, scoring_s=20.0, reserve_s=40.0)


def found(done: int = 0, elapsed_s: float = 0.0, **training: Any) -> Estimate:
    return estimate(TrainingConfig.model_validate({"checkpoint_every": 64, **training}), done, elapsed_s, MEASURED)


def test_all_parts_are_added() -> None:
    result = found(max_steps=100, validate_every=30)
    assert (result.steps, result.validations, result.ends_by) == (100, 4, "max_steps")  # at 30, 60, 90 and the end
    assert result.saves == 2  # at 64 and the end
    assert result.total_s == 7 + 3 + 100 * 0.5 + 2 * 2 + 4 * 4 + 20
    assert result.tgt_tokens_per_s == 2000


def test_a_run_goes_on_from_where_it_stands() -> None:
    result = found(done=60, max_steps=100, validate_every=30)
    assert (result.steps, result.validations) == (40, 2)
    assert found(done=100, max_steps=100, validate_every=30).validations == 0


def test_a_model_to_start_from_is_validated_first() -> None:
    assert found(max_steps=100, validate_every=100, init_from="model").validations == 2
    assert found(done=10, max_steps=100, validate_every=100, init_from="model").validations == 1


@pytest.mark.parametrize(
    "elapsed_s, limit, steps, ends_by",
    [
        (0.0, "1000s", 100, "max_steps"),
        (0.0, "100s", 76, "time_limit"),  # (100 - 40 - 7 - 3) / (0.5 + 2 / 64 + 4 / 32)
        (25.0, "100s", 38, "time_limit"),
        (0.0, "20s", 1, "time_limit"),
    ],
)
def test_a_time_limit_ends_a_run(elapsed_s: float, limit: str, steps: int, ends_by: str) -> None:
    result = found(elapsed_s=elapsed_s, max_steps=100, validate_every=32, time_limit=limit)
    assert (result.steps, result.ends_by) == (steps, ends_by)


@pytest.mark.parametrize("key", ["patience", "time_limit"])
def test_nothing_is_left_of_a_run_that_has_ended(key: str) -> None:
    training = TrainingConfig.model_validate({"max_steps": 1000, "patience": 3, "time_limit": "100s"})
    result = estimate(training, 200, 90.0, MEASURED, key)
    assert (result.steps, result.validations, result.ends_by) == (0, 0, key)


def test_memory_is_the_sum_of_its_parts() -> None:
    assert Memory(1, 10, 100, 1_000, 10_000, 100_000, None).needed == 111_111
    assert Memory(1, 10, 100, 1_000, 10_000, None, None).needed == 11_111
