"""The data of a report on one run: its settings and state, and the history of its training as curves.

Flow: run directory -> `read_run` -> `RunSummary`; events of metrics.jsonl -> `TrainingHistory` -> `Curve`.
If a killed run was resumed from an earlier checkpoint, the events of the repeated steps are skipped. The time between
two starts does not count as training.
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mtx.config.schema import Config
from mtx.errors import DamagedFileError
from mtx.evaluation.test_set_scores import Gain, stored_gains
from mtx.storage import durable
from mtx.storage.run_directory import DECIDING_METRICS, is_finished, quality, read_events, recorded_metric, run_state
from mtx.storage.run_files import REPORT, SCORES, RunLayout, load_config, require_run

_MAX_POINTS = 400  # of a curve
_OF_CURVES = ("nll", "ppl", "bleu", "chrf", "learning_rate", "tgt_tokens_per_s")
_LARGEST = 1e15  # a larger value comes from a damaged file
# The gain in the last third of the steps that makes more training worthwhile: points, or nats.
_MIN_GAIN = {"bleu": 0.5, "chrf": 0.5, "nll": 0.01}
Event = dict[str, Any]
Points = dict[tuple[str, str], "array[float]"]


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
    points: Points

    def of(self, kind: str) -> list[Event]:
        """The events of one kind, in order."""
        return [event for event in self.events if event["event"] == kind]

    @property
    def hours(self) -> float:
        """Hours of training so far."""
        return float(self.events[-1]["hours"]) if self.events else 0.0

    @property
    def epochs(self) -> float:
        """Passes over the training pairs so far; 0 if no event has them."""
        done = [event["epochs"] for event in self.of("train") if _is_number(event.get("epochs"))]
        return float(done[-1]) if done else 0.0

    def curve(self, kind: str, key: str) -> Curve:
        """The values of `key` in the events of one kind; each point of a long curve is the mean of several events."""
        table = np.array(self.points.get((kind, key), ())).reshape(-1, 3)
        if len(table) > _MAX_POINTS:
            table = np.array([part.mean(axis=0) for part in np.array_split(table, _MAX_POINTS)])
        return Curve(*([round(value, 6) for value in column] for column in table.T.tolist()))


def training_history(events: Iterable[Event]) -> TrainingHistory:
    """The history of a run; a start at an earlier step removes the events after that step."""
    timed, points = list[Event](), Points()
    started_at, hours_before = None, 0.0
    for event in events:
        if not (_is_number(event.get("time")) and _is_number(event.get("step"))):
            continue
        kind, step = event["event"], event["step"]
        if kind == "start":
            while timed and timed[-1]["step"] > step:
                timed.pop()
            for of_key in points.values():
                while of_key and of_key[-3] > step:
                    del of_key[-3:]
        if started_at is None or kind == "start":
            started_at, hours_before = event["time"], timed[-1]["hours"] if timed else 0.0
        hours = hours_before + max(0.0, event["time"] - started_at) / 3600
        for key in _OF_CURVES:
            if _is_number(event.get(key)):
                points.setdefault((kind, key), array("d")).extend((step, hours, event[key]))
        if timed and timed[-1]["event"] == kind == "train":
            timed.pop()
        timed.append({**event, "hours": hours})
    return TrainingHistory(timed, points)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST


@dataclass(frozen=True)
class Improvement:
    """The development of a run's validation scores.

    Attributes:
        key: of the metric that selects the best validation, in the events and in `DECIDING_METRICS`.
        gain: the difference of the best score and the best one of the first two thirds of the steps.
        is_last_best: whether no validation is better than the last one.
    """

    key: str
    best_step: int
    best_score: float
    gain: float
    is_last_best: bool

    @property
    def is_worthwhile(self) -> bool:
        """Whether the gain is large enough to continue training."""
        return self.gain > _MIN_GAIN[self.key]


def improvement(history: TrainingHistory, before_cooldown: bool = False) -> Improvement | None:
    """The development of the validation scores; None with fewer than two validations.

    Args:
        before_cooldown: ignore a cooldown, in which scores rise because the learning rate falls; a gain there does not
            show that more training would help.
    """
    key = recorded_metric(history.of("validation"))
    validations = [event for event in history.of("validation") if _is_number(event.get(key))]
    if before_cooldown and (plans := history.of("cooldown")):
        validations = [event for event in validations if event["step"] < plans[-1]["first"]]
    if len(validations) < 2:
        return None
    last = validations[-1]
    earlier = [event for event in validations if event["step"] <= last["step"] * 2 / 3] or validations[:1]
    best, best_earlier = (max(events, key=lambda event: quality(event, key)) for events in (validations, earlier))
    gain = quality(best, key) - quality(best_earlier, key)
    return Improvement(key, int(best["step"]), float(best[key]), gain, best is last)


def progress(history: TrainingHistory) -> str:
    """Whether a run is still improving, in words, from its validation scores."""
    if (found := improvement(history)) is None:
        return "Unknown: too few validations yet."
    word = (("No", "Hardly"), ("Perhaps", "Yes"))[found.is_worthwhile][found.is_last_best]
    verb, digits = ("fell", 3) if found.key == "nll" else ("rose", 1)
    rose = f"validation {DECIDING_METRICS[found.key]} {verb} by {found.gain:.{digits}f} in the last third of the steps"
    return f"{word}: {rose}; the best is {found.best_score:.2f}, at step {found.best_step:,}."


@dataclass(frozen=True)
class RunSummary:
    """One run.

    Attributes:
        data_report: report.json of the prepared data; empty before the data is prepared.
        provenance: torch version and hashes from scores.json; empty before the run is scored.
        is_finished: whether training has ended and the scores belong to the final model.
        state: state of the run in words, at the time of reading.
    """

    paths: RunLayout
    config: Config
    history: TrainingHistory
    data_report: dict[str, Any]
    provenance: dict[str, Any]
    is_finished: bool
    state: str

    @property
    def gains(self) -> list[Gain]:
        """The changes on each test set by this training; empty if it did not start from a model."""
        return stored_gains(self.provenance, self.paths.model / SCORES)

    @property
    def step(self) -> int:
        """The step of the last event."""
        return int(self.history.events[-1]["step"]) if self.history.events else 0

    @property
    def last_start(self) -> Event:
        """The last start event, which names machine, versions and data; empty before the first."""
        return (self.history.of("start") or [{}])[-1]

    def validations_with_samples(self) -> list[Event]:
        return [event for event in self.history.of("validation") if _has_samples(event.get("samples"))]

    def hints(self) -> list[Event]:
        """The hints, each once."""
        hints = [event for event in self.history.of("hint") if isinstance(event.get("text"), str)]
        return list({event["text"]: event for event in hints}.values())


def read_run(root: Path) -> RunSummary:
    """Read the files of a run.

    Raises:
        UsageError: if `root` is not a run directory.
        DamagedFileError: if a file of the run has unexpected content.
    """
    paths = require_run(root)
    data_report, provenance = _read(paths.data / REPORT), _read(paths.model / SCORES).get("run", {})
    if not isinstance(provenance, dict):
        raise DamagedFileError(f"{paths.model / SCORES}: run: expected an object")
    history = training_history(read_events(paths.metrics))
    # A run that is ending writes its report itself and is still locked, so its state is "running".
    has_ended, state = is_finished(paths, history.events), run_state(paths, history.events)
    if has_ended or state.name == "running":
        words = "finished" if has_ended else "running"
    else:
        words = f"{state.outcome}: {state.reason}" if state.reason else state.outcome or "not started"
    return RunSummary(paths, load_config(paths), history, data_report, provenance, has_ended, words)


def _read(path: Path) -> dict[str, Any]:
    return durable.read_json(path) if path.is_file() else {}


def _has_samples(samples: object) -> bool:
    return (
        isinstance(samples, list)
        and samples != []
        and all(
            isinstance(sample, dict) and all(isinstance(sample.get(key), str) for key in ("src", "ref", "hyp"))
            for sample in samples
        )
    )
