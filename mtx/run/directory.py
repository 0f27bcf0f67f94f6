"""Opening a run directory: take its lock, check that the configuration fits the run, clean up after an interruption.

mtx makes a run in a new or empty directory, or goes on in a run of its own. A start that fails before the run holds
anything removes what it made. `lock` has the lock itself, `contents` the questions about what a run holds,
`configuration` the settings that a run has.
"""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from mtx.config import settings
from mtx.config.fixed import differences, fixed_differences
from mtx.config.schema import Config
from mtx.errors import MtxError, UsageError
from mtx.files import durable
from mtx.files.shell import mtx_command
from mtx.run.configuration import fixed_config
from mtx.run.contents import checkpoint_steps, foreign_entry, full_checkpoint_steps, has_begun
from mtx.run.layout import OPTIMIZER, RunLayout
from mtx.run.lock import hold_lock, write_owner

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def open_run(config: Config) -> Iterator[RunLayout]:
    """Own the run directory of `config` until the context ends.

    Raises:
        UsageError: if the directory holds a run with other fixed settings, or files that no run wrote, or cannot be
            made.
        MtxError: if another process works on the run.
    """
    paths = RunLayout(Path(config.run_dir))
    created = [path for path in (paths.lock, paths.root, *paths.root.parents) if not settings.exists(path)]
    if paths.lock in created:  # no process owns it, so one can look before anything is made
        refuse_foreign(paths)
    with hold_lock(paths):
        if paths.lock not in created:
            refuse_foreign(paths)
        made = [path for path in (paths.config, paths.status) if not path.exists()]
        try:
            write_owner(paths.lock)
            _record_config(paths, config)
            clean_up(paths)
            yield paths
        except BaseException:
            if not has_begun(paths):
                _remove_traces(paths, made, created)
            raise


def refuse_foreign(paths: RunLayout) -> None:
    """Raise UsageError if a directory holds anything and is not the directory of a run."""
    if foreign := foreign_entry(paths):
        raise UsageError(
            f"run_dir {paths.root} holds {foreign.name}, which no run of mtx wrote",
            "run_dir=DIR names a directory that is new or empty, or that of a run",
        )


def clean_up(paths: RunLayout) -> None:
    """Undo what an interruption left in a run; the caller holds its lock."""
    for directory in (paths.root, paths.checkpoints, *paths.checkpoints.glob("step-*"), paths.evaluation,
                      paths.before):  # fmt: skip
        durable.remove_temporaries(directory)
    for step in {*checkpoint_steps(paths)} - {*full_checkpoint_steps(paths)}:
        durable.remove_member(paths.checkpoint(step), OPTIMIZER)  # a kill may have left the file


def _remove_traces(paths: RunLayout, made: list[Path], created: list[Path]) -> None:
    """Remove the files of a failed start that made nothing else, so that the corrected command can start anew.

    Args:
        made: the files that were not there when this start took the lock.
        created: the lock and the directories that this start made, innermost first.
    """
    for path in made:
        path.unlink(missing_ok=True)
    if paths.lock in created or set(paths.root.iterdir()) <= {paths.lock}:
        paths.lock.unlink()
    with contextlib.suppress(OSError):  # somebody else put something there
        for path in created:
            if path != paths.lock:
                path.rmdir()


def _record_config(paths: RunLayout, config: Config) -> None:
    check_settings(paths, config)
    _tell_changes(paths, config)
    durable.write_text(paths.config, settings.dump(config))


def check_settings(paths: RunLayout, config: Config) -> None:
    """Check that a run that has begun can go on with `config`, which then replaces its config.yaml.

    Raises:
        UsageError: naming the fixed settings that differ, with both values.
    """
    if not (paths.config.exists() and has_begun(paths)):
        return
    if fixed := fixed_differences(fixed_config(paths), config):
        changes = "; ".join(f"{key} is {_shown(old)} there, {_shown(new)} was asked for" for key, old, new in fixed)
        raise UsageError(
            f"{paths.root} holds a run with another configuration: {changes}",
            f"another run_dir=DIR starts a new run; to go on with its own settings: {mtx_command('train', paths.root)}",
        )


def _tell_changes(paths: RunLayout, config: Config) -> None:
    """Say which settings of a run change: one that a repeated command leaves out takes its default again."""
    with contextlib.suppress(MtxError, OSError):  # there is no configuration yet, or none that can be read
        old = settings.load(paths.config)
        changed = [change for change in differences(old, config) if change[0] != "run_dir"]
        if changed and has_begun(paths):
            changes = "; ".join(f"{key} is {_shown(now)}, it was {_shown(before)}" for key, before, now in changed)
            logger.info("%s goes on with other settings: %s", paths.root, changes)


def _shown(value: object) -> str:
    """A value of a setting as it is written on a command line, where that is possible."""
    return repr(",".join(map(str, value)) if isinstance(value, tuple) else value)
