"""Opening a run directory: take its lock, check that the configuration fits the run, clean up after an interruption.

If a start fails before the run holds anything, it removes what it created. `lock` has the lock itself, `contents` the
questions about what a run holds.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from mtx.config import settings
from mtx.config.schema import Config, differences, may_change
from mtx.errors import UsageError
from mtx.files import durable
from mtx.run.contents import has_begun
from mtx.run.layout import RunLayout
from mtx.run.lock import hold_lock, write_owner


@contextlib.contextmanager
def open_run(config: Config) -> Iterator[RunLayout]:
    """Own the run directory of `config` until the context ends.

    Raises:
        UsageError: if the directory holds a run with other fixed settings, or cannot be made.
        MtxError: if another process works on the run.
    """
    paths = RunLayout(Path(config.run_dir))
    created = [path for path in (paths.lock, paths.root, *paths.root.parents) if not path.exists()]
    with hold_lock(paths):
        _refuse_foreign_config(paths)
        try:
            write_owner(paths.lock)
            _record_config(paths, config)
            for directory in (paths.root, paths.checkpoints, *paths.checkpoints.glob("step-*"), paths.evaluation):
                durable.remove_temporaries(directory)
            yield paths
        except BaseException:
            if not has_begun(paths):
                _remove_traces(paths, created)
            raise


def _refuse_foreign_config(paths: RunLayout) -> None:
    """Refuse to overwrite a config.yaml that no run wrote: a run writes its owner into the lock file first."""
    if paths.config.exists() and not paths.lock.stat().st_size and not has_begun(paths):
        _unlink(paths.lock)
        raise UsageError(
            f"{paths.config}: belongs to no run, and training would overwrite it", "run_dir=DIR names another directory"
        )


def _remove_traces(paths: RunLayout, created: list[Path]) -> None:
    """Remove the files of a failed start that made nothing else, so that the corrected command can start anew.

    Args:
        created: the lock and the directories that this start made, innermost first.
    """
    paths.config.unlink(missing_ok=True)
    paths.status.unlink(missing_ok=True)
    if paths.lock in created or set(paths.root.iterdir()) <= {paths.lock}:
        _unlink(paths.lock)
    with contextlib.suppress(OSError):  # somebody else put something there
        for path in created:
            if path != paths.lock:
                path.rmdir()


def _unlink(lock: Path) -> None:
    """Remove a lock that is held. Windows does not remove an open file; there filelock removes it on release."""
    with contextlib.suppress(OSError):
        lock.unlink()


def _record_config(paths: RunLayout, config: Config) -> None:
    check_settings(paths, config)
    durable.write_text(paths.config, settings.dump(config))


def check_settings(paths: RunLayout, config: Config) -> None:
    """Check that a run that has begun can go on with `config`.

    Raises:
        UsageError: naming the fixed settings that differ, with both values.
    """
    if not (paths.config.exists() and has_begun(paths)):
        return
    fixed = [d for d in differences(settings.load(paths.config), config) if not may_change(d[0])]
    if fixed:
        changes = "; ".join(f"{key} is {old!r} there, {new!r} was asked for" for key, old, new in fixed)
        raise UsageError(
            f"{paths.root} holds a run with another configuration: {changes}",
            f"mtx train {paths.root} goes on with its own configuration; another run_dir=DIR starts a new run",
        )
