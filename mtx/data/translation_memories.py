"""TMX, XLIFF and PO: reads the units of translation memories, bilingual files and message catalogues.

TMX 1.1 to 1.4b and XLIFF 1.0 to 1.2 and 2.x, including files of Trados, memoQ and Phrase, are untrusted XML: nothing
is fetched, entities are refused, and depth and memory are bounded. Expat reads UTF-8, UTF-16 and any single-byte
encoding that a file declares. In PO (gettext), fuzzy and obsolete entries are skipped, and the header is not a message:
it, or the file's name, names the target language; the source is usually English. The singular of a message is paired
with msgstr[0], its plural with the last form; a single form translates the plural.
Errors name path:line. Flow: a file, or the text of a document -> a `Node` or a `Message` for each unit ->
`bilingual.Unit` to train on, or segments to translate (`documents.bilingual_documents`).
"""

import io
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from xml.parsers import expat

from mtx.data.bilingual import UNKNOWN, Unit, Variant, date_of, join_lines
from mtx.data.languages import Languages
from mtx.data.markup import ALONE, SEAM, Kind, is_white_space
from mtx.data.tables import language_of_column
from mtx.errors import DataError
from mtx.storage.text_files import (
    BEGINNING_BYTES,
    declared_encoding,
    decoded_lines,
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

# Inline elements. An opening code and its closing code are a pair; all are code of another program, with their content.
_CODE_KINDS: dict[str, Kind] = {
    **dict.fromkeys(["bpt", "bx", "sc", "sm"], "open"),
    **dict.fromkeys(["ept", "ex", "ec", "em"], "close"),
    **dict.fromkeys(["it", "ph", "ut", "x"], "alone"),
}
_DESCRIPTIONS = ("type", "ctype", "subType", "equiv-text", "equiv", "disp")  # attributes that may describe a code
DELETED = "x-sdl-deleted"  # the type of a mark: of tracked changes
_UNTRANSLATED = {"new", "needs-translation"}  # states of targets that hold the source, if anything
SIDES = {"source", "seg-source", "target"}
_UNITS = {"trans-unit", "segment", "tu"}


@dataclass(eq=False)
class Node:
    """An element of a unit, or one around units.

    Attributes:
        name: without the prefix of the format; elements of other programs keep theirs. Empty for comments and
            processing instructions.
        parent: for a unit, and an element around units.
        start, end: in a document, its position.
        inner_start, inner_end: in a document, the position of its content; the end, if it is an empty tag.
        children: its elements and its text; empty around units.
    """

    name: str
    attributes: dict[str, str]
    line: int
    parent: "Node | None" = None
    children: list["Node | str"] = field(default_factory=list)
    start: int = 0
    inner_start: int = 0
    inner_end: int = 0
    end: int = 0

    def named(self, name: str) -> list["Node"]:
        """Its children with this name."""
        return [child for child in self.children if isinstance(child, Node) and child.name == name]

    def nearest(self, *names: str) -> "Node | None":
        """The unit, or the innermost element around it, that has one of these attributes."""
        node: Node | None = self
        while node and node.attributes.keys().isdisjoint(names):
            node = node.parent
        return node

    def first_attribute(self, *names: str) -> str:
        """The first of these attributes that it has; empty (UNKNOWN) without one."""
        return next(filter(None, map(self.attributes.get, names)), UNKNOWN)

    @property
    def code_kind(self) -> Kind | None:
        """Its kind if it is code of another program, with its content; None for other elements."""
        return _CODE_KINDS.get(self.name.rpartition(":")[2])

    @property
    def is_space(self) -> bool:
        """Whether it is a code for a line break or other white space."""
        texts = [self.attributes.get(name, "") for name in _DESCRIPTIONS]
        if self.code_kind:
            texts.append("".join(child for child in self.children if isinstance(child, str)))
        return any(map(is_white_space, texts))


def read_units(path: Path, format_name: str, text: str | None = None) -> Iterator[Node]:
    """The units of a file, one after the other.

    Args:
        format_name: TMX or XLIFF.
        text: the decoded text of a document; None to read the file.

    Raises:
        UsageError: if the file is missing.
        DataError: if it is not in this format, declares entities, is nested too deeply or damaged, or has an
            unsupported encoding.
    """
    data = (text or "").encode("utf-8", "surrogatepass")
    with open_bytes(path) if text is None else io.BytesIO(data) as file, errors_named(path):
        encoding: str | None = "UTF-8"  # of a document, whatever it declares: it is already decoded
        if text is None:
            beginning = file.peek(BEGINNING_BYTES)[:BEGINNING_BYTES]  # type: ignore[attr-defined]
            encoding = wide_encoding(beginning) or ("UTF-8" if declared_encoding(beginning) == "utf-8" else None)
        elif b"\0" in data:  # expat would take it for UTF-16
            raise DataError(f"{path}: damaged XML: it contains a NUL byte", "save it in UTF-8")
        tree = _Tree(path, format_name, encoding, text or "", data)
        chunk = b"\n"
        while chunk:
            chunk = file.read(_CHUNK_BYTES)
            try:
                tree.parser.Parse(chunk, not chunk)
            except expat.ExpatError as error:
                hint = "if it is not in UTF-8, its first line must declare encoding=NAME; else save it again"
                raise DataError(f"{path}:{error.lineno}: damaged XML: {expat.ErrorString(error.code)}", hint) from None
            except (LookupError, ValueError) as error:  # Python has no such single-byte codec
                raise DataError(
                    f"{path}: unsupported encoding ({error})", "save it in UTF-8, also in the XML declaration"
                ) from None
            if file.tell() - tree.parser.CurrentByteIndex > _MAX_TOKEN_BYTES:
                raise tree.error(f"a tag or comment has more than {_MAX_TOKEN_BYTES:,} bytes")
            if tree.unit and tree.parser.CurrentByteIndex - tree.unit_start > MAX_UNIT_BYTES:
                raise DataError(f"{path}:{tree.unit.line}: a unit has more than {MAX_UNIT_BYTES:,} bytes")
            yield from tree.units
            tree.units.clear()


class _Tree:
    """Builds the nodes of a file from the events of expat.

    Attributes:
        units: the complete units that have not been taken yet.
        open_nodes: the open elements, the innermost last, which may include `unit`.
    """

    def __init__(self, path: Path, format_name: str, encoding: str | None, document: str, data: bytes):
        self.path = path
        self.format_name = format_name
        self.document = document
        self.data = data
        self.units = list[Node]()
        self.open_nodes = list[Node]()
        self.unit: Node | None = None
        self.unit_start = self.num_bytes = self.num_characters = 0
        self.prefix = ""
        self.parser = parser = expat.ParserCreate(encoding)
        parser.buffer_text = True
        parser.specified_attributes = True  # a DTD can add attributes of any size to an element
        parser.StartElementHandler = self.start_element
        parser.EndElementHandler = self.end_element
        parser.CharacterDataHandler = self.add_text
        parser.CommentHandler = parser.ProcessingInstructionHandler = self.add_comment
        parser.EntityDeclHandler = self.refuse_declaration
        parser.SkippedEntityHandler = self.refuse_unknown_entity

    def position(self) -> int:
        """The current position in the document, in characters."""
        start = self.num_bytes
        self.num_bytes = self.parser.CurrentByteIndex
        self.num_characters += len(self.data[start : self.num_bytes].decode("utf-8", "surrogatepass"))
        return self.num_characters

    def set_position(self, node: Node) -> None:
        """Note the position of a node's tag in the document."""
        if tag := _TAG.match(self.document, self.position()):
            node.start = tag.start()
            node.inner_start = node.inner_end = node.end = tag.end()

    def start_element(self, name: str, attributes: dict[str, str]) -> None:
        ancestors = self.open_nodes
        if not ancestors:
            local = name.rpartition(":")[2]
            expected = self.format_name.lower()
            if local != expected:
                raise DataError(f"{self.path}: not {self.format_name}: its first element is not {expected}")
            self.prefix = name.removesuffix(local)
        elif len(ancestors) >= MAX_DEPTH:
            raise self.error(f"elements are nested more than {MAX_DEPTH} deep")
        name = name.removeprefix(self.prefix) if name.startswith(self.prefix) else f"other:{name}"
        node = Node(name, attributes, self.parser.CurrentLineNumber)
        if self.document:
            self.set_position(node)
        if self.unit:
            ancestors[-1].children.append(node)
        elif ancestors:
            node.parent = ancestors[-1]
            if name == "header":  # it applies to all units
                node.parent.attributes |= attributes
            if name in _UNITS:
                self.unit = node
                self.unit_start = self.parser.CurrentByteIndex
        ancestors.append(node)

    def end_element(self, name: str) -> None:
        node = self.open_nodes.pop()
        if self.document and not self.document.startswith("/>", node.inner_start - 2):
            node.inner_end = self.position()
            node.end = self.document.index(">", node.inner_end) + 1
        if node is self.unit:
            self.units.append(node)
            self.unit = None

    def add_text(self, text: str) -> None:
        if self.unit:
            children = self.open_nodes[-1].children
            if children and isinstance(children[-1], str):  # expat splits a text, even inside a placeholder
                children[-1] += text
            else:
                children.append(text)

    def add_comment(self, *_: str) -> None:
        """Note a comment or a processing instruction, which has a place but no text."""
        if self.document and self.unit:
            comment = Node("", {}, self.parser.CurrentLineNumber)
            self.set_position(comment)
            self.open_nodes[-1].children.append(comment)

    def refuse_declaration(self, name: str, *_: object) -> None:
        raise self.error(f"it declares the entity {printable(name[:40])}; entities are not supported")

    def refuse_unknown_entity(self, name: str, is_parameter: bool) -> None:
        if not is_parameter:
            raise self.error(f"the entity &{printable(name[:40])}; is not defined")

    def error(self, problem: str) -> DataError:
        return DataError(f"{self.path}:{self.parser.CurrentLineNumber}: {problem}")


def plain_text(*nodes: Node) -> str:
    """The text of an element, or of its parts, on one line, without codes, their content, and deleted text."""
    text = "".join(chain.from_iterable(map(_texts, nodes)))
    return join_lines(SEAM.sub(" ", text).replace(ALONE, "") if ALONE in text else text)


def _texts(node: Node) -> Iterator[str]:
    for child in node.children:
        if isinstance(child, str):
            yield child
        elif child.is_space or child.name == "cp":  # cp is a character that XML cannot hold
            yield " "
        elif kind := child.code_kind:
            if kind == "alone":
                yield ALONE
        elif child.attributes.get("mtype") != DELETED:
            yield from _texts(child)


def read_tmx(path: Path) -> Iterator[Unit]:
    """The units of a translation memory; a tuv without a seg has no text."""
    return map(read_tmx_unit, read_units(path, "TMX"))


def read_tmx_unit(unit: Node) -> Unit:
    """A unit of a translation memory, with a variant for each tuv."""
    variants = list[Variant]()
    problem = ""
    for tuv in unit.named("tuv"):
        segs = tuv.named("seg")
        language = tuv.first_attribute("xml:lang", "lang")
        date = tuv.first_attribute("changedate", "creationdate") or unit.first_attribute("changedate", "creationdate")
        variants.append(Variant(language, plain_text(*segs[-1:]), date_of(date)))
        if not language:
            problem = "<tuv> without xml:lang"
        if not segs:
            problem = "<tuv> without <seg>"
    if not variants:
        problem = "<tu> without <tuv>"
    origin = unit.nearest("srclang") or unit  # usually the header, whose attributes the root has
    return Unit(unit.line, variants, origin.first_attribute("srclang"), problem)


def read_xliff(path: Path) -> Iterator[Unit]:
    """The segments of a bilingual file; one without a translation has only its source.

    Proposals do not count as translations, nor do targets that still hold the source.
    """
    for unit in read_units(path, "XLIFF"):
        languages = languages_of(unit)
        sides = sides_of(unit)
        if "source" not in sides:
            yield Unit(unit.line, [], languages[0], f"<{unit.name}> without <source>")
            continue
        source = sides["source"]
        translation = find_translation(unit, sides)
        if translation is None:
            pairs = [(plain_text(source), "")]
        else:
            src = marks_of(sides.get("seg-source", source))
            tgt = marks_of(translation)
            pairs = [(plain_text(*src[number]), plain_text(*tgt[number])) for number in src if number in tgt]
            pairs = pairs or [(plain_text(source), plain_text(translation))]
        for texts in pairs:
            variants = [Variant(language, text) for language, text in zip(languages, texts, strict=True) if text]
            yield Unit(unit.line, variants, languages[0])


def find_translation(unit: Node, sides: Mapping[str, Node]) -> Node | None:
    """The target of a unit, maybe empty; None without one, or if its state says that it holds the source."""
    target = sides.get("target")
    if target is None:
        return None
    state = (unit.attributes | target.attributes).get("state")
    is_copy = state == "initial" and plain_text(target) == plain_text(sides["source"])
    return None if is_copy or state in _UNTRANSLATED else target


def sides_of(unit: Node) -> dict[str, Node]:
    """The source, seg-source and target of a unit, if it has them."""
    return {child.name: child for child in unit.children if isinstance(child, Node) and child.name in SIDES}


def marks_of(side: Node) -> dict[str, list[Node]]:
    """The marks of the segments in a side by their numbers; a segment divided by tags has several."""
    marks = defaultdict[str, list[Node]](list)
    for mark in _marks(side):
        marks[mark.attributes.get("mid", "")].append(mark)
    return marks


def _marks(node: Node) -> Iterator[Node]:
    for child in node.children:
        if isinstance(child, Node):
            if child.name == "mrk" and child.attributes.get("mtype") == "seg":
                yield child
            else:
                yield from _marks(child)


def languages_of(unit: Node) -> Languages:
    """The languages that the element around a unit names."""
    file = unit.nearest("source-language", "srcLang") or unit
    return file.first_attribute("source-language", "srcLang"), file.first_attribute("target-language", "trgLang")


_STRINGS = r'(?:"(?:[^"\\]|\\.)*+"\s*+)++'
_TEXT = re.compile(rf"(?:(msgctxt|msgid|msgid_plural|msgstr|msgstr\[[0-9]{{1,2}}\])\s*)?({_STRINGS})?")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*+)"')
_ESCAPE = re.compile(rb"\\(?:x([0-9A-Fa-f]{1,2})|([0-7]{1,3})|(.))")
_GETTEXT_SOURCE = "en"  # by convention, unless the header names another language
_CHARACTERS = dict(zip(b"ntrabfv", b"\n\t\r\a\b\f\v", strict=True))


@dataclass
class Message:
    """A message of a catalogue.

    Attributes:
        line: the line of its first keyword, from 1.
        texts: the text of each keyword: msgid, msgstr[0] and the like.
        lines: the first and the last line of each keyword.
        flags_line: the line of its flags, such as `#, fuzzy`; None without one.
        is_fuzzy: whether its translation is only a proposal.
        comments: the lines before it.
    """

    line: int = 0
    texts: dict[str, str] = field(default_factory=dict)
    lines: dict[str, tuple[int, int]] = field(default_factory=dict)
    flags_line: int | None = None
    is_fuzzy: bool = False
    comments: str = ""

    @property
    def is_header(self) -> bool:
        """Whether it is the catalogue's header, the message without a source."""
        return self.texts.get("msgid") == "" and "msgctxt" not in self.texts

    @property
    def languages(self) -> Languages:
        """The languages of the catalogue by its header; empty (UNKNOWN) for an unnamed one."""
        return self.header_field("X-Source-Language"), self.header_field("Language")

    @property
    def forms(self) -> dict[str, str]:
        """The keywords of its forms, each with the keyword of the text that it translates.

        Of several forms of a plural, msgstr[0] translates the singular; a single form serves any number.
        """
        keywords = [keyword for keyword in self.texts if keyword.startswith("msgstr")]
        if "msgid_plural" not in self.texts:
            return dict.fromkeys(keywords[:1], "msgid")
        forms = dict.fromkeys(keywords, "msgid_plural")
        if len(keywords) > 1 and "msgstr[0]" in keywords:
            forms["msgstr[0]"] = "msgid"
        return forms

    def header_field(self, name: str) -> str:
        """A field of the header; empty if it has none."""
        match = re.search(rf"^{name}:(.*)$", self.texts.get("msgstr", ""), re.MULTILINE | re.IGNORECASE)
        return match[1].strip() if match else ""


def read_po(path: Path) -> Iterator[Unit]:
    """The messages of a catalogue, one after the other; one without a translation has only its source.

    Raises:
        DataError: if a line is not valid PO, or the text is not in UTF-8.
    """
    parts = re.split("[/.-]", path.absolute().as_posix())[-4:]  # such as those of locale/de/LC_MESSAGES/app.po
    src_language = UNKNOWN
    tgt_language = next(filter(language_of_column, reversed(parts)), UNKNOWN)
    date = 0
    with open_bytes(path) as file:
        for message in messages(path, decoded_lines(file, path, "strict")):
            if message.is_header:
                src_language, header_target = message.languages
                tgt_language = header_target or tgt_language
                date = date_of(message.header_field("PO-Revision-Date"))
                continue
            translations = {source: message.texts[form] for form, source in sorted(message.forms.items())}
            if message.is_fuzzy or not translations:
                translations = dict.fromkeys(["msgid", "msgid_plural"], "")
            for source, translation in sorted(translations.items()):
                if source in message.texts:
                    variants = [Variant(src_language, join_lines(message.texts[source]))]
                    if translation:
                        variants.append(Variant(tgt_language, join_lines(translation), date))
                    yield Unit(message.line, variants, src_language or _GETTEXT_SOURCE)


def messages(path: Path, lines: Iterable[str]) -> Iterator[Message]:
    """The messages of a catalogue's lines, with its header, without obsolete ones; `path` is for error messages.

    Raises:
        DataError: if a line is not valid PO.
    """
    message = Message()
    following = Message()
    keyword = ""
    for number, line in enumerate(lines, 1):
        content = line.strip()
        if not content:
            continue
        if content.startswith("#~"):
            following = Message()  # its flags were those of an obsolete message
        elif content.startswith("#"):
            following.comments += f"{content}\n"
            if content.startswith("#,"):
                following.flags_line = number
                if "fuzzy" in content:
                    following.is_fuzzy = True
        elif (match := _TEXT.fullmatch(content)) and (match[1] or keyword):
            if match[1]:
                keyword = match[1]
                if keyword in message.texts or (keyword in ("msgctxt", "msgid") and "msgid" in message.texts):
                    yield message
                    message = Message()
                if not message.texts:
                    message = following
                    following = Message()
                    message.line = number
                message.texts[keyword] = ""
            message.is_fuzzy |= following.is_fuzzy  # by a comment inside the message
            following = Message()
            first_line, _ = message.lines.get(keyword, (number, number))
            message.lines[keyword] = first_line, number
            message.texts[keyword] += "".join(map(_unescape, _STRING.findall(match[2] or "")))
        else:
            raise DataError(f'{path}:{number}: invalid PO syntax, expected keyword "text"')
    if message.texts:
        yield message


def _unescape(text: str) -> str:
    """The text of a string: its escapes are characters or, as numbers, bytes."""
    return _ESCAPE.sub(_octet, text.encode()).decode("utf-8", "replace") if "\\" in text else text


def _octet(match: re.Match[bytes]) -> bytes:
    hexadecimal, octal, character = match.groups()
    if character:
        return bytes([_CHARACTERS.get(character[0], character[0])])
    return bytes([int(hexadecimal or octal, 16 if hexadecimal else 8) & 0xFF])
