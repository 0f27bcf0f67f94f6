"""Opening a run directory: take its lock, check that the configuration fits the run, clean up after an interruption.

mtx makes a run in a new or empty directory, or continues a run of its own. A start that fails before the run holds
anything removes what it made. The kernel holds the lock (run.lock), so that it is free as soon as its owner is dead,
however it died; the file stays, and its text names the last owner. `contents` has the questions about what a run holds,
`configuration` the settings that a run has.
"""

import contextlib
import errno
import logging
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from filelock import FileLock, Timeout

from mtx.config import settings
from mtx.config.fixed import differences, fixed_differences
from mtx.config.schema import Config
from mtx.errors import MtxError, UsageError
from mtx.formatting import mtx_command
from mtx.storage import disk, durable
from mtx.storage.run_configuration import fixed_config
from mtx.storage.run_contents import checkpoint_steps, foreign_entry, full_checkpoint_steps, has_begun, owner_of
from mtx.storage.run_files import OPTIMIZER, RunLayout

logger = logging.getLogger(__name__)

_ATTEMPTS = 100  # another start that cleans up at the same moment can spoil an attempt
_DISK_FAILURES = (errno.EIO, errno.ENOSPC)  # any other error means that the run_dir is unsuitable
_LOCK_TIMEOUT_S = 0.5  # `mtx status` may hold the lock for a moment


def hold_lock(paths: RunLayout) -> AbstractContextManager[object]:
    """Take the lock of a run until the context ends; a missing run directory is made.

    Raises:
        MtxError: if another process holds the lock, or the disk fails.
        UsageError: if the run directory cannot be made or written.
    """
    try:
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(FileNotFoundError):  # a start that failed has just removed what it had made
                durable.make_directories(paths.root)
                return FileLock(paths.lock).acquire(timeout=_LOCK_TIMEOUT_S)
        return FileLock(paths.lock).acquire(blocking=False)
    except Timeout:
        owner = owner_of(paths.lock)
        raise MtxError(
            f"{paths.root}: another process works on this run{f': {owner}' if owner else ''}",
            "wait for it, or use another run_dir",
        ) from None
    except OSError as error:
        raise _not_writable(paths, error) from None


def check_writable(paths: RunLayout) -> None:
    """Check that `hold_lock` could make and write the run directory, by making a nameless temporary file.

    Raises:
        MtxError: as `hold_lock` does.
    """
    try:
        tempfile.TemporaryFile(dir=durable.nearest_directory(paths.root)).close()
    except OSError as error:
        raise _not_writable(paths, error) from None


def _not_writable(paths: RunLayout, error: OSError) -> MtxError:
    kind = MtxError if error.errno in _DISK_FAILURES else UsageError
    return kind(f"run_dir {paths.root}: cannot be made or written: {error.strerror}")


def write_owner(lock: Path) -> None:
    """Write this process into the lock file that it holds, for the messages of other processes."""
    owner = f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n"
    with disk.create(lock) as file:
        file.write(owner.encode())


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
    for directory in (paths.root, paths.checkpoints, *paths.checkpoints.glob("step-*"), paths.evaluation, paths.before):
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
    with contextlib.suppress(OSError):  # Windows does not remove an open file
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
            f"another run_dir=DIR starts a new run; to continue this one as it is: {mtx_command('train', paths.root)}",
        )


def _tell_changes(paths: RunLayout, config: Config) -> None:
    """Say which settings of a run change: one that a repeated command leaves out takes its default again."""
    with contextlib.suppress(MtxError, OSError):  # no configuration yet, or an unreadable one
        old = settings.load(paths.config)
        changed = [change for change in differences(old, config) if change[0] != "run_dir"]
        if changed and has_begun(paths):
            changes = "; ".join(f"{key} is {_shown(now)}, it was {_shown(before)}" for key, before, now in changed)
            logger.info("%s continues with other settings: %s", paths.root, changes)


def _shown(value: object) -> str:
    """A value of a setting as it is written on a command line, where that is possible."""
    return repr(",".join(map(str, value)) if isinstance(value, tuple) else value)
