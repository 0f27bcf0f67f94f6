"""What a run directory holds, told by its files: each question has one function. Needs neither configuration nor torch.

`paths` has the names, `run_directory` opens a run and owns it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtx.errors import DamagedFileError, UsageError
from mtx.files import durable
from mtx.files.durable import MANIFEST
from mtx.run.layout import HYPOTHESIS_TEXT, OPTIMIZER, SCORES, RunLayout, checkpoint_step
from mtx.run.lock import KILLED, is_owned


def is_run(root: Path) -> bool:
    """Whether a directory is a run."""
    return RunLayout(root).config.is_file()


def require_run(root: Path) -> RunLayout:
    """The names inside a run directory.

    Raises:
        UsageError: where `root` is not a run directory.
    """
    if not is_run(root):
        raise UsageError(f"{root}: is not a run directory")
    return RunLayout(root)


def is_prepared(data_dir: Path) -> bool:
    """Whether a data directory was finished; `prepare.load_prepared` checks what is in it."""
    return (data_dir / MANIFEST).is_file()


def has_begun(paths: RunLayout) -> bool:
    """Whether a run holds what was made with its configuration, which it is then bound to."""
    return is_prepared(paths.data) or paths.chosen.exists() or bool(checkpoint_steps(paths))


def checkpoint_steps(paths: RunLayout) -> list[int]:
    """The steps of which there is a checkpoint, full or of the weights alone, in ascending order."""
    steps = [checkpoint_step(path) for path in paths.checkpoints.glob("step-*")]
    return sorted(step for step in steps if step is not None)


def full_checkpoint_steps(paths: RunLayout) -> list[int]:
    """The steps from which training can go on, if what their manifests list is whole; in ascending order."""
    return [step for step in checkpoint_steps(paths) if is_full_checkpoint(paths.checkpoint(step))]


def is_full_checkpoint(path: Path) -> bool:
    """Whether a checkpoint has the optimizer's state; also where its manifest is damaged, which `load` will tell."""
    try:
        return OPTIMIZER in durable.read_manifest(path)
    except DamagedFileError:
        return True


def model_directory(model: Path) -> Path:
    """The directory that MODEL means: that of a run which has one, else `model` itself."""
    return RunLayout(model).model if RunLayout(model).model.is_dir() else model


def translated_tests(paths: RunLayout) -> list[str]:
    """The names of the test sets that a run has translated, in alphabetical order."""
    return sorted(path.parent.name for path in paths.evaluation.glob(f"*/{HYPOTHESIS_TEXT}"))


def stored_scores(paths: RunLayout) -> dict[str, Any]:
    """The scores of a run's model by test set, as `scores.json` has them; none before it is scored."""
    stored = durable.read_json(paths.model / SCORES) if (paths.model / SCORES).exists() else {}
    return {name: value for name, value in stored.items() if name not in ("run", "format")}


def is_finished(paths: RunLayout, events: Sequence[dict[str, Any]]) -> bool:
    """Whether a run is scored and nothing came after the end of its training; `events` are those of metrics.jsonl."""
    return bool(stored_scores(paths) and events and events[-1]["event"] == "end")


@dataclass(frozen=True)
class RunState:
    """Where a run stands.

    Attributes:
        name: running, finished, stopped (training can go on), prepared, or new.
        outcome: how its last process ended: stopped, failed, finished; empty where that is not known.
        reason: why it ended so; empty where that is not known.
    """

    name: str
    outcome: str = ""
    reason: str = ""


def run_state(paths: RunLayout, events: Sequence[dict[str, Any]]) -> RunState:
    """Where a run stands by its lock, its files and the events of its metrics.jsonl."""
    if is_owned(paths.lock):
        return RunState("running")
    if is_finished(paths, events):
        return RunState("finished")
    name = "stopped" if any(event.get("step") for event in events) else "prepared" if paths.data.exists() else "new"
    status = durable.read_json(paths.status) if paths.status.exists() else {}
    outcome, reason = (str(status.get(key) or "") for key in ("state", "reason"))
    return RunState(name, "stopped", KILLED) if outcome == "running" else RunState(name, outcome, reason)
