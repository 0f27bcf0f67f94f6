"""The only reader of text lines. A line ends at LF only, so that no other character can misalign a corpus."""

import contextlib
import gzip
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from mtx.errors import DataError, UsageError

_PRINTED = "\u200c\u200d\u00a0\u202f\u3000"  # joiners, which some scripts need, and spaces that texts use
_SIGNATURE_BYTES = 265  # the longest signature, that of tar, ends here
# The first bytes of files that are not text. No sentence begins with them.
_SIGNATURES = {
    "a zip archive or an office document": rb"PK(\x03\x04|\x05\x06|\x07\x08)",
    "an office document of the old format": rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
    "a PDF": rb"%PDF-\d",
    "a tar archive": rb".{257}ustar(\0|  \0)",
    "a 7z archive": rb"7z\xbc\xaf\x27\x1c",
    "a rar archive": rb"Rar!\x1a\x07",
    "compressed by xz": rb"\xfd7zXZ\0",
    "compressed by bzip2": rb"BZh[1-9](1AY&SY|\x17\x72\x45\x38\x50\x90)",
    "compressed by zstd": rb"\x28\xb5\x2f\xfd",
    "a PNG image": rb"\x89PNG\r\n\x1a\n",
    "a JPEG image": rb"\xff\xd8\xff",
    "a GIF image": rb"GIF8[79]a.{0,6}\0",  # seven bytes follow the name, and the last is nearly always 0
    "a WebP image": rb"RIFF.{4}WEBPVP8",
    "a TIFF image": rb"II[*+]\0|MM\0[*+]",
    "a BMP image": rb"BM.{4}\0{4}.{4}[\x0c-\x7c]\0{3}",
}


def open_binary(path: Path) -> IO[bytes]:
    """Open a plain or gzip file or pipe for reading bytes; gzip is recognised by the first two bytes.

    Raises:
        UsageError: if the file is missing, or is an archive, an office document, a PDF or an image.
        DataError: if the beginning of a gzip file is damaged.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    with contextlib.ExitStack() as on_error, _errors_named(path):
        on_error.enter_context(file)
        stream: Any = gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == b"\x1f\x8b" else file
        refuse_other_formats(path, stream.peek(_SIGNATURE_BYTES))
        on_error.pop_all()
    return stream  # type: ignore[no-any-return]


def refuse_other_formats(path: Path, beginning: bytes) -> None:
    """Raise a UsageError if a file begins with the signature of a format that is not text."""
    for kind, signature in _SIGNATURES.items():
        if re.match(signature, beginning, re.DOTALL):
            help = "text is plain UTF-8, one sentence a line; it may be compressed by gzip"
            raise UsageError(f"{path}: is {kind}, expected plain text", help)


@contextlib.contextmanager
def _errors_named(name: Path) -> Iterator[None]:
    """Turn errors of reading in the block into a DataError that names the file."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{name}: truncated or damaged gzip file ({error})") from None
    except OSError as error:
        raise DataError(f"{name}: cannot be read: {error.strerror or error}") from None


def byte_lines(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a binary stream, without LF, without one CR before it, and without a BOM at byte 0."""
    for number, line in enumerate(file):
        if number == 0 and line.startswith(b"\xef\xbb\xbf"):
            line = line[3:]
        if line.endswith(b"\n"):
            line = line[:-2] if line.endswith(b"\r\n") else line[:-1]
        yield line


def decoded_lines(file: IO[bytes], name: Path) -> Iterator[str]:
    """The lines of an open UTF-8 stream, as in `read_lines`; error messages use `name`."""
    with _errors_named(name):
        for line in byte_lines(file):
            yield line.decode("utf-8", errors="replace")


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 text file, plain or gzip; invalid bytes become U+FFFD.

    Raises:
        UsageError: if the file is missing or not text, see `open_binary`.
        DataError: if a gzip file is truncated or damaged.
    """
    with open_binary(path) as file:
        yield from decoded_lines(file, path)


def printable(text: str) -> str:
    """The text with control characters and the like escaped for a terminal; joiners and spaces stay."""
    return "".join(c if c.isprintable() or c in _PRINTED else c.encode("unicode_escape").decode() for c in text)


def ends_in_newline(path: Path) -> bool:
    """Whether the last line of a file is complete, so that more can be appended; true for an empty file."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read() in (b"", b"\n")
