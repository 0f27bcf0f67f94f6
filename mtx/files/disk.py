"""The operations that change the disk, one function each. `files` makes things durable with them.

Everything that mtx writes goes through here, so that tests can record what is done, let any of it fail, and cut the
power between two of them. Every OSError of these operations names its file.
"""

import contextlib
import io
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

_PAUSES_S = (0.01, 0.1, 0.3, 1.0) if os.name == "nt" else ()  # between attempts to rename


@contextlib.contextmanager
def name_in_errors(path: Path) -> Iterator[None]:
    """Name `path` in an OSError of the block: the system names no file that is already open."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def make_directory(path: Path) -> None:
    path.mkdir()


def create(path: Path) -> IO[bytes]:
    """A new file, open for writing; one that is there is emptied."""
    return io.BufferedWriter(_File(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))


def append(path: Path) -> io.RawIOBase:
    """A file, made where there is none, open for writing at its end; what is written goes out at once, whole."""
    return _File(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def write(fd: int, data: memoryview) -> int:
    """Write to an open file, and return how many bytes were taken."""
    return os.write(fd, data)


def sync(path: Path) -> None:
    """Return when the content of a file, or the names in a directory, would outlive a power cut."""
    if os.name == "nt" and path.is_dir():  # Windows cannot open a directory
        return
    fd = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        with name_in_errors(path):
            os.fsync(fd)
    finally:
        os.close(fd)


def rename(old: Path, new: Path) -> None:
    """Give a file or directory another name; a file of that name is replaced.

    Windows refuses while another program, such as a virus scanner or `mtx status`, reads either; it is tried again.
    """
    for pause_s in _PAUSES_S:
        try:
            old.replace(new)
            return
        except PermissionError:
            time.sleep(pause_s)
    old.replace(new)


def unlink(path: Path) -> None:
    path.unlink()


def remove_directory(path: Path) -> None:
    """Remove an empty directory."""
    path.rmdir()


def drop_from_cache(path: Path) -> None:
    """Have a file that was synced read from the disk the next time, where the system can be asked to."""
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def free_bytes(path: Path) -> int:
    """What may still be written to the disk that holds an existing `path`."""
    return shutil.disk_usage(path).free


def _open(path: Path, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0), 0o666)


class _File(io.RawIOBase):
    """An open file whose bytes go through `write`."""

    def __init__(self, path: Path, flags: int):
        self._path, self._fd = path, _open(path, flags)

    def fileno(self) -> int:
        return self._fd

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        done = 0
        with name_in_errors(self._path):
            while done < len(view):
                done += write(self._fd, view[done:])
        return done

    def close(self) -> None:
        if not self.closed:
            super().close()
            os.close(self._fd)
