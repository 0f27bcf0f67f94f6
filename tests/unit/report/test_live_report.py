from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mtx.config import settings
from mtx.errors import DeferredErrors, MtxError
from mtx.report import live_report
from mtx.report.live_report import ReportWriter
from mtx.storage import disk
from mtx.storage.run_files import RunLayout

NOTHING: tuple[Any, Any] = (None, None)


class _Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(live_report, "time", clock)
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

    monkeypatch.setattr(live_report, "report_page", report)
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
        patch.setattr(live_report, "report_page", fail)
        file.on_validation(trainer, *NOTHING)
    failure, clock.now = OSError(28, "the disk is full"), 1000.0
    monkeypatch.setattr(live_report, "report_page", lambda *_: "page")
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
