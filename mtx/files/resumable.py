"""Rows that a long job writes as it goes, so that the same command goes on after a kill, with the same bytes.

The rows stand in a file beside the output, behind a line that says what they depend on. They are added in blocks of a
fixed number, which are the same in every call; what was written of a further block is cut off.
"""

import contextlib
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from mtx.errors import UsageError
from mtx.files import disk, durable
from mtx.files.shell import shell_command
from mtx.files.sizes import counted

logger = logging.getLogger(__name__)

_LONGEST_BEGINNING = 1 << 20


def part_of(output: Path) -> Path:
    """The file that keeps the rows of an output."""
    return output.with_name(f"{output.name}.part")


@dataclass(frozen=True)
class ResumableRows:
    """The rows of one output.

    Attributes:
        path: the file.
        about: what the rows depend on.
        block_rows: the number of rows of each `append` but the last.
        mode: the permission bits of the file; None means the umask's.
    """

    path: Path
    about: dict[str, Any]
    block_rows: int
    mode: int | None = None

    @classmethod
    def beside(cls, output: Path, about: dict[str, Any], block_rows: int) -> "ResumableRows":
        """The rows of an output, in `OUTPUT.part`, which has its permissions."""
        return cls(part_of(output), about, block_rows, durable.permissions(output))

    def resume(self) -> int:
        """The number of rows that are there; a part of a block is cut off.

        Raises:
            UsageError: if the rows depend on something else, or the file is not one of mtx.
        """
        if not self._is_there():
            return 0
        with self.path.open("rb+") as file:
            first, beginning = file.readline(), self._beginning.encode()
            if not first.endswith(b"\n") and beginning.startswith(first):  # killed while it began
                disk.unlink(self.path)
                return 0
            if first != beginning:
                help = f"{shell_command('rm', self.path)} begins anew"
                raise UsageError(f"{self.path}: was begun with another model, text or search", help)
            num_done = num_rows = 0
            end = position = file.tell()
            for row in file:
                num_rows, position = num_rows + 1, position + len(row)
                if num_rows == num_done + self.block_rows and row.endswith(b"\n"):
                    num_done, end = num_rows, position
            file.truncate(end)
        if num_done:
            logger.info("%s: %s are translated; going on", self.path, counted(num_done, "line"))
        return num_done

    def append(self, rows: Sequence[str]) -> None:
        """Add a block of rows, which have no line breaks."""
        beginning = ""
        if not self.path.exists():
            beginning = self._beginning
            disk.create(self.path, self.mode).close()
        with disk.append(self.path) as file:
            file.write("".join([beginning, *(f"{row}\n" for row in rows)]).encode())

    def rows(self) -> Iterator[bytes]:
        """All rows, with their line breaks."""
        if self.path.exists():  # without a row there is no file
            with self.path.open("rb") as file:
                next(file)
                yield from file

    def remove(self) -> None:
        """Remove the file, if it is there; UsageError if it is not one of mtx."""
        if self._is_there():
            disk.unlink(self.path)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Let no other process write these rows; UsageError if one does."""
        lock = self.path.with_name(f"{durable.TEMPORARY_PREFIX}{self.path.name}.lock")
        try:
            with FileLock(lock, timeout=0):
                try:
                    yield
                finally:
                    with contextlib.suppress(OSError):  # Windows does not remove an open file
                        lock.unlink()
        except Timeout:
            raise UsageError(f"{self.path}: another process is writing it") from None

    def _is_there(self) -> bool:
        """Whether the file exists; UsageError if it is something else than rows."""
        if not self.path.exists() and not self.path.is_symlink():
            return False
        is_ours = self.path.is_file() and not self.path.is_symlink()
        if is_ours:
            with self.path.open("rb") as file:
                first = file.readline(_LONGEST_BEGINNING)
            is_ours = self._beginning.encode().startswith(first) or _is_description(first)
        if not is_ours:
            raise UsageError(f"{self.path}: is no file of mtx, and it would be replaced", "-o FILE names another file")
        return True

    @property
    def _beginning(self) -> str:
        return json.dumps({**self.about, "format": durable.FORMAT}, sort_keys=True) + "\n"


def _is_description(line: bytes) -> bool:
    try:
        described = json.loads(line)
    except ValueError:
        return False
    return isinstance(described, dict) and "format" in described
