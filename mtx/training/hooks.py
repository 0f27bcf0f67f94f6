"""What happens around the training loop: the seam `Hook`, the `Run` that hooks read, and the hooks of every run.

A hook is called by rank 0 alone, in the order of the list in `mtx/commands/train.py`.
"""

import importlib.util
import json
import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from mtx.config.schema import Config
from mtx.errors import DeferredErrors, UsageError
from mtx.formatting import format_duration, install_command
from mtx.storage import disk, durable, text_files
from mtx.storage.run_directory import DECIDING_METRICS, quality
from mtx.storage.run_files import RunLayout
from mtx.storage.streams import LINE_EVERY_S, shows_progress

if TYPE_CHECKING:  # a command that only knows hooks of its folder needs no torch
    from mtx.data.token_store import PreparedData, TokenStore
    from mtx.model.translation_model import TranslationModel
    from mtx.training.checkpoint import State
    from mtx.training.micro_batch import RuntimeChoices
    from mtx.training.schedule import Schedule

Values = Mapping[str, Any]  # of an event, by name

logger = logging.getLogger(__name__)

_SAMPLE_CHARS = 120
# How much less or more time a validation may later take: it does more than search, and lengths settle at those of the
# references.
_LEAST_FACTOR, _MOST_FACTOR = 0.1, 2.0


@dataclass(kw_only=True)
class Run:
    """A run in training, which is its `Trainer`, or what is left of it afterwards: without a model.

    Attributes:
        text: what it learns from.
        state: the progress; replaced, never changed.
        began: on the monotonic clock, when its training would have begun without breaks.
        cleanup: closes what hooks have opened when the loop ends, however it ends.
    """

    config: Config
    runtime: "RuntimeChoices"
    data: "PreparedData"
    paths: RunLayout
    deferred_errors: DeferredErrors
    text: "TokenStore"
    state: "State"
    schedule: "Schedule"
    began: float
    hooks: Sequence["Hook"] = ()
    cleanup: ExitStack = field(default_factory=ExitStack)

    def elapsed_s(self) -> float:
        """Seconds of training so far, over all starts."""
        return time.monotonic() - self.began

    def record(self, name: str, **values: Any) -> None:
        """Record an event of the run, which metrics.jsonl will have."""
        for hook in self.hooks:
            hook.on_event(self, name, values)


@dataclass(frozen=True)
class Sample:
    """One sentence with its reference and the model's translation."""

    src: str
    ref: str
    hyp: str


@dataclass(frozen=True)
class Validation:
    """The result of one validation.

    Attributes:
        nll: unsmoothed, per target token, `</s>` included.
        chrf: None unless it decides.
        metric: what decides, see `validation.deciding_metric`.
        samples: the same few sentences each time.
        length_ratio: characters of the references for each character of the hypotheses.
        by_direction: the BLEU, or chrF2 where it decides, of each direction, such as en-de.
    """

    nll: float
    bleu: float
    chrf: float | None
    seconds: float
    hypotheses: list[str]
    samples: list[Sample]
    length_ratio: float = 1.0
    metric: str = "bleu"
    by_direction: dict[str, float] = field(default_factory=dict)

    @property
    def ppl(self) -> float:
        return math.exp(min(self.nll, 700.0))

    def figures(self) -> durable.Json:
        """The event of a validation for metrics.jsonl."""
        figures = {
            "nll": self.nll,
            "ppl": self.ppl,
            "seconds": round(self.seconds, 2),
            "samples": [vars(sample) for sample in self.samples],
            "decides": self.metric,
            "bleu": self.bleu,
        }
        if len(self.by_direction) > 1:
            figures["by_direction"] = self.by_direction
        return figures if self.chrf is None else {**figures, "chrf": self.chrf}

    @property
    def score(self) -> float:
        """The value that selects the best validation, larger for a better one."""
        return quality(vars(self), self.metric)

    def later_seconds(self, share: float) -> float:
        """The seconds that a validation at the end of training will take.

        At first, a model repeats words up to the maximum length, or writes little; later its translations are as long
        as the references. The less time is left, the less of that is expected.

        Args:
            share: the part of the time limit that has passed, at most 1.
        """
        settled = min(_MOST_FACTOR, max(_LEAST_FACTOR, self.length_ratio))
        return self.seconds * (share + (1 - share) * settled)


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
        last = run.schedule.known_end(run.state)
        self._bar = run.cleanup.enter_context(
            tqdm(total=last, initial=run.state.step, unit="step", disable=not shows_progress(), dynamic_ncols=True)
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
        each = ", ".join(f"{name} {value:.2f}" for name, value in figures.get("by_direction", {}).items())
        scores += f" ({each})" * bool(each)
        logger.info(
            f"{self._place(step)}: validation nll {validation.nll:.3f}, ppl {validation.ppl:.2f}{scores}"
            f"{' (best)' * (run.state.best_step == step)}, after {format_duration(run.elapsed_s())}"
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
