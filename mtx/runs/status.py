"""The state of a run: its events, status.json, and what `mtx status` shows."""

import contextlib
import json
import math
import os
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from mtx.config.limits import MAX_COUNT
from mtx.errors import DamagedFileError, DeferredErrors, StoppedError, exit_code
from mtx.formatting import format_duration, mtx_command
from mtx.runs.run_directory import is_locked, load_config
from mtx.storage import disk, durable
from mtx.storage.run_files import RunLayout, require_run, stored_scores

_MAX_BYTES = 1000 * MAX_COUNT  # of the events: a step has 300, so no run with a possible training.max_steps has more
_MAX_LINE_BYTES = 1 << 20  # read at once, so that the memory stays bounded whatever the file holds
# The keys of events that mtx computes with (the others are only shown), and the required keys of an event.
_NUMBERS = ("step", "bleu", "chrf", "nll", "left_s", "time", "epochs", "max_steps", "first", "last", "elapsed_s")
_NEEDED = {"validation": ("step", "bleu"), "cooldown": ("first", "last")}
KILLED = "killed, or its machine went down"  # the reason of a run whose process could not record one

# The metrics that can select the best validation: key in the events, and name.
DECIDING_METRICS = {"chrf": "chrF2", "bleu": "BLEU", "nll": "nll"}


Event = dict[str, Any]  # of metrics.jsonl


def read_events(metrics: Path, all_steps: bool = True) -> Iterator[Event]:
    """The events in a metrics.jsonl of `training.hooks.EventLog`, one JSON object a line.

    Invalid lines are skipped, since a killed process can leave half a line.

    Args:
        all_steps: whether to read all steps; else only those near the end.
    """
    if not metrics.exists():
        return
    durable.require_file(metrics)
    durable.require_size(metrics, _MAX_BYTES)
    tail = 0 if all_steps else metrics.stat().st_size - _MAX_LINE_BYTES
    with metrics.open("rb") as file:
        for line in iter(partial(file.readline, _MAX_LINE_BYTES), b""):
            if file.tell() < tail and line.startswith(b'{"event": "train"'):
                continue
            with contextlib.suppress(ValueError, OverflowError, RecursionError):
                event = json.loads(line.decode("utf-8", "replace"))
                if _is_event(event):
                    yield event


def _is_event(value: Any) -> bool:
    """Whether a line is an event with numbers for the keys that mtx computes with."""
    if not (isinstance(value, dict) and isinstance(value.get("event"), str)):
        return False
    numbers = [value[key] for key in _NUMBERS if value.get(key) is not None]
    numbers += [value.get(key) for key in _NEEDED.get(value["event"], ())]
    are_numbers = all(isinstance(number, int | float) and math.isfinite(number) for number in numbers)
    return are_numbers and value.get("step", 0) is not None


def recorded_metric(validations: Sequence[Event]) -> str:
    """The key of the metric that selected the best of these validation events, from the last of them."""
    metric = str(validations[-1].get("decides")) if validations else ""
    return metric if metric in DECIDING_METRICS else "bleu"


def quality(validation: Event, metric: str) -> float:
    """A number that is larger for a better validation event; minus infinity if it has none."""
    value = validation.get(metric)
    if value is None or math.isnan(value):
        return -math.inf
    return float(-value if metric == "nll" else value)


def write_status(paths: RunLayout, errors: DeferredErrors, **values: Any) -> None:
    """Replace status.json. If that fails, remove the old one, which would be wrong.

    Args:
        values: state (running, stopped, failed, finished), stage, reason, and exit_code of a process that is about to
            end; step, by default the one that the file has.
    """
    value = {"stage": "", "step": 0, "reason": "", "exit_code": None}
    with contextlib.suppress(OSError, DamagedFileError):
        value["step"] = durable.read_json(paths.status).get("step", 0)
    value |= {**values, "pid": os.getpid(), "host": socket.gethostname(), "time": round(time.time(), 3)}
    with errors.defer(str(paths.status)):
        durable.write_json(paths.status, value)
        return
    with contextlib.suppress(OSError):
        disk.unlink(paths.status)


@contextlib.contextmanager
def track_status(paths: RunLayout, errors: DeferredErrors) -> Iterator[None]:
    """Record in status.json that a process works on the run, and how it ended."""
    write_status(paths, errors, state="running", stage="preparing")
    try:
        yield
    except BaseException as error:
        state = "stopped" if isinstance(error, StoppedError | KeyboardInterrupt) else "failed"
        write_status(paths, errors, state=state, exit_code=exit_code(error), reason=str(error) or type(error).__name__)
        raise
    write_status(paths, errors, state="finished", exit_code=1 if errors.messages else 0, reason="finished")


def is_finished(paths: RunLayout, events: Sequence[Event]) -> bool:
    """Whether a run is scored and the last of its `events` (from metrics.jsonl) is the end of training."""
    return bool(stored_scores(paths) and events and events[-1]["event"] == "end")


class RunState(NamedTuple):
    """The state of a run.

    Attributes:
        name: running, finished, stopped (training can continue), prepared, or new.
        outcome: how the run's last process ended: stopped, failed or finished; empty if unknown.
        reason: the reason; empty if unknown.
    """

    name: str
    outcome: str = ""
    reason: str = ""


def run_state(paths: RunLayout, events: Sequence[Event]) -> RunState:
    """The state of a run, from its lock, its files and the events of its metrics.jsonl."""
    if is_locked(paths.lock):
        return RunState("running")
    if is_finished(paths, events):
        return RunState("finished")
    if any(event.get("step") for event in events):
        name = "stopped"
    elif paths.data.exists():
        name = "prepared"
    else:
        name = "new"
    status = durable.read_json(paths.status) if paths.status.exists() else {}
    outcome = str(status.get("state") or "")
    reason = str(status.get("reason") or "")
    return RunState(name, "stopped", KILLED) if outcome == "running" else RunState(name, outcome, reason)


@dataclass(frozen=True)
class Status:
    """The content of `mtx status`.

    Attributes:
        state: running, finished, stopped (training can continue), prepared, or new.
        max_steps: the last step; with training.max_epochs or time_limit an estimate, None before the first one.
        max_epochs: training.max_epochs. epochs: passes so far, as a fraction; None if unknown.
        best_step, best_metric, best_score: step, deciding metric and score of the best validation so far.
        left_s: remaining seconds of training by the last estimate; None before the first one and at the end.
        scores: BLEU on each test set.
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
        time_left = format_duration(math.inf if self.left_s is None else self.left_s)
        lines = [
            f"state:     {self.state}",
            f"step:      {self.progress()}",
            f"best:      {self.best()}",
            f"time left: {'none' if self.state == 'finished' else time_left}",
        ]
        if self.reason:
            lines.append(f"reason:    {self.reason}")
        lines += [f"test:      {name} BLEU {bleu:.2f}" for name, bleu in self.scores.items()]
        return lines

    def best(self) -> str:
        """The best validation so far, such as "31.20 at step 900 (validation BLEU)"."""
        if self.best_score is None:
            return "none yet"
        return f"{self.best_score:.2f} at step {self.best_step:,} (validation {self.best_metric})"

    def progress(self) -> str:
        """The progress of the run, such as "970 of 1,100"; the step is larger if max_steps was lowered since."""
        text = f"{self.step:,}"
        if self.max_steps is not None:
            text += f" of {self.max_steps:,}"
        if self.max_epochs is not None:
            text += f" (epoch {self.epochs or 0:.1f} of {self.max_epochs:,})"
        return text


def unfinished(root: Path) -> str | None:
    """The state of an unfinished run, as the end of a sentence with the command to resume; None if it is finished."""
    status = read_status(root)
    if status.state == "finished":
        return None
    return f"is {status.state} at step {status.progress()}: {mtx_command('train', root)} resumes it"


def read_status(root: Path) -> Status:
    """Read the status of a run from its files, without disturbing a process that works on it.

    Raises:
        UsageError: if `root` is not a run directory.
        DamagedFileError: with the unreadable file.
    """
    paths = require_run(root)
    events = list(read_events(paths.metrics, all_steps=False))
    latest: Event = {}
    for event in events:
        latest |= event
    validations = [event for event in events if event["event"] == "validation"]
    key = recorded_metric(validations)
    best = max(validations, key=lambda event: quality(event, key), default=Event())
    scores = {name: float(value["bleu"]["score"]) for name, value in stored_scores(paths).items()}
    training = load_config(paths).training
    state = run_state(paths, events)
    return Status(
        run=str(root),
        state=state.name,
        step=latest.get("step", 0),
        max_steps=latest.get("max_steps") if training.max_epochs or training.time_limit else training.max_steps,
        max_epochs=training.max_epochs,
        epochs=latest.get("epochs"),
        best_step=best.get("step"),
        best_metric=DECIDING_METRICS[key],
        best_score=best.get(key),
        left_s=None if state.name == "finished" else latest.get("left_s"),
        scores=scores,
        reason=state.reason or None,
    )
