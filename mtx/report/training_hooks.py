"""The report during training: hints about unusual figures, and an up-to-date report.html.

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
from mtx.errors import Advice
from mtx.model.translation_model import TranslationModel
from mtx.report import checks, collapse
from mtx.report.report_page import report_page
from mtx.storage import durable
from mtx.storage.run_files import RunLayout
from mtx.training.hooks import Hook, Run, Validation

logger = logging.getLogger(__name__)

_WINDOW = 50  # steps whose nll is averaged to one value
_JUMP = 0.3  # nats per token by which a window's mean exceeds the lowest before it
_NEAR_UNIGRAM = 0.9  # share of a unigram model's nll that only a collapsed model has after the warmup
_RISE, _RISING = 0.02, 3  # nats per token above the lowest validation, and validations in a row


class Hints(Hook):
    """Watches the text and the figures of one start of a run."""

    def __init__(self) -> None:
        self._given = set[str]()  # the help of the hints given: one cause has one help
        self._window = list[float]()
        self._mean = math.inf  # of the last window
        self._lowest, self._lowest_step = math.inf, 0  # the lowest mean, and the last step of its window
        self._lowest_valid, self._mean_then = math.inf, math.inf  # nll, and the training mean at that time
        self._num_rising = 0

    def on_prepared(self, config: Config, paths: RunLayout, data: PreparedData | None) -> None:
        found = checks.changed_text(paths.sources, config) if data is None else checks.warnings(data, config)
        for warning in found:
            logger.warning("%s\n  help: %s", warning.text, warning.help)

    def on_step(self, run: Run, figures: Mapping[str, Any]) -> None:
        self._window.append(figures["nll"])
        if len(self._window) < _WINDOW:
            return
        self._mean = statistics.fmean(self._window)
        self._window.clear()
        if self._mean < self._lowest:
            self._lowest, self._lowest_step = self._mean, figures["step"]
        elif self._mean > self._lowest + _JUMP:
            rose = f"from {self._lowest:.2f} (step {self._lowest_step:,}) to {self._mean:.2f}"
            self._give(run, f"the training nll rose {rose}: the learning rate may be too high")

    def on_validation(self, run: Run, validation: Validation, model: TranslationModel) -> None:
        step, nll, lowest = run.state.step, validation.nll, self._lowest_valid
        if step > collapse.ramp_steps(run.config):
            unigram = collapse.unigram_nll(run.text.tgt)
            is_alike = collapse.are_alike(validation.hypotheses, run.data.valid.tgt_texts())
            if is_alike or min(nll, self._mean) > _NEAR_UNIGRAM * unigram:
                self._give(
                    run,
                    f"training collapsed: {len({*validation.hypotheses}) / len(validation.hypotheses):.1%} of the "
                    f"validation translations are distinct, and the nll is {nll:.2f} (unigram model: {unigram:.2f})",
                )
        if nll < lowest:
            self._lowest_valid, self._mean_then, self._num_rising = nll, self._mean, 0
        elif run.state.best_step == step or nll < lowest + _RISE:
            self._num_rising = 0
        else:
            self._num_rising += 1
            if self._num_rising >= _RISING and self._mean < self._mean_then:
                self._give(
                    run,
                    f"the validation nll rises ({lowest:.2f} to {nll:.2f}) while the training nll falls: the model "
                    "overfits",
                    "use a larger model.dropout, a smaller model.preset or more text",
                )

    def _give(self, run: Run, text: str, help: str = "") -> None:
        help = help or collapse.remedy(run.config)
        if help not in self._given:
            self._given.add(help)
            advice = Advice(text, help)
            logger.info("hint: %s", advice)
            run.record("hint", step=run.state.step, text=str(advice))


_MAX_SHARE = 0.02  # maximum share of the training time for reports


class ReportWriter(Hook):
    """Rewrites the report of one run repeatedly; a failure does not end training but is a deferred error."""

    def __init__(self) -> None:
        self._next_at = 0.0  # the earliest time of the next update, on the monotonic clock

    def on_validation(self, run: Run, validation: Validation, model: TranslationModel) -> None:
        """Write the report, unless this would take more than `_MAX_SHARE` of the time."""
        started = time.monotonic()
        if started < self._next_at:
            return
        self._write(run)
        ended = time.monotonic()
        self._next_at = ended + (ended - started) / _MAX_SHARE

    def on_end(self, run: Run) -> None:
        self._write(run)

    def _write(self, run: Run) -> None:
        path = run.paths.report
        try:
            durable.write_bytes(path, report_page([run.paths.root]).encode())
        except Exception as error:  # training must not end because of its report, whatever the error is
            run.deferred_errors.add(str(path), error)
