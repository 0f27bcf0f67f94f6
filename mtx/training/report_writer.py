"""Keeps report.html of a run up to date during training, at a negligible share of the time."""

import time

from mtx.config.schema import Config
from mtx.data.tokenizer import Tokenizer
from mtx.decoding.options import SearchOptions
from mtx.decoding.torch_engine import TorchEngine
from mtx.decoding.translator import Translator
from mtx.model.translation_model import TranslationModel
from mtx.report.report_page import report_page
from mtx.storage import durable
from mtx.storage.deferred_errors import DeferredErrors
from mtx.storage.run_files import RunLayout

_MAX_SHARE = 0.02  # of the training time is spent on reports at most


class ReportWriter:
    """Writes the report of one run again and again; no failure of it ends a training: it is a deferred error."""

    def __init__(self, paths: RunLayout, config: Config, tokenizer: Tokenizer, deferred_errors: DeferredErrors):
        self._paths = paths
        self._config = config
        self._tokenizer = tokenizer
        self._deferred_errors = deferred_errors
        self._next_at = 0.0  # the earliest time of the next update, on the monotonic clock

    def update(self, model: TranslationModel) -> None:
        """Write the report after a validation, unless this would take more than `_MAX_SHARE` of the time."""
        started = time.monotonic()
        if started < self._next_at:
            return
        options = SearchOptions(beam_size=1, split_sentences=False)
        engine, tokenizer = TorchEngine([model], self._tokenizer), self._tokenizer
        self.write(Translator(engine, tokenizer, self._config.data.model_dump(), options))
        ended = time.monotonic()
        self._next_at = ended + (ended - started) / _MAX_SHARE

    def write(self, translator: Translator) -> None:
        """Write the report with the attention maps of this translator's model."""
        try:
            durable.write_bytes(self._paths.report, report_page([self._paths.root], translator).encode())
        except Exception as error:  # a training must not end because of its report, whatever the error is
            self._deferred_errors.add(str(self._paths.report), error)
