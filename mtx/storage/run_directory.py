"""Opening a run directory: take its lock, check that the configuration fits the run, clean up after an interruption.

mtx makes a run in a new or empty directory, or continues a run of its own. A start that fails before the run holds
anything removes what it made. The kernel holds the lock (run.lock), so that it is free as soon as its owner is dead,
however it died; the file stays, and its text names the last owner.
"""

import contextlib
import errno
import itertools
import logging
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from filelock import FileLock, Timeout

from mtx.config import settings
from mtx.config.schema import Config
from mtx.config.settings import differences, fixed_differences
from mtx.errors import MtxError, UsageError
from mtx.formatting import mtx_command
from mtx.storage import disk, durable
from mtx.storage.run_contents import (
    checkpoint_steps,
    describe_changes,
    fixed_config,
    full_checkpoint_steps,
    has_begun,
    is_run,
)
from mtx.storage.run_files import OPTIMIZER, RunLayout

logger = logging.getLogger(__name__)

_ATTEMPTS = 100  # another start that cleans up at the same moment can spoil an attempt
_DISK_FAILURES = (errno.EIO, errno.ENOSPC)  # any other error means that the run_dir is unsuitable
_LOCK_TIMEOUT_S = 0.5  # `mtx status` may hold the lock for a moment
_OWNER = re.compile(r"process \d+ on .+ since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d|")
_MAX_LOCK_BYTES = 1000
# The beginnings of names that file systems and desktops make by themselves, also in a volume that is called empty.
_OF_THE_SYSTEM = ("lost+found", ".DS_Store", ".nfs", ".snapshot", ".Trash", ".Spotlight-V100", ".fseventsd")


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
        kind = MtxError if error.errno in _DISK_FAILURES else UsageError
        raise kind(f"run_dir {paths.root}: cannot be made or written: {error.strerror}") from None


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


def owner_of(lock: Path) -> str | None:
    """What `write_owner` wrote into a lock file, "" before it has or if it is missing; None if it is none of mtx."""
    if lock.is_file():
        with contextlib.suppress(OSError), lock.open("rb") as file:
            text = file.read(_MAX_LOCK_BYTES).decode(errors="replace").strip()
            return text if _OWNER.fullmatch(text) else None
    return None if lock.exists() else ""


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
    new_directories = [path for path in (paths.root, *paths.root.parents) if not settings.exists(path)]
    is_locked_before = settings.exists(paths.lock)
    if not is_locked_before:  # no process owns it, so one can look before anything is made
        refuse_foreign(paths)
    with hold_lock(paths):
        if is_locked_before:
            refuse_foreign(paths)
        new_files = [path for path in (paths.config, paths.status) if not path.exists()]
        try:
            write_owner(paths.lock)
            _record_config(paths, config)
            clean_up(paths)
            yield paths
        except BaseException:
            if not has_begun(paths):  # the corrected command starts from scratch
                _remove(new_files)
                _remove(() if is_run(paths.root) else (paths.lock, *new_directories))
            raise


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):  # it is missing, or others put something there, or this is Windows
            path.rmdir() if path.is_dir() else path.unlink()


def refuse_foreign(paths: RunLayout) -> None:
    """Raise UsageError if a directory holds anything and is not the directory of a run.

    A run has a configuration with a lock, with prepared data or with a checkpoint; its user may put anything there.
    """
    saved = (paths.data, paths.model, *map(paths.checkpoint, checkpoint_steps(paths)))  # of a copy without its lock
    if is_run(paths.root):
        has_lock = paths.lock.is_file() and owner_of(paths.lock) is not None
        if has_lock or any(map(durable.has_manifest, saved)):
            return

    def is_trace(path: Path) -> bool:  # of a start that was killed before it wrote the configuration, or of the system
        is_own = (path == paths.lock and owner_of(path) is not None) or (path == paths.distilled and path.is_dir())
        return is_own or durable.is_temporary(path.name) or path.name.startswith(_OF_THE_SYSTEM)

    foreign = None
    with contextlib.suppress(OSError):  # no directory, or one that cannot be read, as taking its lock will report
        foreign = min(itertools.filterfalse(is_trace, paths.root.iterdir()), default=None)
    if foreign is not None:
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


def _record_config(paths: RunLayout, config: Config) -> None:
    """Write config.yaml; logs what changes in a run: a setting that a repeated command omits takes its default again.

    Raises:
        UsageError: see `check_settings`.
    """
    check_settings(paths, config)
    if has_begun(paths):
        with contextlib.suppress(MtxError, OSError):  # no configuration yet, or an unreadable one
            changes = differences(settings.load(paths.config), config)
            if message := describe_changes(change for change in changes if change[0] != "run_dir"):
                logger.info("%s continues with other settings: %s", paths.root, message)
    durable.write_text(paths.config, settings.dump(config))


def check_settings(paths: RunLayout, config: Config) -> None:
    """Check that a run that has begun can continue with `config`, which then replaces its config.yaml.

    Raises:
        UsageError: naming the fixed settings that differ, with both values.
    """
    if not (paths.config.exists() and has_begun(paths)):
        return
    if changes := describe_changes(fixed_differences(fixed_config(paths), config)):
        raise UsageError(
            f"{paths.root} holds a run with another configuration: {changes}",
            f"another run_dir=DIR starts a new run; to continue this one as it is: {mtx_command('train', paths.root)}",
        )
