"""Keeps report.html of a run up to date during training, at a negligible share of the time."""

import logging
import time

from mtx.config.schema import Config
from mtx.data.tokenizer import Tokenizer
from mtx.decoding.options import SearchOptions
from mtx.decoding.torch_engine import TorchTranslator
from mtx.files import durable
from mtx.model.translation_model import TranslationModel
from mtx.report.report_page import report_page
from mtx.run.deferred_errors import DeferredErrors, drawing_error
from mtx.run.layout import RunLayout

logger = logging.getLogger(__name__)

_MAX_SHARE = 0.02  # of the training time is spent on reports at most


class ReportWriter:
    """Writes the report of one run again and again; no failure of it ends a training.

    A report that cannot be written is a deferred error, because the disk may fail again. A report that cannot be drawn
    is a deferred error only if it is the last one.
    """

    def __init__(self, paths: RunLayout, config: Config, tokenizer: Tokenizer, deferred_errors: DeferredErrors):
        self._paths, self._config, self._tokenizer = paths, config, tokenizer
        self._deferred_errors = deferred_errors
        self._next_at = 0.0  # the earliest time of the next update, on the monotonic clock

    def update(self, model: TranslationModel) -> None:
        """Write the report after a validation, unless this would take more than `_MAX_SHARE` of the time."""
        started = time.monotonic()
        if started < self._next_at:
            return
        options = SearchOptions(beam_size=1)
        error = self._write(TorchTranslator(model, self._tokenizer, self._config.data.max_tokens, options))
        if error is not None:
            logger.warning("%s; the next one is tried", drawing_error(self._paths.report, error))
        ended = time.monotonic()
        self._next_at = ended + (ended - started) / _MAX_SHARE

    def finish(self, translator: TorchTranslator) -> None:
        """Write the last report; if it cannot be drawn, the error is repeated at the end of the command."""
        if (error := self._write(translator)) is not None:
            self._deferred_errors.add_drawing_error(self._paths.report, error)

    def _write(self, translator: TorchTranslator) -> Exception | None:
        """Write the report with the attention maps of this translator's model; returns why it could not be drawn."""
        try:
            page = report_page([self._paths.root], translator).encode()
        except Exception as error:  # a training must not end because of its report, whatever the error is
            return error
        try:
            durable.write_bytes(self._paths.report, page)
        except OSError as error:
            self._deferred_errors.add(str(self._paths.report), error)
        return None
