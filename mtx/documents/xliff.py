"""XLIFF 1 and 2 as a document: the sources that have no translation, and how their targets are written.

Only targets change. A new one has the state needs-review-translation, in XLIFF 1, and the segments of its seg-source.
What is locked stays, and so does what a person has confirmed. Flow: text -> spans of elements by expat -> `Marked`
segments -> translations -> `Edit`.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mtx.data.bilingual import PLAIN_NAMES, require_languages
from mtx.documents.edits import Edit, space_before
from mtx.documents.inline import TOKEN, attributes_of, element, local_name, parse, with_attribute, written
from mtx.documents.markup import Marked, bare, is_choice, with_edges
from mtx.errors import DataError
from mtx.files.xml_stream import parse_text

STATE = "needs-review-translation"
_QUALIFIER = "mt-suggestion"  # XLIFF 1.2, section 3.2: what a machine proposed
_UNTRANSLATED = frozenset(["new", "needs-translation"])
_OTHERS = frozenset(["alt-trans", "bin-unit", "matches", "glossary", "ignorable", "originalData", "notes", "note"])
_SIDES = ("source", "seg-source", "target")
_TRUE = frozenset(["true", "yes", "1", "locked"])
# What says that a person has confirmed a translation, by the attribute's name without its prefix
_CONFIRMED = {
    "approved": _TRUE,
    "confirmed": _TRUE,
    "conf": frozenset(["translated", "approvedtranslation", "approvedsignoff"]),
    "state": frozenset(["final", "signed-off", "reviewed"]),
    "status": frozenset(["manuallyconfirmed", "proofread", "reviewer1confirmed", "reviewer2confirmed"]),
}


@dataclass
class Element:
    """An element of the document, or the mark of a segment: from `start` to `end`, and its content."""

    start: int
    end: int
    inner_start: int
    inner_end: int
    attributes: dict[str, str]


@dataclass
class XliffUnit:
    """A trans-unit of XLIFF 1, or a segment of XLIFF 2.

    Attributes:
        file: the number of its file element.
        is_version_1: whether it is a trans-unit.
        attributes: its own.
        definitions: those of its segments, by their number, that Trados keeps beside them.
        keeps_lines: whether its white space is part of the text.
    """

    file: int
    languages: tuple[str, str]
    is_version_1: bool
    attributes: dict[str, str]
    keeps_lines: bool
    sides: dict[str, Element] = field(default_factory=dict)
    definitions: dict[str, dict[str, str]] = field(default_factory=dict)


Segments = list[Marked]
Write = Callable[[Sequence[Marked]], list[Edit]]


def read(path: Path, text: str, languages: tuple[str, str], overwrite: bool) -> tuple[Segments, Write]:
    """The segments of a document that are to be translated, and what makes the edits from their translations.

    Args:
        languages: those of the model.
        overwrite: whether existing translations are replaced, but for those that a person has confirmed.

    Raises:
        UsageError: if the document is in other languages.
        DataError: if it is damaged.
    """
    finder = _Finder(text)
    parse_text(path, text, finder)
    if finder.prefix is None:
        raise DataError(f"{path}: is not XLIFF: its first element is not xliff")
    for unit in finder.units:
        require_languages(path, unit.languages, languages)
    plans = [plan for unit in finder.units if (plan := _Plan(text, unit, overwrite)).segments]
    segments = [segment for plan in plans for _, segment in plan.segments]

    def write(translations: Sequence[Marked]) -> list[Edit]:
        rest = iter(translations)
        edits = [edit for plan in plans for edit in plan.edits([next(rest) for _ in plan.segments])]
        files = {plan.unit.file for plan in plans}
        return [*edits, *(edit for file in files for edit in finder.language_edit(file, languages[1]))]

    return segments, write


class _Plan:
    """What is translated of a unit, and how its target is written.

    Attributes:
        segments: each part of the document that is translated, a mark or a side, with its text and tags.
        is_whole: whether the target is written as a whole, with the source's segments; else its own marks are filled.
    """

    def __init__(self, text: str, unit: XliffUnit, overwrite: bool):
        self.text, self.unit = text, unit
        self.segments = list[tuple[Element, Marked]]()
        self.target = target = unit.sides.get("target")
        seg_source = unit.sides.get("seg-source")
        self.template = seg_source if seg_source and self._has_text(seg_source) else unit.sides["source"]
        marks = _marks(text, self.template) if self.template is seg_source else []
        is_translated = target is not None and self._is_translated(target)
        has_confirmed = (
            target is not None and self._has_text(target) and any(map(_is_confirmed, unit.definitions.values()))
        )
        self.is_whole = not has_confirmed and (overwrite or not is_translated)
        self.given = list[tuple[Element, str]]()  # marks whose content in a new target is known
        if _is_confirmed({**unit.attributes, **(target.attributes if target else {})}):
            return
        if self.is_whole:
            parts = [(mid, mark, mark) for mid, mark in marks] or [("", self.template, self.template)]
        else:
            assert target is not None
            parts = self._parts_of(target, marks)
        given = {id(place) for place, _ in self.given}
        for mid, source, place in parts:
            definition = unit.definitions.get(mid, {})
            is_confirmed = _is_confirmed(definition) and not self.is_whole and self._has_text(place)
            is_kept = is_confirmed or (is_translated and not overwrite and not self.is_whole and self._has_text(place))
            if id(place) in given or is_kept or not bare(segment := self._parsed(source))[0]:
                continue
            if _is_locked(definition) or is_choice(segment):
                self.given.append((place, ""))
            else:
                self.segments.append((place, segment))

    def _is_translated(self, target: Element) -> bool:
        """Whether a target has a translation, and not what the source says."""
        if not self.unit.is_version_1 and self.unit.attributes.get("state") == "initial":
            source = self.unit.sides["source"]
            copied = self.text[source.inner_start : source.inner_end]
            return self._has_text(target) and self.text[target.inner_start : target.inner_end] != copied
        return self._has_text(target) and target.attributes.get("state") not in _UNTRANSLATED

    def _parts_of(self, target: Element, marks: list[tuple[str, Element]]) -> list[tuple[str, Element, Element]]:
        """The marks of both sides, by their number; without those whose number stands twice.

        A target that lacks some of them, and has nothing outside of its own, is written as a whole.
        """
        own = _marks(self.text, target)
        counts = [Counter(mid for mid, _ in side) for side in (marks, own)]
        sources, targets = dict(marks), dict(own)
        starts, ends = [mark.start for _, mark in own], [mark.end for _, mark in own]
        gaps = zip([target.inner_start, *ends], [*starts, target.inner_end], strict=True)
        outside = "".join(self.text[start:end] for start, end in gaps)
        is_part = targets.keys() < sources.keys() and max([*counts[0].values(), *counts[1].values()]) == 1
        if own and is_part and not outside.strip():
            self.is_whole = True
            texts = {mid: self.text[mark.inner_start : mark.inner_end] for mid, mark in own if self._has_text(mark)}
            self.given = [(sources[mid], text) for mid, text in texts.items()]
            return [(mid, mark, mark) for mid, mark in marks]
        return [(mid, sources[mid], mark) for mid, mark in own if [count[mid] for count in counts] == [1, 1]]

    def _parsed(self, element: Element) -> Marked:
        return parse(self.text[element.inner_start : element.inner_end], self.unit.keeps_lines)

    def _has_text(self, element: Element) -> bool:
        return bool(bare(self._parsed(element))[0])

    def edits(self, translations: Sequence[Marked]) -> list[Edit]:
        """The edits that write the target."""
        new = [
            (place, written(with_edges(segment, translation)))
            for (place, segment), translation in zip(self.segments, translations, strict=True)
        ]
        if self.target is not None:
            tag = self._target_tag(self.text[self.target.start : self.target.inner_start])
        if not self.is_whole:
            assert self.target is not None
            return [Edit(self.target.start, self.target.inner_start, tag), *(self._filled(*part) for part in new)]
        content, at = "", self.template.inner_start
        for place, inner in sorted([*new, *self.given], key=lambda part: part[0].start):
            content += self.text[at : place.inner_start] + inner
            at = place.inner_end
        content += self.text[at : self.template.inner_end]
        if self.target is not None:
            return [Edit(self.target.start, self.target.end, element(tag, content))]
        source = self.unit.sides["source"]
        last = self.unit.sides.get("seg-source", source)
        name = TOKEN.match(self.text, source.start)
        tag = self._target_tag(f"<{name['name'].removesuffix('source') if name else ''}target>")
        return [Edit(last.end, last.end, space_before(self.text, source.start) + element(tag, content))]

    def _target_tag(self, tag: str) -> str:
        """The opening tag of a target that has a new translation; XLIFF 2 has its states elsewhere."""
        if not self.unit.is_version_1:
            return tag
        tag = with_attribute(tag, "state", STATE)
        has_qualifier = self.target is not None and "state-qualifier" in self.target.attributes
        return with_attribute(tag, "state-qualifier", _QUALIFIER) if has_qualifier else tag

    def _filled(self, mark: Element, content: str) -> Edit:
        """The edit that gives a mark of the target its content."""
        if mark.end > mark.inner_start:
            return Edit(mark.inner_start, mark.inner_end, content)
        return Edit(mark.start, mark.end, element(self.text[mark.start : mark.end], content))


def _is_locked(attributes: dict[str, str]) -> bool:
    return any(name.rpartition(":")[2] == "locked" and value.lower() in _TRUE for name, value in attributes.items())


def _is_confirmed(attributes: dict[str, str]) -> bool:
    return _is_locked(attributes) or any(
        value.lower() in _CONFIRMED.get(name.rpartition(":")[2], ()) for name, value in attributes.items()
    )


def _marks(text: str, side: Element) -> list[tuple[str, Element]]:
    """The segments of a side, by the number of each mrk that says so and is not inside of another."""
    found, at = list[tuple[str, Element]](), side.inner_start
    open_marks = list[tuple[re.Match[str], dict[str, str]]]()
    while (match := TOKEN.search(text, at, side.inner_end)) is not None:
        at = match.end()
        if local_name(match) != "mrk":
            continue
        if not match["close"]:
            open_marks.append((match, attributes_of(match)))
            if not match["empty"]:
                continue
        opening, attributes = open_marks.pop()
        if attributes.get("mtype") == "seg" and not any(a.get("mtype") == "seg" for _, a in open_marks):
            inner_end = opening.end() if match is opening else match.start()
            mark = Element(opening.start(), match.end(), opening.end(), inner_end, attributes)
            found.append((attributes.get("mid", ""), mark))
    return found


class _Finder:
    """Finds the units of a document. `units` has those with a source; their spans count the characters of the text."""

    def __init__(self, text: str):
        self.document, self.depth = text, 0
        self.line: Callable[[], int] = int
        self.at: Callable[[], int] = int
        self.units: list[XliffUnit] = []
        self.prefix: str | None = None
        self._files: list[tuple[int, dict[str, str]]] = [(0, {})]  # the tags that name languages
        self._others, self._frozen, self._keeps = 0, [False], [False]
        self._unit: XliffUnit | None = None
        self._open: tuple[str, Element, int] | None = None  # the name of the open side, itself, and its depth

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self.depth += 1
        prefix, _, local = name.rpartition(":")
        if self.prefix is None:
            if local != "xliff" or self.depth > 1:
                return
            self.prefix = f"{prefix}:" if prefix else ""
        is_own = name == f"{self.prefix}{local}"
        self._frozen.append({"no": True, "yes": False}.get(attributes.get("translate", ""), self._frozen[-1]))
        self._keeps.append({"preserve": True, "default": False}.get(attributes.get("xml:space", ""), self._keeps[-1]))
        if self._open is not None:
            return  # an inline element, whatever its name
        if self._others or not is_own or local in _OTHERS:
            self._others += 1
            if local == "seg" and self._unit is not None and "id" in attributes:
                self._unit.definitions[attributes["id"]] = attributes
        elif local in ("file", "xliff") and not {"source-language", "srcLang"}.isdisjoint(attributes):
            self._files.append((self.at(), attributes))
        elif local in ("trans-unit", "segment"):
            number = len(self._files) - 1
            self._unit = XliffUnit(number, self._languages(), local == "trans-unit", attributes, self._keeps[-1])
        elif local in _SIDES and self._unit is not None:
            token = TOKEN.match(self.document, start := self.at())
            inner = token.end() if token else start
            self._open = local, Element(start, 0, inner, inner, attributes), self.depth
            self._unit.keeps_lines |= self._keeps[-1]

    def _languages(self) -> tuple[str, str]:
        _, named = self._files[-1]
        src = named.get("source-language") or named.get("srcLang") or ""
        return src, named.get("target-language") or named.get("trgLang") or ""

    def end(self, name: str) -> None:
        self.depth -= 1
        if self.prefix is None:
            return
        is_frozen, _ = self._frozen.pop(), self._keeps.pop()
        if self._open is not None:
            self._end_side()
        elif self._others:
            self._others -= 1
        elif name.removeprefix(self.prefix) in ("trans-unit", "segment") and self._unit is not None:
            if "source" in self._unit.sides and not is_frozen:
                self.units.append(self._unit)
            self._unit = None

    def _end_side(self) -> None:
        assert self._open is not None and self._unit is not None
        side, element, depth = self._open
        if self.depth != depth - 1:
            return
        is_empty = self.document[element.inner_start - 2 : element.inner_start] == "/>"
        element.inner_end = element.inner_start if is_empty else self.at()
        element.end = element.inner_start if is_empty else self.document.index(">", element.inner_end) + 1
        self._unit.sides[side] = element
        self._open = None

    def text(self, text: str) -> None:
        """Does nothing: text is taken from the document itself."""

    def language_edit(self, file: int, tgt: str) -> list[Edit]:
        """The edit that names the target language of a file that names none."""
        start, attributes = self._files[file]
        if not {"target-language", "trgLang"}.isdisjoint(attributes) or tgt in PLAIN_NAMES or not attributes:
            return []
        key, other = ("trgLang", "srcLang") if "srcLang" in attributes else ("target-language", "source-language")
        tag = TOKEN.match(self.document, start)
        return [Edit(start, tag.end(), with_attribute(tag[0], key, tgt, after=other))] if tag else []
