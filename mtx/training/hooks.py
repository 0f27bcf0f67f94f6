"""What happens around the training loop: the progress of its updates, the seam `Hook`, and the hooks of every run.

The figures of an update are read when they have arrived from the device; then hooks get them. A hook is called by
rank 0 alone, in the order of the list in `mtx/commands/train.py`.
"""

import contextlib
import importlib.util
import json
import logging
import math
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from mtx.config.schema import Config
from mtx.errors import MtxError, UsageError
from mtx.formatting import format_duration, install_command
from mtx.storage import disk, durable, text_files
from mtx.storage.run_directory import DECIDING_METRICS
from mtx.storage.run_files import RunLayout, checkpoint_steps
from mtx.storage.streams import shows_progress

if TYPE_CHECKING:
    from mtx.data.sampler import BatchSampler, SamplerState
    from mtx.data.token_store import PreparedData, TokenStore
    from mtx.decoding.translator import Translator
    from mtx.model.cuda_graphs import HostCopy
    from mtx.model.translation_model import TranslationModel
    from mtx.training.trainer import Trainer
    from mtx.training.validation import Validation

Values = Mapping[str, Any]  # of an event, by name

logger = logging.getLogger(__name__)

_SAMPLE_CHARS = 120
_LINE_EVERY_S = 30.0  # seconds between two log lines without a terminal
_MAX_UNREAD = 8  # steps that CUDA may lag behind the host
_RATE_STEPS = 10  # steps that a speed is averaged over: a GPU's figures come several steps at a time


@dataclass(frozen=True)
class Update:
    """An update whose figures (see `Trainer.update`) the host has not read yet.

    Attributes:
        position: where its data begins.
        epochs: how many are done after it.
    """

    step: int
    position: "SamplerState"
    learning_rate: float
    num_tgt_tokens: int
    figures: "HostCopy"
    epochs: float


class Progress:
    """The progress of one start of a run.

    Args:
        done: steps of earlier starts.

    Attributes:
        unread: updates that the device may still be working on.
    """

    def __init__(self, done: int):
        self._done = done
        self._started = math.inf
        self._tokens = 0  # target tokens of this start
        self._window: deque[tuple[float, int]] = deque(maxlen=_RATE_STEPS + 1)  # time, and `_tokens` at that time
        self.unread: deque[Update] = deque()

    def restart(self) -> None:
        """Start a new window of the speed, which excludes the time of validating and saving."""
        now = time.monotonic()
        self._started = min(self._started, now)
        self._window.clear()
        self._window.append((now, self._tokens))

    def pop_arrived(self, wait: bool) -> Iterator[tuple[Update, list[float]]]:
        """The updates whose figures have arrived, in order; waits while more than `_MAX_UNREAD` have not, or for all.

        Args:
            wait: for all.
        """
        most = 0 if wait else _MAX_UNREAD
        while self.unread and (len(self.unread) > most or self.unread[0].figures.is_ready()):
            update = self.unread.popleft()
            yield update, update.figures.tensor().tolist()

    def measure(self, update: Update, numbers: list[float], last: int, ends_at: float) -> dict[str, Any]:
        """The event of an update for metrics.jsonl, with the speed and the remaining time.

        Args:
            numbers: see `Trainer.update`.
            last: the step at which training will end.
            ends_at: when a time limit ends it, on the monotonic clock.
        """
        loss, nll, norm = numbers
        self._tokens += update.num_tgt_tokens
        now = time.monotonic()
        since, tokens = self._window[0]
        self._window.append((now, self._tokens))
        rate = (self._tokens - tokens) / (now - since)
        step_s = (now - self._started) / (update.step - self._done)  # validations included
        left = max(0.0, min(step_s * (last - update.step), ends_at - now))
        return {
            "step": update.step,
            "loss": round(loss, 5),
            "nll": round(nll / update.num_tgt_tokens, 5),
            "learning_rate": update.learning_rate,
            "grad_norm": round(norm, 5),
            "tgt_tokens_per_s": round(rate, 1),
            "left_s": round(left, 1),
            "epochs": round(update.epochs, 6),
        }


def check_finite(
    update: Update, figures: list[float], sampler: "BatchSampler", text: "TokenStore", paths: RunLayout
) -> None:
    """Raise MtxError if the loss or the gradient norm of an update is not finite; refused.tsv then has its pairs."""
    if all(map(math.isfinite, figures)):
        return
    loss, _, norm = figures
    place = update.position
    pairs = sampler.step(place).pairs
    lines = text.lines()[pairs]
    rows = zip(lines, *text.texts(pairs), strict=True)
    with contextlib.suppress(OSError):  # the error itself matters more
        durable.write_text(paths.refused, "".join(f"{line}\t{src}\t{tgt}\n" for line, src, tgt in rows))
    first = ", ".join(map(str, lines[:10]))
    raise MtxError(
        f"step {update.step}: loss {loss}, gradient norm {norm}; nothing was updated. The step has {len(pairs)} "
        f"pairs from position {place.index} of epoch {place.epoch}, "
        f"lines {first}, … of the training text, see {paths.refused}",
        f"{'the last checkpoint is intact; ' * bool(checkpoint_steps(paths))}use a lower training.learning_rate or "
        "clip_norm=1.0 in a new run_dir",
    )


class Hook:
    """Something that happens around the training loop; a subclass overrides what it needs.

    A new hook is a class in its own module, without arguments, and a line `("module", "Class")` in the
    list of `mtx/commands/train.py`; it needs no import, and hooks are called in the order of the list. A hook reads
    the `Trainer` and changes nothing of it: training must have the same bits with and without it. One object serves a
    whole command, so what it keeps from step to step begins in `on_start`.

    Files: the run directory is `trainer.paths` (`RunLayout` in `mtx/storage/run_files.py`, which names every file of a
    run), and `mtx.storage.disk` and `durable` write there. What `on_start` opens is registered by
    `trainer.cleanup.enter_context`, which closes it when the loop ends. What a hook raises ends the run; an OSError
    inside of `with trainer.deferred_errors.defer("what was tried"):` does not. `trainer.record` adds an event to
    metrics.jsonl.
    """

    def on_prepared(self, config: Config, paths: RunLayout, data: "PreparedData | None") -> None:
        """When the data is prepared. `data` is prepared by this start; None if by an earlier one."""

    def on_start(self, trainer: "Trainer") -> None:
        """Before the first step of a start; the state of the newest checkpoint is restored."""

    def on_event(self, trainer: "Trainer", name: str, values: Values) -> None:
        """At each event of metrics.jsonl: start, train, validation, checkpoint, cooldown, hint, end."""

    def on_step(self, trainer: "Trainer", figures: Values) -> None:
        """After each update, when its figures have arrived; on a GPU it may be some steps later.

        Args:
            figures: those of the event train, such as step, nll, learning_rate and left_s.
        """

    def on_validation(self, trainer: "Trainer", validation: "Validation", model: "TranslationModel") -> None:
        """After each validation, of `model`; `trainer.state.best_step` is the best one so far."""

    def on_checkpoint(self, trainer: "Trainer") -> None:
        """When the state is copied; a thread now writes the checkpoint of `trainer.state.step`."""

    def on_scores(self, trainer: "Trainer", scores: dict[str, Any], files: dict[str, str]) -> None:
        """When the test sets are translated and scored; the trainer no longer has a model.

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
            durable.require_file(path)  # no reader would follow a link that leads out of the run
        self._file = trainer.cleanup.enter_context(disk.append(path))
        self._line_end = "" if text_files.ends_in_newline(path) else "\n"  # a killed process left half a line

    def on_event(self, trainer: "Trainer", name: str, values: Values) -> None:
        line = json.dumps({"event": name, "time": round(time.time(), 3), **values})
        with trainer.deferred_errors.defer(f"{trainer.paths.metrics}: an event"):
            self._file.write(f"{self._line_end}{line}\n".encode())
            self._line_end = ""


def require_tensorboard(config: Config) -> None:
    """Raise UsageError if `training.tensorboard` is set and its package is not installed."""
    if config.training.tensorboard and importlib.util.find_spec("tensorboard") is None:
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

    def on_event(self, trainer: "Trainer", name: str, values: Values) -> None:
        if self._writer is not None and "step" in values:
            with trainer.deferred_errors.defer(f"{trainer.paths.tensorboard}: an event"):
                for key, value in values.items():
                    if key != "step" and isinstance(value, int | float):
                        self._writer.add_scalar(f"{name}/{key}", value, values["step"])


class Console(Hook):
    """Shows the progress: a bar on a terminal, log lines elsewhere."""

    def on_start(self, trainer: "Trainer") -> None:
        last = trainer.schedule.known_end(trainer.state)
        is_hidden = not shows_progress()
        bar = tqdm(total=last, initial=trainer.state.step, unit="step", disable=is_hidden, dynamic_ncols=True)
        self._bar = trainer.cleanup.enter_context(bar)
        self._line_at = time.monotonic() + _LINE_EVERY_S / 3

    def on_step(self, trainer: "Trainer", figures: Values) -> None:
        self._bar.total = figures["max_steps"]
        speed = f"{figures['tgt_tokens_per_s']:,.0f} target tokens/s"
        left = format_duration(figures["left_s"])
        text = f"loss {figures['loss']:.3f}, lr {figures['learning_rate']:.2e}, {speed}, {left} left"
        if not self._bar.disable:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(1)
        elif time.monotonic() >= self._line_at:
            logger.info("%s: %s", self._place(figures["step"]), text)
            self._line_at = time.monotonic() + _LINE_EVERY_S

    def on_validation(self, trainer: "Trainer", validation: "Validation", model: "TranslationModel") -> None:
        step, figures = trainer.state.step, validation.figures()
        scores = "".join(f", {DECIDING_METRICS[key]} {figures[key]:.2f}" for key in ("bleu", "chrf") if key in figures)
        best = " (best)" * (trainer.state.best_step == step)
        text = f"validation nll {validation.nll:.3f}, ppl {validation.ppl:.2f}{scores}{best}"
        elapsed = format_duration(trainer.schedule.elapsed_s())
        logger.info("%s: %s, after %s", self._place(step), text, elapsed)
        for sample in validation.samples[:1]:
            logger.info("  %s\n    -> %s", sample.src[:_SAMPLE_CHARS], sample.hyp[:_SAMPLE_CHARS])

    def _place(self, step: int) -> str:
        return f"step {step} of {self._bar.total}" if self._bar.total else f"step {step}"

    def on_event(self, trainer: "Trainer", name: str, values: Values) -> None:
        if name == "cooldown":
            text = "the learning rate falls to zero from step %d to step %d (%s)"
            logger.info(text, values["first"], values["last"], values["reason"])
        elif name == "end":
            logger.info("training ends at step %d (%s)", values["step"], values["reason"])
        elif name == "hint":
            logger.info("hint: %s", values["text"])
