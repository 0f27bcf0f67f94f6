"""What a report needs of one run, read from its files while it is trained or later. Flow: run directory -> `Run`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtx.config import settings
from mtx.config.schema import Config, leaves
from mtx.errors import DamagedFileError
from mtx.evaluation.compared_systems import PLACE
from mtx.files import durable
from mtx.report.history import Event, History, history
from mtx.run.contents import RunState, is_finished, require_run, run_state
from mtx.run.events import read_events
from mtx.run.layout import REPORT, SCORES


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        data: report.json of its prepared data; empty before that.
        made: what scores.json says of the run (torch, hashes); empty before it is scored.
        is_finished: whether nothing came after its end, and its scores are those of this end.
        state: of the run when its files were read, in words.
    """

    name: str
    config: Config
    history: History
    data: dict[str, Any]
    made: dict[str, Any]
    is_finished: bool
    state: str

    @property
    def step(self) -> int:
        """The last step that was told of."""
        return int(self.history.events[-1][0]["step"]) if self.history.events else 0

    def sampled(self) -> list[Event]:
        """The validations that tell of samples."""
        return [event for event in self.history.of("validation") if _has_samples(event.get("samples"))]

    def hints(self) -> list[Event]:
        """The hints that still hold: each once, and none that an end gave from which it was trained on."""
        found: dict[str, Event] = {}
        events = [event for event, _ in self.history.events]
        for number, event in enumerate(events):
            before_end = [after["event"] for after in events[number + 1 : number + 2]] == ["end"]
            is_past = before_end and number + 2 < len(events)  # it was trained on after that end
            if event["event"] == "hint" and isinstance(event.get("text"), str) and not is_past:
                found.setdefault(event["text"], event)
        return list(found.values())

    def given(self) -> list[tuple[str, str]]:
        """The settings in which it differs from the defaults, as text."""
        default = dict(leaves(Config.model_validate({}).model_dump(mode="json")))
        values = leaves(self.config.model_dump(mode="json"))
        return [(key, _text(value)) for key, value in values if value != default.get(key) and key not in PLACE]


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def read_run(root: Path) -> Run:
    """Read a run's files.

    Raises:
        UsageError: where it is no run directory.
    """
    paths = require_run(root)
    data, made = _read(paths.data / REPORT), _read(paths.model / SCORES).get("run", {})
    if data and not _is_complete(data):
        raise DamagedFileError(f"{paths.data / REPORT}: is not what mtx reports of data")
    if not isinstance(made, dict):
        raise DamagedFileError(f"{paths.model / SCORES}: run: expected an object")
    events = read_events(paths.metrics)
    has_ended = is_finished(paths, events)  # the report is written by the process that owns the run, too
    state = "finished" if has_ended else _in_words(run_state(paths, events))
    return Run(str(root), settings.load(paths.config), history(events), data, made, has_ended, state)


def _in_words(state: RunState) -> str:
    if state.name == "running":
        return state.name
    return f"{state.outcome}: {state.reason}" if state.reason else state.outcome or "not started"


def _read(path: Path) -> dict[str, Any]:
    return durable.read_json(path) if path.is_file() else {}


def _has_samples(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(s, dict) and all(isinstance(s.get(key), str) for key in ("src", "ref", "hyp")) for s in value
        )
    )


def _is_complete(data: Mapping[str, Any]) -> bool:
    """Whether a report of data holds what is shown of it, of these types."""
    try:
        counts = [data[key] for key in ("read", "kept", "held_out", "src_tokens", "tgt_tokens", "pieces")]
        corpora = [[c["name"], *c["dropped"]] for c in data["corpora"]]
        counts += [c[key] for c in data["corpora"] for key in ("read", "kept", "held_out")]
        counts += [count for c in data["corpora"] for count in c["dropped"].values()]
        counts += [value["pairs"] for value in data["dropped"].values()]
        examples = [value["example"] for value in data["dropped"].values()]
        sets = [data["valid"], *data["tests"].values()]
        counts += [count for value in sets for count in (value["pairs"], value["leaks"]["train_pairs"])]
        examples += [value["leaks"]["example"] for value in sets]
        counts += [example["line"] for example in examples if example]
        texts = [example[key] for example in examples if example for key in ("corpus", "src", "tgt")]
    except (KeyError, TypeError, AttributeError):
        return False
    return all(type(count) is int for count in counts) and all(isinstance(t, str) for t in [*texts, *sum(corpora, [])])
