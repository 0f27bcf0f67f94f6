"""The state of a run: its events (metrics.jsonl), status.json for schedulers, and what `mtx status` prints."""

import contextlib
import json
import math
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mtx.config.limits import MAX_COUNT
from mtx.errors import DamagedFileError, DeferredErrors, StoppedError, exit_code
from mtx.formatting import format_duration, mtx_command
from mtx.storage import durable
from mtx.storage.run_contents import load_config, require_run, stored_scores
from mtx.storage.run_directory import is_locked
from mtx.storage.run_files import RunLayout

_MAX_BYTES = 1000 * MAX_COUNT  # of the events: a step has 300, so no run with a possible training.max_steps has more
_MAX_LINE_BYTES = 1 << 20  # read at once, so that the memory stays bounded whatever the file holds
# The keys of events that are computed with, the rest is only shown; and those that an event cannot lack.
_NUMBERS = ("step", "bleu", "chrf", "nll", "left_s", "time", "epochs", "max_steps", "first", "last")
_NEEDED = {"validation": ("step", "bleu"), "cooldown": ("first", "last")}
KILLED = "killed, or its machine went down"  # the reason of a run whose process could not record one

# What can decide which validation is the best: its key in the events, and its name.
DECIDING_METRICS = {"chrf": "chrF2", "bleu": "BLEU", "nll": "nll"}


def read_events(metrics: Path) -> list[dict[str, Any]]:
    """The events in a metrics.jsonl, one JSON object a line, which `training.metrics` writes.

    Lines that hold none are skipped, since a killed process can leave half a line.
    """
    if not metrics.exists():
        return []
    durable.require_file(metrics)
    durable.require_size(metrics, _MAX_BYTES)
    events = []
    with metrics.open("rb") as file:
        for line in iter(partial(file.readline, _MAX_LINE_BYTES), b""):
            with contextlib.suppress(ValueError, OverflowError, RecursionError):
                event = json.loads(line.decode("utf-8", "replace"))
                if _is_event(event):
                    events.append(event)
    return events


def _is_event(value: Any) -> bool:
    """Whether a line holds an event in which what is computed with is a number."""
    if not (isinstance(value, dict) and isinstance(value.get("event"), str)):
        return False
    numbers = [value[key] for key in _NUMBERS if value.get(key) is not None]
    numbers += [value.get(key) for key in _NEEDED.get(value["event"], ())]
    are_numbers = all(isinstance(number, int | float) and math.isfinite(number) for number in numbers)
    return are_numbers and value.get("step", 0) is not None


def recorded_metric(validations: Sequence[dict[str, Any]]) -> str:
    """The key of the metric that decided which of these validation events is the best, by the last of them."""
    named = validations[-1].get("decides") if validations else None
    return named if isinstance(named, str) and named in DECIDING_METRICS else "bleu"


def quality(validation: Mapping[str, Any], metric: str) -> float:
    """The figure of a validation event that is larger if the validation is better; minus infinity without one."""
    value = validation.get(metric)
    if value is None or math.isnan(value):
        return -math.inf
    return -float(value) if metric == "nll" else float(value)


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


def is_finished(paths: RunLayout, events: Sequence[dict[str, Any]]) -> bool:
    """Whether a run is scored and the last of its `events`, those of metrics.jsonl, is the end of its training."""
    return bool(stored_scores(paths) and events and events[-1]["event"] == "end")


@dataclass(frozen=True)
class RunState:
    """The state of a run.

    Attributes:
        name: running, finished, stopped (training can continue), prepared, or new.
        outcome: how the run's last process ended: stopped, failed or finished; empty if unknown.
        reason: why it ended so; empty if unknown.
    """

    name: str
    outcome: str = ""
    reason: str = ""


def run_state(paths: RunLayout, events: Sequence[dict[str, Any]]) -> RunState:
    """The state of a run, from its lock, its files and the events of its metrics.jsonl."""
    if is_locked(paths.lock):
        return RunState("running")
    if is_finished(paths, events):
        return RunState("finished")
    name = "stopped" if any(event.get("step") for event in events) else "prepared" if paths.data.exists() else "new"
    status = durable.read_json(paths.status) if paths.status.exists() else {}
    outcome, reason = (str(status.get(key) or "") for key in ("state", "reason"))
    return RunState(name, "stopped", KILLED) if outcome == "running" else RunState(name, outcome, reason)


@dataclass(frozen=True)
class Status:
    """What `mtx status` prints of a run.

    Attributes:
        state: running, finished, stopped (training can continue), prepared, or new.
        max_steps: the step at which training ends; by training.max_epochs an estimate, None before the first step.
        max_epochs: training.max_epochs. epochs: those that are done, with the part of the one that is not; None if
            unknown.
        best_step, best_metric, best_score: of the best validation so far the step, the metric that decides, its score.
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
        """How far the run has come, such as "970 of 1,100"; more than all if its max_steps has been lowered since."""
        of_steps = "" if self.max_steps is None else f" of {self.max_steps:,}"
        of_epochs = "" if self.max_epochs is None else f" (epoch {self.epochs or 0:.1f} of {self.max_epochs:,})"
        return f"{self.step:,}{of_steps}{of_epochs}"


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
    scored = [event for event in validations if key in event]
    best = max(scored, key=lambda event: quality(event, key), default=dict[str, Any]())
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
        best_step=best.get("step"),
        best_metric=DECIDING_METRICS[key],
        best_score=best.get(key),
        left_s=None if state.name == "finished" else last("left_s"),
        scores=scores,
        reason=state.reason or None,
    )
