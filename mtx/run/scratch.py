"""The temporary directory of a dry run, which holds text of the user: only its owner may read it, and it does not stay.

A dry run that was killed cannot remove its own. The next one does: the kernel has released the lock in it.
"""

import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mtx.run.layout import RunLayout
from mtx.run.lock import hold_lock, is_locked, owner_of, write_owner

_PREFIX = "mtx-dry-run-"


@contextlib.contextmanager
def scratch_directory() -> Iterator[RunLayout]:
    """A run directory that is removed when the context ends, as are those that killed processes left."""
    _remove_stale(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as directory:
        paths = RunLayout(Path(directory))
        with hold_lock(paths):
            write_owner(paths.lock)
            yield paths


def _remove_stale(base: Path) -> None:
    """Remove the scratch directories of this user whose processes, which ran on this host, are dead."""
    for directory in base.glob(f"{_PREFIX}*"):
        lock = RunLayout(directory).lock
        with contextlib.suppress(OSError):  # of another user, or another process has just removed it
            is_own = not directory.is_symlink() and hasattr(os, "getuid") and directory.stat().st_uid == os.getuid()
            if is_own and f" on {socket.gethostname()} since " in owner_of(lock) and not is_locked(lock):
                shutil.rmtree(directory, ignore_errors=True)
