"""Keeps report.html of a run up to date while it is trained, at a price that training does not feel."""

import logging
import time

from mtx.config.schema import Config
from mtx.data.tokenizer import Tokenizer
from mtx.decoding.options import SearchOptions
from mtx.decoding.translator import Translator
from mtx.files import durable
from mtx.model.transformer import Transformer
from mtx.report.report_page import report_page
from mtx.run.deferred_errors import DeferredErrors, drawing_error
from mtx.run.layout import RunLayout

logger = logging.getLogger(__name__)

_SHARE = 0.02  # of the time, at most, goes into reports while training goes on


class ReportWriter:
    """Writes the report of one run again and again; what goes wrong is told, and never ends a training.

    A report that cannot be written is told again at the end, as the disk may fail again; one that cannot be drawn, only
    where it is the last.
    """

    def __init__(self, paths: RunLayout, config: Config, tokenizer: Tokenizer, deferred_errors: DeferredErrors):
        self._paths, self._config, self._tokenizer, self._deferred_errors = paths, config, tokenizer, deferred_errors
        self._next_at = 0.0

    def renew(self, model: Transformer) -> None:
        """After a validation: write it, unless the last one was so short ago that it would cost more than its share."""
        started = time.monotonic()
        if started < self._next_at:
            return
        options = SearchOptions(beam_size=1)
        error = self._write(Translator(model, self._tokenizer, self._config.data.max_tokens, options))
        if error is not None:
            logger.warning("%s; the next one is tried", drawing_error(self._paths.report, error))
        ended = time.monotonic()
        self._next_at = ended + (ended - started) / _SHARE

    def finish(self, translator: Translator) -> None:
        """Write it when all is done; that it is not there is told at the end once more."""
        if (error := self._write(translator)) is not None:
            self._deferred_errors.add_drawing_error(self._paths.report, error)

    def _write(self, translator: Translator) -> Exception | None:
        """Write it with the attention of this translator's model; returns why it could not be drawn."""
        try:
            page = report_page([self._paths.root], translator).encode()
        except Exception as error:  # no page is worth a training, whatever is wrong with it
            return error
        try:
            durable.write_bytes(self._paths.report, page)
        except OSError as error:
            self._deferred_errors.add(str(self._paths.report), error)
        return None
