"""What a report shows of one run, read from the files of its run directory, also while it is trained.

Flow: run directory -> `read_run` -> `RunSummary` -> `charts.py`, `report_page.py`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtx.config.schema import Config
from mtx.errors import DamagedFileError
from mtx.evaluation.gains import Gain, stored_gains
from mtx.report.training_history import Event, TrainingHistory, training_history
from mtx.storage import durable
from mtx.storage.run_contents import load_config, require_run
from mtx.storage.run_files import REPORT, SCORES, RunLayout
from mtx.storage.run_status import is_finished, read_events, run_state


@dataclass(frozen=True)
class RunSummary:
    """One run.

    Attributes:
        data_report: report.json of the prepared data; empty before the data is prepared.
        provenance: torch version and hashes from scores.json; empty before the run is scored.
        is_finished: whether training has ended and the scores belong to the final model.
        state: state of the run in words, at the time of reading.
    """

    name: str
    config: Config
    history: TrainingHistory
    data_report: dict[str, Any]
    provenance: dict[str, Any]
    is_finished: bool
    state: str

    @property
    def gains(self) -> list[Gain]:
        """What training has changed on each test set; empty if it started from no model."""
        return stored_gains(self.provenance, RunLayout(Path(self.name)).model / SCORES)

    @property
    def step(self) -> int:
        """The step of the last event."""
        return int(self.history.events[-1]["step"]) if self.history.events else 0

    @property
    def last_start(self) -> Event:
        """The last start event, which names machine, versions and data; empty before the first."""
        return self.history.starts[-1] if self.history.starts else {}

    def validations_with_samples(self) -> list[Event]:
        return [event for event in self.history.of("validation") if _has_samples(event.get("samples"))]

    def hints(self) -> list[Event]:
        """The hints that still apply, each once; those at an end of training only if training was not resumed later."""
        hints: dict[str, Event] = {}
        events = self.history.events
        for number, event in enumerate(events):
            is_outdated = number + 2 < len(events) and events[number + 1]["event"] == "end"
            if event["event"] == "hint" and isinstance(event.get("text"), str) and not is_outdated:
                hints.setdefault(event["text"], event)
        return list(hints.values())


def read_run(root: Path) -> RunSummary:
    """Read the files of a run.

    Raises:
        UsageError: if `root` is no run directory.
        DamagedFileError: if a file of the run does not hold what mtx writes into it.
    """
    paths = require_run(root)
    data_report, provenance = _read(paths.data / REPORT), _read(paths.model / SCORES).get("run", {})
    if not isinstance(provenance, dict):
        raise DamagedFileError(f"{paths.model / SCORES}: run: expected an object")
    events = read_events(paths.metrics)
    # A run that is ending writes its report itself and is still locked, so its state is "running".
    has_ended, state = is_finished(paths, events), run_state(paths, events)
    if has_ended or state.name == "running":
        words = "finished" if has_ended else "running"
    else:
        words = f"{state.outcome}: {state.reason}" if state.reason else state.outcome or "not started"
    history = training_history(events)
    return RunSummary(str(root), load_config(paths), history, data_report, provenance, has_ended, words)


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
