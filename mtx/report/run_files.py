"""What a report needs of one run, read from its files while it is trained or later. Flow: run directory -> `Run`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtx import files, settings
from mtx.config import Config, leaves
from mtx.contenders import PLACE
from mtx.errors import DamagedFileError, UsageError
from mtx.events import read_events
from mtx.owner import KILLED, is_owned
from mtx.paths import REPORT, SCORES, RunPaths
from mtx.report.history import Event, History, history


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        data: report.json of its prepared data; empty before that.
        made: what scores.json says of the run (torch, hashes); empty before it is scored.
        status: status.json; empty where there is none.
        is_owned: whether a process works on it.
    """

    name: str
    config: Config
    history: History
    data: dict[str, Any]
    made: dict[str, Any]
    status: dict[str, Any]
    is_owned: bool

    @property
    def step(self) -> int:
        """The last step that was told of."""
        return int(self.history.events[-1][0]["step"]) if self.history.events else 0

    @property
    def is_finished(self) -> bool:
        """Whether nothing came after its end, and its scores are those of this end."""
        return bool(self.made and self.history.events and self.history.events[-1][0]["event"] == "end")

    @property
    def state(self) -> str:
        """Of the run when its files were read."""
        if self.is_finished:  # this is written before status.json tells it
            return "finished"
        state, reason = (str(self.status.get(key, "")) for key in ("state", "reason"))
        if state == "running" and not self.is_owned:
            return f"stopped: {KILLED}"
        return f"{state}: {reason}" if state in ("stopped", "failed") else state or "not started"

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
    paths = RunPaths(root)
    if not paths.config.is_file():
        raise UsageError(f"{root}: is not a run directory")
    data, made = _read(paths.data / REPORT), _read(paths.model / SCORES).get("run", {})
    if data and not _is_complete(data):
        raise DamagedFileError(f"{paths.data / REPORT}: is not what mtx reports of data")
    if not isinstance(made, dict):
        raise DamagedFileError(f"{paths.model / SCORES}: run: expected an object")
    events = history(read_events(paths.metrics))
    return Run(
        str(root), settings.load(paths.config), events, data, made, _read(paths.status), is_owned(paths.lock)
    )  # fmt: skip


def _read(path: Path) -> dict[str, Any]:
    return files.read_json(path) if path.is_file() else {}


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
