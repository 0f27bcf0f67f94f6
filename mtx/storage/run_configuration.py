"""The settings that a run has: its config.yaml, of which the fixed ones must be those that it began with.

The prepared data and each checkpoint hold the fixed settings (`mtx.config.fixed`), vouched for by their manifests.
"""

import contextlib

from pydantic import ValidationError

from mtx.config import settings
from mtx.config.fixed import fixed_differences
from mtx.config.schema import Config
from mtx.errors import DamagedFileError, UsageError
from mtx.formatting import mtx_command, shell_command
from mtx.storage import durable
from mtx.storage.run_contents import checkpoint_steps
from mtx.storage.run_files import SETTINGS, STATE, RunLayout


def load_config(paths: RunLayout) -> Config:
    """The configuration of a run.

    Raises:
        UsageError: if config.yaml is not a configuration or a fixed setting in it is not what the run began with; names
            it with both values.
    """
    config, begun_with = settings.load(paths.config), _recorded_settings(paths)
    if different := fixed_differences(begun_with, config) if begun_with else []:
        changes = "; ".join(f"{key} is {new!r}, the run began with {old!r}" for key, old, new in different)
        new = f"{shell_command('cp', paths.config, 'COPY.yaml')} && {mtx_command('train', 'COPY.yaml', 'run_dir=NEW')}"
        raise UsageError(f"{paths.config}: {changes}", f"undo the change; to start a new run with it: {new}")
    return config


def fixed_config(paths: RunLayout) -> Config:
    """A configuration with the fixed settings that a run began with; before it began, its config.yaml."""
    return _recorded_settings(paths) or settings.load(paths.config)


def _recorded_settings(paths: RunLayout) -> Config | None:
    """The settings in the newest checkpoint that is whole, or else in the data; None if the run has neither."""
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
