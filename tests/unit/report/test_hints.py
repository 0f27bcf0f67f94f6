from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from mtx.report.hints import Hints
from mtx.training.checkpoint import State


class Recorder:
    """What a hook sees of a trainer; keeps the hints that are recorded."""

    def __init__(self, step: int = 0, is_best: bool = False):
        self.state, self.hints = State(step=step, best_step=step if is_best else -1), list[tuple[int, str]]()

    def record(self, name: str, step: int, text: str) -> None:
        assert name == "hint"
        self.hints.append((step, text))


def _train(hints: Hints, nll: Callable[[int], float], steps: range) -> list[tuple[int, str]]:
    trainer: Any = Recorder()
    for step in steps:
        hints.on_step(trainer, {"step": step, "nll": nll(step), "learning_rate": 1e-3})
    return list(trainer.hints)


def _validate(hints: Hints, nll: float, is_best: bool, hypotheses: list[str]) -> list[str]:
    trainer: Any = Recorder(100, is_best)
    validation: Any = SimpleNamespace(nll=nll, hypotheses=hypotheses)
    model: Any = None
    hints.on_validation(trainer, validation, model)
    return [text for _, text in trainer.hints]


def test_a_loss_that_falls_gives_no_hint() -> None:
    assert _train(Hints(), lambda step: 9 - 6 * step / 5000, range(1, 5001)) == []


def test_a_loss_that_stays_high_is_told_once_with_what_to_try() -> None:
    hints_given = _train(Hints(), lambda step: max(6.0, 9 - step / 100), range(1, 4001))
    (step, text), *more = hints_given
    assert more == [] and 1300 <= step <= 1400 and "flat at 6.00 since step 350" in text
    assert "belong together" in text and "training.learning_rate" in text


def test_a_loss_that_is_low_and_flat_has_converged() -> None:
    ((_, text),) = _train(Hints(), lambda step: max(0.5, 9 - step / 50), range(1, 3001))
    assert "learned what it can" in text


def test_late_in_a_long_run_slow_progress_is_not_flat() -> None:
    assert _train(Hints(), lambda step: 2.0 + 30 / step**0.5, range(1, 60_001)) == []


def test_a_loss_that_jumps_names_the_learning_rate() -> None:
    hints_given = _train(Hints(), lambda step: 5.0 if step <= 500 else 6.5, range(1, 1001))
    assert [step for step, _ in hints_given] == [550] and "rose from 5.00 (step 50) to 6.50" in hints_given[0][1]
    assert "half the training.learning_rate" in hints_given[0][1]


def _validations(hints: Hints, nlls: list[float], is_best: bool = False) -> list[str]:
    hints_given = list[str]()
    for number, nll in enumerate(nlls):
        _train(hints, lambda step: 4 - step / 1000, range(number * 50 + 1, number * 50 + 51))
        hints_given += _validate(hints, nll, is_best, [str(i) for i in range(100)])
    return hints_given


def test_validation_that_rises_while_training_falls_is_overfitting() -> None:
    (text,) = _validations(Hints(), [3.0, 2.5, 2.6, 2.7, 2.8, 2.9])
    assert "2.50 to 2.80" in text and "model.dropout" in text
    assert _validations(Hints(), [3.0, 2.5, 2.6, 2.4, 2.6, 2.7]) == []


def test_no_hint_while_bleu_gets_better_all_the_same() -> None:
    assert _validations(Hints(), [3.0, 2.5, 2.6, 2.7, 2.8, 2.9], is_best=True) == []


def test_translations_that_are_all_the_same_are_told() -> None:
    hints = Hints()
    _train(hints, lambda _: 6.0, range(1, 51))
    (hint,) = _validate(hints, 6.0, True, ["A man ."] * 95 + list("abcde"))
    assert "does not look at its source" in hint
    assert _validate(hints, 6.0, True, ["A man ."] * 100) == [], "once"
