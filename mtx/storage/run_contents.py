"""Questions about what a run directory holds, answered from its files: checkpoints, model, state, translated test sets.

Each question has one function, and none needs torch. `layout` has the file names; `directory`
opens a run and owns it.
"""

import contextlib
import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtx.errors import DamagedFileError, UsageError
from mtx.formatting import mtx_command
from mtx.storage import durable
from mtx.storage.durable import MANIFEST
from mtx.storage.run_files import (
    HYPOTHESIS_TEXT,
    MARIAN_SOURCE_MODEL,
    MODEL_CONFIG,
    OPTIMIZER,
    REPORT,
    SCORES,
    STATE,
    RunLayout,
    checkpoint_step,
)

_PARTS = {STATE: "a checkpoint", REPORT: "the prepared data"}  # of a run, by a file in them
# The beginnings of names that file systems and desktops make by themselves, also in a volume that is called empty.
_OF_THE_SYSTEM = ("lost+found", ".DS_Store", ".nfs", ".snapshot", ".Trash", ".Spotlight-V100", ".fseventsd")
_OWNER = re.compile(r"process \d+ on .+ since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d|")
_MAX_LOCK_BYTES = 1000
KILLED = "killed, or its machine went down"  # the reason of a run whose process could not record one


def is_run(root: Path) -> bool:
    """Whether a directory is a run directory."""
    return RunLayout(root).config.is_file()


def foreign_entry(paths: RunLayout) -> Path | None:
    """The first entry of a run directory that no run of mtx wrote; None if the directory is a run's, empty or missing.

    A run's own are its configuration with its lock, with prepared data or with a checkpoint; its user may put anything
    beside them.
    """
    saved = (paths.data, paths.model, *map(paths.checkpoint, checkpoint_steps(paths)))  # of a copy without its lock
    is_locked_by_mtx = owner_of(paths.lock) is not None
    if is_run(paths.root) and (is_locked_by_mtx or any(map(durable.is_written, saved))):
        return None

    def is_trace(path: Path) -> bool:  # of a start that was killed before it wrote the configuration, or of the system
        is_own = (path == paths.lock and is_locked_by_mtx) or (path == paths.distilled and path.is_dir())
        return is_own or durable.is_temporary(path.name) or path.name.startswith(_OF_THE_SYSTEM)

    try:
        return min(itertools.filterfalse(is_trace, paths.root.iterdir()), default=None)
    except OSError:  # no directory, or one that cannot be read, as taking its lock will tell
        return None


def owner_of(lock: Path) -> str | None:
    """What `write_owner` wrote into a lock file, "" before it has; None if it is missing or no lock file of mtx."""
    text = None
    if lock.is_file():
        with contextlib.suppress(OSError), lock.open("rb") as file:
            text = file.read(_MAX_LOCK_BYTES).decode(errors="replace").strip()
    return text if text is not None and _OWNER.fullmatch(text) and text.isprintable() else None


def is_locked(lock: Path) -> bool:
    """Whether any process, this one included, holds the lock of a run."""
    try:
        import fcntl

        with lock.open("rb") as file:  # this user may only read the run, so FileLock cannot ask
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):  # this is Windows, or there is no lock
        pass
    return False


def require_run(root: Path) -> RunLayout:
    """The paths inside a run directory.

    Raises:
        UsageError: if `root` is not a run directory.
    """
    if not is_run(root):
        raise UsageError(f"{root}: is not a run directory")
    return RunLayout(root)


def is_prepared(data_dir: Path) -> bool:
    """Whether a data directory is complete; `token_store.load_prepared` checks its files."""
    return (data_dir / MANIFEST).is_file()


def has_begun(paths: RunLayout) -> bool:
    """Whether a run holds anything that was made with its configuration; from then on most settings are fixed."""
    return is_prepared(paths.data) or paths.chosen.exists() or bool(checkpoint_steps(paths))


def checkpoint_steps(paths: RunLayout) -> list[int]:
    """The steps that have a checkpoint, full or of the weights alone, in ascending order."""
    steps = [checkpoint_step(path) for path in paths.checkpoints.glob("step-*")]
    return sorted(step for step in steps if step is not None)


def full_checkpoint_steps(paths: RunLayout) -> list[int]:
    """The steps from whose checkpoint training can continue, in ascending order; the files are not verified."""
    return [step for step in checkpoint_steps(paths) if is_full_checkpoint(paths.checkpoint(step))]


def is_full_checkpoint(path: Path) -> bool:
    """Whether a checkpoint has the optimizer's state. True for a damaged manifest too, which loading reports."""
    try:
        return OPTIMIZER in durable.read_manifest(path)
    except DamagedFileError:
        return True


def find_model(model: Path) -> Path:
    """The model directory that a MODEL argument means: `model/` of a run directory, else the argument itself.

    Raises:
        UsageError: if the argument is a part of a run or a MarianMT directory; it says so, and names what to give.
    """
    inner = RunLayout(model).model
    if inner.is_dir() or is_run(model):
        return inner if inner.is_dir() else model
    if (model / MARIAN_SOURCE_MODEL).is_file():
        help = f"{mtx_command('import', model, '-o', 'MODEL')} makes a model directory of it"
        raise UsageError(f"{model}: is a MarianMT directory for transformers, not a model directory of mtx", help)
    kind = next((kind for name, kind in _PARTS.items() if (model / name).is_file()), None)
    if kind is None or (model / MODEL_CONFIG).is_file():
        return model
    raise UsageError(
        f"{model}: is {kind} of a run, not a model directory", "MODEL is a run directory or a model directory"
    )


def require_models(model: str | Path) -> list[Path]:
    """The directories that a MODEL argument means: one, or those of an ensemble A+B.

    Raises:
        UsageError: if one of them is not a directory.
    """
    whole = Path(model)
    paths = [whole] if whole.is_dir() else [Path(name or "+") for name in str(model).split("+")]
    if missing := next((path for path in paths if not path.is_dir()), None):
        raise UsageError(f"{missing}: no such model directory or run directory")
    return paths


def model_identity(model: str | Path) -> str:
    """What tells the model that a MODEL argument means from others: the hash of its manifest or its checkpoints'."""
    return "+".join(map(_identity, require_models(model)))


def _identity(model: Path) -> str:
    root = find_model(model)
    if (root / MANIFEST).is_file():
        return durable.sha256(root / MANIFEST)
    paths = RunLayout(root)
    return " ".join(durable.sha256(paths.checkpoint(step) / MANIFEST) for step in checkpoint_steps(paths))


def translated_tests(paths: RunLayout) -> list[str]:
    """The names of the test sets that a run has translated, sorted."""
    names = (path.parent.name for path in paths.evaluation.glob(f"*/{HYPOTHESIS_TEXT}"))
    return sorted(name for name in names if not name.startswith(durable.SET_ASIDE))


def stored_scores(paths: RunLayout) -> dict[str, Any]:
    """The scores of a run's model by test set, as in `scores.json`; empty before the model is scored.

    Raises:
        DamagedFileError: if a test set has no BLEU or no chrF2.
    """
    stored = durable.read_json(paths.model / SCORES) if (paths.model / SCORES).exists() else {}
    scores = {name: value for name, value in stored.items() if name not in ("run", "format")}
    try:
        numbers = [float(value[metric]["score"]) for value in scores.values() for metric in ("bleu", "chrf")]
    except (KeyError, TypeError, ValueError):
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)):
        raise DamagedFileError(f"{paths.model / SCORES}: does not hold BLEU scores")
    return scores


def is_finished(paths: RunLayout, events: Sequence[dict[str, Any]]) -> bool:
    """Whether a run is scored and the last of its `events`, those of metrics.jsonl, is the end of its training."""
    return bool(stored_scores(paths) and events and events[-1]["event"] == "end")


@dataclass(frozen=True)
class RunState:
    """The state of a run.

    Attributes:
        name: running, finished, stopped (training can continue), prepared, or new.
        outcome: how the run's last process ended: stopped, failed or finished; empty if unknown.
        reason: why it ended so; empty if unknown.
    """

    name: str
    outcome: str = ""
    reason: str = ""


def run_state(paths: RunLayout, events: Sequence[dict[str, Any]]) -> RunState:
    """The state of a run, from its lock, its files and the events of its metrics.jsonl."""
    if is_locked(paths.lock):
        return RunState("running")
    if is_finished(paths, events):
        return RunState("finished")
    name = "stopped" if any(event.get("step") for event in events) else "prepared" if paths.data.exists() else "new"
    status = durable.read_json(paths.status) if paths.status.exists() else {}
    outcome, reason = (str(status.get(key) or "") for key in ("state", "reason"))
    return RunState(name, "stopped", KILLED) if outcome == "running" else RunState(name, outcome, reason)
