from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mtx.config import settings
from mtx.config.schema import Config
from mtx.data.token_store import Side
from mtx.errors import DeferredErrors, MtxError
from mtx.report import training_hooks
from mtx.report.training_hooks import Hints, ReportWriter
from mtx.storage import disk
from mtx.storage.run_files import RunLayout
from mtx.training.checkpoint import State

_TEXT = Side.of([[number, 2] for number in range(3, 103)], "uint16")  # its unigram model has an nll of 3.00
_LINES = [f"line {number}" for number in range(50)]


class Recorder:
    """What a hook sees of a trainer; keeps the hints that are recorded."""

    def __init__(self, step: int = 0, is_best: bool = False, references: list[str] = _LINES):
        self.state, self.hints = State(step=step, best_step=step if is_best else -1), list[tuple[int, str]]()
        self.config = Config.model_validate({"model": {"d_model": 128}, "training": {"warmup_steps": 400}})
        self.text = SimpleNamespace(tgt=_TEXT)
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


def _validations(hints: Hints, nlls: list[float], is_best: bool = False) -> list[str]:
    hints_given = list[str]()
    for number, nll in enumerate(nlls):
        _train(hints, lambda step: 4 - step / 1000, range(number * 50 + 1, number * 50 + 51))
        hints_given += _validate(hints, nll, is_best)
    return hints_given


def test_validation_that_rises_while_training_falls_is_overfitting() -> None:
    (text,) = _validations(Hints(), [3.0, 2.5, 2.6, 2.7, 2.8, 2.9])
    assert "2.50 to 2.80" in text and "model.dropout" in text
    assert _validations(Hints(), [3.0, 2.5, 2.6, 2.4, 2.6, 2.7]) == []


def test_no_hint_while_bleu_gets_better_all_the_same() -> None:
    assert _validations(Hints(), [3.0, 2.5, 2.6, 2.7, 2.8, 2.9], is_best=True) == []


NOTHING: tuple[Any, Any] = (None, None)


class _Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(training_hooks, "time", clock)
    return clock


def _trainer(tmp_path: Path) -> Any:
    config = settings.resolve(None, [f"run_dir={tmp_path}"]).config
    return SimpleNamespace(paths=RunLayout(tmp_path), config=config, deferred_errors=DeferredErrors())


def test_it_takes_a_fiftieth_of_the_time_at_most(
    tmp_path: Path, clock: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[float] = []

    def report(*_: Any) -> str:
        drawn.append(clock.now)
        clock.now += 2
        return "page"

    monkeypatch.setattr(training_hooks, "report_page", report)
    file, trainer = ReportWriter(), _trainer(tmp_path)
    for now in (100, 110, 201, 203, 300):
        clock.now = now
        file.on_validation(trainer, *NOTHING)
    assert drawn == [100, 203] and (tmp_path / "report.html").read_text() == "page"


def test_a_failed_page_is_a_deferred_error_and_the_next_is_written(
    tmp_path: Path, clock: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> str:
        raise failure

    file, trainer = ReportWriter(), _trainer(tmp_path)
    failure: Exception = ZeroDivisionError("no page")
    with monkeypatch.context() as patch:
        patch.setattr(training_hooks, "report_page", fail)
        file.on_validation(trainer, *NOTHING)
    failure, clock.now = OSError(28, "the disk is full"), 1000.0
    monkeypatch.setattr(training_hooks, "report_page", lambda *_: "page")
    with monkeypatch.context() as patch:
        patch.setattr(disk, "write", fail)
        file.on_end(trainer)
    reasons = ["ZeroDivisionError: no page", "the disk is full"]
    assert trainer.deferred_errors.messages == [
        f"{tmp_path / 'report.html'} could not be written: {why}" for why in reasons
    ]
    file.on_end(trainer)
    assert (tmp_path / "report.html").read_text() == "page"
    with pytest.raises(MtxError, match="ZeroDivisionError: no page .and 1 more.") as error:
        trainer.deferred_errors.check()
    assert "mtx report" in (error.value.help or "")
