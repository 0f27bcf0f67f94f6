"""Whether a process works on a run, as its lock tells; the lock is the kernel's, and free when its owner is dead."""

from pathlib import Path

from filelock import FileLock, Timeout

KILLED = "killed, or its machine went down"  # why a run stopped that had no time to tell
_LOOK_TIMEOUT_S = 0.1  # somebody else may look, too


def is_owned(lock: Path) -> bool:
    """Whether a process holds the lock of a run, this one included."""
    if not lock.exists():
        return False
    try:
        with FileLock(lock).acquire(timeout=_LOOK_TIMEOUT_S, poll_interval=_LOOK_TIMEOUT_S / 20):
            return False
    except Timeout:
        return True
    except OSError:  # a run that this user may only read
        return _is_held(lock)


def _is_held(lock: Path) -> bool:
    """Whether somebody holds a lock that one may only read."""
    try:
        import fcntl

        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):
        return False
    return False
