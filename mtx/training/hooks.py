"""What happens around the training loop: the seam `Hook`, and the hooks that every run has.

A hook is called by rank 0 alone, in the order of the list in `mtx/commands/train.py`.
"""

import importlib.util
import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from mtx.config.schema import Config
from mtx.errors import UsageError
from mtx.formatting import format_duration, install_command
from mtx.storage import disk, text_files
from mtx.storage.durable import require_file
from mtx.storage.run_files import RunLayout
from mtx.storage.run_status import DECIDING_METRICS

if TYPE_CHECKING:
    from mtx.data.token_store import PreparedData
    from mtx.decoding.translator import Translator
    from mtx.model.translation_model import TranslationModel
    from mtx.training.trainer import Trainer
    from mtx.training.validation import Validation

logger = logging.getLogger(__name__)

_SAMPLE_CHARS = 120
_LINE_EVERY_S = 30.0  # seconds between two log lines without a terminal


class Hook:
    """Something that happens around the training loop; a subclass overrides what it needs.

    A new hook is a class in a module of its own, which takes no arguments, and a line in the list of
    `mtx/commands/train.py`. A hook reads the `Trainer` and changes nothing of it: training must have the same bits
    with and without it. What it raises ends the run, so a hook that writes something of little importance gives its
    errors to `trainer.deferred_errors`. It holds nothing of a start; files that it opens in `on_start` it registers
    with `trainer.cleanup`, which closes them when the loop ends. `trainer.record` adds an event to metrics.jsonl.
    """

    def on_prepared(self, config: Config, paths: RunLayout, data: "PreparedData | None") -> None:
        """The data is there. `data` is what this start has prepared; None if an earlier one did."""

    def on_start(self, trainer: "Trainer") -> None:
        """Before the first step of a start; the state of the newest checkpoint is restored."""

    def on_event(self, trainer: "Trainer", name: str, values: Mapping[str, Any]) -> None:
        """At each event of metrics.jsonl: start, train, validation, checkpoint, cooldown, hint, end."""

    def on_step(self, trainer: "Trainer", figures: Mapping[str, Any]) -> None:
        """After each update, when its figures have arrived; on a GPU it may be some steps later.

        Args:
            figures: those of the event train, such as step, nll, learning_rate and left_s.
        """

    def on_validation(self, trainer: "Trainer", validation: "Validation", model: "TranslationModel") -> None:
        """After each validation, of `model`; `trainer.state.best_step` is the best one so far."""

    def on_checkpoint(self, trainer: "Trainer") -> None:
        """When the state is copied; a thread now writes the checkpoint of `trainer.state.step`."""

    def on_scores(self, trainer: "Trainer", scores: dict[str, Any], files: dict[str, str]) -> None:
        """When the test sets are translated and scored; the trainer has no model any more.

        Args:
            scores: the content of scores.json, by test set, and about the run under "run"; a hook may add to it.
            files: further text files of the model directory; a hook may add some.
        """

    def on_end(self, trainer: "Trainer", translator: "Translator") -> None:
        """When the run is finished and everything is written; `translator` has the final model."""


class EventLog(Hook):
    """Appends each event to metrics.jsonl, one JSON object a line. A failure to write does not end training."""

    def on_start(self, trainer: "Trainer") -> None:
        path = trainer.paths.metrics
        if os.path.lexists(path):
            require_file(path)  # no reader would follow a link that leads out of the run
        self._file = trainer.cleanup.enter_context(disk.append(path))
        if not text_files.ends_in_newline(path):  # a killed process left half a line
            self._write(trainer, "\n")

    def on_event(self, trainer: "Trainer", name: str, values: Mapping[str, Any]) -> None:
        self._write(trainer, json.dumps({"event": name, "time": round(time.time(), 3), **values}) + "\n")

    def _write(self, trainer: "Trainer", text: str) -> None:
        with trainer.deferred_errors.defer(f"{trainer.paths.metrics}: an event"):
            self._file.write(text.encode())


def require_tensorboard() -> None:
    """Raise UsageError if the package for `training.tensorboard` is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise UsageError(
            "training.tensorboard: the package tensorboard is not installed", install_command("tensorboard")
        )


class TensorBoard(Hook):
    """With `training.tensorboard`, shows the numbers of metrics.jsonl under the same names, such as `train/loss`."""

    _writer: Any = None

    def on_start(self, trainer: "Trainer") -> None:
        if not trainer.config.training.tensorboard:
            return
        from torch.utils.tensorboard import SummaryWriter

        errors, directory = trainer.deferred_errors, str(trainer.paths.tensorboard)
        with errors.defer(directory):  # purging hides later steps of earlier starts
            self._writer = SummaryWriter(directory, purge_step=trainer.state.step + 1, flush_secs=10)
            trainer.cleanup.enter_context(errors.defer(directory))
            trainer.cleanup.callback(self._writer.close)

    def on_event(self, trainer: "Trainer", name: str, values: Mapping[str, Any]) -> None:
        if self._writer is not None and "step" in values:
            with trainer.deferred_errors.defer(f"{trainer.paths.tensorboard}: an event"):
                for key, value in values.items():
                    if key != "step" and isinstance(value, int | float) and not isinstance(value, bool):
                        self._writer.add_scalar(f"{name}/{key}", value, values["step"])


class Console(Hook):
    """Shows the progress: a bar on a terminal, log lines elsewhere."""

    def on_start(self, trainer: "Trainer") -> None:
        last, _ = trainer.plan.end(trainer.state)
        is_hidden = not sys.stderr.isatty()
        bar = tqdm(total=last, initial=trainer.state.step, unit="step", disable=is_hidden, dynamic_ncols=True)
        self._bar = trainer.cleanup.enter_context(bar)
        self._line_at = time.monotonic() + _LINE_EVERY_S / 3

    def on_step(self, trainer: "Trainer", figures: Mapping[str, Any]) -> None:
        self._bar.total, _ = trainer.plan.end(trainer.state)
        self._bar.update(1)
        speed = f"{figures['tgt_tokens_per_s']:,.0f} target tokens/s"
        if "utilisation" in figures:
            speed += f", {figures['utilisation']:.0%} of the GPU's peak"
        left = format_duration(figures["left_s"])
        text = f"loss {figures['loss']:.3f}, lr {figures['learning_rate']:.2e}, {speed}, {left} left"
        if not self._bar.disable:
            self._bar.set_postfix_str(text, refresh=False)
        elif time.monotonic() >= self._line_at:
            logger.info("step %d of %d: %s", figures["step"], self._bar.total, text)
            self._line_at = time.monotonic() + _LINE_EVERY_S

    def on_validation(self, trainer: "Trainer", validation: "Validation", model: "TranslationModel") -> None:
        step, figures = trainer.state.step, validation.figures()
        scores = "".join(f", {DECIDING_METRICS[key]} {figures[key]:.2f}" for key in ("bleu", "chrf") if key in figures)
        best = " (best)" * (trainer.state.best_step == step)
        text = f"validation nll {validation.nll:.3f}, ppl {validation.ppl:.2f}{scores}{best}"
        elapsed = format_duration(trainer.stopping.elapsed_s())
        logger.info("step %d of %d: %s, after %s", step, trainer.plan.end(trainer.state)[0], text, elapsed)
        for sample in validation.samples[:1]:
            logger.info("  %s\n    -> %s", sample.src[:_SAMPLE_CHARS], sample.hyp[:_SAMPLE_CHARS])

    def on_event(self, trainer: "Trainer", name: str, values: Mapping[str, Any]) -> None:
        if name == "cooldown":
            text = "the learning rate falls to zero from step %d to step %d (%s)"
            logger.info(text, values["first"], values["last"], values["reason"])
        elif name == "end":
            logger.info("training ends at step %d (%s)", values["step"], values["reason"])
        elif name == "hint":
            logger.info("hint: %s", values["text"])
