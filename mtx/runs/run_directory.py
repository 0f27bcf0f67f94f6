"""A run directory: opening it (lock, settings, cleaning up) and its status (events, status.json, `mtx status`).

mtx makes a run in a new or empty directory, or continues its own run. A start that fails before the run holds anything
removes the files that it made. The kernel holds the lock (run.lock), so that it is released however its owner ends;
the empty file remains.

The settings are in config.yaml. The fixed ones (`mtx.config.settings`) must not change: the prepared data and each
checkpoint contain them too, protected by their manifests.
"""

import contextlib
import errno
import fcntl
import json
import logging
import math
import os
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from mtx.config import settings
from mtx.config.limits import MAX_COUNT
from mtx.config.schema import Config, leaves
from mtx.errors import DamagedFileError, DeferredErrors, MtxError, StoppedError, TerminatedError, UsageError, exit_code
from mtx.formatting import format_duration, mtx_command, shell_command
from mtx.storage import disk, durable
from mtx.storage.run_files import (
    OPTIMIZER,
    SETTINGS,
    STATE,
    RunLayout,
    checkpoint_steps,
    full_checkpoint_steps,
    has_begun,
    is_prepared,
    is_run,
    require_run,
    stored_scores,
)

logger = logging.getLogger(__name__)

_ATTEMPTS = 100  # another start that cleans up at the same moment can make an attempt fail
_DISK_FAILURES = (errno.EIO, errno.ENOSPC)  # after any other error the run_dir is unsuitable
_LOCK_TIMEOUT_S = 0.5  # `mtx status` may hold the lock for a moment
# Prefixes of files that file systems and desktops create, even in an empty volume.
_SYSTEM_FILES = ("lost+found", ".DS_Store", ".nfs", ".snapshot", ".Trash", ".Spotlight-V100", ".fseventsd")


@contextlib.contextmanager
def hold_lock(paths: RunLayout) -> Iterator[None]:
    """Hold the lock of a run until the context ends; a missing run directory is created.

    Raises:
        MtxError: if another process holds the lock, or the disk fails.
        UsageError: if the run directory cannot be created or written, or contains files of no run.
    """
    if not settings.exists(paths.lock):  # no process owns it, and nothing has been created
        refuse_foreign(paths)
    with _take_lock(paths):
        refuse_foreign(paths)
        yield


def _take_lock(paths: RunLayout) -> AbstractContextManager[object]:
    try:
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(FileNotFoundError):  # a start that failed has just removed what it had made
                durable.make_directories(paths.root)
                return FileLock(paths.lock).acquire(timeout=_LOCK_TIMEOUT_S)
        return FileLock(paths.lock).acquire(blocking=False)
    except Timeout:
        owner = ""
        with contextlib.suppress(OSError, MtxError):
            status = durable.read_json(paths.status)
            if status.get("state") == "running":
                owner = f": process {status.get('pid')} on {status.get('host')}"
        hint = "wait for it, or use another run_dir"
        raise MtxError(f"{paths.root}: in use by another process{owner}", hint) from None
    except OSError as error:
        kind = MtxError if error.errno in _DISK_FAILURES else UsageError
        raise kind(f"run_dir {paths.root}: cannot create or write it: {error.strerror}") from None


def is_locked(lock: Path) -> bool:
    """Whether any process, including this one, holds the lock of a run."""
    try:
        with lock.open("rb") as file:  # this user may only read the run, so FileLock cannot ask
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is no lock
        pass
    return False


@contextlib.contextmanager
def open_run(config: Config) -> Iterator[RunLayout]:
    """Own the run directory of `config` until the context ends.

    Raises:
        UsageError: if the directory holds a run with other fixed settings, or files of no run, or cannot be created.
        MtxError: if another process works on the run.
    """
    paths = RunLayout(Path(config.run_dir))
    new_directories = [path for path in (paths.root, *paths.root.parents) if not settings.exists(path)]
    with hold_lock(paths):
        was_run = is_run(paths.root)
        try:
            _record_config(paths, config)
            clean_up(paths)
            yield paths
        except BaseException as error:
            if isinstance(error, TerminatedError):
                action = "resume" if has_begun(paths) else "prepare the text from the start"
                error.help = f"rerun the same command to {action}"
            if not (was_run or has_begun(paths)):  # the corrected command starts from scratch
                _remove(paths.status, paths.config, paths.lock, *new_directories)
            raise


def _remove(*paths: Path) -> None:
    for path in paths:
        with contextlib.suppress(OSError):  # it is missing, or others put something there
            if path.is_dir():
                path.rmdir()
            else:
                path.unlink()


def refuse_foreign(paths: RunLayout) -> None:
    """Raise UsageError if a directory is neither empty nor the directory of a run.

    A run has a configuration with a lock, prepared data, a checkpoint or a model; its user may add any files.
    """
    if is_run(paths.root) and (paths.lock.exists() or has_begun(paths) or is_prepared(paths.model)):
        return
    files = list[str]()
    with contextlib.suppress(OSError):  # no directory, or one that cannot be read, as taking its lock will report
        files = sorted(path.name for path in paths.root.iterdir() if not _is_trace(path, paths))
    if files:
        raise UsageError(
            f"run_dir {paths.root}: not a run directory, and not empty ({files[0]})",
            "set run_dir=DIR to a new or empty directory, or to a run",
        )


def _is_trace(path: Path, paths: RunLayout) -> bool:
    """Whether a path is of a start that was killed before it wrote the configuration, or of the system."""
    if path == paths.lock:
        return not path.stat().st_size
    return (
        path in (paths.distilled, paths.shards)
        or durable.is_temporary(path.name)
        or path.name.startswith(_SYSTEM_FILES)
    )


def clean_up(paths: RunLayout) -> None:
    """Clean up after an interruption; the caller holds the lock of the run."""
    for directory in (paths.root, paths.checkpoints, *paths.checkpoints.glob("step-*"), paths.evaluation, paths.before):
        durable.remove_temporaries(directory)
    for step in {*checkpoint_steps(paths)} - {*full_checkpoint_steps(paths)}:
        durable.remove_member(paths.checkpoint(step), OPTIMIZER)  # a kill may have left the file


def _record_config(paths: RunLayout, config: Config) -> None:
    """Write config.yaml and log changes in a run: a setting omitted from a repeated command returns to its default.

    Raises:
        UsageError: see `check_settings`.
    """
    check_settings(paths, config)
    if has_begun(paths):
        with contextlib.suppress(MtxError, OSError):  # no configuration yet, or an unreadable one
            changes = settings.differences(settings.load(paths.config), config)
            if message := describe_changes(change for change in changes if change[0] != "run_dir"):
                logger.info(f"{paths.root} continues with changed settings: {message}")
    durable.write_text(paths.config, settings.dump(config))


def check_settings(paths: RunLayout, config: Config) -> None:
    """Check that a run can be resumed with `config`, which then replaces its config.yaml.

    Raises:
        UsageError: with both values of each fixed setting that differs; max_steps is less than the steps of the run.
    """
    if not (paths.config.exists() and has_begun(paths)):
        return
    if changes := describe_changes(settings.fixed_differences(fixed_config(paths, config), config)):
        raise UsageError(
            f"{paths.root} is a run with another configuration: {changes}",
            f"use another run_dir=DIR for a new run; to resume this one unchanged: {mtx_command('train', paths.root)}",
        )
    if (config.training.max_steps or math.inf) < max(checkpoint_steps(paths), default=0):
        raise UsageError("training.max_steps is less than the number of steps that this run has taken")


def load_config(paths: RunLayout) -> Config:
    """The configuration of a run.

    Raises:
        UsageError: if config.yaml is not a configuration, or a fixed setting in it has changed; with both values.
    """
    durable.require_file(paths.config)
    config = settings.load(paths.config)
    if changes := describe_changes(settings.fixed_differences(fixed_config(paths, config), config)):
        copy = shell_command("cp", paths.config, "COPY.yaml")
        train = mtx_command("train", "COPY.yaml", "run_dir=NEW")
        raise UsageError(
            f"{paths.config}: {changes}", f"undo the change, or start a new run with it: {copy} && {train}"
        )
    return config


def describe_changes(changes: Iterable[tuple[str, Any, Any]]) -> str:
    """Settings with their new and old values, such as `seed is 2, it was 1`; empty if there are none."""

    def show(value: object) -> str:  # as on a command line, if possible
        return repr(",".join(map(str, value)) if isinstance(value, tuple) else value)

    return "; ".join(f"{key} is {show(new)}, it was {show(old)}" for key, old, new in changes)


def fixed_config(paths: RunLayout, config: Config) -> Config:
    """A configuration with the original fixed settings of a run.

    They are in the newest undamaged checkpoint, else in the data, else in config.yaml. Those that were not decided when
    the data was prepared are those of `config`.
    """
    values = dict(leaves(config.model_dump()))
    states = [paths.checkpoint(step) / STATE for step in reversed(checkpoint_steps(paths))]
    for path in (*states, paths.data / SETTINGS):
        stored = durable.Json()
        with contextlib.suppress(OSError, DamagedFileError):  # training reports or removes a damaged one
            durable.verify(path.parent, (path.name,), only_needed=True)
            stored = durable.read_json(path)
        if stored.get("settings"):
            try:
                for key in stored.get("undecided", ()):
                    section, _, name = key.partition(".")
                    stored["settings"].setdefault(section, {})[name] = values[key]
                return Config.model_validate(stored["settings"])
            except (ValueError, LookupError, TypeError):  # pydantic's is a ValueError
                raise DamagedFileError(f"{path}: its settings are not a configuration") from None
    return settings.load(paths.config)


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
