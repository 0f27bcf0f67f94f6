"""What happens around the training loop: the seam `Hook`, and the hooks of every run.

A hook is called by rank 0 alone, in the order of the list in `mtx/commands/train.py`. What it reads is in
`mtx/training/events.py`.
"""

import importlib.util
import json
import logging
import os
import time
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from mtx.config.schema import Config
from mtx.errors import UsageError
from mtx.formatting import format_duration, install_command
from mtx.runs.run_directory import DECIDING_METRICS
from mtx.storage import disk, durable, text_files
from mtx.storage.run_files import RunLayout
from mtx.storage.streams import LINE_EVERY_S, shows_progress
from mtx.training.events import Run, Validation, Values

if TYPE_CHECKING:  # a command that only knows hooks of its folder needs no torch
    from mtx.data.token_store import PreparedData
    from mtx.model.translation_model import TranslationModel

logger = logging.getLogger(__name__)

_SAMPLE_CHARS = 120


class Hook:
    """Something that happens around the training loop; a subclass overrides what it needs.

    A new hook is a class in its own module, without arguments, and a line `("module", "Class")` in the
    list of `mtx/commands/train.py`; it needs no import, and hooks are called in the order of the list. A hook reads
    the `Run` and changes nothing of it: training must have the same bits with and without it. One object serves a
    whole command, so what it keeps from step to step begins in `on_start`.

    Files: the run directory is `run.paths` (`RunLayout` in `mtx/storage/run_files.py`, which names every file of a
    run), and `mtx.storage.disk` and `durable` write there. What `on_start` opens is registered by
    `run.cleanup.enter_context`, which closes it when the loop ends. What a hook raises ends the run; an OSError
    inside of `with run.deferred_errors.defer("what was tried"):` does not. `run.record` adds an event to metrics.jsonl.
    """

    def on_prepared(self, config: Config, paths: RunLayout, data: "PreparedData | None") -> None:
        """When the data is prepared. `data` is prepared by this start; None if by an earlier one."""

    def on_start(self, run: Run) -> None:
        """Before the first step of a start; the state of the newest checkpoint is restored."""

    def on_event(self, run: Run, name: str, values: Values) -> None:
        """At each event of metrics.jsonl: start, train, validation, checkpoint, cooldown, hint, end."""

    def on_step(self, run: Run, figures: Values) -> None:
        """After each update, when its figures have arrived; on a GPU it may be some steps later.

        Args:
            figures: those of the event train, such as step, nll, learning_rate and left_s.
        """

    def on_validation(self, run: Run, validation: Validation, model: "TranslationModel") -> None:
        """After each validation, of `model`; `run.state.best_step` is the best one so far."""

    def on_model(self, run: Run) -> None:
        """When the final model is written, before it translates the test sets."""

    def on_scores(self, run: Run, scores: durable.Json, files: dict[str, str]) -> None:
        """When the test sets are translated and scored.

        Args:
            scores: the content of scores.json, by test set, and about the run under "run"; a hook may add to it.
            files: further text files of the model directory; a hook may add some.
        """

    def on_end(self, run: Run) -> None:
        """When the run is finished and everything is written."""


class EventLog(Hook):
    """Appends each event to metrics.jsonl, one JSON object a line. A failure to write does not end training."""

    def on_start(self, run: Run) -> None:
        path = run.paths.metrics
        if os.path.lexists(path):
            durable.require_file(path)  # no reader would follow a link that leads out of the run
        self._file = run.cleanup.enter_context(disk.append(path))
        self._line_end = "" if text_files.ends_in_newline(path) else "\n"  # a killed process left half a line

    def on_event(self, run: Run, name: str, values: Values) -> None:
        line = json.dumps({"event": name, "time": round(time.time(), 3), **values})
        with run.deferred_errors.defer(f"{run.paths.metrics}: an event"):
            self._file.write(f"{self._line_end}{line}\n".encode())
            self._line_end = ""


class Console(Hook):
    """Shows the progress: a bar on a terminal, log lines elsewhere."""

    def on_start(self, run: Run) -> None:
        last_step = run.schedule.known_end(run.state)
        self._bar = run.cleanup.enter_context(
            tqdm(total=last_step, initial=run.state.step, unit="step", disable=not shows_progress(), dynamic_ncols=True)
        )
        self._line_at = time.monotonic() + LINE_EVERY_S / 3

    def on_step(self, run: Run, figures: Values) -> None:
        self._bar.total = figures["max_steps"]
        text = (
            f"loss {figures['loss']:.3f}, lr {figures['learning_rate']:.2e}, "
            f"{figures['tgt_tokens_per_s']:,.0f} target tokens/s, {format_duration(figures['left_s'])} left"
        )
        if not self._bar.disable:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(1)
        elif time.monotonic() >= self._line_at:
            logger.info(f"{self._place(figures['step'])}: {text}")
            self._line_at = time.monotonic() + LINE_EVERY_S

    def on_validation(self, run: Run, validation: Validation, model: "TranslationModel") -> None:
        step = run.state.step
        figures = validation.figures()
        scores = "".join(f", {DECIDING_METRICS[key]} {figures[key]:.2f}" for key in ("bleu", "chrf") if key in figures)
        by_direction = ", ".join(f"{name} {value:.2f}" for name, value in figures.get("by_direction", {}).items())
        if by_direction:
            scores += f" ({by_direction})"
        if run.state.best_step == step:
            scores += " (best)"
        logger.info(
            f"{self._place(step)}: validation nll {validation.nll:.3f}, ppl {validation.ppl:.2f}{scores}, "
            f"after {format_duration(run.elapsed_s())}"
        )
        for sample in validation.samples[:1]:
            logger.info(f"  {sample.src[:_SAMPLE_CHARS]}\n    -> {sample.hyp[:_SAMPLE_CHARS]}")

    def _place(self, step: int) -> str:
        return f"step {step} of {self._bar.total}" if self._bar.total else f"step {step}"


def require_tensorboard(config: Config) -> None:
    """Raise UsageError if `training.tensorboard` is set and its package is not installed."""
    if config.training.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise UsageError(
            "training.tensorboard: the package tensorboard is not installed", install_command("tensorboard")
        )


class TensorBoard(Hook):
    """With `training.tensorboard`, shows the numbers of metrics.jsonl under the same names, such as `train/loss`."""

    _writer: Any = None

    def on_start(self, run: Run) -> None:
        if not run.config.training.tensorboard:
            return
        from torch.utils.tensorboard import SummaryWriter

        errors = run.deferred_errors
        directory = str(run.paths.tensorboard)
        with errors.defer(directory):  # purging hides later steps of earlier starts
            self._writer = SummaryWriter(directory, purge_step=run.state.step + 1, flush_secs=10)
            run.cleanup.enter_context(errors.defer(directory))
            run.cleanup.callback(self._writer.close)

    def on_event(self, run: Run, name: str, values: Values) -> None:
        if self._writer and "step" in values:
            with run.deferred_errors.defer(f"{run.paths.tensorboard}: an event"):
                for key, value in values.items():
                    if key != "step" and isinstance(value, int | float):
                        self._writer.add_scalar(f"{name}/{key}", value, values["step"])
