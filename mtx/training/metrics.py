"""What a run tells while it trains: a JSON object per event in metrics.jsonl, a bar on a terminal, lines elsewhere.

With the extra tensorboard, TensorBoard shows the same figures under the same names: `train/loss`, `validation/bleu`.
"""

import importlib.util
import json
import logging
import math
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from mtx.errors import UsageError
from mtx.files import disk, text_files
from mtx.files.durations import format_duration
from mtx.run.deferred_errors import DeferredErrors
from mtx.training.hints import Hints

if TYPE_CHECKING:  # it needs torch, and `mtx status` does not
    from mtx.training.validation import Validation

logger = logging.getLogger(__name__)

_RATE_STEPS = 10  # over which speed is taken: a GPU's figures come several steps at a time
_SAMPLE_CHARS = 120
_LINE_EVERY_S = 30.0  # seconds between two lines where there is no terminal
_TIMED_STEPS, _TIMED_S = 5, 3.0  # steps and seconds after which a run can say how long it will take


class MetricsLogger:
    """Reports the steps of one start of a run; use as a context manager.

    Args:
        done: steps that earlier starts did.
        ends_at: when a time limit ends training, on the monotonic clock.
        deferred_errors: is told of what cannot be written.
        utilisation_per_rate: share of the device's peak that one target token a second is, where that is known.
        hints: watch the figures.
        board: the directory of TensorBoard's files, where these are wanted.
    """

    def __init__(
        self, metrics: Path, done: int, max_steps: int, deferred_errors: DeferredErrors, ends_at: float = math.inf,
        utilisation_per_rate: float | None = None, hints: Hints | None = None, board: Path | None = None,
    ):  # fmt: skip
        self._metrics, self._done, self._max_steps, self._deferred_errors = metrics, done, max_steps, deferred_errors
        self._ends_at, self._utilisation_per_rate = ends_at, utilisation_per_rate
        self._hints, self._board_dir = hints or Hints(None), board
        self._board: Any = None  # TensorBoard's writer
        self._bar: Any = None
        self._started = time.monotonic()
        self._line_at = self._started + _LINE_EVERY_S / 3
        self._tokens = 0  # target tokens of this start
        self._window: deque[tuple[float, int]] = deque(maxlen=_RATE_STEPS + 1)  # time, and `_tokens` then
        self._timed_from: tuple[float, int, int] | None = None  # time, step and `_tokens` after the first, slow step
        self._has_said_how_long = False

    def __enter__(self) -> "MetricsLogger":
        self._file = disk.append(self._metrics)
        if not text_files.ends_in_newline(self._metrics):  # a killed process left half a line
            self._write("\n")
        if self._board_dir is not None:
            from torch.utils.tensorboard import SummaryWriter

            with self._deferred_errors.defer(
                str(self._board_dir)
            ):  # what earlier starts told of later steps is not shown
                self._board = SummaryWriter(str(self._board_dir), purge_step=self._done + 1, flush_secs=10)
        self.restart_window()
        self._bar = tqdm(
            total=self._max_steps, initial=self._done, unit="step", disable=not sys.stderr.isatty(), dynamic_ncols=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
        self._file.close()
        if self._board is not None:
            with self._deferred_errors.defer(str(self._board_dir)):
                self._board.close()

    def event(self, name: str, **values: Any) -> None:
        """Append one object to metrics.jsonl, and its numbers to what TensorBoard shows."""
        self._write(json.dumps({"event": name, "time": round(time.time(), 3), **values}) + "\n")
        if self._board is not None and "step" in values:
            with self._deferred_errors.defer(f"{self._board_dir}: an event"):
                for key, value in values.items():
                    if key != "step" and isinstance(value, int | float) and not isinstance(value, bool):
                        self._board.add_scalar(f"{name}/{key}", value, values["step"])

    def _write(self, text: str) -> None:
        """Training is worth more than its figures: where they cannot be written, it goes on."""
        with self._deferred_errors.defer(f"{self._metrics}: an event"):
            self._file.write(text.encode())

    def step(self, step: int, loss: float, nll: float, lr: float, grad_norm: float, num_tgt_tokens: int) -> None:
        """Report one update; `loss` and `nll` are means per target token."""
        self._bar.update(1)
        self._tokens += num_tgt_tokens
        now = time.monotonic()
        self._say_how_long(step, now)
        since, tokens = self._window[0]
        self._window.append((now, self._tokens))
        rate = (self._tokens - tokens) / (now - since)
        left = self._left_s((now - self._started) / (step - self._done), step, now)
        self.event(
            "train", step=step, loss=round(loss, 5), nll=round(nll, 5), learning_rate=lr, grad_norm=round(grad_norm, 5),
            tgt_tokens_per_s=round(rate, 1), left_s=round(left, 1), **self._utilisation(rate),
        )  # fmt: skip
        if not self._bar.disable:
            self._bar.set_postfix_str(f"loss {loss:.3f}, lr {lr:.2e}, {self._speed(rate)}", refresh=False)
        elif now >= self._line_at:
            logger.info(
                "step %d of %d: loss %.3f, lr %.2e, %s, %s left",
                step, self._max_steps, loss, lr, self._speed(rate), format_duration(left),
            )  # fmt: skip
            self._line_at = now + _LINE_EVERY_S
        self._hint(step, self._hints.step(step, nll, lr))

    def validation(self, step: int, result: "Validation", is_best: bool, elapsed_s: float) -> None:
        """Report a validation: its figures, the first of its samples, and a hint where there is one."""
        self.event(
            "validation", step=step, nll=result.nll, ppl=result.ppl, bleu=result.bleu, seconds=round(result.seconds, 2),
            samples=[vars(sample) for sample in result.samples],
        )  # fmt: skip
        logger.info(
            "step %d of %d: validation nll %.3f, ppl %.2f, BLEU %.2f%s (%s)", step, self._max_steps,
            result.nll, result.ppl, result.bleu, " (best)" if is_best else "", format_duration(elapsed_s),
        )  # fmt: skip
        for sample in result.samples[:1]:
            src, hyp = (text_files.printable(text[:_SAMPLE_CHARS]) for text in (sample.src, sample.hyp))
            logger.info("  %s\n    -> %s", src, hyp)
        self._hint(step, self._hints.validation(result.nll, result.bleu, is_best, result.hypotheses))

    def end(self, step: int, reason: str) -> None:
        """Report that training is over, and which key ended it."""
        self._hint(step, self._hints.end(reason))
        self.event("end", step=step, reason=reason)
        logger.info("training ends at step %d (%s)", step, reason)

    def _hint(self, step: int, text: str | None) -> None:
        if text is not None:
            self.event("hint", step=step, text=text)
            logger.info("hint: %s", text)

    def _say_how_long(self, step: int, now: float) -> None:
        """After a few timed steps, once: how fast training is and when it will end."""
        then, first, tokens = self._timed_from = self._timed_from or (now, step, self._tokens)
        seconds, steps = now - then, step - first
        if self._has_said_how_long or steps < _TIMED_STEPS or seconds < _TIMED_S:
            return
        self._has_said_how_long = True
        speed, left = self._speed((self._tokens - tokens) / seconds), self._left_s(seconds / steps, step, now)
        logger.info("%s: training will take about %s, and validation what it takes", speed, format_duration(left))

    def _left_s(self, step_s: float, step: int, now: float) -> float:
        """Seconds of training that are left after `step`, where a step takes `step_s`."""
        return min(step_s * (self._max_steps - step), self._ends_at - now)

    def _utilisation(self, rate: float) -> dict[str, float]:
        known = self._utilisation_per_rate
        return {} if known is None else {"utilisation": round(rate * known, 4)}

    def _speed(self, rate: float) -> str:
        share = "".join(f", {value:.0%} of the GPU's peak" for value in self._utilisation(rate).values())
        return f"{rate:,.0f} target tokens/s{share}"

    def restart_window(self) -> None:
        """Begin a new window of the speed figure, so that validation and saving do not count in it."""
        self._window.clear()
        self._window.append((time.monotonic(), self._tokens))


def require_tensorboard() -> None:
    """Refuse `training.tensorboard` where the package is not there.

    Raises:
        UsageError: naming the extra.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise UsageError(
            "training.tensorboard: the package tensorboard is not installed", 'pip install "mtx-translate[tensorboard]"'
        )
