"""Reports the progress of a training: events in metrics.jsonl, a progress bar on a terminal, log lines elsewhere.

With the extra tensorboard, TensorBoard shows the same figures under the same names: `train/loss`, `validation/bleu`.
"""

import importlib.util
import json
import logging
import math
import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from mtx.errors import Advice, DeferredErrors, UsageError
from mtx.formatting import format_duration, install_command
from mtx.storage import disk, text_files
from mtx.storage.durable import require_file
from mtx.storage.run_status import DECIDING_METRICS
from mtx.training.hints import Hints
from mtx.training.schedule import Cooldown

if TYPE_CHECKING:  # it needs torch, and `mtx status` does not
    from mtx.training.validation import Validation

logger = logging.getLogger(__name__)

_RATE_STEPS = 10  # steps that a speed is averaged over: a GPU's figures come several steps at a time
_SAMPLE_CHARS = 120
_LINE_EVERY_S = 30.0  # seconds between two log lines without a terminal


class MetricsLogger:
    """Reports the steps of one start of a run; use as a context manager.

    Args:
        done: steps of earlier starts.
        max_steps: the step at which training ends, or an estimate, which `step` corrects.
        deferred_errors: receives failures to write, which do not end training.
        ends_at: when a time limit ends training, on the monotonic clock; a validation may show a better estimate.
        utilisation_per_rate: the share of the device's peak that one target token per second uses, if it is known.
        tensorboard: the directory of TensorBoard's files; None writes none.
    """

    def __init__(
        self,
        metrics: Path,
        done: int,
        max_steps: int,
        deferred_errors: DeferredErrors,
        ends_at: float = math.inf,
        utilisation_per_rate: float | None = None,
        tensorboard: Path | None = None,
    ):
        self._metrics = metrics
        self._done = done
        self._max_steps = max_steps
        self._deferred_errors = deferred_errors
        self.ends_at = ends_at
        self._utilisation_per_rate = utilisation_per_rate
        self._hints = Hints()
        self._tensorboard_dir = tensorboard
        self._tensorboard: Any = None  # the writer
        self._bar: Any = None
        self._started = time.monotonic()
        self._line_at = self._started + _LINE_EVERY_S / 3
        self._tokens = 0  # target tokens of this start
        self._window: deque[tuple[float, int]] = deque(maxlen=_RATE_STEPS + 1)  # time, and `_tokens` at that time

    def __enter__(self) -> "MetricsLogger":
        if os.path.lexists(self._metrics):
            require_file(self._metrics)  # no reader would follow a link that leads out of the run
        self._file = disk.append(self._metrics)
        if not text_files.ends_in_newline(self._metrics):  # a killed process left half a line
            self._write("\n")
        if self._tensorboard_dir is not None:
            from torch.utils.tensorboard import SummaryWriter

            with self._deferred_errors.defer(str(self._tensorboard_dir)):  # hides later steps of earlier starts
                self._tensorboard = SummaryWriter(str(self._tensorboard_dir), purge_step=self._done + 1, flush_secs=10)
        self.restart_window()
        self._bar = tqdm(
            total=self._max_steps, initial=self._done, unit="step", disable=not sys.stderr.isatty(), dynamic_ncols=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
        self._file.close()
        if self._tensorboard is not None:
            with self._deferred_errors.defer(str(self._tensorboard_dir)):
                self._tensorboard.close()

    def event(self, name: str, **values: Any) -> None:
        """Append one object to metrics.jsonl, and its numbers to TensorBoard's files."""
        self._write(json.dumps({"event": name, "time": round(time.time(), 3), **values}) + "\n")
        if self._tensorboard is not None and "step" in values:
            with self._deferred_errors.defer(f"{self._tensorboard_dir}: an event"):
                for key, value in values.items():
                    if key != "step" and isinstance(value, int | float) and not isinstance(value, bool):
                        self._tensorboard.add_scalar(f"{name}/{key}", value, values["step"])

    def _write(self, text: str) -> None:
        with self._deferred_errors.defer(f"{self._metrics}: an event"):
            self._file.write(text.encode())

    def step(
        self,
        step: int,
        loss: float,
        nll: float,
        lr: float,
        grad_norm: float,
        num_tgt_tokens: int,
        epochs: float = 0.0,
        max_steps: int | None = None,
    ) -> None:
        """Report one update.

        Args:
            loss, nll: means per target token.
            epochs: how many are done, with the part of the one that is not.
            max_steps: a new estimate of the step at which training ends.
        """
        if max_steps is not None:
            self._max_steps = self._bar.total = max_steps
        self._bar.update(1)
        self._tokens += num_tgt_tokens
        now = time.monotonic()
        since, tokens = self._window[0]
        self._window.append((now, self._tokens))
        rate = (self._tokens - tokens) / (now - since)
        step_s = (now - self._started) / (step - self._done)  # validations included
        left = max(0.0, min(step_s * (self._max_steps - step), self.ends_at - now))
        share = {}
        if self._utilisation_per_rate is not None:
            share["utilisation"] = round(rate * self._utilisation_per_rate, 4)
        self.event(
            "train",
            step=step,
            loss=round(loss, 5),
            nll=round(nll, 5),
            learning_rate=lr,
            grad_norm=round(grad_norm, 5),
            tgt_tokens_per_s=round(rate, 1),
            left_s=round(left, 1),
            epochs=round(epochs, 6),
            **share,
            **({} if max_steps is None else {"max_steps": max_steps}),
        )
        of_peak = "".join(f", {value:.0%} of the GPU's peak" for value in share.values())
        speed = f"{rate:,.0f} target tokens/s{of_peak}"
        figures = f"loss {loss:.3f}, lr {lr:.2e}, {speed}, {format_duration(left)} left"
        if not self._bar.disable:
            self._bar.set_postfix_str(figures, refresh=False)
        elif now >= self._line_at:
            logger.info("step %d of %d: %s", step, self._max_steps, figures)
            self._line_at = now + _LINE_EVERY_S
        self._hint(step, self._hints.step(step, nll, lr))

    def validation(self, step: int, result: "Validation", is_best: bool, elapsed_s: float) -> None:
        """Report a validation: its figures, its first sample, and a hint if there is one."""
        scores = {name: score for name in ("bleu", "chrf") if (score := getattr(result, name)) is not None}
        self.event(
            "validation",
            step=step,
            nll=result.nll,
            ppl=result.ppl,
            seconds=round(result.seconds, 2),
            samples=[vars(sample) for sample in result.samples],
            decides=result.metric,
            **scores,
        )
        figures = "".join(f", {DECIDING_METRICS[name]} {score:.2f}" for name, score in scores.items())
        text = f"validation nll {result.nll:.3f}, ppl {result.ppl:.2f}{figures}{' (best)' * is_best}"
        logger.info("step %d of %d: %s, after %s", step, self._max_steps, text, format_duration(elapsed_s))
        for sample in result.samples[:1]:
            src, hyp = (text[:_SAMPLE_CHARS] for text in (sample.src, sample.hyp))
            logger.info("  %s\n    -> %s", src, hyp)
        self._hint(step, self._hints.validation(result.nll, is_best, result.hypotheses))

    def cooldown(self, plan: Cooldown) -> None:
        """Report that from the next step on the learning rate falls to zero."""
        self._max_steps = self._bar.total = plan.last
        self.event("cooldown", first=plan.first, last=plan.last, reason=plan.reason)
        logger.info("the learning rate falls to zero from step %d to step %d (%s)", plan.first, plan.last, plan.reason)

    def end(self, step: int, reason: str) -> None:
        """Report that training is over, and the setting that ended it, such as max_steps."""
        self.event("end", step=step, reason=reason)
        logger.info("training ends at step %d (%s)", step, reason)

    def _hint(self, step: int, hint: Advice | None) -> None:
        if hint is not None:
            self.event("hint", step=step, text=str(hint))
            logger.info("hint: %s", hint)

    def restart_window(self) -> None:
        """Start a new window of the speed figure, so that it leaves out the time of validating and saving."""
        self._window.clear()
        self._window.append((time.monotonic(), self._tokens))


def require_tensorboard() -> None:
    """Raise UsageError if `training.tensorboard` is set and the package is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        raise UsageError(
            "training.tensorboard: the package tensorboard is not installed", install_command("tensorboard")
        )
