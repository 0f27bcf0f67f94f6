"""The only reader of text lines: they end at LF only, so that no character in a line can misalign a corpus."""

import gzip
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from mtx.errors import DataError, UsageError

_KEPT = "\u200c\u200d\u00a0\u202f\u3000"  # joiners, which some scripts need, and spaces that text is written with


def open_binary(path: Path) -> IO[bytes]:
    """Open a plain or gzip file (recognised by its first two bytes), which may be a pipe, for reading bytes."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    return gzip.open(file, "rb") if file.peek(2)[:2] == b"\x1f\x8b" else file  # type: ignore[return-value]


def byte_lines(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a binary stream: separated by LF only, one CR before it dropped, a BOM at byte 0 dropped."""
    for number, line in enumerate(file):
        if number == 0 and line.startswith(b"\xef\xbb\xbf"):
            line = line[3:]
        if line.endswith(b"\n"):
            line = line[:-2] if line.endswith(b"\r\n") else line[:-1]
        yield line


def decoded_lines(file: IO[bytes], name: Path) -> Iterator[str]:
    """The lines of an open UTF-8 stream, see `read_lines`; `name` stands in messages."""
    try:
        for line in byte_lines(file):
            yield line.decode("utf-8", errors="replace")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{name}: truncated or damaged gzip file ({error})") from None
    except OSError as error:
        raise DataError(f"{name}: cannot be read: {error.strerror or error}") from None


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 text file, plain or gzip; invalid bytes become U+FFFD.

    Raises:
        UsageError: where there is no such file.
        DataError: where a gzip file is truncated or damaged.
    """
    with open_binary(path) as file:
        yield from decoded_lines(file, path)


def printable(text: str) -> str:
    """The text with everything escaped that a terminal would not show as it is; joiners and all spaces stay."""
    return "".join(c if c.isprintable() or c in _KEPT else c.encode("unicode_escape").decode() for c in text)


def ends_in_newline(path: Path) -> bool:
    """Whether nothing can be glued to the last line of a file; true of an empty one."""
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
