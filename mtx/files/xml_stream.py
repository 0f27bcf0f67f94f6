"""Reads the XML of strangers as a stream of elements: nothing is fetched, no entities, bounded depth and memory.

Flow: a file -> expat -> the methods of an `XmlHandler`, the reader of a format. Expat reads UTF-8, UTF-16 and the
encodings of one byte that a file declares; errors name path:line.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol
from xml.parsers import expat

from mtx.errors import DataError
from mtx.files.encodings import likely_encoding, wide_encoding
from mtx.files.file_kinds import BEGINNING_BYTES
from mtx.files.text_files import errors_named, escaped, is_utf8, open_bytes, printable

MAX_DEPTH = 200  # of nested elements; a real file has about 10
MAX_TEXT = 1 << 20  # characters of the sentences of one unit
MAX_PARTS = 10_000  # elements with text in one unit
_CHUNK_BYTES = 1 << 16
_MAX_TOKEN_BYTES = 1 << 24  # of a tag, comment or the like
_CUT = re.compile(rb"\A[\x80-\xbf]{1,3}|[\xc0-\xff][\x80-\xbf]{0,2}\Z")
_DECLARED = re.compile(rb"""\s*<\?xml[^>]*?\sencoding\s*=\s*["']([\w.:-]+)""")


class XmlHandler(Protocol):
    """What is called for each element and text, with names as they are written, prefixes included.

    Attributes:
        depth: the number of open elements, which `start` and `end` count; a call of its own for that takes too long.
        line: the line of the file that is being read.
    """

    depth: int
    line: Callable[[], int]

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """An element begins."""

    def end(self, name: str) -> None:
        """An element ends."""

    def text(self, text: str) -> None:
        """Text between tags, in one or more parts."""


class XmlPlaceHandler(XmlHandler, Protocol):
    """A handler that also asks at which character of the text it is: the first one of a tag."""

    at: Callable[[], int]


def read_xml(path: Path, handler: XmlHandler) -> Iterator[None]:
    """Call a handler with the content of a file, plain or gzip; yields after each part of the file.

    Raises:
        UsageError: if the file is missing.
        DataError: if it is not XML, declares entities, is nested too deeply or damaged, or its encoding is not read.
    """
    with open_bytes(path) as file, errors_named(path):
        beginning = file.peek(BEGINNING_BYTES)[:BEGINNING_BYTES]  # type: ignore[attr-defined]
        parser = _parser(path, handler, _encoding(beginning))
        size, chunk, is_last = 0, b"", False
        while not is_last:
            chunk = file.read(_CHUNK_BYTES)
            size, is_last = size + len(chunk), not chunk
            try:
                parser.Parse(chunk, is_last)
            except expat.ExpatError as error:
                raise _not_xml(path, error, chunk) from None
            except (LookupError, ValueError) as error:  # of the encoding: Python has no such codec for single bytes
                help = "save it in UTF-8, in the XML declaration too"
                raise DataError(f"{path}: its encoding is not read ({error})", help) from None
            _check_limits(path, parser, handler, size)
            yield


def parse_text(path: Path, text: str, handler: "XmlPlaceHandler") -> None:
    """Call a handler with the content of a text that is XML; `path` is for messages.

    Raises:
        DataError: see `read_xml`.
    """
    data = text.encode("utf-8", "surrogatepass")
    parser = _parser(path, handler, "UTF-8")  # whatever its declaration says: the text was decoded by it
    characters, last = 0, 0

    def at() -> int:
        nonlocal characters, last
        index = parser.CurrentByteIndex
        characters, last = characters + len(data[last:index].decode()), index
        return characters

    handler.at = at
    for start in range(0, len(data), _CHUNK_BYTES):
        chunk = data[start : start + _CHUNK_BYTES]
        try:
            parser.Parse(chunk, start + _CHUNK_BYTES >= len(data))
        except expat.ExpatError as error:
            raise _not_xml(path, error, chunk) from None
        _check_limits(path, parser, handler, start + len(chunk))


def _check_limits(path: Path, parser: expat.XMLParserType, handler: XmlHandler, size: int) -> None:
    """Raise a DataError if elements are nested too deeply, or a tag is too long after so many bytes."""
    if handler.depth > MAX_DEPTH:
        raise _refused(path, parser, f"elements are nested more than {MAX_DEPTH} deep")
    if size - parser.CurrentByteIndex > _MAX_TOKEN_BYTES:
        raise _refused(path, parser, f"a tag or comment has more than {_MAX_TOKEN_BYTES:,} bytes")


def _encoding(beginning: bytes) -> str | None:
    """What overrides the declared encoding: UTF-16 or UTF-8, where the first bytes are certain of it."""
    wide, declared = wide_encoding(beginning), _DECLARED.match(beginning.removeprefix(b"\xef\xbb\xbf"))
    if wide:
        return wide
    is_wrong = declared is not None and declared[1].lower().startswith((b"utf-16", b"utf16", b"ucs-2"))
    return "UTF-8" if is_wrong else None  # the declaration itself is in single bytes


def _parser(path: Path, handler: XmlHandler, encoding: str | None) -> expat.XMLParserType:
    parser = expat.ParserCreate(encoding)
    parser.buffer_text = True
    parser.specified_attributes = True  # a DTD can give an element others, of any size
    handler.line = lambda: parser.CurrentLineNumber

    def declared_entity(name: str, *_: object) -> None:
        raise _refused(path, parser, f"it declares the entity {printable(name[:40])}, which mtx does not read")

    def unknown_entity(name: str, is_parameter: bool) -> None:
        if not is_parameter:
            raise _refused(path, parser, f"the entity &{printable(name[:40])}; is not defined")

    parser.StartElementHandler, parser.EndElementHandler = handler.start, handler.end
    parser.CharacterDataHandler = handler.text
    parser.EntityDeclHandler, parser.SkippedEntityHandler = declared_entity, unknown_entity
    return parser


def _refused(path: Path, parser: expat.XMLParserType, problem: str) -> DataError:
    return DataError(f"{path}:{parser.CurrentLineNumber}: {problem}")


def _not_xml(path: Path, error: expat.ExpatError, chunk: bytes) -> DataError:
    """The error for a file that is no XML, or not in the encoding that it says."""
    name, text = None, _CUT.sub(b"", chunk)  # a character may be cut at both ends of a part of the file
    if not is_utf8(escaped(text)):
        name = likely_encoding(text)
    if name and error.code == expat.errors.codes[expat.errors.XML_ERROR_INVALID_TOKEN]:
        help = f"save it in UTF-8, or say encoding={name} in its first line"
        return DataError(f"{path}:{error.lineno}: is not UTF-8, perhaps {name}", help)
    return DataError(f"{path}:{error.lineno}: is not XML: {expat.ErrorString(error.code)}")
