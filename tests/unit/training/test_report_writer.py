from pathlib import Path
from typing import Any

import jinja2
import pytest

from mtx.config import settings
from mtx.errors import MtxError
from mtx.files import disk
from mtx.run.deferred_errors import DeferredErrors
from mtx.run.layout import RunLayout
from mtx.training import report_writer
from mtx.training.report_writer import ReportWriter


class _Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(report_writer, "time", clock)
    monkeypatch.setattr(report_writer, "TorchTranslator", lambda *_: None)
    return clock


def _file(tmp_path: Path, deferred_errors: DeferredErrors) -> ReportWriter:
    config = settings.resolve(None, [f"run_dir={tmp_path}"]).config
    return ReportWriter(RunLayout(tmp_path), config, None, deferred_errors)  # type: ignore[arg-type]


def test_it_takes_a_fiftieth_of_the_time_at_most(
    tmp_path: Path, clock: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[float] = []

    def report(*_: Any) -> str:
        drawn.append(clock.now)
        clock.now += 2
        return "page"

    monkeypatch.setattr(report_writer, "report_page", report)
    file = _file(tmp_path, DeferredErrors())
    for now in (100, 110, 201, 203, 300):
        clock.now = now
        file.update(None)  # type: ignore[arg-type]
    assert drawn == [100, 203] and (tmp_path / "report.html").read_text() == "page"


def test_a_failed_page_is_a_deferred_error_only_at_the_end(
    tmp_path: Path, clock: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure: Exception = ZeroDivisionError("no page")

    def fail(*_: Any) -> str:
        raise failure

    told: list[str] = []
    monkeypatch.setattr(report_writer, "report_page", fail)
    monkeypatch.setattr("logging.Logger.warning", lambda self, text, *args: told.append(text % args))
    deferred_errors = DeferredErrors()
    file = _file(tmp_path, deferred_errors)
    file.update(None)  # type: ignore[arg-type]
    assert "no page; the next one is tried" in told[0] and deferred_errors.messages == []
    file.finish(None)  # type: ignore[arg-type]
    assert deferred_errors.messages == [f"{tmp_path / 'report.html'} could not be drawn: ZeroDivisionError: no page"]
    failure, clock.now = OSError(28, "the disk is full"), 1000.0
    monkeypatch.setattr(report_writer, "report_page", lambda *_: "page")
    monkeypatch.setattr(disk, "write", fail)
    file.update(None)  # type: ignore[arg-type]
    assert deferred_errors.messages[1:] == [f"{tmp_path / 'report.html'} could not be written: the disk is full"]


@pytest.mark.parametrize("fails, words", [
    ("drawing", ["report.html could not be drawn: TemplateNotFound: base.css", "mtx report"]),
    ("writing", ["report.html could not be written: the disk is full", "a disk that fails may fail again"]),
])  # fmt: skip
def test_a_page_that_cannot_be_drawn_is_no_failed_disk(
    tmp_path: Path, clock: _Clock, monkeypatch: pytest.MonkeyPatch, fails: str, words: list[str]
) -> None:
    """The template library's error is an OSError, too."""

    def report(*_: Any) -> str:
        if fails == "drawing":
            raise jinja2.TemplateNotFound("base.css")
        return "page"

    def write(*_: Any) -> int:
        raise OSError(28, "the disk is full")

    monkeypatch.setattr(report_writer, "report_page", report)
    monkeypatch.setattr(disk, "write", write)
    deferred_errors = DeferredErrors()
    _file(tmp_path, deferred_errors).finish(None)  # type: ignore[arg-type]
    with pytest.raises(MtxError) as error:
        deferred_errors.check()
    assert words[0] in str(error.value) and words[1] in (error.value.help or "")
