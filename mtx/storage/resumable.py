"""The job of translating a long text: the same command resumes it after a kill, with the same bytes.

Flow: `Shard` of a text -> blocks of lines -> a row for each line, in a file next to the output, after a line with
everything that the rows depend on. Every row has been written when the output is. The blocks have a fixed number of
lines and are the same in every call; an incomplete block is cut off. What translates them takes all blocks that are
left, so that it may read further than it has answered.
"""

import contextlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from mtx.errors import MtxError, TerminatedError, UsageError
from mtx.formatting import counted, shell_command
from mtx.storage import disk, durable
from mtx.storage.streams import progress
from mtx.storage.text_files import LineParts

logger = logging.getLogger(__name__)

Blocks = Iterator[list[LineParts]]


class MisalignedError(MtxError):
    """There are more or fewer translations than lines, so that none can be trusted: the rows are removed."""


def parse_shard(name: str) -> tuple[int, int]:
    """The two numbers of a shard such as 3/16; raises UsageError if it is not one."""
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", name)
    number, total = map(int, match.groups()) if match else (0, 0)
    if not 1 <= number <= total:
        raise UsageError(f"--shard {name}: expected K/N with K from 1 to N, such as 3/16")
    return number, total


class Shard:
    """The lines of one of N equal parts of a text, or of all of it. They can be read several times.

    Args:
        read: reads the lines of the whole text.
        name: such as 3/16; None for the whole text.

    Attributes:
        bounds: the number of lines before its first line and before its end.

    Raises:
        UsageError: if there is no part of that name.
    """

    def __init__(self, read: Callable[[], Iterable[LineParts]], name: str | None = None):
        number, total = parse_shard("1/1" if name is None else name)
        num_lines = sum(1 for _ in read())
        self.bounds = [num_lines * (number - 1) // total, num_lines * number // total]
        self._read = read

    def __iter__(self) -> Iterator[LineParts]:
        return islice(self._read(), *self.bounds)

    def __len__(self) -> int:
        return self.bounds[1] - self.bounds[0]


@dataclass(frozen=True)
class ResumableRows:
    """A row for each line of a text, in `OUTPUT.part` with the permissions of the output.

    Attributes:
        identity: everything the rows depend on.
        block_lines: the number of lines that are translated together.
    """

    output: Path
    identity: dict[str, Any]
    block_lines: int

    @property
    def path(self) -> Path:
        """The file with the rows."""
        return self.output.with_name(f"{self.output.name}.part")

    @contextlib.contextmanager
    def completed(self, lines: Shard, translate: Callable[[Blocks], Iterable[list[str]]]) -> Iterator[None]:
        """Translate the lines that have no row yet. The file is removed when the context ends without an error.

        Args:
            translate: yields the rows of each of the blocks that are left; they have no line breaks.

        Raises:
            UsageError: if the rows depend on something else, the file is not a file of mtx, or another process is
                writing it.
        """
        with self._lock(), progress("translating", len(lines)) as update:
            update(num_done := self._resume())
            try:
                for rows in translate(self._blocks(islice(lines, num_done, None))):
                    self._append(rows)
                    update(len(rows))
            except MisalignedError:
                self._remove()
                raise
            yield
            self._remove()

    def rows(self) -> Iterator[str]:
        """All rows."""
        if self.path.exists():  # there is no file without a row
            with self.path.open(encoding="utf-8", errors="replace", newline="\n") as file:
                next(file)
                yield from (row.removesuffix("\n") for row in file)

    def _blocks(self, lines: Iterator[LineParts]) -> Blocks:
        while block := list(islice(lines, self.block_lines)):
            yield block

    def _remove(self) -> None:
        if self.path.exists():
            disk.unlink(self.path)

    def _resume(self) -> int:
        """The number of complete rows; an incomplete block is cut off."""
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
            while len(block := list(islice(file, self.block_lines))) == self.block_lines:
                if block[-1].endswith(b"\n"):
                    num_done += len(block)
                    complete_bytes += sum(map(len, block))
            file.truncate(complete_bytes)
        if first_line != self._beginning:  # killed at the start
            disk.unlink(self.path)
        if num_done:
            logger.info(f"{self.path}: {counted(num_done, 'line')} are translated; resuming")
        return num_done

    def _append(self, rows: list[str]) -> None:
        beginning = b""
        if not self.path.exists():
            beginning = self._beginning
            disk.create(self.path, durable.permissions(self.output)).close()
        with disk.append(self.path) as file:
            file.write(beginning + "".join(f"{row}\n" for row in rows).encode())

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
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
