from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from mtx.config.schema import Config
from mtx.data.token_store import Side
from mtx.report.advice import Hints
from mtx.training.checkpoint import State

_TEXT = Side.of([[number, 2] for number in range(3, 103)], "uint16")  # its unigram model has an nll of 3.00
_LINES = [f"line {number}" for number in range(50)]


class Recorder:
    """What a hook sees of a trainer; keeps the hints that are recorded."""

    def __init__(self, step: int = 0, is_best: bool = False, references: list[str] = _LINES):
        self.state, self.hints = State(step=step, best_step=step if is_best else -1), list[tuple[int, str]]()
        self.config = Config.model_validate({"model": {"d_model": 128}, "training": {"warmup_steps": 400}})
        self.training_text = SimpleNamespace(tgt=_TEXT)
        self.schedule = SimpleNamespace(least_limit_s=lambda state, begun_s: None)
        self.data = SimpleNamespace(valid=SimpleNamespace(tgt_texts=lambda: references))

    def record(self, name: str, step: int, text: str) -> None:
        assert name == "hint"
        self.hints.append((step, text))


def _train(hints: Hints, nll: Callable[[int], float], steps: range) -> list[tuple[int, str]]:
    trainer: Any = Recorder()
    for step in steps:
        trainer.state = State(step=step)
        hints.on_step(trainer, {"step": step, "nll": nll(step), "learning_rate": 1e-3})
    return list(trainer.hints)


def _validate(
    hints: Hints, nll: float, is_best: bool = False, step: int = 100, lines: list[str] = _LINES, **about: Any
) -> list[str]:
    trainer: Any = Recorder(step, is_best, **about)
    validation: Any = SimpleNamespace(nll=nll, hypotheses=lines)
    model: Any = None
    hints.on_validation(trainer, validation, model)
    return [text for _, text in trainer.hints]


def test_a_loss_that_falls_gives_no_hint() -> None:
    assert _train(Hints(), lambda step: 9 - 6 * step / 5000, range(1, 5001)) == []


def test_a_loss_that_jumps_names_the_learning_rate() -> None:
    hints_given = _train(Hints(), lambda step: 5.0 if step <= 500 else 6.5, range(1, 1001))
    assert [step for step, _ in hints_given] == [550] and "rose from 5.00 (step 50) to 6.50" in hints_given[0][1]
    assert "set training.learning_rate=0.0022 or training.warmup_steps=800" in hints_given[0][1]


def test_translations_that_are_alike_after_the_warmup_are_a_collapse() -> None:
    alike = ["a line"] * 42 + _LINES[42:]
    (text,) = _validate(Hints(), 2.0, step=401, lines=alike)
    assert "18.0% of the validation translations are distinct" in text and "training.warmup_steps=800" in text
    assert _validate(Hints(), 2.0, step=400, lines=alike) == []
    assert _validate(Hints(), 2.0, step=401, lines=alike, references=["yes", "no"] * 25) == []
    assert _validate(Hints(), 2.0, step=401) == []


def test_a_loss_near_a_unigram_model_s_after_the_warmup_is_a_collapse() -> None:
    def hints_after(training: float, validation: float, step: int) -> list[str]:
        hints = Hints()
        _train(hints, lambda _: training, range(step - 50, step))
        return _validate(hints, validation, step=step)

    (text,) = hints_after(2.8, 2.75, 401)
    assert "the nll is 2.75 (unigram model: 3.00)" in text
    assert hints_after(2.8, 2.75, 400) == []
    assert hints_after(2.6, 2.6, 401) == []
    assert hints_after(1.0, 3.5, 401) == [], "it overfits"


def test_a_collapse_after_a_jump_is_no_second_hint() -> None:
    hints = Hints()
    assert len(_train(hints, lambda step: 2.0 if step <= 50 else 9.0, range(1, 101))) == 1
    assert _validate(hints, 9.0, step=500, lines=[""] * 50) == []


@pytest.mark.parametrize("place", ["start", "validation", "resumed"])
def test_a_time_limit_that_cannot_be_kept_is_told_once(place: str, caplog: pytest.LogCaptureFixture) -> None:
    trainer: Any = Recorder(step=100 if place == "resumed" else 0)
    trainer.config = Config.model_validate({"training": {"time_limit": "4m"}})
    trainer.elapsed_s = lambda: 300.0
    trainer.schedule.least_limit_s = lambda state, begun_s: 540.0 if place == "validation" or begun_s > 240 else None
    hints = Hints()
    hints.on_start(trainer)
    for _ in range(2):
        hints._check_limit(trainer, 0.0)
    told = [record.getMessage() for record in caplog.records if "too short" in record.getMessage()]
    assert len(told) == (place != "resumed")
    if told:
        assert "4 min is too short" in told[0] and "training.time_limit=9m or more" in told[0]
