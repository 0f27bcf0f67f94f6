"""What a run tells while it trains: one JSON object per event in metrics.jsonl, a bar on a terminal, lines elsewhere."""

import json
import logging
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout
from tqdm import tqdm

from mtx import config, files
from mtx.config import format_duration
from mtx.errors import UsageError
from mtx.paths import SCORES, RunPaths

logger = logging.getLogger(__name__)

_EVENT_EVERY = 10  # steps between two training events
_LINE_EVERY_S = 30.0  # seconds between two lines where there is no terminal


class Monitor:
    """Reports the steps of one start of a run; use as a context manager.

    Args:
        done: steps that earlier starts did.
    """

    def __init__(self, metrics: Path, done: int, max_steps: int):
        self._metrics, self._done, self._max_steps = metrics, done, max_steps
        self._started = time.monotonic()
        self._window_started, self._window_tokens = self._started, 0
        self._line_at = self._started + _LINE_EVERY_S / 3
        self._bar: Any = None

    def __enter__(self) -> "Monitor":
        self._file = self._metrics.open("a", encoding="utf-8", newline="\n")
        terminal = sys.stderr.isatty()
        self._bar = tqdm(
            total=self._max_steps, initial=self._done, unit="step", disable=not terminal, dynamic_ncols=True
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()
        self._file.close()

    def event(self, name: str, **values: Any) -> None:
        """Append one object to metrics.jsonl."""
        self._file.write(json.dumps({"event": name, "time": round(time.time(), 3), **values}) + "\n")
        self._file.flush()

    def step(self, step: int, loss: float, nll: float, lr: float, grad_norm: float, num_tgt_tokens: int) -> None:
        """Report one update; `loss` and `nll` are means per target token."""
        self._bar.update(1)
        self._window_tokens += num_tgt_tokens
        now = time.monotonic()
        if step % _EVENT_EVERY and step != self._max_steps and now < self._line_at:
            return
        rate = self._window_tokens / (now - self._window_started)
        left = (now - self._started) / (step - self._done) * (self._max_steps - step)
        self.event(
            "train", step=step, loss=round(loss, 5), nll=round(nll, 5), learning_rate=lr, grad_norm=round(grad_norm, 5),
            tgt_tokens_per_s=round(rate, 1), left_s=round(left, 1),
        )  # fmt: skip
        self._bar.set_postfix_str(f"loss {loss:.3f}, lr {lr:.2e}, {rate:,.0f} tok/s")
        if self._bar.disable and now >= self._line_at:
            logger.info(
                "step %d of %d: loss %.3f, lr %.2e, %s target tokens/s, %s left",
                step, self._max_steps, loss, lr, f"{rate:,.0f}", format_duration(left),
            )  # fmt: skip
            self._line_at = now + _LINE_EVERY_S
        self.restart_window()

    def restart_window(self) -> None:
        """Begin a new window of the speed figure, so that validation and saving do not count in it."""
        self._window_started, self._window_tokens = time.monotonic(), 0


@dataclass(frozen=True)
class Status:
    """What `mtx status` tells of a run.

    Attributes:
        state: running, finished, stopped (training can go on), prepared, or new.
        left_s: seconds of training that are left, as last measured; None where nothing was.
    """

    run: str
    state: str
    step: int
    max_steps: int
    best_bleu: float | None
    best_step: int | None
    left_s: float | None
    scores: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        lines = [f"state:     {self.state}", f"step:      {self.step:,} of {self.max_steps:,}"]
        best = (
            "none yet"
            if self.best_bleu is None
            else f"{self.best_bleu:.2f} at step {self.best_step:,} (validation BLEU)"
        )
        left = (
            "none" if self.state == "finished" else "unknown" if self.left_s is None else format_duration(self.left_s)
        )
        lines += [f"best:      {best}", f"time left: {left}"]
        return "\n".join(lines + [f"test:      {name} BLEU {bleu:.2f}" for name, bleu in self.scores.items()])


def read_status(root: Path) -> Status:
    """Read a run's state from its files, without disturbing it."""
    paths = RunPaths(root)
    if not paths.config.is_file():
        raise UsageError(f"{root}: is not a run directory")
    step, left, best_bleu, best_step = 0, None, None, None
    for line in files.read_lines(paths.metrics) if paths.metrics.exists() else ():
        try:
            event = json.loads(line)
        except ValueError:  # the last line of a killed run
            continue
        step = event.get("step", step)
        left = event.get("left_s", left)
        if event["event"] == "validation" and (best_bleu is None or event["bleu"] > best_bleu):
            best_bleu, best_step = event["bleu"], event["step"]
    scores = {}
    if (paths.model / SCORES).exists():
        stored = files.read_json(paths.model / SCORES)
        scores = {name: value["bleu"]["score"] for name, value in stored.items() if name not in ("run", "format")}
    state = _state(paths, step, bool(scores))
    return Status(
        str(root), state, step, config.load(paths.config).training.max_steps, best_bleu, best_step, left, scores
    )


def _state(paths: RunPaths, step: int, scored: bool) -> str:
    try:
        with FileLock(paths.lock, timeout=0):
            pass
    except Timeout:
        return "running"
    return "finished" if scored else "stopped" if step else "prepared" if paths.data.exists() else "new"
