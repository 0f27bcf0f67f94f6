"""Keeps report.html of a run up to date during training, at a negligible share of the time."""

import time

from mtx.decoding.options import SearchOptions
from mtx.decoding.torch_engine import TorchEngine
from mtx.decoding.translator import Translator
from mtx.model.translation_model import TranslationModel
from mtx.report.report_page import report_page
from mtx.storage import durable
from mtx.training.hooks import Hook
from mtx.training.trainer import Trainer
from mtx.training.validation import Validation

_MAX_SHARE = 0.02  # of the training time is spent on reports at most


class ReportWriter(Hook):
    """Writes the report of one run again and again; no failure of it ends a training: it is a deferred error."""

    def __init__(self) -> None:
        self._next_at = 0.0  # the earliest time of the next update, on the monotonic clock

    def on_validation(self, trainer: Trainer, validation: Validation, model: TranslationModel) -> None:
        """Write the report, unless this would take more than `_MAX_SHARE` of the time."""
        started = time.monotonic()
        if started < self._next_at:
            return
        options = SearchOptions(beam_size=1, split_sentences=False)
        tokenizer = trainer.data.tokenizer
        engine = TorchEngine([model], tokenizer)
        self.on_end(trainer, Translator(engine, tokenizer, trainer.config.data.model_dump(), options))
        ended = time.monotonic()
        self._next_at = ended + (ended - started) / _MAX_SHARE

    def on_end(self, trainer: Trainer, translator: Translator) -> None:
        """Write the report with the attention maps of this translator's model."""
        path = trainer.paths.report
        try:
            durable.write_bytes(path, report_page([trainer.paths.root], translator).encode())
        except Exception as error:  # a training must not end because of its report, whatever the error is
            trainer.deferred_errors.add(str(path), error)
