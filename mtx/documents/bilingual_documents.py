"""XLIFF, TMX and PO as documents: finds untranslated segments, and writes translations.

Only translations change. In XLIFF 1 a new target has the state needs-review-translation, and the segments of its
seg-source; locked and confirmed translations are kept. In TMX a unit without text in the target language gets one. In
PO a new translation is marked fuzzy, PO's word for unsure.
Flow: text -> nodes or messages with their places (`mtx.data`) -> `Marked` segments -> translations -> `Edit`.
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from mtx.data.bilingual import match_rank, require_languages
from mtx.data.inline_codes import EMOJI
from mtx.data.markup import (
    Kind,
    Marked,
    Tag,
    bare,
    is_choice,
    mark_up,
    raw,
    with_tags,
)
from mtx.data.tables import PLAIN_NAMES
from mtx.data.translation_memories import (
    CLOSING_CODES,
    CODES,
    DELETED,
    OPENING_CODES,
    SIDES,
    UNTRANSLATED,
    Message,
    Node,
    language_of,
    languages_of,
    marks_of,
    messages,
    plain_text,
    read_units,
    sides_of,
)
from mtx.documents.document import Edit, replace_text, space_before
from mtx.errors import DataError
from mtx.formatting import counted

logger = logging.getLogger(__name__)

_ATTRIBUTE = re.compile(r"([^\s=]++)\s*+=\s*+(\"[^\"]*+\"|'[^']*+')")
# Of texts in columns, too, with the bullet or the option that a line begins with
_SPACES = re.compile(r"(?: *[\t\r\n]\s*|\A)(?:[-*+•–] +|-{1,2}\w(?:\S| (?! )){0,60}  +)| *[\t\r\n]\s*|(?<=\S)  +(?=\S)")
_NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_BLANK_LINES = re.compile(r"\r?\n[ \t\r]*\n\s*")  # between two paragraphs
_WRITTEN_BREAK = re.compile("&#(?:9|10|x0*[9aA]);")
_EMOJI = re.compile(f"[{EMOJI}]")
_COPIES = 0.9  # the share of targets that repeat their source in an untranslated file
_PROTECTED = frozenset(["protected", DELETED])  # types of marks whose text is not translated


def with_attribute(tag: str, name: str, value: str) -> str:
    """An opening tag with an attribute set to this value, in place or after all others."""
    for match in _ATTRIBUTE.finditer(tag):
        if match[1] == name:
            return tag[: match.start(2)] + quoteattr(value) + tag[match.end(2) :]
    opened = _opened(tag)
    return f"{opened} {name}={quoteattr(value)}{tag[len(opened) :].lstrip()}"


def element(tag: str, content: str) -> str:
    """An element by its opening tag, or by its empty tag."""
    opened = _opened(tag)
    return f"{opened}>{content}</{opened.split()[0].removeprefix('<')}>"


def _in_element(tag: str) -> Callable[[Marked], str]:
    return lambda translation: element(tag, write_xml(translation))


def _opened(tag: str) -> str:
    return tag.removesuffix(">").removesuffix("/").rstrip()


def parse(document: str, node: Node, keeps_lines: bool = False) -> Marked:
    """The text and tags in an element: codes with their content, the ends of pairs, and single tags.

    Elements of HTML written as text, as in &lt;b&gt;, are tags too.

    Args:
        keeps_lines: line breaks and tabs are tags, because the element has xml:space="preserve" or a line break as a
            reference; else only blank lines are tags, and others are white space.
    """
    line_end = "\r\n" if "\r\n" in document[node.start : node.inner_end] else "\n"
    parts = mark_up(_parts(document, node, line_end), escape)
    keeps_lines = keeps_lines or bool(_WRITTEN_BREAK.search(document, node.start, node.inner_end))
    return with_lines(parts, _SPACES if keeps_lines else _BLANK_LINES)


def _parts(document: str, node: Node, line_end: str) -> Marked:
    parts = Marked()
    for child in node.children:
        if isinstance(child, str):
            parts.append(child.replace("\n", line_end))
            continue
        name, attributes = child.name.rpartition(":")[2], child.attributes
        is_protected = attributes.get("translate") == "no" or attributes.get("mtype") in _PROTECTED
        if child.inner_start == child.end or name in CODES or (name == "mrk" and is_protected):
            kind: Kind = "open" if name in OPENING_CODES else "close" if name in CLOSING_CODES else "alone"
            pair = next((attributes[key] for key in ("rid", "startRef", "i", "id") if key in attributes), None)
            pair = None if kind == "alone" else f"code {pair}"
            parts.append(Tag(document[child.start : child.end], kind, pair, child.is_space))
        else:
            pair = f"element {child.start}"
            parts.append(Tag(document[child.start : child.inner_start], "open", pair))
            parts += _parts(document, child, line_end)
            parts.append(Tag(document[child.inner_end : child.end], "close", pair))
    return parts


def with_lines(parts: Marked, spaces: re.Pattern[str] = _SPACES) -> Marked:
    """The parts of a segment; white space between words, by default line breaks and tabs, becomes a tag."""
    result = Marked()
    for number, part in enumerate(parts):
        if isinstance(part, Tag) or not spaces.search(part):
            result.append(part)
            continue
        begin = 0 if number else len(part) - len(part.lstrip())
        result += [part[:begin], *with_tags([part[begin:]], spaces, lambda text: Tag(text, is_break=True))]
    return [part for part in result if part != ""]


def write_xml(marked: Marked) -> str:
    """Text and tags as raw XML; a character that XML 1.0 lacks (section 2.2) becomes a space."""
    return raw(marked, lambda text: escape(_NO_XML.sub(" ", text)))


_STATE = "needs-review-translation"
_QUALIFIER = "mt-suggestion"  # XLIFF 1.2, section 3.2: what a machine proposed
_TRUE = frozenset(["true", "yes", "1", "locked"])
# The values of locked and of confirmed translations, by attribute name without prefix
_LOCKED = {"locked": _TRUE}
_CONFIRMED = {
    **_LOCKED,
    "approved": _TRUE,
    "confirmed": _TRUE,
    "conf": frozenset(["translated", "approvedtranslation", "approvedsignoff"]),
    "state": frozenset(["final", "signed-off", "reviewed"]),
    "status": frozenset(["manuallyconfirmed", "proofread", "reviewer1confirmed", "reviewer2confirmed"]),
}
_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"})
_CHARSET = re.compile(r"charset=([^\s;]+)", re.IGNORECASE)
_UTF_8 = ("utf-8", "utf8", "charset")  # the last one is that of templates


def edit_xliff(
    path: Path, languages: tuple[str, str], overwrite: bool, document: str, left: Counter[str]
) -> Iterator[Edit]:
    """The edits that translate a document.

    Args:
        languages: the languages of the model.
        overwrite: whether existing translations are replaced, except confirmed ones.
        left: counts what stays in the source language, by its kind.

    Raises:
        UsageError: if the document is in other languages.
        DataError: if it is damaged.
    """
    units = [
        unit for unit in read_units(path, "XLIFF", document) if "source" in sides_of(unit) and not _is_frozen(unit)
    ]
    for unit in units:
        require_languages(path, languages_of(unit), languages)
    files = set[Node]()
    copies, are_all = _find_copies(units)
    for unit in units:
        plan = _XliffPlan(document, unit, overwrite or (are_all and unit in copies), left)
        if not plan.segments:
            left["copied source"] += unit in copies
            continue
        file = unit.nearest("source-language", "srcLang")
        if file and file not in files:
            yield from _language_edit(document, file, languages[1])
            files.add(file)
        yield from plan.edits()
    if num_replaced := are_all * (len(copies) - left["copied source"]):
        what = counted(num_replaced, "translation")
        logger.info("%s: %s identical to the source: translated, as nothing of the file is", path, what)


def _find_copies(units: list[Node]) -> tuple[set[Node], bool]:
    """The units whose target is a copy of the source, and whether a program has written nearly all so."""
    targets, copies, has_states = 0, set[Node](), False
    for unit in units:
        sides = sides_of(unit)
        if target := sides.get("target"):
            has_states |= "state" in {**unit.attributes, **target.attributes} or any(_definitions(unit))
            targets += any(map(str.isalpha, plain_text(target)))
            if _is_copy(plain_text(sides["source"]), plain_text(target)):
                copies.add(unit)
    return copies, not has_states and len(copies) >= max(_COPIES * targets, min(10, targets))


def _is_copy(source: str, target: str) -> bool:
    return target == source and any(map(str.isalpha, target))


class _XliffPlan:
    """The segments to translate in a unit, and how its target is written.

    Attributes:
        segments: each part of the document to translate, a mark or a side, with its text and tags.
        given: marks whose content in a new target is known.
        is_whole: whether the target is written as a whole, with the source's segments; else its marks are filled in.
    """

    def __init__(self, document: str, unit: Node, overwrite: bool, left: Counter[str]):
        self.document, self.unit = document, unit
        self.segments = list[tuple[Node, Marked]]()
        self.given = list[tuple[Node, str]]()
        self.sides = sides_of(unit)
        space = unit.nearest("xml:space")
        self.keeps_lines = any(
            node.attributes.get("xml:space") == "preserve" for node in (space, *self.sides.values()) if node
        )
        source, target = self.sides["source"], self.sides.get("target")
        seg_source = self.sides.get("seg-source")
        self.template = seg_source if seg_source and self._has_text(seg_source) else source
        marks = marks_of(seg_source) if seg_source is self.template else []
        definitions = {node.attributes["id"]: node.attributes for node in _definitions(unit)}
        is_translated = has_confirmed = False
        if target and self._has_text(target):
            is_copy = unit.attributes.get("state") == "initial" and plain_text(target) == plain_text(source)
            is_translated = target.attributes.get("state") not in UNTRANSLATED and not (is_copy and self._is_version_2)
            has_confirmed = any(_says(definition, _CONFIRMED) for definition in definitions.values())
        self.is_whole = not has_confirmed and (overwrite or not is_translated)
        if _says({**unit.attributes, **(target.attributes if target else {})}, _CONFIRMED):
            left["locked segment"] += self._has_text(source) and not (target and self._has_text(target))
            return
        if target is None or self.is_whole:
            parts = [(mark, mark) for mark in marks] or [(self.template, self.template)]
        else:
            parts = self._parts_of(target, marks)
        given = [place for place, _ in self.given]
        for origin, place in parts:
            definition = definitions.get(_number(place), {})
            may_stay = _says(definition, _CONFIRMED) or (is_translated and not overwrite)
            is_kept = not self.is_whole and may_stay and self._has_text(place)
            segment = self._parsed(origin)
            if is_kept or place in given or not _has_text(segment):
                continue
            if _says(definition, _LOCKED) or is_choice(segment):
                self.given.append((place, ""))
                left["ICU message" if is_choice(segment) else "locked segment"] += 1
            else:
                self.segments.append((place, segment))

    @property
    def _is_version_2(self) -> bool:
        return self.unit.name == "segment"

    def _parts_of(self, target: Node, marks: list[Node]) -> list[tuple[Node, Node]]:
        """The marks of both sides, by number; without marks whose number occurs twice.

        A target that lacks some of them, and has nothing outside its marks, is written as a whole.
        """
        own = marks_of(target)
        sources, targets = ({_number(mark): mark for mark in side} for side in (marks, own))
        is_part = targets.keys() < sources.keys() and len(marks) + len(own) == len(sources) + len(targets)
        if own and is_part and all(child in own or child.isspace() for child in target.children):  # type: ignore[union-attr]
            self.is_whole = True
            kept = [(mid, mark) for mid, mark in targets.items() if self._has_text(mark)]
            self.given = [(sources[mid], self.document[mark.inner_start : mark.inner_end]) for mid, mark in kept]
            return [(mark, mark) for mark in marks]
        counts = [Counter(map(_number, side)) for side in (marks, own)]
        return [(sources[_number(mark)], mark) for mark in own if [count[_number(mark)] for count in counts] == [1, 1]]

    def _parsed(self, node: Node) -> Marked:
        return parse(self.document, node, self.keeps_lines)

    def _has_text(self, node: Node) -> bool:
        return _has_text(self._parsed(node))

    def edits(self) -> Iterator[Edit]:
        """The edits that write the target."""
        document, template = self.document, self.template
        source, target = self.sides["source"], self.sides.get("target")
        if target is not None:
            tag = self._target_tag(document[target.start : target.inner_start])
            if not self.is_whole:
                yield replace_text(target.start, target.inner_start, tag)
                for node, segment in self.segments:
                    yield self._filled(node, segment)
                return
            yield replace_text(target.start, at := target.end, "")
        else:
            at = self.sides.get("seg-source", source).end
            tag = self._target_tag(document[source.start : source.inner_start].split("source")[0] + "target>")
            yield replace_text(at, at, space_before(document, source.start))
        before, after = element(tag, "\0").split("\0")
        yield replace_text(at, at, before)
        begin = template.inner_start
        parts: list[tuple[Node, Marked | str]] = [*self.segments, *self.given]
        for place, new in sorted(parts, key=lambda part: part[0].start):
            yield replace_text(at, at, document[begin : place.inner_start])
            yield replace_text(at, at, new) if isinstance(new, str) else Edit(at, at, new, write_xml)
            begin = place.inner_end
        yield replace_text(at, at, document[begin : template.inner_end] + after)

    def _target_tag(self, tag: str) -> str:
        """The opening tag of a target with a new translation; XLIFF 2 has its states elsewhere."""
        if self._is_version_2:
            return tag
        tag = with_attribute(tag, "state", _STATE)
        has_qualifier = "target" in self.sides and "state-qualifier" in self.sides["target"].attributes
        return with_attribute(tag, "state-qualifier", _QUALIFIER) if has_qualifier else tag

    def _filled(self, mark: Node, segment: Marked) -> Edit:
        """The edit that gives a mark of the target its content."""
        if mark.end > mark.inner_start:
            return Edit(mark.inner_start, mark.inner_end, segment, write_xml)
        tag = self.document[mark.start : mark.end]
        return Edit(mark.start, mark.end, segment, _in_element(tag))


def _has_text(segment: Marked) -> bool:
    return bool(bare(segment)[0] or _EMOJI.search(raw(segment)))


def _is_frozen(unit: Node) -> bool:
    """Whether it or an enclosing element has translate="no"."""
    node = unit.nearest("translate")
    return node is not None and node.attributes["translate"] == "no"


def _definitions(node: Node) -> Iterator[Node]:
    """The definitions of a unit's segments, which Trados keeps outside source and target."""
    for child in node.children:
        if isinstance(child, Node) and child.name not in SIDES:
            if child.name.endswith(":seg") and "id" in child.attributes:
                yield child
            yield from _definitions(child)


def _number(mark: Node) -> str:
    return mark.attributes.get("mid", "")


def _says(attributes: Mapping[str, str], what: Mapping[str, frozenset[str]]) -> bool:
    """Whether one of the attributes has one of these values, by its name without prefix."""
    return any(value.lower() in what.get(name.rpartition(":")[2], ()) for name, value in attributes.items())


def _language_edit(document: str, file: Node, tgt: str) -> Iterator[Edit]:
    """The edit that declares the target language of a file without one."""
    attributes = file.attributes
    if {"target-language", "trgLang"}.isdisjoint(attributes) and tgt not in PLAIN_NAMES:
        key = "trgLang" if "srcLang" in attributes else "target-language"
        new = with_attribute(document[file.start : file.inner_start], key, tgt)
        yield replace_text(file.start, file.inner_start, new)


def edit_tmx(
    path: Path, languages: tuple[str, str], overwrite: bool, document: str, left: Counter[str]
) -> Iterator[Edit]:
    """The edits that translate a memory; see `edit_xliff`."""
    for unit in read_units(path, "TMX", document):
        variants = unit.named("tuv")
        src, tgt = (_find_variant(variants, language) for language in languages)
        tgt = None if tgt is src else tgt
        if src is None or not src.named("seg") or (tgt is not None and not tgt.named("seg")):
            continue  # no text in this language, or a damaged unit without a seg
        segment = parse(document, src.named("seg")[-1])
        translation = plain_text(tgt) if tgt is not None and not overwrite else ""
        if not _needs_translation(segment, plain_text(src), translation, left):
            continue
        if tgt is not None:
            seg = tgt.named("seg")[-1]
            tag = document[seg.start : seg.inner_start]
            yield Edit(seg.start, seg.end, segment, _in_element(tag))
        else:
            last = variants[-1]
            tag = f"{space_before(document, last.start)}<tuv xml:lang={quoteattr(languages[1])}>"
            yield replace_text(last.end, last.end, tag)
            yield Edit(last.end, last.end, segment, _in_element("<seg>"))
            yield replace_text(last.end, last.end, "</tuv>")


def _needs_translation(source: Marked, text: str, translation: str, left: Counter[str]) -> bool:
    """Whether a text gets a translation; counts what stays in the source language."""
    needs = not translation and _has_text(source)
    left["ICU message"] += needs and is_choice(source)
    left["copied source"] += _is_copy(text, translation)
    return needs and not is_choice(source)


def _find_variant(variants: list[Node], language: str) -> Node | None:
    """The variant in a language: of the nearest region, preferably with text."""
    ranked = [
        (rank, not plain_text(variant), number)
        for number, variant in enumerate(variants)
        if (rank := match_rank(language_of(variant), language)) is not None
    ]
    return variants[min(ranked)[-1]] if ranked else None


def edit_po(
    path: Path, languages: tuple[str, str], overwrite: bool, document: str, left: Counter[str]
) -> Iterator[Edit]:
    """The edits that translate a catalogue; see `edit_xliff`. Placeholders such as %s and {0} are tags."""
    lines, line_end = _lines(document), "\r\n" if "\r\n" in document else "\n"
    for message in messages(path, document.split("\n")):
        if message.is_header:
            require_languages(path, message.languages, languages)
            _require_utf_8(path, message)
            continue
        forms = [key for key in message.texts if key.startswith("msgstr")]
        is_flagged = message.is_fuzzy
        for key in forms:
            is_plural = "msgid_plural" in message.texts and (key != "msgstr[0]" or len(forms) == 1)
            text = message.texts.get("msgid_plural" if is_plural else "msgid", "")
            source = _mark_up(text)
            translation = "" if overwrite or message.is_fuzzy else message.texts[key]
            if not _needs_translation(source, text, translation, left):
                continue
            if not is_flagged:
                is_flagged, flags = True, message.flags_line
                at = lines[message.line][0] if flags is None else lines[flags][1]
                yield replace_text(at, at, f"#, fuzzy{line_end}" if flags is None else ", fuzzy")
            first, last = message.lines[key]
            end = lines[last][1]
            yield replace_text(lines[first][0], end, f'{key} "')
            yield Edit(end, end, source, lambda new: f'{raw(new).translate(_ESCAPED)}"')


def _require_utf_8(path: Path, header: Message) -> None:
    charset = _CHARSET.search(header.field("Content-Type"))
    if charset and charset[1].lower() not in _UTF_8:
        raise DataError(f"{path}: its header has charset={charset[1]}", "convert it with msgconv --to-code=UTF-8")


def _lines(text: str) -> list[tuple[int, int]]:
    """The span of each line, without white space at its end, by its number from 1."""
    spans, at = [(0, 0)], 0
    for line in text.split("\n"):
        spans.append((at, at + len(line.rstrip())))
        at += len(line) + 1
    return spans


def _mark_up(text: str) -> Marked:
    """A message as text and tags: placeholders, markup, line breaks inside it, and the spaces between columns."""
    return with_lines(mark_up([text]))


EDITS = {"xliff": edit_xliff, "tmx": edit_tmx, "po": edit_po}
