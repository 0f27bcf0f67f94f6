"""The lock of a run directory (run.lock): taking it, naming its owner, and asking whether a process holds it.

The kernel holds the lock, so it is free again as soon as its owner is dead, however it died. The file stays; its text
names the last owner.
"""

import contextlib
import errno
import os
import re
import socket
import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path

from filelock import FileLock, Timeout

from mtx.errors import MtxError, UsageError
from mtx.files import disk, durable
from mtx.run.layout import RunLayout

_OWNER = re.compile(r"process \d+ on .+ since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_MAX_BYTES = 1000  # of a lock file
_ATTEMPTS = 100  # another start that cleans up at the same moment can spoil an attempt
_DISK_FAILURES = (errno.EIO, errno.ENOSPC)  # any other error means that the run_dir is unsuitable
_LOCK_TIMEOUT_S = 0.5  # `mtx status` may hold the lock for a moment
_PROBE_TIMEOUT_S = 0.1  # another `mtx status` may probe the lock at the same moment


def hold_lock(paths: RunLayout) -> AbstractContextManager[object]:
    """Take the lock of a run until the context ends; a missing run directory is made.

    Raises:
        MtxError: if another process holds the lock, or the disk fails.
        UsageError: if the run directory cannot be made or written.
    """
    for attempt in range(_ATTEMPTS):
        try:
            durable.make_directories(paths.root)
            return FileLock(paths.lock).acquire(timeout=_LOCK_TIMEOUT_S)
        except Timeout:
            owner = owner_of(paths.lock)
            raise MtxError(
                f"{paths.root}: another process works on this run{owner and f': {owner}'}",
                "wait for it, or use another run_dir",
            ) from None
        except OSError as error:
            if isinstance(error, FileNotFoundError) and attempt < _ATTEMPTS - 1:
                continue  # a start that failed has just removed the directory that it had made
            raise _not_writable(paths, error) from None
    raise AssertionError("the last attempt returns or raises")


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
    if os.name == "nt":  # on Windows, a lock file cannot be written while it is held
        return
    owner = f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n"
    with disk.create(lock) as file:
        file.write(owner.encode())


def names_owner(lock: Path) -> bool:
    """Whether `write_owner` wrote a lock file."""
    return owner_of(lock) != ""


def owner_of(lock: Path) -> str:
    """What `write_owner` wrote into a lock file, on one line; empty if it wrote nothing, or it cannot be read."""
    with contextlib.suppress(OSError):
        if lock.is_file() and lock.stat().st_size < _MAX_BYTES:
            text = lock.read_bytes().decode(errors="replace").strip()
            return text if _OWNER.fullmatch(text) and text.isprintable() else ""
    return ""


def is_locked(lock: Path) -> bool:
    """Whether any process, this one included, holds the lock of a run."""
    if not lock.exists():
        return False
    try:
        with FileLock(lock).acquire(timeout=_PROBE_TIMEOUT_S, poll_interval=_PROBE_TIMEOUT_S / 20):
            return False
    except Timeout:
        return True
    except OSError:  # this user may only read the run, and FileLock opens for writing
        return _is_locked_read_only(lock)


def _is_locked_read_only(lock: Path) -> bool:
    """`is_locked` for a lock file that this user may only read."""
    try:
        import fcntl

        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):
        pass
    return False
