"""The only reader of text lines. A line ends at LF only, so that no other character can misalign a corpus."""

import contextlib
import gzip
import itertools
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Literal

from mtx.errors import DataError, UsageError
from mtx.formatting import counted, shell_command
from mtx.storage.encodings import likely_encoding, wide_encoding
from mtx.storage.file_kinds import BEGINNING_BYTES, kind_of

_PRINTED = "\u200c\u200d\u00a0\u202f\u3000"  # joiners, which some scripts need, and spaces that texts use
_BEGINNING_BYTES = 2**20  # in which a text has a line end; with CRs alone it is refused
_SAMPLE_LINES, _SAMPLED_LINES = 100, 10_000  # invalid lines that show the encoding, and lines to find them in
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED = re.compile("[\udc80-\udcff]")  # Python's surrogateescape: each stands for a byte that is not UTF-8


def open_binary(path: Path) -> IO[bytes]:
    """Open a plain or gzip file or pipe of plain text for reading bytes, see `open_bytes`.

    Raises:
        UsageError: if the file is missing or not plain text, see `file_kinds`.
        DataError: if the beginning of a gzip file is damaged.
    """
    return open_bytes(path, is_plain=True)


def bilingual_form(path: Path) -> str | None:
    """The form of a file that is no plain text but holds pairs, see `FileKind.form`; None for plain text.

    Raises:
        UsageError: if the file is missing, or neither.
        DataError: if the beginning of a gzip file is damaged.
    """
    with open_bytes(path) as file, errors_named(path):
        kind = kind_of(file.peek(BEGINNING_BYTES))  # type: ignore[attr-defined]
    if kind and not kind.form:
        raise UsageError(f"{path}: is {kind.name}, expected plain text", kind.help)
    return kind.form if kind else None


def open_bytes(path: Path, is_plain: bool = False) -> IO[bytes]:
    """Open a file or pipe, plain or gzip, for reading bytes; gzip is recognised by the first two bytes.

    Raises:
        UsageError: if the file is missing, or not plain text and `is_plain`.
        DataError: if the beginning of a gzip file is damaged.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    with contextlib.ExitStack() as on_error, errors_named(path):
        on_error.enter_context(file)
        stream: Any = gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == b"\x1f\x8b" else file
        beginning = stream.peek(BEGINNING_BYTES)
        if is_plain and (kind := kind_of(beginning)):
            raise UsageError(f"{path}: is {kind.name}, expected plain text", kind.help)
        on_error.pop_all()
    return stream  # type: ignore[no-any-return]


@contextlib.contextmanager
def errors_named(name: Path) -> Iterator[None]:
    """Turn errors of reading in the block into a DataError that names the file."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{name}: truncated or damaged gzip file ({error})") from None
    except OSError as error:
        raise DataError(f"{name}: cannot be read: {error.strerror or error}") from None


def byte_lines(file: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a binary stream, without LF, without one CR before it, and without a BOM at byte 0."""
    for number, line in enumerate(file):
        if number == 0 and line.startswith(b"\xef\xbb\xbf"):
            line = line[3:]
        if line.endswith(b"\n"):
            line = line[:-2] if line.endswith(b"\r\n") else line[:-1]
        yield line


Invalid = Literal["replace", "surrogateescape", "strict"]


def decoded_lines(file: IO[bytes], name: Path, invalid: Invalid = "replace") -> Iterator[str]:
    """The lines of an open UTF-8 stream, as in `read_lines`; error messages use `name`."""
    with errors_named(name):
        lines = byte_lines(_checked_lines(file, name))
        for number, line in enumerate(lines, 1):
            try:
                yield line.decode("utf-8", errors=invalid)
            except UnicodeDecodeError:
                raise _not_utf8(name, number, line, lines) from None


def read_lines(path: Path, invalid: Invalid = "replace") -> Iterator[str]:
    """The lines of a UTF-8 text file, plain or gzip.

    Args:
        invalid: what becomes of bytes that are not UTF-8. `replace`: U+FFFD. `surrogateescape`: one lone surrogate a
            byte, which `is_utf8` finds. `strict`: the file is refused.

    Raises:
        UsageError: if the file is missing or not text, see `open_binary`.
        DataError: if a gzip file is truncated or damaged, the text is in UTF-16 or UTF-32, or its lines end in CR.
    """
    with open_binary(path) as file:
        yield from decoded_lines(file, path, invalid)


def _checked_lines(file: IO[bytes], name: Path) -> Iterator[bytes]:
    """The lines of a stream with their ends. Raises a DataError if its beginning is in UTF-16 or has CRs for LFs."""
    beginning = getattr(file, "peek", lambda _: b"")(BEGINNING_BYTES)  # waits no longer than reading a line
    first = file.readline(_BEGINNING_BYTES)
    if encoding := wide_encoding(max(beginning or b"", first, key=len)):  # of gzip, one sees the first member alone
        raise DataError(f"{name}: is in {encoding}, expected UTF-8", _iconv(name, encoding))
    if not first.endswith(b"\n"):
        if first.count(b"\r") > 1:
            help = f"tr '\\r' '\\n' < {shell_command(name)} > NEW"
            raise DataError(f"{name}: its lines end in CR, as on an old Mac, expected LF", help)
        first += file.readline()
    return itertools.chain([first] if first else [], file)


def _not_utf8(name: Path, number: int, line: bytes, rest: Iterator[bytes]) -> DataError:
    """The error for a line that is not UTF-8; it and those of the following lines show the encoding."""
    others = (other for other in itertools.islice(rest, _SAMPLED_LINES) if not is_utf8(escaped(other)))
    encoding = likely_encoding(b"\n".join([line, *itertools.islice(others, _SAMPLE_LINES)]))
    return DataError(f"{name}:{number}: is not UTF-8{_perhaps(encoding)}", _iconv(name, encoding or "ENCODING"))


def _perhaps(encoding: str | None) -> str:
    return f", perhaps {encoding}" if encoding else ""


def _iconv(name: Path, encoding: str) -> str:
    file = shell_command(name)
    unpacked, file = (f"gzip -dc {file} | ", "") if name.suffix == ".gz" else ("", f"{file} ")
    return f"{unpacked}iconv -f {encoding} -t UTF-8 {file}> NEW"


def escaped(line: bytes) -> str:
    """A line with a lone surrogate for each byte that is not UTF-8."""
    return line.decode("utf-8", "surrogateescape")


def is_utf8(line: str) -> bool:
    """Whether a line that was read with `surrogateescape` was UTF-8; U+FFFD is."""
    return line.isprintable() or _ESCAPED.search(line) is None  # surrogates are not printable


def replace_invalid(line: str) -> str:
    """A line that was read with `surrogateescape` as if read with `replace`."""
    return line if is_utf8(line) else line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates by U+FFFD. They have no UTF-8 form, and SentencePiece and Arrow refuse them."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


class InvalidLines:
    """Counts the lines that are not UTF-8 in a text that was read with `surrogateescape`, and keeps some of them.

    Args:
        place: where the lines are, for `message`, such as " of the prefixes".
    """

    def __init__(self, place: str = ""):
        self._place, self.count = place, 0
        self._sample: list[str] = []

    def replace(self, lines: list[str]) -> list[str]:
        """Count the invalid lines; returns all lines as if read with `replace`."""
        invalid = [line for line in lines if not is_utf8(line)]
        self.count += len(invalid)
        self._sample += invalid[: _SAMPLE_LINES - len(self._sample)]
        return list(map(replace_invalid, lines)) if invalid else lines

    def message(self) -> str | None:
        """What to say about the invalid lines; None if there were none."""
        if not self.count:
            return None
        guess = _perhaps(likely_encoding("\n".join(self._sample).encode("utf-8", "surrogateescape")))
        return f"{counted(self.count, 'line')}{self._place} held invalid UTF-8, read as U+FFFD{guess}"


def printable(text: str) -> str:
    """The text with control characters and the like escaped for a terminal; joiners and spaces stay."""
    return "".join(c if c.isprintable() or c in _PRINTED else c.encode("unicode_escape").decode() for c in text)


def ends_in_newline(path: Path) -> bool:
    """Whether the last line of a file is complete, so that more can be appended; true for an empty file."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read() in (b"", b"\n")
