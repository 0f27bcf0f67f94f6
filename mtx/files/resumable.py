"""Rows that a long job writes as it goes, so that the same command goes on after a kill, with the same bytes.

The rows stand in a file beside the output, behind a line that says what they depend on. They are added in blocks of a
fixed number, which are the same in every call; what was written of a further block is cut off.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtx.errors import UsageError
from mtx.files import disk
from mtx.files.shell import shell_command
from mtx.files.sizes import counted

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ResumableRows:
    """The rows of one output.

    Attributes:
        path: the file.
        about: what the rows depend on.
        block_rows: the number of rows of each `append` but the last.
    """

    path: Path
    about: dict[str, Any]
    block_rows: int

    @classmethod
    def beside(cls, output: Path, about: dict[str, Any], block_rows: int) -> "ResumableRows":
        return cls(output.with_name(f"{output.name}.part"), about, block_rows)

    def resume(self) -> int:
        """The number of rows that are there; a part of a block is cut off.

        Raises:
            UsageError: if the rows depend on something else.
        """
        if not self.path.exists():
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
        beginning = "" if self.path.exists() else self._beginning
        with disk.append(self.path) as file:
            file.write("".join([beginning, *(f"{row}\n" for row in rows)]).encode())

    def rows(self) -> Iterator[bytes]:
        """All rows, with their line breaks."""
        if self.path.exists():  # without a row there is no file
            with self.path.open("rb") as file:
                next(file)
                yield from file

    def remove(self) -> None:
        """Remove the file, if it is there."""
        if self.path.exists():
            disk.unlink(self.path)

    @property
    def _beginning(self) -> str:
        return json.dumps(self.about, sort_keys=True) + "\n"
