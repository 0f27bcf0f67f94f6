"""Questions about what a run directory holds, answered from its files: settings, checkpoints, model, test sets, scores.

Each question has one function, and none needs torch. `run_files` has the names, `run_directory` opens a run and owns
it, `run_status` reads its state.
"""

import contextlib
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtx.errors import DamagedFileError, UsageError
from mtx.formatting import mtx_command, shell_command
from mtx.storage import durable
from mtx.storage.durable import MANIFEST
from mtx.storage.run_files import (
    HYPOTHESIS_TEXT,
    MARIAN_SOURCE_MODEL,
    MODEL_CONFIG,
    OPTIMIZER,
    REPORT,
    SCORES,
    SETTINGS,
    STATE,
    RunLayout,
    checkpoint_step,
)

if TYPE_CHECKING:
    from mtx.config.schema import Config  # which takes as long to import as all that `mtx --help` needs


def is_run(root: Path) -> bool:
    """Whether a directory is a run directory."""
    return RunLayout(root).config.is_file()


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


# Settings: those of config.yaml, of which the fixed ones (`mtx.config.settings`) must be those that the run began with.
# The prepared data and each checkpoint hold the fixed settings, vouched for by their manifests.


def load_config(paths: RunLayout) -> "Config":
    """The configuration of a run.

    Raises:
        UsageError: if config.yaml is not a configuration or a fixed setting in it is not what the run began with; names
            it with both values.
    """
    from mtx.config import settings
    from mtx.config.settings import fixed_differences

    config, begun_with = settings.load(paths.config), _recorded_settings(paths)
    if changes := describe_changes(fixed_differences(begun_with, config) if begun_with else ()):
        new = f"{shell_command('cp', paths.config, 'COPY.yaml')} && {mtx_command('train', 'COPY.yaml', 'run_dir=NEW')}"
        raise UsageError(f"{paths.config}: {changes}", f"undo the change; to start a new run with it: {new}")
    return config


def describe_changes(changes: Iterable[tuple[str, Any, Any]]) -> str:
    """Settings with their new and old values, such as `seed is 2, it was 1`; empty if there are none."""
    return "; ".join(f"{key} is {_show(new)}, it was {_show(old)}" for key, old, new in changes)


def _show(value: object) -> str:
    """A value of a setting as it is written on a command line, where that is possible."""
    return repr(",".join(map(str, value)) if isinstance(value, tuple) else value)


def fixed_config(paths: RunLayout) -> "Config":
    """A configuration with the fixed settings that a run began with; before it began, its config.yaml."""
    from mtx.config import settings

    return _recorded_settings(paths) or settings.load(paths.config)


def _recorded_settings(paths: RunLayout) -> "Config | None":
    """The settings in the newest checkpoint that is whole, or else in the data; None if the run has neither."""
    from pydantic import ValidationError

    from mtx.config.schema import Config

    states = [paths.checkpoint(step) / STATE for step in reversed(checkpoint_steps(paths))]
    for path in (*states, paths.data / SETTINGS):
        stored = None
        with contextlib.suppress(OSError, DamagedFileError):  # training reports a damaged one, or just removes it
            durable.verify(path.parent, (path.name,), only_needed=True)
            stored = durable.read_json(path).get("settings")
        if stored is not None:
            try:
                return Config.model_validate(stored)
            except ValidationError:
                raise DamagedFileError(f"{path}: its settings are not a configuration") from None
    return None


def checkpoint_steps(paths: RunLayout) -> list[int]:
    """The steps that have a checkpoint, full or of the weights alone, in ascending order."""
    steps = map(checkpoint_step, paths.checkpoints.glob("step-*"))
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
        UsageError: if the argument is a part of a run or a MarianMT directory.
    """
    inner = RunLayout(model).model
    if inner.is_dir():
        return inner
    if is_run(model):
        return model
    if (model / MARIAN_SOURCE_MODEL).is_file():
        help = f"{mtx_command('import', model, '-o', 'MODEL')} makes a model directory of it"
        raise UsageError(f"{model}: is a MarianMT directory for transformers, not a model directory of mtx", help)
    is_part = any((model / name).is_file() for name in (STATE, REPORT))
    if is_part and not (model / MODEL_CONFIG).is_file():
        help = "MODEL is a run directory or a model directory"
        raise UsageError(f"{model}: is a part of a run, not a model directory", help)
    return model


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
    """What distinguishes the model of a MODEL argument from others: the hash of its manifest or of its checkpoints."""
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
    path = paths.model / SCORES
    stored = durable.read_json(path) if path.exists() else {}
    scores = {name: value for name, value in stored.items() if name not in ("run", "format")}
    try:
        are_numbers = all(math.isfinite(value[key]["score"]) for value in scores.values() for key in ("bleu", "chrf"))
    except (KeyError, TypeError):
        are_numbers = False
    if not are_numbers:
        raise DamagedFileError(f"{path}: does not hold BLEU scores")
    return scores
