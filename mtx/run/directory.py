"""A run directory and its one owner: opened with a configuration that fits it, left as it was where nothing was made.

The lock is the kernel's, so it is free when its owner is dead, however it died.
"""

import contextlib
import errno
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from filelock import FileLock, Timeout

from mtx.config import settings
from mtx.config.schema import Config, differences, may_change
from mtx.errors import MtxError, UsageError
from mtx.files import disk, durable, text_files
from mtx.run.contents import has_begun
from mtx.run.layout import RunLayout

_ATTEMPTS = 100  # each of which another start can spoil by tidying up
_DISK_FAILS = (errno.EIO, errno.ENOSPC)  # not a matter of which run_dir was named
_LOCK_TIMEOUT_S = 0.5  # `mtx status` may hold the lock for a moment


@contextlib.contextmanager
def open_run(wanted: Config) -> Iterator[RunLayout]:
    """Own the run directory of `wanted` while the context lasts.

    Raises:
        UsageError: where the directory holds a run with other fixed settings.
        MtxError: where another process works on it.
    """
    paths = RunLayout(Path(wanted.run_dir))
    new = [path for path in (paths.lock, paths.root, *paths.root.parents) if not path.exists()]
    with owned(paths):
        _refuse_foreign(paths)
        try:
            sign(paths.lock)
            _settle_config(paths, wanted)
            for directory in (paths.root, paths.checkpoints, *paths.checkpoints.glob("step-*"), paths.evaluation):
                durable.remove_temporaries(directory)
            yield paths
        except BaseException:
            if not has_begun(paths):
                _leave_nothing(paths, new)
            raise


def owned(paths: RunLayout) -> AbstractContextManager[object]:
    """The lock of a run, whose directory is made where there is none; see `open_run` for what it raises."""
    for attempt in range(_ATTEMPTS):
        try:
            durable.make_directories(paths.root)
            return FileLock(paths.lock).acquire(timeout=_LOCK_TIMEOUT_S)
        except Timeout:
            raise MtxError(
                f"{paths.root}: another process works on this run{_owner(paths.lock)}",
                "wait for it, or use another run_dir",
            ) from None
        except OSError as error:
            if isinstance(error, FileNotFoundError) and attempt < _ATTEMPTS - 1:
                continue  # a start that failed has just removed the directory that it had made
            raise _not_writable(paths, error) from None
    raise AssertionError("the last attempt returns or raises")


def _not_writable(paths: RunLayout, error: OSError) -> MtxError:
    kind = MtxError if error.errno in _DISK_FAILS else UsageError
    return kind(f"run_dir {paths.root}: cannot be made or written: {error.strerror}")


def check_writable(paths: RunLayout) -> None:
    """Refuse a run directory that `owned` could not make or write. Only a file without a name is made for that.

    Raises:
        MtxError: as `owned` does.
    """
    try:
        tempfile.TemporaryFile(dir=nearest_directory(paths.root)).close()
    except OSError as error:
        raise _not_writable(paths, error) from None


def nearest_directory(path: Path) -> Path:
    """The path itself where it exists, or the nearest of its parents that does."""
    absolute = path.absolute()
    return next(place for place in (absolute, *absolute.parents) if place.exists())


def _refuse_foreign(paths: RunLayout) -> None:
    """Refuse to overwrite a configuration that is not of a run: whoever writes one has signed the lock before."""
    if paths.config.exists() and not paths.lock.stat().st_size and not has_begun(paths):
        _unlink(paths.lock)
        raise UsageError(
            f"{paths.config}: is not of a run, and would be overwritten", "run_dir=DIR names another place"
        )


def sign(lock: Path) -> None:
    """Tell others who holds a lock that is held."""
    if os.name == "nt":  # Windows lets nobody write to a lock while it is held
        return
    owner = f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n"
    with disk.create(lock) as file:
        file.write(owner.encode())


def _owner(lock: Path) -> str:
    """What the process that holds a lock wrote into it, for a message."""
    with contextlib.suppress(OSError):
        return "".join(f": {line}" for line in text_files.read_lines(lock) if line.isprintable())[:200]
    return ""


def _leave_nothing(paths: RunLayout, new: list[Path]) -> None:
    """Remove what a start that made nothing has left, so that a corrected call does not trip over it.

    Args:
        new: the lock and the directories that were not there before, innermost first.
    """
    paths.config.unlink(missing_ok=True)
    paths.status.unlink(missing_ok=True)
    if paths.lock in new or set(paths.root.iterdir()) <= {paths.lock}:
        _unlink(paths.lock)
    with contextlib.suppress(OSError):  # somebody else put something there
        for path in new:
            if path != paths.lock:
                path.rmdir()


def _unlink(lock: Path) -> None:
    """Remove a lock that is held. Windows does not remove an open file; there filelock removes it on release."""
    with contextlib.suppress(OSError):
        lock.unlink()


def _settle_config(paths: RunLayout, wanted: Config) -> None:
    """Keep the configuration of a new run; for one that is begun allow only what may change."""
    check_settings(paths, wanted)
    durable.write_text(paths.config, settings.dump(wanted))


def check_settings(paths: RunLayout, wanted: Config) -> None:
    """Refuse what a run that is begun cannot go on with.

    Raises:
        UsageError: naming the settings that differ and may not.
    """
    if paths.config.exists() and has_begun(paths):
        fixed = [d for d in differences(settings.load(paths.config), wanted) if not may_change(d[0])]
        if fixed:
            listed = "; ".join(f"{key} is {old!r} there, {new!r} was asked for" for key, old, new in fixed)
            raise UsageError(
                f"{paths.root} holds a run with another configuration: {listed}",
                f"mtx train {paths.root} goes on with it as it is; another run_dir=DIR starts anew",
            )
