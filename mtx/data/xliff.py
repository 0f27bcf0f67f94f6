"""Reads bilingual files in XLIFF 1.0 to 1.2 and 2.x, also those of Trados, memoQ and Phrase.

`XliffUnitReader` gives each trans-unit or segment with its places, to translate it (`documents.xliff`). `XliffReader`
gives the units to train on, one for each segment. Inline codes and what they hold are left out of the text; that in g,
pc, hi and mrk stays. Proposals of other translations are no part of the text, nor are targets that still hold the
source.
Flow: file -> `xml_stream` -> `XliffUnit` -> `Unit` -> `bilingual`.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from mtx.data.bilingual import CODES, UNKNOWN, Unit, Variant, is_break, one_line
from mtx.data.xml_stream import MAX_PARTS, MAX_TEXT, XmlReader
from mtx.errors import DataError

Result = TypeVar("Result")
UNTRANSLATED = frozenset(["new", "needs-translation"])  # states of targets that hold the source, if anything
_OTHERS = frozenset(
    ["alt-trans", "bin-unit", "matches", "glossary", "ignorable", "originalData", "notes", "note", "prop-group"]
)
_UNITS = frozenset(["trans-unit", "segment"])
_SIDES = frozenset(["source", "seg-source", "target"])
_DELETED = "x-sdl-deleted"  # of tracked changes


@dataclass(slots=True)
class Part:
    """A side of a unit, or the mark of a segment in it.

    Attributes:
        depth: the number of elements open with it.
        start: the place of its tag.
        end: the place behind its content.
        texts: its text, in parts.
        marks: those of the segments of a side.
    """

    attributes: dict[str, str]
    depth: int
    start: int
    end: int = 0
    texts: list[str] = field(default_factory=list)
    marks: list["Part"] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class File:
    """A tag that names languages, of a file or of the document: its place and attributes."""

    start: int
    attributes: dict[str, str]
    languages: tuple[str, str]


@dataclass(slots=True)
class XliffUnit:
    """A trans-unit of XLIFF 1, or a segment of XLIFF 2.

    Attributes:
        depth: the number of elements open with it.
        is_version_1: whether it is a trans-unit.
        attributes: its own.
        is_frozen: whether it says that it is not to be translated.
        keeps_lines: whether its white space is part of the text.
        definitions: those of its segments, by their number, that Trados keeps beside them.
    """

    line: int
    depth: int
    file: File
    is_version_1: bool
    attributes: dict[str, str]
    is_frozen: bool
    keeps_lines: bool
    sides: dict[str, Part] = field(default_factory=dict)
    definitions: dict[str, dict[str, str]] = field(default_factory=dict)


class _Reader(XmlReader[Result]):
    """Finds the units of a file; a subclass says in `complete` what it gives of one that has a source.

    Attributes:
        prefix: that of the names of XLIFF's own elements; others are of other programs.
        inherited: the depth of each open element that says whether its text is translated and keeps its lines.
        others_depth: the number of elements open with one that is no part of the text, and this included; 0 outside.
        code_depth: the same for an inline code.
        mark_text: the number of parts of the side's text before the open mark.
        size: characters of the unit's text.
    """

    format = "XLIFF"

    def __init__(self, path: Path, text: str | None = None):
        super().__init__(path, text)
        self.prefix, self.file = "", File(0, {}, (UNKNOWN, UNKNOWN))
        self.inherited = [(0, False, False)]
        self.others_depth = self.code_depth = self.mark_text = self.size = 0
        self.unit: XliffUnit | None = None
        self.side: Part | None = None
        self.mark: Part | None = None

    def complete(self, unit: XliffUnit) -> None:
        raise NotImplementedError

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self.depth += 1
        if not self.is_known:
            prefix, _, local = name.rpartition(":")
            if self.depth > 1 or local != "xliff":
                return
            self.prefix, self.is_known = f"{prefix}:" if prefix else "", True
        if self.prefix:
            name = name.removeprefix(self.prefix) if name.startswith(self.prefix) else f"other:{name}"
        if self.others_depth or name in _OTHERS or ":" in name:
            self.others_depth = self.others_depth or self.depth
            if self.unit and not self.side and "id" in attributes and name.rpartition(":")[2] == "seg":
                self.unit.definitions[attributes["id"]] = attributes
        elif self.side is not None:
            self._start_inline(self.side, name, attributes)
        else:
            self._start_outside(name, attributes)

    def _start_outside(self, name: str, attributes: dict[str, str]) -> None:
        if "translate" in attributes or "xml:space" in attributes:
            _, is_frozen, keeps = self.inherited[-1]
            is_frozen = {"no": True, "yes": False}.get(attributes.get("translate", ""), is_frozen)
            keeps = {"preserve": True, "default": False}.get(attributes.get("xml:space", ""), keeps)
            self.inherited.append((self.depth, is_frozen, keeps))
        if name in _SIDES and self.unit is not None:
            self.side = self.unit.sides[name] = Part(attributes, self.depth, self.at())
            self.unit.keeps_lines |= self.inherited[-1][2]
        elif name in _UNITS:
            self.unit = XliffUnit(
                self.line(), self.depth, self.file, name == "trans-unit", attributes, *self.inherited[-1][1:]
            )
            self.size = 0
        elif name in ("file", "xliff") and not {"source-language", "srcLang"}.isdisjoint(attributes):
            src = attributes.get("source-language") or attributes.get("srcLang") or UNKNOWN
            tgt = attributes.get("target-language") or attributes.get("trgLang") or UNKNOWN
            self.file = File(self.at(), attributes, (src, tgt))

    def _start_inline(self, side: Part, name: str, attributes: dict[str, str]) -> None:
        if name in CODES or (name == "mrk" and attributes.get("mtype") == _DELETED):
            self.code_depth = self.code_depth or self.depth
        elif name == "mrk" and attributes.get("mtype") == "seg" and self.mark is None:
            self.mark, self.mark_text = Part(attributes, self.depth, self.at()), len(side.texts)
            side.marks.append(self.mark)
            if len(side.marks) >= MAX_PARTS:
                raise self._too_large(f"{MAX_PARTS:,} texts")
        if name == "cp" or is_break(attributes):  # cp is a character that XML cannot hold
            side.texts.append(" ")

    def end(self, name: str) -> None:
        depth, self.depth = self.depth, self.depth - 1
        if self.others_depth:
            if depth == self.others_depth:
                self.others_depth = 0
            return
        if self.side is not None and depth > self.side.depth:
            if depth == self.code_depth:
                self.code_depth = 0
            elif self.mark is not None and depth == self.mark.depth:
                self.mark.end, self.mark.texts = self.at(), self.side.texts[self.mark_text :]
                self.mark = None
            return
        if self.side is not None:
            self.side.end, self.side = self.at(), None
        elif self.unit is not None and depth == self.unit.depth:
            if "source" in self.unit.sides:
                self.complete(self.unit)
            self.unit = None
        if depth == self.inherited[-1][0]:
            self.inherited.pop()

    def text(self, text: str) -> None:
        if self.side is not None and not self.code_depth and not self.others_depth:
            self.side.texts.append(text)
            self.size += len(text)
            if self.size > MAX_TEXT:
                raise self._too_large(f"{MAX_TEXT:,} characters")

    def _too_large(self, what: str) -> DataError:
        assert self.unit is not None
        return DataError(f"{self.path}:{self.unit.line}: the texts of a unit have more than {what}")


class XliffReader(_Reader[Unit]):
    """Iterates over the units to train on; one without a translation has its source alone."""

    def complete(self, unit: XliffUnit) -> None:
        self.units += _segments(unit)


class XliffUnitReader(_Reader[XliffUnit]):
    """Iterates over the trans-units and segments themselves."""

    def complete(self, unit: XliffUnit) -> None:
        self.units.append(unit)


def _segments(unit: XliffUnit) -> list[Unit]:
    """The units of a trans-unit or segment: one for each segment of both sides, or a single one."""
    source, target = unit.sides["source"], unit.sides.get("target")
    if target is None or target.attributes.get("state") in UNTRANSLATED:
        return [_unit(unit, source.texts, [])]
    if target.marks:
        src, tgt = _texts_of_marks(unit.sides.get("seg-source", source)), _texts_of_marks(target)
        if segments := [_unit(unit, texts, tgt[mid]) for mid, texts in src.items() if mid in tgt]:
            return segments
    return [_unit(unit, source.texts, target.texts)]


def _unit(unit: XliffUnit, src: list[str], tgt: list[str]) -> Unit:
    variants = []
    for language, texts in zip(unit.file.languages, (src, tgt), strict=True):
        if texts and (text := one_line("".join(texts)).strip()):
            variants.append(Variant(language, text))
    return Unit(unit.line, variants)


def _texts_of_marks(side: Part) -> dict[str, list[str]]:
    texts = dict[str, list[str]]()
    for mark in side.marks:
        texts.setdefault(mark.attributes.get("mid", ""), []).extend(mark.texts)
    return texts
