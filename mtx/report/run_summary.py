"""What a report shows of one run, read from the files of its run directory, also while it is trained.

Flow: run directory -> `read_run` -> `RunSummary` -> `learning_curves.py`, `report_page.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtx.config.schema import Config, leaves
from mtx.errors import DamagedFileError
from mtx.evaluation.differing_settings import LOCATION_KEYS, setting_text
from mtx.evaluation.gains import Gain, stored_gains
from mtx.files import durable
from mtx.report.training_history import Event, TrainingHistory, training_history
from mtx.run.configuration import load_config
from mtx.run.contents import RunState, is_finished, require_run, run_state
from mtx.run.events import read_events
from mtx.run.layout import REPORT, SCORES, RunLayout


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
        return int(self.history.events[-1][0]["step"]) if self.history.events else 0

    @property
    def last_start(self) -> Event:
        """The last start event, which names machine, versions and data; empty before the first."""
        return self.history.starts[-1] if self.history.starts else {}

    def validations_with_samples(self) -> list[Event]:
        return [event for event in self.history.of("validation") if _has_samples(event.get("samples"))]

    def hints(self) -> list[Event]:
        """The hints that still apply, each once; those at an end of training only if training did not go on later."""
        hints: dict[str, Event] = {}
        events = [event for event, _ in self.history.events]
        for number, event in enumerate(events):
            is_outdated = number + 2 < len(events) and events[number + 1]["event"] == "end"
            if event["event"] == "hint" and isinstance(event.get("text"), str) and not is_outdated:
                hints.setdefault(event["text"], event)
        return list(hints.values())


def settings_rows(runs: Sequence[RunSummary]) -> list[tuple[str, list[str]]]:
    """The settings that differ from the defaults in one of the runs, each with its value in every run, as text."""
    default = dict(leaves(Config.model_validate({}).model_dump(mode="json")))
    of_runs = [dict(leaves(run.config.model_dump(mode="json"))) for run in runs]
    rows = [
        (key, [values.get(key) for values in of_runs]) for key in dict.fromkeys(key for of in of_runs for key in of)
    ]
    return [
        (key, list(map(setting_text, values)))
        for key, values in rows
        if key not in LOCATION_KEYS and any(value != default.get(key) for value in values)
    ]


def read_run(root: Path) -> RunSummary:
    """Read the files of a run.

    Raises:
        UsageError: if `root` is no run directory.
        DamagedFileError: if a file of the run does not hold what mtx writes into it.
    """
    paths = require_run(root)
    data_report, provenance = _read(paths.data / REPORT), _read(paths.model / SCORES).get("run", {})
    if data_report and not _is_complete(data_report):
        raise DamagedFileError(f"{paths.data / REPORT}: is not a report of mtx on prepared data")
    if not isinstance(provenance, dict):
        raise DamagedFileError(f"{paths.model / SCORES}: run: expected an object")
    events = read_events(paths.metrics)
    # A run that is ending writes its report itself and is still locked, so its state is "running".
    has_ended = is_finished(paths, events)
    state = "finished" if has_ended else _in_words(run_state(paths, events))
    history = training_history(events)
    return RunSummary(str(root), load_config(paths), history, data_report, provenance, has_ended, state)


def _in_words(state: RunState) -> str:
    if state.name == "running":
        return state.name
    return f"{state.outcome}: {state.reason}" if state.reason else state.outcome or "not started"


def _read(path: Path) -> dict[str, Any]:
    return durable.read_json(path) if path.is_file() else {}


def _has_samples(samples: object) -> bool:
    return isinstance(samples, list) and samples != [] and all(
        isinstance(sample, dict) and all(isinstance(sample.get(key), str) for key in ("src", "ref", "hyp"))
        for sample in samples
    )  # fmt: skip


def _is_complete(report: Mapping[str, Any]) -> bool:
    """Whether a report of the data holds all values that are shown, with the right types."""
    try:
        sets, corpora, dropped = [report["valid"], *report["tests"].values()], report["corpora"], report["dropped"]
        examples = [entry["example"] for entry in (*dropped.values(), *(value["leaks"] for value in sets))]
        examples = [example for example in examples if example]
        counts = [
            *(report[key] for key in ("read", "kept", "held_out", "src_tokens", "tgt_tokens", "pieces")),
            *(corpus[key] for corpus in corpora for key in ("read", "kept", "held_out")),
            *(count for corpus in corpora for count in corpus["dropped"].values()),
            *(reason["pairs"] for reason in dropped.values()),
            *(count for value in sets for count in (value["pairs"], value["leaks"]["train_pairs"])),
            *(example["line"] for example in examples),
        ]
        texts = [example[key] for example in examples for key in ("corpus", "src", "tgt")]
        texts += [text for corpus in corpora for text in (corpus["name"], *corpus["dropped"])]
    except (KeyError, TypeError, AttributeError):
        return False
    return all(type(count) is int for count in counts) and all(isinstance(text, str) for text in texts)
