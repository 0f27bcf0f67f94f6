"""XLIFF 1 and 2 as a document: the sources that have no translation, and how their targets are written.

Only targets change. A new one has the state needs-review-translation, in XLIFF 1, and the segments of its seg-source.
What is locked stays, and so does what a person has confirmed. Flow: text -> spans of elements by expat -> `Marked`
segments -> translations -> `Edit`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from mtx.data.bilingual import PLAIN_NAMES, require_languages
from mtx.data.xliff import UNTRANSLATED, File, XliffUnit, XliffUnitReader
from mtx.documents.edits import Edit, fixed, space_before
from mtx.documents.inline import TOKEN, Element, element, parse, with_attribute, written
from mtx.documents.markup import Marked, bare, is_choice

STATE = "needs-review-translation"
_QUALIFIER = "mt-suggestion"  # XLIFF 1.2, section 3.2: what a machine proposed
_TRUE = frozenset(["true", "yes", "1", "locked"])
# What says that a translation is locked, and that a person has confirmed it, by the attribute's name without its prefix
_LOCKED = {"locked": _TRUE}
_CONFIRMED = {
    **_LOCKED,
    "approved": _TRUE,
    "confirmed": _TRUE,
    "conf": frozenset(["translated", "approvedtranslation", "approvedsignoff"]),
    "state": frozenset(["final", "signed-off", "reviewed"]),
    "status": frozenset(["manuallyconfirmed", "proofread", "reviewer1confirmed", "reviewer2confirmed"]),
}


def read(path: Path, languages: tuple[str, str], overwrite: bool, text: str) -> Iterator[Edit]:
    """The edits that translate a document.

    Args:
        languages: those of the model.
        overwrite: whether existing translations are replaced, but for those that a person has confirmed.

    Raises:
        UsageError: if the document is in other languages.
        DataError: if it is damaged.
    """
    units = [unit for unit in XliffUnitReader(path, text) if not unit.is_frozen]
    for unit in units:
        require_languages(path, unit.file.languages, languages)
    files = set[File]()
    for unit in units:
        plan = _Plan(text, unit, overwrite)
        if plan.segments:
            if unit.file not in files:
                yield from _language_edit(text, unit.file, languages[1])
            files.add(unit.file)
            yield from plan.edits()


class _Plan:
    """What is translated of a unit, and how its target is written.

    Attributes:
        segments: each part of the document that is translated, a mark or a side, with its text and tags.
        is_whole: whether the target is written as a whole, with the source's segments; else its own marks are filled.
    """

    def __init__(self, text: str, unit: XliffUnit, overwrite: bool):
        self.text, self.unit = text, unit
        self.segments = list[tuple[Element, Marked]]()
        self.given = list[tuple[Element, str]]()  # marks whose content in a new target is known
        self.sides = {name: Element.at(text, side.start, side.end) for name, side in unit.sides.items()}
        self.target = target = self.sides.get("target")
        self.attributes = unit.sides["target"].attributes if target else {}  # of the target
        source, seg_source = self.sides["source"], self.sides.get("seg-source")
        self.template = seg_source if seg_source and self._has_text(seg_source) else source
        marks = self._marks("seg-source") if self.template is seg_source else []
        has_text = target is not None and self._has_text(target)
        is_translated = has_text and self.attributes.get("state") not in UNTRANSLATED
        if target and not unit.is_version_1 and unit.attributes.get("state") == "initial":
            is_translated = has_text and target.content(text) != source.content(text)
        has_confirmed = has_text and any(_says(definition, _CONFIRMED) for definition in unit.definitions.values())
        self.is_whole = not has_confirmed and (overwrite or not is_translated)
        if _says({**unit.attributes, **self.attributes}, _CONFIRMED):
            return
        if target is None or self.is_whole:
            parts = [(mid, mark, mark) for mid, mark in marks] or [("", self.template, self.template)]
        else:
            parts = self._parts_of(target, marks)
        given = [place for place, _ in self.given]
        for mid, origin, place in parts:
            definition = unit.definitions.get(mid, {})
            may_stay = _says(definition, _CONFIRMED) or (is_translated and not overwrite)
            is_kept = not self.is_whole and may_stay and self._has_text(place)
            segment = self._parsed(origin)
            if is_kept or place in given or not bare(segment)[0]:
                continue
            if _says(definition, _LOCKED) or is_choice(segment):
                self.given.append((place, ""))
            else:
                self.segments.append((place, segment))

    def _marks(self, side: str) -> list[tuple[str, Element]]:
        """The segments of a side, with their numbers."""
        marks = self.unit.sides[side].marks
        return [(mark.attributes.get("mid", ""), Element.at(self.text, mark.start, mark.end)) for mark in marks]

    def _parts_of(self, target: Element, marks: list[tuple[str, Element]]) -> list[tuple[str, Element, Element]]:
        """The marks of both sides, by their number; without those whose number stands twice.

        A target that lacks some of them, and has nothing outside of its own, is written as a whole.
        """
        own = self._marks("target")
        sources, targets = dict(marks), dict(own)
        outside, at = "", target.inner_start
        for _, mark in own:
            outside += self.text[at : mark.start]
            at = mark.end
        outside += self.text[at : target.inner_end]
        is_part = targets.keys() < sources.keys() and len(marks) + len(own) == len(sources) + len(targets)
        if own and is_part and not outside.strip():
            self.is_whole = True
            self.given = [(sources[mid], mark.content(self.text)) for mid, mark in own if self._has_text(mark)]
            return [(mid, mark, mark) for mid, mark in marks]
        counts = [Counter(mid for mid, _ in side) for side in (marks, own)]
        return [(mid, sources[mid], mark) for mid, mark in own if [count[mid] for count in counts] == [1, 1]]

    def _parsed(self, element: Element) -> Marked:
        return parse(element.content(self.text), self.unit.keeps_lines)

    def _has_text(self, element: Element) -> bool:
        return bool(bare(self._parsed(element))[0])

    def edits(self) -> Iterator[Edit]:
        """The edits that write the target."""
        target, source = self.target, self.sides["source"]
        if target is not None:
            tag = self._target_tag(self.text[target.start : target.inner_start])
            if not self.is_whole:
                yield fixed(target.start, target.inner_start, tag)
                for place, segment in self.segments:
                    yield self._filled(place, segment)
                return
            yield fixed(target.start, at := target.end, "")
        else:
            at = self.sides.get("seg-source", source).end
            name = TOKEN.match(self.text, source.start)
            tag = self._target_tag(f"<{name['name'].removesuffix('source') if name else ''}target>")
            yield fixed(at, at, space_before(self.text, source.start))
        before, after = element(tag, "\0").split("\0")
        yield fixed(at, at, before)
        begin = self.template.inner_start
        parts: list[tuple[Element, Marked | str]] = [*self.segments, *self.given]
        for place, new in sorted(parts, key=lambda part: part[0].start):
            yield fixed(at, at, self.text[begin : place.inner_start])
            yield fixed(at, at, new) if isinstance(new, str) else Edit(at, at, new, written)
            begin = place.inner_end
        yield fixed(at, at, self.text[begin : self.template.inner_end] + after)

    def _target_tag(self, tag: str) -> str:
        """The opening tag of a target that has a new translation; XLIFF 2 has its states elsewhere."""
        if not self.unit.is_version_1:
            return tag
        tag = with_attribute(tag, "state", STATE)
        return with_attribute(tag, "state-qualifier", _QUALIFIER) if "state-qualifier" in self.attributes else tag

    def _filled(self, mark: Element, segment: Marked) -> Edit:
        """The edit that gives a mark of the target its content."""
        if mark.end > mark.inner_start:
            return Edit(mark.inner_start, mark.inner_end, segment, written)
        tag = self.text[mark.start : mark.end]
        return Edit(mark.start, mark.end, segment, lambda new: element(tag, written(new)))


def _says(attributes: dict[str, str], what: Mapping[str, frozenset[str]]) -> bool:
    """Whether one of some attributes has such a value, by its name without the prefix."""
    return any(value.lower() in what.get(name.rpartition(":")[2], ()) for name, value in attributes.items())


def _language_edit(text: str, file: File, tgt: str) -> Iterator[Edit]:
    """The edit that names the target language of a file that names none."""
    attributes, tag = file.attributes, TOKEN.match(text, file.start)
    if {"target-language", "trgLang"}.isdisjoint(attributes) and tgt not in PLAIN_NAMES and attributes and tag:
        key, other = ("trgLang", "srcLang") if "srcLang" in attributes else ("target-language", "source-language")
        yield fixed(file.start, tag.end(), with_attribute(tag[0], key, tgt, after=other))
