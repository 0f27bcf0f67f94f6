"""The settings that a run has: its config.yaml, as mtx wrote it and as its checkpoints were trained.

config.yaml carries a seal (`mtx.config.seal`). A run of an earlier version has none, and a seal can be removed, so the
newest checkpoint, whose manifest vouches for it, holds the fixed settings as well.
"""

import contextlib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mtx.config import settings
from mtx.config.fixed import fixed_differences
from mtx.config.schema import Config
from mtx.errors import DamagedFileError
from mtx.files import durable
from mtx.files.shell import mtx_command, shell_command
from mtx.run.contents import checkpoint_steps
from mtx.run.layout import STATE, RunLayout


def load_config(paths: RunLayout) -> Config:
    """The configuration of a run.

    Raises:
        UsageError: if config.yaml is no configuration.
        DamagedFileError: if it is not what mtx wrote, or not what the newest checkpoint was trained with; names the
            settings that differ from those of the checkpoint.
    """
    config, is_changed = settings.load(paths.config), settings.is_changed(paths.config)
    step, trained_with = _newest_settings(paths)
    different = fixed_differences(trained_with, config) if trained_with else []
    if is_changed or different:
        problem = "was changed after mtx wrote it" if is_changed else f"is not the configuration of step {step}"
        changes = "; ".join(f"{key} is {new!r}, the run was trained with {old!r}" for key, old, new in different)
        raise DamagedFileError(f"{paths.config}: {problem}{changes and f': {changes}'}", _how_to_go_on(paths.config))
    return config


def fixed_config(paths: RunLayout) -> Config:
    """A configuration with the fixed settings of a run: of its newest checkpoint, or else of its config.yaml."""
    _, trained_with = _newest_settings(paths)
    return trained_with or load_config(paths)


def _how_to_go_on(config: Path) -> str:
    """What to do after an edit: undo it, let the command of the run write the file anew, or start another run."""
    return (
        "undo the change, or give the command that started the run again, which writes the file anew; to start a new "
        f"run with it: {shell_command('cp', config, 'COPY.yaml')} && {mtx_command('train', 'COPY.yaml', 'run_dir=NEW')}"
    )


def _newest_settings(paths: RunLayout) -> tuple[int, Config | None]:
    """The newest checkpoint that is whole and the settings that it was trained with; None if it has none."""
    for step in reversed(checkpoint_steps(paths)):
        path, state = paths.checkpoint(step) / STATE, None
        with contextlib.suppress(OSError, DamagedFileError):  # training reports a damaged one, or just removes it
            durable.verify(path.parent, (STATE,), only_needed=True)
            state = durable.read_json(path)
        if state is not None:
            return step, None if state.get("settings") is None else _as_config(path, state["settings"])
    return 0, None


def _as_config(path: Path, stored: Any) -> Config:
    try:
        return Config.model_validate(stored)
    except ValidationError:
        raise DamagedFileError(f"{path}: its settings are no configuration") from None
