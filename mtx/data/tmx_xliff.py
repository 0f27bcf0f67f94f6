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
from functools import partial
from pathlib import Path
from xml.parsers import expat

from mtx.data.bilingual import UNKNOWN, Unit, Variant, date_of, join_lines
from mtx.errors import DataError
from mtx.storage.text_files import (
    BEGINNING_BYTES,
    declared_encoding,
    errors_named,
    open_bytes,
    printable,
    wide_encoding,
)

MAX_DEPTH = 200  # of nested elements; a real file has about 10
MAX_UNIT_BYTES = 1 << 21
_TAG = re.compile(r"<!--.*?-->|<\?.*?\?>|<(?:[^>\"']|\"[^\"]*\"|'[^']*')*+>", re.DOTALL)
_CHUNK_BYTES = 1 << 12  # so that few nodes are alive at once
_MAX_TOKEN_BYTES = 1 << 20  # of a tag, comment or the like

# Inline elements. An opening code and its closing one are a pair; all are code of another program, with what they hold.
OPENING_CODES = frozenset(["bpt", "bx", "sc", "sm"])
CLOSING_CODES = frozenset(["ept", "ex", "ec", "em"])
CODES = OPENING_CODES | CLOSING_CODES | {"it", "ph", "ut", "x"}
_BREAKS = frozenset(["lb", "br", "x-lb", "x-br", "x-html-br", "fmt:lb"])  # types of codes that are line breaks
DELETED = "x-sdl-deleted"  # the type of a mark: of tracked changes
UNTRANSLATED = frozenset(["new", "needs-translation"])  # states of targets that hold the source, if anything
SIDES = frozenset(["source", "seg-source", "target"])
_TEXTS = SIDES | {"seg"}  # elements with text, of XLIFF and of TMX
_UNITS = frozenset(["trans-unit", "segment", "tu"])


class Node:
    """An element of a unit, or one around units.

    Attributes:
        name: without the prefix of the format's own elements; those of other programs keep one. A comment or a
            processing instruction has none.
        parent: for a unit, and an element around units.
        start, end: in a document, from where to where it goes.
        inner_start, inner_end: in a document, the same of its content; the end, if it is an empty tag.
        children: its elements, and its text as far as it is that of a segment or side; empty around units.
    """

    parent: "Node | None" = None
    start = inner_start = inner_end = end = 0

    def __init__(self, name: str, attributes: dict[str, str], line: int):
        self.name, self.attributes, self.line = name, attributes, line
        self.children: list[Node | str] = []

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
        get = self.attributes.get
        return get("type") in _BREAKS or get("ctype") in _BREAKS or get("subType") in _BREAKS


def read_units(path: Path, format: str, text: str | None = None) -> Iterator[Node]:
    """The units of a file, one after the other.

    Args:
        format: TMX or XLIFF.
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
        tree = _Tree(path, format, encoding, text or "", data or b"")
        size = 0
        for chunk in itertools.chain(iter(partial(file.read, _CHUNK_BYTES), b""), [b""]):
            size += len(chunk)
            try:
                tree.parser.Parse(chunk, not chunk)
            except expat.ExpatError as error:
                problem = expat.ErrorString(error.code)
                help = "if it is not in UTF-8, its first line must say encoding=NAME"
                raise DataError(f"{path}:{error.lineno}: is not XML: {problem}", help) from None
            except (LookupError, ValueError) as error:  # Python has no such codec for single bytes
                help = "save it in UTF-8, in the XML declaration too"
                raise DataError(f"{path}: its encoding is not read ({error})", help) from None
            if size - tree.parser.CurrentByteIndex > _MAX_TOKEN_BYTES:
                raise tree.refused(f"a tag or comment has more than {_MAX_TOKEN_BYTES:,} bytes")
            if tree.unit and tree.parser.CurrentByteIndex - tree.unit_start > MAX_UNIT_BYTES:
                raise DataError(f"{path}:{tree.unit.line}: a unit has more than {MAX_UNIT_BYTES:,} bytes")
            units, tree.units = tree.units, []
            yield from units


class _Tree:
    """Makes the nodes of a file, by the events of expat.

    Attributes:
        units: those that are complete and have not been taken.
        open: the open elements, of which `unit` may be one; `in_text` is the number of those with text.
    """

    def __init__(self, path: Path, format: str, encoding: str | None, document: str, data: bytes):
        self.path, self.format, self.document, self.data = path, format, document, data
        self.units = list[Node]()
        self.open = list[Node]()
        self.unit: Node | None = None
        self.in_text = self.unit_start = self.num_bytes = self.num_characters = 0
        self.prefix = ""
        self.parser = parser = expat.ParserCreate(encoding)
        parser.buffer_text = True
        parser.specified_attributes = True  # a DTD can give an element others, of any size
        parser.StartElementHandler, parser.EndElementHandler = self.start, self.end
        parser.CharacterDataHandler = self.text
        parser.CommentHandler = parser.ProcessingInstructionHandler = self.other
        parser.EntityDeclHandler, parser.SkippedEntityHandler = self.declared_entity, self.unknown_entity

    def at(self) -> int:
        """The place in the document that is being read, in characters."""
        start, self.num_bytes = self.num_bytes, self.parser.CurrentByteIndex
        self.num_characters += len(self.data[start : self.num_bytes].decode("utf-8", "surrogatepass"))
        return self.num_characters

    def place(self, node: Node) -> None:
        """Note where the tag of a node goes in the document."""
        if tag := _TAG.match(self.document, self.at()):
            node.start = tag.start()
            node.inner_start = node.inner_end = node.end = tag.end()

    def start(self, name: str, attributes: dict[str, str]) -> None:
        around = self.open
        if not around:
            local, expected = name.rpartition(":")[2], self.format.lower()
            if local != expected:
                raise DataError(f"{self.path}: is not {self.format}: its first element is not {expected}")
            self.prefix = name.removesuffix(local)
        elif len(around) >= MAX_DEPTH:
            raise self.refused(f"elements are nested more than {MAX_DEPTH} deep")
        if self.prefix:
            name = name.removeprefix(self.prefix) if name.startswith(self.prefix) else f"other:{name}"
        node = Node(name, attributes, self.parser.CurrentLineNumber)
        if self.document:
            self.place(node)
        if self.unit:
            around[-1].children.append(node)
        elif around:
            node.parent = around[-1]
            if name in _UNITS:
                self.unit, self.unit_start = node, self.parser.CurrentByteIndex
        around.append(node)
        self.in_text += name in _TEXTS

    def end(self, name: str) -> None:
        node = self.open.pop()
        self.in_text -= node.name in _TEXTS
        if self.document and not self.document.startswith("/>", node.inner_start - 2):
            node.inner_end = self.at()
            node.end = self.document.index(">", node.inner_end) + 1
        if node is self.unit:
            self.units.append(node)
            self.unit = None

    def text(self, text: str) -> None:
        if self.unit and self.in_text:
            children = self.open[-1].children
            if children and isinstance(children[-1], str):  # a text comes in pieces, also of a placeholder
                children[-1] += text
            else:
                children.append(text)

    def other(self, *_: str) -> None:
        if self.document and self.unit and self.in_text:
            comment = Node("", {}, self.parser.CurrentLineNumber)
            self.place(comment)
            self.open[-1].children.append(comment)

    def declared_entity(self, name: str, *_: object) -> None:
        raise self.refused(f"it declares the entity {printable(name[:40])}, which mtx does not read")

    def unknown_entity(self, name: str, is_parameter: bool) -> None:
        if not is_parameter:
            raise self.refused(f"the entity &{printable(name[:40])}; is not defined")

    def refused(self, problem: str) -> DataError:
        return DataError(f"{self.path}:{self.parser.CurrentLineNumber}: {problem}")


def plain_text(node: Node) -> str:
    """The text of an element on one line, without codes and what they hold, and without deleted text."""
    return join_lines("".join(_texts(node)))


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
    for unit in read_units(path, "TMX"):
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
    for unit in read_units(path, "XLIFF"):
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
    return {mid: join_lines("".join(parts)) for mid, parts in texts.items()}


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
