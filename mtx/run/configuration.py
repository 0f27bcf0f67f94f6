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
from mtx.config.seal import how_to_change
from mtx.errors import DamagedFileError
from mtx.files import durable
from mtx.run.contents import checkpoint_steps
from mtx.run.layout import STATE, RunLayout


def load_config(paths: RunLayout) -> Config:
    """The configuration of a run.

    Raises:
        UsageError: if config.yaml is no configuration.
        DamagedFileError: if it is not what mtx wrote, or not what the newest checkpoint was trained with.
    """
    config = settings.load(paths.config)
    step, trained_with = _newest_settings(paths)
    if trained_with is not None and (different := fixed_differences(trained_with, config)):
        changes = "; ".join(f"{key} is {new!r}, the run was trained with {old!r}" for key, old, new in different)
        text = f"{paths.config}: is not the configuration of step {step}: {changes}"
        raise DamagedFileError(text, how_to_change(paths.config))
    return config


def _newest_settings(paths: RunLayout) -> tuple[int, Config | None]:
    """The newest checkpoint that is whole and the settings that it was trained with; None if it has none."""
    for step in reversed(checkpoint_steps(paths)):
        path = paths.checkpoint(step) / STATE
        with contextlib.suppress(OSError, DamagedFileError):  # training reports a damaged one, or just removes it
            durable.verify(path.parent, (STATE,), only_needed=True)
            stored = durable.read_json(path).get("settings")
            return step, None if stored is None else _as_config(path, stored)
    return 0, None


def _as_config(path: Path, stored: Any) -> Config:
    try:
        return Config.model_validate(stored)
    except ValidationError:
        raise DamagedFileError(f"{path}: its settings are no configuration") from None
