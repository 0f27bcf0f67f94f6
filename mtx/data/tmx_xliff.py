"""Reads TMX 1.1 to 1.4b and XLIFF 1.0 to 1.2 and 2.x, also of Trados, memoQ and Phrase, to train and to translate.

The XML comes from strangers: nothing is fetched, entities are refused, and depth and memory are bounded. Expat reads
UTF-8, UTF-16 and the encodings of one byte that a file declares; errors name path:line.
Flow: a file, or the text of a document -> expat -> a `Node` for each unit -> `bilingual.Unit` to train on, or segments
to translate (`documents.bilingual_documents`).
"""

import io
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple
from xml.parsers import expat

from mtx.data.bilingual import UNKNOWN, Unit, Variant, date_of, one_line
from mtx.errors import DataError
from mtx.storage.encodings import declared_encoding, likely_encoding, wide_encoding
from mtx.storage.file_kinds import BEGINNING_BYTES
from mtx.storage.text_files import errors_named, escaped, is_utf8, open_bytes, printable

MAX_DEPTH = 200  # of nested elements; a real file has about 10
MAX_UNIT_CHARS = 1 << 20
_NODE_CHARS = 16  # that an element counts
_CHUNK_BYTES = 1 << 16
_MAX_TOKEN_BYTES = 1 << 24  # of a tag, comment or the like
_CUT = re.compile(rb"\A[\x80-\xbf]{1,3}|[\xc0-\xff][\x80-\xbf]{0,2}\Z")

# Inline elements. An opening code and its closing one are a pair; all are code of another program, with what they hold.
OPENING_CODES = frozenset(["bpt", "bx", "sc", "sm"])
CLOSING_CODES = frozenset(["ept", "ex", "ec", "em"])
CODES = OPENING_CODES | CLOSING_CODES | {"it", "ph", "ut", "x"}
_BREAKS = frozenset(["lb", "br", "x-lb", "x-br", "x-html-br", "fmt:lb"])  # types of codes that are line breaks
DELETED = "x-sdl-deleted"  # the type of a mark: of tracked changes
UNTRANSLATED = frozenset(["new", "needs-translation"])  # states of targets that hold the source, if anything
SIDES = frozenset(["source", "seg-source", "target"])


class Format(NamedTuple):
    """A format: its name, which the first element has in small letters, its units, and the elements with their text."""

    name: str
    units: frozenset[str]
    texts: frozenset[str]


TMX = Format("TMX", frozenset(["tu"]), frozenset(["seg"]))
XLIFF = Format("XLIFF", frozenset(["trans-unit", "segment"]), SIDES)


@dataclass(slots=True, eq=False)
class Node:
    """An element of a unit, or one around units.

    Attributes:
        name: without the prefix of the format's own elements; those of other programs keep one. A comment or a
            processing instruction has none.
        line, start: the line of its tag, and in a document the place of this tag.
        parent: for a unit, and an element around units.
        inner_end: in a document, the place behind its content, or behind its empty tag.
        children: its elements, and its text as far as the format says that it is text; empty around units.
    """

    name: str
    attributes: dict[str, str]
    line: int
    start: int
    parent: "Node | None" = None
    inner_end: int = 0
    children: list["Node | str"] = field(default_factory=list)

    def named(self, name: str) -> list["Node"]:
        """Its children with this name."""
        return [child for child in self.children if isinstance(child, Node) and child.name == name]

    def nearest(self, *names: str) -> "Node | None":
        """The unit, or the innermost element around it, that has one of these attributes."""
        node: Node | None = self
        while node and not any(name in node.attributes for name in names):
            node = node.parent
        return node

    @property
    def is_break(self) -> bool:
        """Whether it stands for a line break."""
        return any(self.attributes.get(key) in _BREAKS for key in ("type", "ctype", "subType"))


def read_units(path: Path, format: Format, text: str | None = None) -> Iterator[Node]:
    """The units of a file, one after the other.

    Args:
        text: the text of the file, if it is a document that was decoded; the file itself is read otherwise.

    Raises:
        UsageError: if the file is missing.
        DataError: if it is not in this format, declares entities, is nested too deeply or damaged, or its encoding is
            not read.
    """
    data = None if text is None else text.encode("utf-8", "surrogatepass")
    with open_bytes(path) if data is None else io.BytesIO(data) as file, errors_named(path):
        encoding: str | None = "UTF-8"  # of a document, whatever its declaration says: it was decoded by that
        if data is None:
            beginning = file.peek(BEGINNING_BYTES)[:BEGINNING_BYTES]  # type: ignore[attr-defined]
            encoding = wide_encoding(beginning) or ("UTF-8" if declared_encoding(beginning) == "utf-8" else None)
        elif b"\0" in data:  # by which expat would take it for UTF-16
            raise DataError(f"{path}: is not XML: it holds NUL", "save it in UTF-8")
        tree = _Tree(path, format, encoding, data)
        size = 0
        for chunk in itertools.chain(iter(partial(file.read, _CHUNK_BYTES), b""), [b""]):
            size += len(chunk)
            try:
                tree.parser.Parse(chunk, not chunk)
            except expat.ExpatError as error:
                raise _not_xml(path, error, chunk) from None
            except (LookupError, ValueError) as error:  # Python has no such codec for single bytes
                help = "save it in UTF-8, in the XML declaration too"
                raise DataError(f"{path}: its encoding is not read ({error})", help) from None
            if size - tree.parser.CurrentByteIndex > _MAX_TOKEN_BYTES:
                raise tree.refused(f"a tag or comment has more than {_MAX_TOKEN_BYTES:,} bytes")
            units, tree.units = tree.units, []
            yield from units


class _Tree:
    """Makes the nodes of a file, by the events of expat.

    Attributes:
        units: those that are complete and have not been taken.
        open: the open elements, of which `unit` is one and `text_depth` is the number of those with text outermost.
    """

    def __init__(self, path: Path, format: Format, encoding: str | None, data: bytes | None):
        self.path, self.format, self.data = path, format, data
        self.units = list[Node]()
        self.open = list[Node]()
        self.unit: Node | None = None
        self.text_depth = self.unit_chars = self.place = self.place_bytes = 0
        self.prefix = ""
        self.parser = parser = expat.ParserCreate(encoding)
        parser.buffer_text = True
        parser.specified_attributes = True  # a DTD can give an element others, of any size
        parser.StartElementHandler, parser.EndElementHandler = self.start, self.end
        parser.CharacterDataHandler = self.text
        parser.CommentHandler = parser.ProcessingInstructionHandler = self.other
        parser.EntityDeclHandler, parser.SkippedEntityHandler = self.declared_entity, self.unknown_entity

    def at(self) -> int:
        """The place of the tag that is being read, in characters; 0 without a document."""
        if self.data is not None:
            end = self.parser.CurrentByteIndex
            self.place += len(self.data[self.place_bytes : end].decode("utf-8", "surrogatepass"))
            self.place_bytes = end
        return self.place

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if not self.open:
            local, expected = name.rpartition(":")[2], self.format.name.lower()
            if local != expected:
                raise DataError(f"{self.path}: is not {self.format.name}: its first element is not {expected}")
            self.prefix = name.removesuffix(local)
        elif len(self.open) >= MAX_DEPTH:
            raise self.refused(f"elements are nested more than {MAX_DEPTH} deep")
        if self.prefix:
            name = name.removeprefix(self.prefix) if name.startswith(self.prefix) else f"other:{name}"
        node = Node(name, attributes, self.parser.CurrentLineNumber, self.at())
        if self.unit is not None:
            self.open[-1].children.append(node)
            self.count(_NODE_CHARS + sum(map(len, attributes.values())))
        elif self.open:
            node.parent = self.open[-1]
        self.open.append(node)
        if self.unit is None and name in self.format.units:
            self.unit, self.unit_chars = node, 0
        elif self.unit is not None and not self.text_depth and name in self.format.texts:
            self.text_depth = len(self.open)

    def end(self, name: str) -> None:
        if len(self.open) == self.text_depth:
            self.text_depth = 0
        node = self.open.pop()
        node.inner_end = self.at()
        if node is self.unit:
            self.units.append(node)
            self.unit = None

    def text(self, text: str) -> None:
        if self.text_depth:
            self.open[-1].children.append(text)
            self.count(len(text))

    def other(self, *_: str) -> None:
        if self.text_depth:
            self.open[-1].children.append(Node("", {}, 0, self.at()))
            self.count(_NODE_CHARS)

    def count(self, characters: int) -> None:
        self.unit_chars += characters
        if self.unit_chars > MAX_UNIT_CHARS and self.unit:
            problem = f"the texts of a unit have more than {MAX_UNIT_CHARS:,} characters"
            raise DataError(f"{self.path}:{self.unit.line}: {problem}")

    def declared_entity(self, name: str, *_: object) -> None:
        raise self.refused(f"it declares the entity {printable(name[:40])}, which mtx does not read")

    def unknown_entity(self, name: str, is_parameter: bool) -> None:
        if not is_parameter:
            raise self.refused(f"the entity &{printable(name[:40])}; is not defined")

    def refused(self, problem: str) -> DataError:
        return DataError(f"{self.path}:{self.parser.CurrentLineNumber}: {problem}")


def _not_xml(path: Path, error: expat.ExpatError, chunk: bytes) -> DataError:
    """The error for a file that is no XML, or not in the encoding that it says."""
    name, text = None, _CUT.sub(b"", chunk)  # a character may be cut at both ends of a part of the file
    if not is_utf8(escaped(text)):
        name = likely_encoding(text)
    if name and error.code == expat.errors.codes[expat.errors.XML_ERROR_INVALID_TOKEN]:
        help = f"save it in UTF-8, or say encoding={name} in its first line"
        return DataError(f"{path}:{error.lineno}: is not UTF-8, perhaps {name}", help)
    return DataError(f"{path}:{error.lineno}: is not XML: {expat.ErrorString(error.code)}")


def plain_text(node: Node) -> str:
    """The text of an element on one line, without codes and what they hold, and without deleted text."""
    return one_line("".join(_texts(node)))


def _texts(node: Node) -> Iterator[str]:
    for child in node.children:
        if isinstance(child, str):
            yield child
        elif child.is_break or child.name == "cp":  # cp is a character that XML cannot hold
            yield " "
        elif child.name not in CODES and ":" not in child.name and child.attributes.get("mtype") != DELETED:
            yield from _texts(child)


def read_tmx(path: Path) -> Iterator[Unit]:
    """The units of a translation memory; a tuv without a seg has no text."""
    for unit in read_units(path, TMX):
        yield Unit(unit.line, [_variant(tuv, unit) for tuv in unit.named("tuv")])


def _variant(tuv: Node, unit: Node) -> Variant:
    text = "".join(plain_text(seg) for seg in tuv.named("seg")[-1:])
    return Variant(language_of(tuv), text, _date(tuv) or _date(unit))


def language_of(tuv: Node) -> str:
    """The language of a tuv."""
    return tuv.attributes.get("xml:lang") or tuv.attributes.get("lang") or UNKNOWN


def _date(node: Node) -> int:
    return date_of(node.attributes.get("changedate") or node.attributes.get("creationdate") or "")


def read_xliff(path: Path) -> Iterator[Unit]:
    """The segments of a bilingual file; one without a translation has its source alone.

    Proposals are no translations, nor are targets that still hold the source.
    """
    for unit in read_units(path, XLIFF):
        sides = sides_of(unit)
        if "source" in sides:
            for texts in _pairs(sides):
                variants = [Variant(language, text) for language, text in zip(languages_of(unit), texts, strict=True)]
                yield Unit(unit.line, [variant for variant in variants if variant.text])


def _pairs(sides: dict[str, Node]) -> list[tuple[str, str]]:
    """Source and target of a unit: of each segment in both, or as a whole."""
    source, target = sides["source"], sides.get("target")
    if target is None or target.attributes.get("state") in UNTRANSLATED:
        return [(plain_text(source), "")]
    src, tgt = _texts_of_marks(sides.get("seg-source", source)), _texts_of_marks(target)
    return [(src[mid], tgt[mid]) for mid in src if mid in tgt] or [(plain_text(source), plain_text(target))]


def _texts_of_marks(side: Node) -> dict[str, str]:
    """The text of each segment of a side by its number; one that tags divide has several marks."""
    texts = defaultdict[str, list[str]](list)
    for mark in marks_of(side):
        texts[mark.attributes.get("mid", "")] += _texts(mark)
    return {mid: one_line("".join(parts)) for mid, parts in texts.items()}


def sides_of(unit: Node) -> dict[str, Node]:
    """The source, seg-source and target of a unit, as far as there are any."""
    return {child.name: child for child in unit.children if isinstance(child, Node) and child.name in SIDES}


def marks_of(node: Node) -> list[Node]:
    """The marks of the segments in a side, in their order."""
    marks = list[Node]()
    for child in node.children:
        if isinstance(child, Node):
            is_mark = child.name == "mrk" and child.attributes.get("mtype") == "seg"
            marks += [child] if is_mark else marks_of(child)
    return marks


def languages_of(unit: Node) -> tuple[str, str]:
    """The languages that the element around a unit names."""
    file = unit.nearest("source-language", "srcLang")
    attributes = file.attributes if file else {}
    src = attributes.get("source-language") or attributes.get("srcLang") or UNKNOWN
    return src, attributes.get("target-language") or attributes.get("trgLang") or UNKNOWN
