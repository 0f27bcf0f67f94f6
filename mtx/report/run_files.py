"""What a report needs of one run, read from its files while it is trained or later. Flow: run directory -> `Run`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtx import files, settings
from mtx.config import Config, leaves
from mtx.errors import UsageError
from mtx.events import read_events
from mtx.paths import REPORT, SCORES, RunPaths
from mtx.report.history import History, history

_NOT_SHOWN = {"run_dir", "device"}


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        data: report.json of its prepared data; empty before that.
        made: what scores.json says of the run (torch, hashes); empty before it is scored.
        status: status.json; empty where there is none.
    """

    name: str
    config: Config
    history: History
    data: dict[str, Any]
    made: dict[str, Any]
    status: dict[str, Any]

    @property
    def step(self) -> int:
        """The last step that was told of."""
        return int(self.history.events[-1][0]["step"]) if self.history.events else 0

    @property
    def state(self) -> str:
        """Of the run when its files were read."""
        if self.made and self.history.of("end"):  # this is written before status.json tells it
            return "finished"
        state, reason = (str(self.status.get(key, "")) for key in ("state", "reason"))
        return f"{state}: {reason}" if state in ("stopped", "failed") else state or "unknown"

    def given(self) -> list[tuple[str, str]]:
        """The settings in which it differs from the defaults, as text."""
        default = dict(leaves(Config.model_validate({}).model_dump(mode="json")))
        values = leaves(self.config.model_dump(mode="json"))
        return [(key, _text(value)) for key, value in values if value != default.get(key) and key not in _NOT_SHOWN]


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
    return Run(
        str(root), settings.load(paths.config), history(read_events(paths.metrics)), _read(paths.data / REPORT),
        _read(paths.model / SCORES).get("run", {}), _read(paths.status),
    )  # fmt: skip


def _read(path: Path) -> dict[str, Any]:
    return files.read_json(path) if path.is_file() else {}
