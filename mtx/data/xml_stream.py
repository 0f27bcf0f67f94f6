"""Reads the XML of strangers as a stream of units: nothing is fetched, no entities, bounded depth and memory.

Flow: a file, or the text of a document -> expat -> the methods of an `XmlReader`, one class for each format -> units.
Expat reads UTF-8, UTF-16 and the encodings of one byte that a file declares; errors name path:line.
"""

import io
import itertools
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar
from xml.parsers import expat

from mtx.errors import DataError
from mtx.storage.text_files import (
    BEGINNING_BYTES,
    declared_encoding,
    errors_named,
    escaped,
    is_utf8,
    likely_encoding,
    open_bytes,
    printable,
    wide_encoding,
)

MAX_DEPTH = 200  # of nested elements; a real file has about 10
MAX_TEXT = 1 << 20  # characters of the sentences of one unit
MAX_PARTS = 10_000  # elements with text in one unit
_CHUNK_BYTES = 1 << 16
_MAX_TOKEN_BYTES = 1 << 24  # of a tag, comment or the like
_CUT = re.compile(rb"\A[\x80-\xbf]{1,3}|[\xc0-\xff][\x80-\xbf]{0,2}\Z")

Unit = TypeVar("Unit")


class XmlReader(Generic[Unit]):
    """Iterates over the units of a file; the class of a format says in `start`, `end` and `text` what they are.

    Args:
        text: the text of the file, if it is a document that was decoded; the file itself is read otherwise.

    Attributes:
        format: the name of the format; the first element has it too, in small letters.
        is_known: whether the first element has this name.
        depth: the number of open elements, which `start` and `end` count; a call of its own for that takes too long.
        units: those that are complete and have not been yielded.
        line: gives the line of the file that is being read.
        at: gives the place of the tag that is being read, which is its first character in `text`; 0 without a text.
    """

    format: ClassVar[str]

    def __init__(self, path: Path, text: str | None = None):
        self.path = path
        self.is_known = False
        self.depth = 0
        self.units: list[Unit] = []
        self.line: Callable[[], int] = int
        self.at: Callable[[], int] = int
        self._data = None if text is None else text.encode("utf-8", "surrogatepass")

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """An element begins; its name is as it is written, with its prefix."""
        raise NotImplementedError

    def end(self, name: str) -> None:
        """An element ends."""
        raise NotImplementedError

    def text(self, text: str) -> None:
        """Text between tags, in one or more parts."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[Unit]:
        """The units, one after the other.

        Raises:
            UsageError: if the file is missing.
            DataError: if it is not in this format, declares entities, is nested too deeply or damaged, or its encoding
                is not read.
        """
        data = self._data
        with open_bytes(self.path) if data is None else io.BytesIO(data) as file, errors_named(self.path):
            if data is None:
                parser = _parser(self, _encoding(file.peek(BEGINNING_BYTES)[:BEGINNING_BYTES]))  # type: ignore[attr-defined]
            else:
                if b"\0" in data:  # by which expat would take it for UTF-16
                    raise DataError(f"{self.path}: is not XML: it holds NUL", "save it in UTF-8")
                parser = _parser(self, "UTF-8")  # whatever its declaration says: the text was decoded by it
                self.at = _characters(parser, data)
            size = 0
            for chunk in itertools.chain(iter(partial(file.read, _CHUNK_BYTES), b""), [b""]):
                size += len(chunk)
                try:
                    parser.Parse(chunk, not chunk)
                except expat.ExpatError as error:
                    raise _not_xml(self.path, error, chunk) from None
                except (LookupError, ValueError) as error:  # Python has no such codec for single bytes
                    help = "save it in UTF-8, in the XML declaration too"
                    raise DataError(f"{self.path}: its encoding is not read ({error})", help) from None
                if self.depth > MAX_DEPTH:
                    raise _refused(self.path, parser, f"elements are nested more than {MAX_DEPTH} deep")
                if size - parser.CurrentByteIndex > _MAX_TOKEN_BYTES:
                    raise _refused(self.path, parser, f"a tag or comment has more than {_MAX_TOKEN_BYTES:,} bytes")
                units, self.units = self.units, []
                yield from units
        if not self.is_known:
            name = self.format
            raise DataError(f"{self.path}: is not {name}: its first element is not {name.lower()}")


def _characters(parser: expat.XMLParserType, data: bytes) -> Callable[[], int]:
    """Gives the place of the parser in the text of some data, in characters."""
    characters, last = 0, 0

    def at() -> int:
        nonlocal characters, last
        index = parser.CurrentByteIndex
        characters, last = characters + len(data[last:index].decode("utf-8", "surrogatepass")), index
        return characters

    return at


def _encoding(beginning: bytes) -> str | None:
    """What overrides the declared encoding: UTF-16 or UTF-8, where the first bytes are certain of it."""
    return wide_encoding(beginning) or ("UTF-8" if declared_encoding(beginning) == "utf-8" else None)


def _parser(reader: XmlReader[Any], encoding: str | None) -> expat.XMLParserType:
    path, parser = reader.path, expat.ParserCreate(encoding)
    parser.buffer_text = True
    parser.specified_attributes = True  # a DTD can give an element others, of any size
    reader.line = lambda: parser.CurrentLineNumber

    def declared_entity(name: str, *_: object) -> None:
        raise _refused(path, parser, f"it declares the entity {printable(name[:40])}, which mtx does not read")

    def unknown_entity(name: str, is_parameter: bool) -> None:
        if not is_parameter:
            raise _refused(path, parser, f"the entity &{printable(name[:40])}; is not defined")

    parser.StartElementHandler, parser.EndElementHandler = reader.start, reader.end
    parser.CharacterDataHandler = reader.text
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
