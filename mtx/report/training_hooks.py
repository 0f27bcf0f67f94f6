"""What the report adds to a training: hints about unusual figures, and a report.html that is kept up to date.

A hint is not an error: training continues. Each kind of hint is given once per start of a run. Flow: prepared data,
steps and validations -> `Hints` -> warnings and hint events; validations -> `ReportWriter` -> report.html.
"""

import logging
import math
import statistics
import time
from collections.abc import Mapping
from typing import Any

from mtx.config.schema import Config
from mtx.data.token_store import PreparedData
from mtx.decoding.translator import Translator
from mtx.errors import Advice
from mtx.model.translation_model import TranslationModel
from mtx.report import checks
from mtx.report.report_page import report_page
from mtx.storage import durable
from mtx.storage.run_files import RunLayout
from mtx.training.hooks import Hook
from mtx.training.trainer import Trainer
from mtx.training.validation import Validation

logger = logging.getLogger(__name__)

_WINDOW = 50  # steps whose nll is averaged to one value
_JUMP = 0.3  # nats per token by which a window's mean exceeds the lowest before it
_FLAT, _FLAT_STEPS = 0.01, 1000  # nats per token, and the number of steps in which the mean fell by no more
_RISE, _RISING = 0.02, 3  # nats per token above the lowest validation, and validations in a row
_HIGH = 4.0  # nats per token; no useful model has a higher training nll


class Hints(Hook):
    """Watches the text and the figures of one start of a run."""

    def __init__(self) -> None:
        self._given_kinds = set[str]()
        self._window = list[float]()
        self._means = list[tuple[int, float]]()  # step, and the mean of the window that ends there
        self._lowest_valid: tuple[float, float] = (math.inf, -math.inf)  # nll, and the training mean at that time
        self._num_rising = 0

    def on_prepared(self, config: Config, paths: RunLayout, data: PreparedData | None) -> None:
        found = checks.changed_text(paths.sources, config) if data is None else checks.warnings(data, config)
        for warning in found:
            logger.warning("%s\n  help: %s", warning.text, warning.help)

    def on_step(self, trainer: Trainer, figures: Mapping[str, Any]) -> None:
        step = figures["step"]
        self._window.append(figures["nll"])
        if len(self._window) < _WINDOW:
            return
        mean = statistics.fmean(self._window)
        self._window.clear()
        self._means.append((step, mean))
        lowest_step, lowest = min(self._means, key=lambda pair: pair[1])
        since = next(earlier for earlier, value in self._means if value < mean + _FLAT)
        if mean > lowest + _JUMP:
            text = (
                f"the training nll rose from {lowest:.2f} (step {lowest_step:,}) to {mean:.2f}: the learning rate, now "
                f"{figures['learning_rate']:.1e}, may be too high"
            )
            self._give(trainer, step, "jump", text, "try half the training.learning_rate, or more warmup_steps")
        elif step - since >= max(_FLAT_STEPS, step / 3):
            help = "it has learned what it can; more text or a larger model.preset would go further"
            if mean > _HIGH:
                help = "do the two sides belong together, line by line? Else try another training.learning_rate"
            self._give(trainer, step, "flat", f"the training nll is flat at {mean:.2f} since step {since:,}", help)

    def on_validation(self, trainer: Trainer, validation: Validation, model: TranslationModel) -> None:
        if not self._means:
            return
        step, nll = trainer.state.step, validation.nll
        (lowest, trained_then), (_, trained) = self._lowest_valid, self._means[-1]
        if nll < lowest:
            self._lowest_valid, self._num_rising = (nll, trained), 0
        elif trainer.state.best_step == step or nll < lowest + _RISE:
            self._num_rising = 0
        else:
            self._num_rising += 1
            if self._num_rising >= _RISING and trained < trained_then:
                text = f"the validation nll rises ({lowest:.2f} to {nll:.2f}) while that of training falls"
                help = "a larger model.dropout, a smaller model.preset or more text helps"
                self._give(trainer, step, "overfits", f"{text}, so the model learns its text by heart", help)

    def _give(self, trainer: Trainer, step: int, kind: str, text: str, help: str) -> None:
        if kind not in self._given_kinds:
            self._given_kinds.add(kind)
            trainer.record("hint", step=step, text=str(Advice(text, help)))


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
        self._write(trainer)
        ended = time.monotonic()
        self._next_at = ended + (ended - started) / _MAX_SHARE

    def on_end(self, trainer: Trainer, translator: Translator) -> None:
        self._write(trainer)

    def _write(self, trainer: Trainer) -> None:
        path = trainer.paths.report
        try:
            durable.write_bytes(path, report_page([trainer.paths.root]).encode())
        except Exception as error:  # a training must not end because of its report, whatever the error is
            trainer.deferred_errors.add(str(path), error)
