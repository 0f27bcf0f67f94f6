"""The state of a run, shown to schedulers (status.json) and to users (the output of `mtx status`)."""

import contextlib
import math
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtx.errors import DamagedFileError, StoppedError, exit_code
from mtx.formatting import format_duration, mtx_command
from mtx.storage import durable
from mtx.storage.deferred_errors import DeferredErrors
from mtx.storage.run_configuration import load_config
from mtx.storage.run_contents import require_run, run_state, stored_scores
from mtx.storage.run_events import DECIDING_METRICS, quality, read_events, recorded_metric
from mtx.storage.run_files import RunLayout


class StatusFile:
    """Writes status.json: state (running, stopped, failed, finished), stage, step, reason, exit code, process."""

    def __init__(self, path: Path, errors: DeferredErrors):
        self._path, self._errors = path, errors

    def write(
        self, state: str, stage: str, step: int | None = None, exit_code: int | None = None, reason: str = ""
    ) -> None:
        """Replace the file.

        Args:
            step: by default the one that the file has.
            exit_code: of the process, if it is about to end.
        """
        if step is None:
            step = 0
            with contextlib.suppress(OSError, DamagedFileError):
                step = durable.read_json(self._path).get("step", 0)
        value = {
            "state": state,
            "stage": stage,
            "step": step,
            "reason": reason,
            "exit_code": exit_code,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "time": round(time.time(), 3),
        }
        with self._errors.defer(str(self._path)):
            durable.write_json(self._path, value)


@contextlib.contextmanager
def track_status(path: Path, errors: DeferredErrors) -> Iterator[StatusFile]:
    """Record in status.json that the run is being worked on, and how that ended."""
    status = StatusFile(path, errors)
    status.write("running", "preparing")
    try:
        yield status
    except BaseException as error:
        state = "stopped" if isinstance(error, StoppedError | KeyboardInterrupt) else "failed"
        status.write(state, "", exit_code=exit_code(error), reason=str(error) or type(error).__name__)
        raise
    status.write("finished", "", exit_code=1 if errors.messages else 0, reason="finished")


@dataclass(frozen=True)
class Status:
    """What `mtx status` prints of a run.

    Attributes:
        state: running, finished, stopped (training can continue), prepared, or new.
        max_steps: the step at which training ends; by training.max_epochs an estimate, None before the first step.
        max_epochs: training.max_epochs. epochs: those that are done, with the part of the one that is not; None if
            unknown.
        best_bleu, best_step: of the best validation so far.
        best_metric, best_score: the metric that decides which validation is the best, and its score.
        left_s: seconds of training that are left, by the last estimate; None before the first one and at the end.
        scores: of each test set BLEU.
        reason: why it is not running; None if unknown.
    """

    run: str
    state: str
    step: int
    max_steps: int | None
    max_epochs: int | None
    epochs: float | None
    best_bleu: float | None
    best_step: int | None
    best_metric: str
    best_score: float | None
    left_s: float | None
    scores: dict[str, float]
    reason: str | None

    def lines(self) -> list[str]:
        """The lines that `mtx status` prints."""
        best = "none yet"
        if self.best_score is not None:
            best = f"{self.best_score:.2f} at step {self.best_step:,} (validation {self.best_metric})"
        left = format_duration(math.inf if self.left_s is None else self.left_s)
        return [
            f"state:     {self.state}",
            f"step:      {self.progress()}",
            f"best:      {best}",
            f"time left: {'none' if self.state == 'finished' else left}",
            *([f"reason:    {self.reason}"] if self.reason else []),
            *(f"test:      {name} BLEU {bleu:.2f}" for name, bleu in self.scores.items()),
        ]

    def progress(self) -> str:
        """How far the run has come, such as "970 of 1,100"; its max_steps may have been lowered since."""
        if self.max_steps is not None and self.step > self.max_steps:
            return f"{self.step:,}, beyond training.max_steps={self.max_steps}"
        of_epochs = f" (epoch {self.epochs or 0:.1f} of {self.max_epochs:,})" if self.max_epochs is not None else ""
        return f"{self.step:,}" + ("" if self.max_steps is None else f" of {self.max_steps:,}") + of_epochs


def unfinished(root: Path) -> str | None:
    """What is not done yet of a run, as the end of a sentence, and the command for it; None if it is finished."""
    status = read_status(root)
    command = mtx_command("train", root)
    sentences = {
        "running": f"is being worked on, at step {status.progress()}",
        "stopped": f"stopped at step {status.progress()}: {command} resumes it",
        "finished": None,
    }
    return sentences.get(status.state, f"has not been trained yet: {command} does it")


def translated_step(root: Path) -> int | None:
    """The step of the translations of an unfinished run: where training ended before it went on; None if unknown."""
    events = read_events(RunLayout(root).metrics)
    start = max((number for number, event in enumerate(events) if event["event"] == "start"), default=0)
    return next((event.get("step") for event in reversed(events[:start]) if event["event"] == "end"), None)


def read_status(root: Path) -> Status:
    """Read the status of a run from its files, without disturbing a process that works on it.

    Raises:
        UsageError: if `root` is not a run directory.
        DamagedFileError: naming the file that cannot be read.
    """
    paths = require_run(root)
    events = read_events(paths.metrics)

    def last(key: str, default: Any = None) -> Any:
        return next((event[key] for event in reversed(events) if key in event), default)

    validations = [event for event in events if event["event"] == "validation"]
    key = recorded_metric(validations)
    nothing = {key: None, "step": None}
    best = max((event for event in validations if key in event), key=lambda event: quality(event, key), default=nothing)
    scores = {name: float(value["bleu"]["score"]) for name, value in stored_scores(paths).items()}
    training, state = load_config(paths).training, run_state(paths, events)
    return Status(
        run=str(root),
        state=state.name,
        step=last("step", 0),
        # training has estimated the step at which the epochs are done
        max_steps=training.max_steps if training.max_epochs is None else last("max_steps", training.max_steps),
        max_epochs=training.max_epochs,
        epochs=last("epochs"),
        best_bleu=best.get("bleu"),
        best_step=best["step"],
        best_metric=DECIDING_METRICS[key],
        best_score=best[key],
        left_s=None if state.name == "finished" else last("left_s"),
        scores=scores,
        reason=state.reason or None,
    )
