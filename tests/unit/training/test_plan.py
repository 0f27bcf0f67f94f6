"""The step at which training ends, by hand."""

import pytest

from mtx.config.schema import TrainingConfig
from mtx.training.plan import planned_end


@pytest.mark.parametrize(
    ("values", "step", "epochs", "expected"),
    [
        ({"max_steps": 100}, 0, 0.0, (100, "max_steps")),
        ({"max_epochs": 3}, 0, 0.0, (30, "max_epochs")),  # 10 steps each, as estimated
        ({"max_epochs": 3}, 12, 1.0, (36, "max_epochs")),  # 12 steps each, as measured
        ({"max_epochs": 3}, 37, 3.01, (37, "max_epochs")),
        ({"max_epochs": 3, "max_steps": 20}, 0, 0.0, (20, "max_steps")),
        ({"max_epochs": 3, "max_steps": 50}, 0, 0.0, (30, "max_epochs")),
    ],
)
def test_training_ends_at_whichever_comes_first(
    values: dict[str, int], step: int, epochs: float, expected: tuple[int, str]
) -> None:
    assert planned_end(TrainingConfig.model_validate(values), 10.0, step, epochs) == expected
