"""The only reader of text lines: they end at LF only, so that no character in a line can misalign a corpus."""

import contextlib
import gzip
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from mtx.errors import DataError, UsageError

_KEPT = "\u200c\u200d\u00a0\u202f\u3000"  # joiners, which some scripts need, and spaces that text is written with
_SIGNATURE_BYTES = 265  # where the last of them, that of tar, ends
# The beginnings of files that are not text: each has bytes that text does not have, or is no beginning of a sentence.
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
    "a GIF image": rb"GIF8[79]a.{0,6}\0",  # of the seven bytes after its name the last is nearly always 0
    "a WebP image": rb"RIFF.{4}WEBPVP8",
    "a TIFF image": rb"II[*+]\0|MM\0[*+]",
    "a BMP image": rb"BM.{4}\0{4}.{4}[\x0c-\x7c]\0{3}",
}


def open_binary(path: Path) -> IO[bytes]:
    """Open a plain or gzip file (recognised by its first two bytes), which may be a pipe, for reading bytes.

    Raises:
        UsageError: where there is no such file, or it is an archive, an office document, a PDF or an image.
        DataError: where the beginning of a gzip file is damaged.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    with contextlib.ExitStack() as on_error, _errors_named(path):
        on_error.enter_context(file)
        text: Any = gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == b"\x1f\x8b" else file
        _refuse_other_formats(path, text.peek(_SIGNATURE_BYTES))
        on_error.pop_all()
    return text  # type: ignore[no-any-return]


def _refuse_other_formats(path: Path, beginning: bytes) -> None:
    """Raise a UsageError where the first bytes of a file are the signature of a format that is not text."""
    for kind, signature in _SIGNATURES.items():
        if re.match(signature, beginning, re.DOTALL):
            help = "give plain text in UTF-8, one sentence a line; it may be compressed by gzip"
            raise UsageError(f"{path}: is {kind}, expected plain text", help)


@contextlib.contextmanager
def _errors_named(name: Path) -> Iterator[None]:
    """Raise a DataError that names the file where it is damaged or cannot be read."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{name}: truncated or damaged gzip file ({error})") from None
    except OSError as error:
        raise DataError(f"{name}: cannot be read: {error.strerror or error}") from None


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
    with _errors_named(name):
        for line in byte_lines(file):
            yield line.decode("utf-8", errors="replace")


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 text file, plain or gzip; invalid bytes become U+FFFD.

    Raises:
        UsageError: where there is no such file, or it is not text, see `open_binary`.
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
