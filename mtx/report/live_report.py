"""The hook that keeps report.html up to date during training. Flow: validations -> `ReportWriter` -> report.html."""

import time

from mtx.model.translation_model import TranslationModel
from mtx.report.report_page import report_page
from mtx.storage import durable
from mtx.training.events import Run, Validation
from mtx.training.hooks import Hook


class ReportWriter(Hook):
    """Rewrites the report of one run repeatedly; a failure does not end training but is a deferred error."""

    _next_at = 0.0  # the earliest time of the next update, on the monotonic clock

    def on_validation(self, run: Run, validation: Validation, model: TranslationModel) -> None:
        """Write the report, unless this would take more than 2% of the time of training."""
        if (started := time.monotonic()) >= self._next_at:
            self._write(run)
            ended = time.monotonic()
            self._next_at = ended + (ended - started) / 0.02  # the share of the time

    def on_end(self, run: Run) -> None:
        self._write(run)

    def _write(self, run: Run) -> None:
        path = run.paths.report
        try:
            durable.write_bytes(path, report_page([run.paths.root]).encode())
        except Exception as error:  # training must not end because of its report, whatever the error is
            run.deferred_errors.add(str(path), error)
