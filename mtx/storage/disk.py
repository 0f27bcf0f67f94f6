"""The operations that change the disk, one function each; `durable` builds atomic writes from them.

All writes of mtx go through here, so that tests can record every operation, make any of them fail, and simulate a power
cut between two of them. Every OSError of these operations names its file.
"""

import contextlib
import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any


@contextlib.contextmanager
def name_in_errors(path: Path) -> Iterator[None]:
    """Put `path` into an OSError of the block, since the system does not name a file that is already open."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


class File(io.FileIO):
    """An open file whose bytes go through `write`; errors give its `name`."""

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        num_written = 0
        with name_in_errors(Path(self.name)):
            while num_written < len(view):
                num_written += write(self.fileno(), view[num_written:])
        return num_written


def create(path: Path, mode: int | None = None) -> IO[bytes]:
    """Open a new file for writing; an existing one is emptied.

    Args:
        mode: the permission bits of a new file, never exceeded; by default from the umask.
    """
    file = File(str(path), "w", opener=lambda name, flags: os.open(name, flags, 0o666 if mode is None else mode))
    if mode is not None:
        with contextlib.suppress(PermissionError):  # a file system without permissions
            os.fchmod(file.fileno(), mode)  # the umask may have removed some bits
    return io.BufferedWriter(file)


def append(path: Path) -> io.RawIOBase:
    """Open a file for writing at its end, unbuffered; a missing one is created."""
    return File(str(path), "a")


def write(fd: int, data: memoryview) -> int:
    """Write to an open file; returns the number of written bytes."""
    return os.write(fd, data)


def sync(path: Path, file: IO[bytes] | None = None) -> None:
    """Return once the content of a file, or the names in a directory, would survive a power cut.

    Args:
        file: `path`, if it is open for writing, with an empty buffer.
    """
    with name_in_errors(path):
        fd = os.open(path, os.O_RDONLY) if file is None else file.fileno()
        try:
            os.fsync(fd)
        finally:
            if file is None:
                os.close(fd)


def make_directory(path: Path) -> None:
    path.mkdir()


def rename(old: Path, new: Path) -> None:
    """Rename a file or directory; an existing file `new` is replaced."""
    old.replace(new)


def unlink(path: Path) -> None:
    path.unlink()


def remove_directory(path: Path) -> None:
    """Remove an empty directory."""
    path.rmdir()


def free_bytes(path: Path) -> int:
    """The number of bytes that can still be written to the disk of an existing `path`."""
    return shutil.disk_usage(path).free
