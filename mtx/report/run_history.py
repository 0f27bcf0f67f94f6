"""The data of a report on one run: its settings and state, and the history of its training as curves.

Flow: run directory -> `read_run` -> `RunSummary`; events of metrics.jsonl -> `TrainingHistory` -> `Curve`.
If a killed run was resumed from an earlier checkpoint, the events of the repeated steps are skipped. The time between
two starts does not count as training.
"""

import contextlib
import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import TypeAdapter, ValidationError

from mtx.config.schema import Config
from mtx.evaluation.test_set_scores import Gain, stored_gains
from mtx.formatting import divide_up
from mtx.runs.run_directory import (
    DECIDING_METRICS,
    is_finished,
    load_config,
    quality,
    read_events,
    recorded_metric,
    run_state,
)
from mtx.storage import durable
from mtx.storage.run_files import REPORT, SCORES, RunLayout, require_run
from mtx.training.events import Sample

_MAX_POINTS = 400  # of a curve
_CURVE_KEYS = ("nll", "ppl", "bleu", "chrf", "learning_rate", "tgt_tokens_per_s")
# The gain in the last third of the steps that makes more training worthwhile: points, or nats.
_MIN_GAIN = {"bleu": 0.5, "chrf": 0.5, "nll": 0.01}
Event = dict[str, Any]


@dataclass(frozen=True)
class Curve:
    """One quantity over steps and hours of training; the three lists have the same length."""

    steps: list[float]
    hours: list[float]
    values: list[float]


@dataclass(frozen=True)
class TrainingHistory:
    """The history of a run, without repeated steps.

    Attributes:
        events: each with the `hours` of training until then; only the last of several steps in a row.
        points: steps, hours and values in turn, by kind of event and key.
    """

    events: list[Event]
    points: dict[tuple[str, str], "array[float]"]

    def events_of(self, kind: str) -> list[Event]:
        """The events of one kind, in order."""
        return [event for event in self.events if event["event"] == kind]

    def last_value(self, key: str) -> Any:
        """The value of `key` in the last event that has a number there; 0 if there is none."""
        return next((event[key] for event in reversed(self.events) if _is_number(event.get(key))), 0)

    def curve(self, kind: str, key: str) -> Curve:
        """The values of `key` in the events of one kind; each point of a long curve is the mean of several events."""
        table = np.array(self.points.get((kind, key), ())).reshape(-1, 3)
        if len(table) > _MAX_POINTS:
            table = np.array([part.mean(axis=0) for part in np.array_split(table, _MAX_POINTS)])
        return Curve(*table.T.round(6).tolist())


def training_history(events: Iterable[Event]) -> TrainingHistory:
    """The history of a run; a start at an earlier step removes the events after that step."""
    history = TrainingHistory([], {})
    kept_events = history.events
    points = history.points
    started_at = math.nan
    hours_before = 0.0
    for event in events:
        if not (_is_number(event.get("time")) and _is_number(event.get("step"))):
            continue
        kind = event["event"]
        step = event["step"]
        if math.isnan(started_at):  # the event of the start may be damaged
            started_at = event["time"]
        if kind == "start":
            while kept_events and kept_events[-1]["step"] > step:
                kept_events.pop()
            for series in points.values():
                while series and series[-3] > step:
                    del series[-3:]
            started_at = event["time"]
            hours_before = history.last_value("hours")
        hours = hours_before + max(0.0, event["time"] - started_at) / 3600
        for key in _CURVE_KEYS:
            if _is_number(event.get(key)):
                points.setdefault((kind, key), array("d")).extend((step, hours, event[key]))
        if kept_events and kept_events[-1]["event"] == kind == "train":
            kept_events.pop()
        kept_events.append({**event, "hours": hours})
    return history


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < 1e15  # a larger value comes from a damaged file


class Improvement(NamedTuple):
    """The development of a run's validation scores.

    Attributes:
        is_still_improving: whether the last validation is the best, by enough to continue training.
        text: whether the run is still improving, in words.
    """

    is_still_improving: bool
    text: str


def improvement(history: TrainingHistory) -> Improvement | None:
    """The development of the validation scores; None with fewer than two validations."""
    validations = history.events_of("validation")
    key = recorded_metric(validations)
    scores = {event["step"]: quality(event, key) for event in validations if _is_number(event.get(key))}
    if len(scores) < 2:
        return None
    first_step, *_, last_step = scores
    best_step = max(scores, key=scores.__getitem__)
    early_best = max(score for step, score in scores.items() if step <= max(first_step, last_step * 2 / 3))
    gain = scores[best_step] - early_best
    is_worthwhile = gain > _MIN_GAIN[key]
    is_last_best = best_step == last_step
    word = "No"
    if is_worthwhile and is_last_best:
        word = "Yes"
    elif is_worthwhile:
        word = "Perhaps"
    elif is_last_best:
        word = "Hardly"
    change = f"fell by {gain:.3f}" if key == "nll" else f"rose by {gain:.1f}"
    place = f"in the last third of the steps; the best is {abs(scores[best_step]):.2f}, at step {best_step:,}"
    return Improvement(is_worthwhile and is_last_best, f"{word}: validation {DECIDING_METRICS[key]} {change} {place}.")


@dataclass(frozen=True)
class RunSummary:
    """One run.

    Attributes:
        data_report: report.json of the prepared data; empty before the data is prepared.
        provenance: torch version and hashes from scores.json; empty before the run is scored.
        gains: the changes on each test set by this training; empty if it did not start from a model.
        is_finished: whether training has ended and the scores belong to the final model.
        state: state of the run in words, at the time of reading.
    """

    paths: RunLayout
    config: Config
    history: TrainingHistory
    data_report: dict[str, Any]
    provenance: dict[str, Any]
    gains: list[Gain]
    is_finished: bool
    state: str

    @property
    def last_start(self) -> Event:
        """The last start event, which names machine, versions and data; empty before the first."""
        return (self.history.events_of("start") or [{}])[-1]

    @property
    def samples(self) -> list[tuple[int, list[Sample]]]:
        """The sample sentences of up to eight validations, evenly chosen, and the last one, each with its step."""
        samples = []
        adapter = TypeAdapter(list[Sample])
        for event in self.history.events_of("validation"):
            with contextlib.suppress(ValidationError):
                samples.append((event["step"], adapter.validate_python(event.get("samples"))))
        distance = max(1, divide_up(len(samples), 8))
        first = (len(samples) - 1) % distance  # so that the last one is chosen
        return samples[first::distance]

    @property
    def hints(self) -> list[Event]:
        """The hints, each once."""
        hints = self.history.events_of("hint")
        return [*{event["text"]: event for event in hints if isinstance(event.get("text"), str)}.values()]


def read_run(root: Path) -> RunSummary:
    """Read the files of a run.

    Raises:
        UsageError: if `root` is not a run directory.
        DamagedFileError: if a file of the run has unexpected content.
    """
    paths = require_run(root)
    report_path = paths.data / REPORT
    scores_path = paths.model / SCORES
    report = durable.read_json(report_path) if report_path.is_file() else {}
    scores = durable.read_json(scores_path) if scores_path.is_file() else {}
    provenance = scores.get("run", {})
    history = training_history(read_events(paths.metrics))
    # A run that is ending writes its report itself and is still locked, so its state is "running".
    has_ended = is_finished(paths, history.events)
    state = run_state(paths, history.events)
    words = ": ".join(filter(None, (state.outcome or "not started", state.reason)))
    if has_ended or state.name == "running":
        words = "finished" if has_ended else "running"
    gains = stored_gains(provenance, scores_path)
    return RunSummary(paths, load_config(paths), history, report, provenance, gains, has_ended, words)
