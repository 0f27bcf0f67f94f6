"""Rows that a long job writes continuously, so that the same command resumes after a kill, with the same bytes.

The rows are in a file next to the output, after a line with everything they depend on. They are added in blocks of a
fixed number, which are the same in every call; an incomplete block is cut off.
"""

import contextlib
import itertools
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from mtx.errors import TerminatedError, UsageError
from mtx.formatting import counted, shell_command
from mtx.storage import disk, durable

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ResumableRows:
    """The rows of one output, in `OUTPUT.part` with the permissions of the output.

    Attributes:
        identity: everything the rows depend on.
        block_rows: the number of rows of each `append` except the last.
    """

    output: Path
    identity: dict[str, Any]
    block_rows: int

    @property
    def path(self) -> Path:
        """The file with the rows."""
        return self.output.with_name(f"{self.output.name}.part")

    def resume(self) -> int:
        """The number of complete rows; an incomplete block is cut off.

        Raises:
            UsageError: if the rows depend on something else, or the file is not a file of mtx.
        """
        refusal = UsageError(
            f"{self.path}: was started with another model, text or search, or is not a file of mtx",
            f"use another -o FILE, or start from scratch with {shell_command('rm', self.path)}",
        )
        if self.path.is_symlink() or self.path.exists() and not self.path.is_file():
            raise refusal
        if not self.path.exists():
            return 0
        num_done = 0
        with self.path.open("rb+") as file:
            first_line = file.readline(len(self._beginning))
            if not self._beginning.startswith(first_line):
                raise refusal
            complete_bytes = len(first_line)
            while len(block := list(itertools.islice(file, self.block_rows))) == self.block_rows:
                if block[-1].endswith(b"\n"):
                    num_done += len(block)
                    complete_bytes += sum(map(len, block))
            file.truncate(complete_bytes)
        if first_line != self._beginning:  # killed at the start
            disk.unlink(self.path)
        if num_done:
            logger.info(f"{self.path}: {counted(num_done, 'line')} are translated; resuming")
        return num_done

    def append(self, rows: Sequence[str]) -> None:
        """Add a block of rows, which have no line breaks."""
        beginning = b""
        if not self.path.exists():
            beginning = self._beginning
            disk.create(self.path, durable.permissions(self.output)).close()
        with disk.append(self.path) as file:
            file.write(beginning + "".join(f"{row}\n" for row in rows).encode())

    def rows(self) -> Iterator[str]:
        """All rows."""
        if self.path.exists():  # there is no file without a row
            with self.path.open(encoding="utf-8", errors="replace", newline="\n") as file:
                next(file)
                yield from (row.removesuffix("\n") for row in file)

    def remove(self) -> None:
        """Remove the file, if it is there."""
        if self.path.exists():
            disk.unlink(self.path)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the rows against other processes; UsageError if another process holds the lock."""
        lock = self.path.with_name(f"{durable.TEMPORARY_PREFIX}{self.path.name}.lock")
        try:
            with FileLock(lock, timeout=0):
                try:
                    yield
                except TerminatedError as error:
                    error.help = "rerun the same command to resume"
                    raise
                finally:
                    lock.unlink()
        except Timeout:
            raise UsageError(f"{self.path}: another process is writing it") from None

    @property
    def _beginning(self) -> bytes:
        return (json.dumps({**self.identity, "format": durable.FORMAT}, sort_keys=True) + "\n").encode()
