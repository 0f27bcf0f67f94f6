"""XLIFF, TMX and PO as documents: finds untranslated segments, and writes translations.

Only translations change. In XLIFF 1 a new target has the state needs-review-translation, and the segments of its
seg-source; locked and confirmed translations are kept. In TMX a unit without text in the target language gets one. In
PO a new translation is marked fuzzy, PO's word for unsure. Where the model estimates the quality of its translations,
that of the worst segment is written too: `its:mtConfidence` of ITS 2.0 in XLIFF 1, else in words.
Flow: text -> nodes or messages with their places (`mtx.data`) -> `Marked` segments -> translations -> `Edit`.
"""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from operator import attrgetter, itemgetter
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from mtx.data.bilingual import match_rank, nearest, require_languages
from mtx.data.languages import Languages
from mtx.data.markup import (
    EMOJI,
    OPTION,
    Marked,
    Tag,
    bare,
    has_letters,
    is_choice,
    mark_up,
    raw,
    text_of,
    with_tags,
)
from mtx.data.tables import PLAIN_NAMES
from mtx.data.translation_memories import (
    DELETED,
    SIDES,
    Node,
    find_translation,
    languages_of,
    marks_of,
    messages,
    plain_text,
    read_tmx_unit,
    read_units,
    sides_of,
)
from mtx.documents import markdown
from mtx.documents.edits import Edit, SegmentId, in_unit, insert_text, replace_text, segment_id, space_before
from mtx.formatting import counted, shell_command

logger = logging.getLogger(__name__)

_ATTRIBUTE = re.compile(r"(?P<name>[^\s=]++)\s*+=\s*+(?P<value>\"[^\"]*+\"|'[^']*+')")
# Of texts in columns, too, with the bullet, option or command that a line begins with
_SPACES = re.compile(
    r"(?:(?:(?<! ) +)?[\t\r\n]\s*|\A)(?:[-*+•–] +|--?\w(?:\S| (?! )){0,60}(?:  |\t)[ \t]*)"
    r"|\n {2,}[a-z][\w.-]*+(?= )(?=[^\n|]* --?\w)[^\n|]*\| [^\n]*"
    r"|(?:\n|\A) {2,}[a-z](?:\S| (?! )){0,60}(?<![.!?:])(?:  |\t)[ \t]*(?=\S)"
    r"|(?:(?<! ) +)?[\t\r\n]\s*|(?<=\S)  +(?=\S|\Z)"
)
_NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_BLANK_LINES = re.compile(r"\r?\n[ \t\r]*\n\s*")  # between two paragraphs
_WRITTEN_BREAK = re.compile("&#(?:9|10|x0*[9aA]);")
_EMOJI = re.compile(f"[{EMOJI}]")
_LINE = re.compile(r"^(.*\S)?.*$", re.MULTILINE)  # of PO, without white space at the end
_ITS = {
    "xmlns:its": "http://www.w3.org/2005/11/its",
    "its:version": "2.0",
    "its:annotatorsRef": "mt-confidence|mtx",
}
_QUALITY_NOTE = re.compile(r"^# mtx: quality .*\n", re.MULTILINE)
_QUALITY_PROP = "x-mtx-quality"
_COPIES = 0.9  # the share of targets that repeat their source in an untranslated file


# The quality and the advice of translations by their segments, known when edits are written; None is the quality of
# text that is unlike what the model was checked with
Estimates = Mapping[SegmentId, tuple[float | None, str | None]]


def _find_worst(segments: Iterable[Marked], estimates: Estimates) -> tuple[float, str | None] | None:
    """What is known of the translation with the lowest quality; None if it is known of none, or unknown of one."""
    known_estimates = list[tuple[float, str | None]]()
    for segment in segments:
        if segment_id(segment) in estimates:
            quality, advice = estimates[segment_id(segment)]
            if quality is None:
                return None
            known_estimates.append((quality, advice))
    return min(known_estimates, key=itemgetter(0), default=None)


def _note(form: str, segments: Iterable[Marked], estimates: Estimates, _: Marked) -> str:
    """The quality and the advice of the worst segment, in this form; empty if they are not known."""
    worst = _find_worst(segments, estimates)
    return form.format(*worst) if worst else ""


def with_attribute(tag: str, name: str, value: str) -> str:
    """An opening tag with an attribute set to this value, in place or after all others."""
    for match in _ATTRIBUTE.finditer(tag):
        if match["name"] == name:
            return tag[: match.start("value")] + quoteattr(value) + tag[match.end("value") :]
    unclosed = _unclosed(tag)
    return f"{unclosed} {name}={quoteattr(value)}{tag[len(unclosed) :].lstrip()}"


def without_attribute(tag: str, name: str) -> str:
    """An opening tag without this attribute."""
    for match in _ATTRIBUTE.finditer(tag):
        if match["name"] == name:
            return tag[: match.start()].rstrip() + tag[match.end() :]
    return tag


def element(tag: str, content: str) -> str:
    """An element by its opening tag, or by its empty tag."""
    unclosed = _unclosed(tag)
    return f"{unclosed}>{content}</{unclosed.split()[0].removeprefix('<')}>"


def _unclosed(tag: str) -> str:
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
        attributes = child.attributes
        is_protected = attributes.get("translate") == "no" or attributes.get("mtype") in ("protected", DELETED)
        if child.inner_start == child.end or child.code_kind or is_protected:
            kind = child.code_kind or "alone"
            number = child.first_attribute("rid", "startRef", "i", "id")
            pair = None if kind == "alone" else f"code {number}"
            parts.append(Tag(document[child.start : child.end], kind, pair, child.is_space))
        else:
            pair = f"element {child.start}"
            parts.append(Tag(document[child.start : child.inner_start], "open", pair))
            parts += _parts(document, child, line_end)
            parts.append(Tag(document[child.inner_end : child.end], "close", pair))
    return parts


def with_lines(parts: Marked, spaces: re.Pattern[str] = _SPACES) -> Marked:
    """The parts of a segment; white space between words, by default line breaks and tabs, becomes a tag."""
    first_text = text_of(parts[:1])
    begin = 0
    if spaces.search(first_text) and not spaces.match(first_text):
        begin = len(first_text) - len(first_text.lstrip())
    parts_after = [first_text[begin:], *parts[1:]] if first_text else parts
    return [*filter(None, [first_text[:begin]]), *with_tags(parts_after, spaces, lambda text: Tag(text, is_break=True))]


def write_xml(marked: Marked) -> str:
    """Text and tags as raw XML; a character that XML 1.0 lacks (section 2.2) becomes a space."""
    return raw(marked, lambda text: escape(_NO_XML.sub(" ", text)))


# The values of locked and of confirmed translations, by attribute name without prefix
_LOCKED = {"locked": "true|yes|1|locked"}
_CONFIRMED = {
    **dict.fromkeys(["locked", "approved", "confirmed"], _LOCKED["locked"]),
    "conf": "translated|approvedtranslation|approvedsignoff",
    "state": "final|signed-off|reviewed",
    "status": "manuallyconfirmed|proofread|reviewer1confirmed|reviewer2confirmed",
}
_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"})
_DIALECT = re.compile(  # of the text of messages, by the comments before one or by the header
    r"(?P<code>^#\. type: (?:Fenced code block|delimited block -|Y(?:AML|aml) Front Matter.*: (?:layout|slug)))"
    r"|(?P<markdown>\b(?:markdown|md)-text|^#:.*\.(?:md|mdx|markdown)\b|mdbook|MyST)"
    r"|(?P<rst>\brst-text|^#:.*\.(?:rst|txt)\b|:docstring of |Sphinx)|(?P<godot>^#:.*\.xml\b|class reference)",
    re.MULTILINE,
)
# By dialect: options, but not the word of a speaker, `-I`; the names of targets, directives, and input of examples; the
# names of classes
_NAMES = {
    None: re.compile(OPTION),
    "rst": re.compile(
        rf"(?m){OPTION}|(?<![\w/])[A-Za-z0-9]+(?:[-.+:_][A-Za-z0-9]+){{0,20}}+__?(?!\w)|(?:(?<!\w)\w+)?(?:\\_[\w.]*\w|\\_)+"
        r"|^(?:\.\. [\w:-]+::|>>> ).*"
    ),
    "godot": re.compile(r"\[[@\w.]+\]"),
}
# Credits of translators in GNOME and KDE, which people fill in, a command with its options, and programs of help; a
# regular expression, the form of a date, a keyboard shortcut, and keys instead of text: MENU_START, menu.start
_KEPT = re.compile(
    r"translator-credits\Z|(?:NAME|EMAIL) OF TRANSLATORS\Z|'?(?:[a-z][\w-]*'? )+\[[<-]|.*\nbas_id\d"
    r"|\^(?=.*[\[(\\*+$])\S+\Z|(?:([a-zA-Z])\1*(?:[ ,./:-]+|\Z)){3,}\Z|[GgHh]:i\Z"
    r"|[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\Z|[a-z]\w+(?:\.\w{2,})+\Z"
)
_RST_MARK = re.compile(r"(?!\\)(?:[\w:.+-]*[`*|].*|.*[`*|]_*)", re.DOTALL)


def edit_xliff(
    path: Path, languages: Languages, overwrite: bool, document: str, untranslated: Counter[str], estimates: Estimates
) -> Iterator[Edit]:
    """The edits that translate a document.

    Args:
        languages: the languages of the model.
        overwrite: whether existing translations are replaced, except confirmed ones.
        untranslated: counts what stays in the source language, by its kind.
        estimates: the quality of the translations, once they are there.

    Raises:
        UsageError: if the document is in other languages.
        DataError: if it is damaged.
    """
    units = [
        unit
        for unit in read_units(path, "XLIFF", document)
        if "source" in sides_of(unit) and (unit.nearest("translate") or unit).attributes.get("translate") != "no"
    ]
    for unit in units:
        require_languages(path, languages_of(unit), languages)
    files_with_language = set[Node]()
    copies, are_nearly_all = _find_copies(units)
    for unit in units:
        num_left = untranslated.total()
        edits = list(
            _edit_unit(document, unit, overwrite or (are_nearly_all and unit in copies), untranslated, estimates)
        )
        if not edits:
            is_left_as_copy = unit in copies and untranslated.total() == num_left
            if is_left_as_copy:
                untranslated["copied source"] += 1
            copies.discard(unit)
            continue
        file = unit.nearest("source-language", "srcLang")
        if file and file not in files_with_language and not languages_of(unit)[1] and languages[1] not in PLAIN_NAMES:
            files_with_language.add(file)
            key = "trgLang" if "srcLang" in file.attributes else "target-language"
            tag = with_attribute(document[file.start : file.inner_start], key, languages[1])
            yield replace_text(file.start, file.inner_start, tag)
        yield from in_unit(edits, [edit.segment for edit in edits if edit.segment])
    if are_nearly_all and copies:
        replaced = counted(len(copies), "translation")
        logger.info("%s: %s identical to the source: translated, as nothing of the file is", path, replaced)


def _find_copies(units: list[Node]) -> tuple[set[Node], bool]:
    """The units whose target is a copy of the source, and whether a program has written nearly all so."""
    num_targets = 0
    copies = set[Node]()
    has_states = False
    for unit in units:
        sides = sides_of(unit)
        if target := sides.get("target"):
            if "state" in unit.attributes | target.attributes or _definitions(unit):
                has_states = True
            if has_letters([plain_text(target)]):
                num_targets += 1
            if _is_copy(plain_text(sides["source"]), plain_text(target)):
                copies.add(unit)
    return copies, not has_states and len(copies) >= max(_COPIES * num_targets, min(10, num_targets))


def _is_copy(source: str, target: str) -> bool:
    return target == source and has_letters([target])


def _edit_unit(
    document: str, unit: Node, overwrite: bool, untranslated: Counter[str], estimates: Estimates
) -> Iterator[Edit]:
    """The edits that write the target of a unit; none if it needs no translation."""
    sides = sides_of(unit)
    source = sides["source"]
    target = sides.get("target")
    spaces = [node.attributes.get("xml:space") for node in (unit.nearest("xml:space"), *sides.values()) if node]
    parse_text = partial(parse, document, keeps_lines="preserve" in spaces)
    old_text = plain_text(target) if target else ""
    if _has_value(unit.attributes | (target.attributes if target else {}), _CONFIRMED):
        if old_text in ("", plain_text(source)) and has_letters(parse_text(source)):
            untranslated["locked segment"] += 1
        return
    definitions = _definitions(unit)
    has_confirmed = old_text != "" and any(_has_value(attributes, _CONFIRMED) for attributes in definitions.values())
    replaces_text = overwrite or old_text == "" or find_translation(unit, sides) is None
    template = sides.get("seg-source", source)
    if not _has_text(parse_text(template), plain_text(template)):
        template = source
    sources = marks_of(template)
    targets = marks_of(target) if target else {}
    fills_marks = _fills_marks(sources, targets, target, may_replace=replaces_text and not has_confirmed)
    if not sources and not fills_marks:
        sources = {"": [template]}
    contents = dict[Node, Marked | str]()
    for number, marks in sources.items():
        target_marks = targets.get(number, [])
        if fills_marks and not len(marks) == len(target_marks) == 1:
            continue
        old_mark_text = plain_text(*target_marks)
        definition = definitions.get(number, {})
        is_confirmed = _has_value(definition, _CONFIRMED)
        for mark in marks:
            segment = parse_text(mark)
            place = target_marks[0] if fills_marks else mark
            if fills_marks and is_confirmed and _is_copy(plain_text(mark), old_mark_text):
                untranslated["locked segment"] += 1
            is_protected = is_confirmed if fills_marks else has_confirmed
            if old_mark_text and (is_protected or not replaces_text):
                contents[place] = document[target_marks[0].inner_start : target_marks[0].inner_end]
            elif _has_text(segment, plain_text(mark)):
                contents[place] = "" if _must_stay(segment, untranslated, _has_value(definition, _LOCKED)) else segment
    if any(not isinstance(content, str) for content in contents.values()):
        yield from _write_target(document, unit, contents, template, fills_marks, estimates)


def _fills_marks(
    sources: Mapping[str, list[Node]], targets: Mapping[str, list[Node]], target: Node | None, may_replace: bool
) -> bool:
    """Whether only the marks of a target are written, those that are once on each side; everything else stays.

    Otherwise the target becomes a copy of its template, a seg-source or source; marks keep the text that must stay.

    Args:
        may_replace: whether no text of the target must stay.
    """
    are_unique = all(len(marks) == 1 for marks in (*sources.values(), *targets.values()))
    if target and sources and are_unique:
        target_marks = [mark for [mark] in targets.values()]
        has_only_marks = all(child in target_marks or str(child).isspace() for child in target.children)
        if has_only_marks and targets.keys() <= sources.keys():
            return targets.keys() == sources.keys()  # an empty one can stay
    return not may_replace


def _must_stay(segment: Marked, untranslated: Counter[str], is_locked: bool = False) -> bool:
    """Whether a segment is not translated, as a choice of ICU or a locked segment; counts it then."""
    if is_choice(segment):
        untranslated["ICU message"] += 1
        return True
    if is_locked:
        untranslated["locked segment"] += 1
        return True
    return False


def _write_target(
    document: str,
    unit: Node,
    contents: Mapping[Node, Marked | str],
    template: Node,
    fills_marks: bool,
    estimates: Estimates,
) -> Iterator[Edit]:
    """The edits that write these segments and this XML, by their places in the target's marks or in the template.

    In XLIFF 1 the target gets the state of a machine's proposal (1.2, section 3.2), in XLIFF 2 the segment the state
    translated.
    """
    sides = sides_of(unit)
    source = sides["source"]
    target = sides.get("target")
    if target:
        start = target.start
        at = target.end
        tag = document[target.start : target.inner_start]
    else:
        start = sides.get("seg-source", source).end
        at = start
        prefix = document[source.start : source.inner_start].split("source")[0]
        tag = f"{space_before(document, source.start)}{prefix}target>"
    if unit.name == "segment":  # of XLIFF 2
        opening = with_attribute(document[unit.start : unit.inner_start], "state", "translated")
        yield replace_text(unit.start, unit.inner_start, without_attribute(opening, "subState"))  # of another state
        if target and "state" in target.attributes:  # as other programs write it
            tag = with_attribute(tag, "state", "translated")
    else:
        tag = with_attribute(tag, "state", "needs-review-translation")
        if target and "state-qualifier" in target.attributes:
            tag = with_attribute(tag, "state-qualifier", "mt-suggestion")

    def write_opening_tag(_: Marked) -> str:
        segments = [content for content in contents.values() if not isinstance(content, str)]
        worst = _find_worst(segments, estimates)
        if unit.name == "segment":
            return tag
        tag_with_quality = without_attribute(tag, "its:mtConfidence")  # of an older translation
        if not worst:
            return tag_with_quality
        for name, value in {**_ITS, "its:mtConfidence": f"{worst[0] / 100:.3f}"}.items():
            tag_with_quality = with_attribute(tag_with_quality, name, value)
        return tag_with_quality

    ordered_contents = sorted(contents.items(), key=lambda item: item[0].start)
    if fills_marks:
        assert target is not None
        yield Edit(start, target.inner_start, [], write_opening_tag)
        for place, content in ordered_contents:
            if not isinstance(content, str):
                yield _fill(document, place, content)
        return
    yield Edit(start, at, [], lambda translation: f"{_unclosed(write_opening_tag(translation))}>")
    copied_until = template.inner_start
    for place, content in ordered_contents:
        yield replace_text(at, at, document[copied_until : place.inner_start])
        if isinstance(content, str):
            yield replace_text(at, at, content)
        else:
            yield Edit(at, at, content, write_xml)
        copied_until = place.inner_end
    closing_tag = element(tag, "\0").split("\0")[1]
    yield replace_text(at, at, document[copied_until : template.inner_end] + closing_tag)


def _fill(document: str, node: Node, segment: Marked) -> Edit:
    """The edit that gives an element this content; it may be an empty tag."""
    tag = document[node.start : node.inner_start]
    return Edit(node.start, node.end, segment, lambda translation: element(tag, write_xml(translation)))


def _has_text(segment: Marked, text: str) -> bool:
    """Whether a segment has words or emoji; codes of other programs do not count, so `text` is without them."""
    return bool(bare(segment)[0] or (segment and _EMOJI.search(text)))


def _definitions(node: Node) -> dict[str, dict[str, str]]:
    """The attributes of a unit's segments by their numbers, which Trados keeps outside source and target."""
    definitions = dict[str, dict[str, str]]()
    for child in node.children:
        if isinstance(child, Node) and child.name not in SIDES:
            if child.name.endswith(":seg") and "id" in child.attributes:
                definitions[child.attributes["id"]] = child.attributes
            definitions |= _definitions(child)
    return definitions


def _has_value(attributes: Mapping[str, str], values: Mapping[str, str]) -> bool:
    """Whether one of the attributes has one of these values, by its name without prefix."""
    return any(
        re.fullmatch(values.get(name.rpartition(":")[2], "(?!)"), value.lower()) for name, value in attributes.items()
    )


def edit_tmx(
    path: Path, languages: Languages, overwrite: bool, document: str, untranslated: Counter[str], estimates: Estimates
) -> Iterator[Edit]:
    """The edits that translate a memory; see `edit_xliff`."""
    codes = dict.fromkeys(re.findall(r"<tuv\b[^<>]*\blang=[\"']([^\"'<>]+)", document))
    code = next((code for code in codes if match_rank(code, languages[1]) is not None), languages[1])
    for node in read_units(path, "TMX", document):
        tuvs = node.named("tuv")
        unit = read_tmx_unit(node)
        sources = nearest([variant for variant in unit.variants if variant.text], languages[0])
        targets = nearest(unit.variants, languages[1])
        target = next(iter([variant for variant in targets if variant.text] or targets), None)
        if not sources:
            continue  # no text in this language
        if target is sources[0]:
            target = None
        tuv = tuvs[unit.variants.index(target)] if target else None
        if tuv and not tuv.named("seg"):
            continue  # it is damaged
        segment = parse(document, tuvs[unit.variants.index(sources[0])].named("seg")[-1])
        translation = "" if overwrite or target is None else target.text
        if not _needs_translation(segment, sources[0].text, translation, untranslated):
            continue
        note = partial(_note, f'<prop type="{_QUALITY_PROP}">{{:g}}, {{}}</prop>', [segment], estimates)
        if tuv:
            seg = tuv.named("seg")[-1]
            edits = [
                replace_text(prop.start, prop.end, "")
                for prop in tuv.named("prop")
                if prop.attributes.get("type") == _QUALITY_PROP
            ]
            edits += [Edit(seg.start, seg.start, [], note), _fill(document, seg, segment)]
        else:
            at = tuvs[-1].end
            tag = f"{space_before(document, tuvs[-1].start)}<tuv xml:lang={quoteattr(code)}>"
            edits = [
                replace_text(at, at, tag),
                Edit(at, at, [], note),
                Edit(at, at, segment, lambda translated: f"<seg>{write_xml(translated)}</seg></tuv>"),
            ]
        yield from in_unit(edits, [segment])


def _needs_translation(source: Marked, text: str, translation: str, untranslated: Counter[str]) -> bool:
    """Whether a text gets a translation; counts what stays in the source language."""
    if _is_copy(text, translation):
        untranslated["copied source"] += 1
    return not translation and _has_text(source, text) and not _must_stay(source, untranslated)


def edit_po(
    path: Path, languages: Languages, overwrite: bool, document: str, untranslated: Counter[str], estimates: Estimates
) -> Iterator[Edit]:
    """The edits that translate a catalogue; see `edit_xliff`. Placeholders such as %s and {0} are tags.

    A message in Markdown is a page of its own.
    """
    default_dialect = None
    lines = document.split("\n")
    line_end = "\r\n" if "\r\n" in document else "\n"
    spans = [(0, 0), *(line.span(1) for line in _LINE.finditer(document))]  # by their numbers, from 1
    message_end = 0
    for message in messages(path, lines):
        previous_end = message_end
        message_start = spans[message.line][0]
        message_end = spans[max(last_line for _, last_line in message.lines.values())][1]
        if message.is_header:
            require_languages(path, message.languages, languages)
            header = message.texts.get("msgstr", "")
            default_dialect = _DIALECT.search(message.comments + header)
            if "=CHARSET" in header:
                command = shell_command("msginit", "-l", languages[1], "-i", path)
                logger.warning(
                    "%s: is a template, without plural forms; first make a catalogue of it: %s", path, command
                )
            continue
        match = _DIALECT.search(message.comments) or default_dialect
        dialect = match.lastgroup if match else None
        if dialect == "code" or any(map(_KEPT.match, message.texts.values())):
            continue
        if not message.forms:
            untranslated["incomplete message"] += 1
        edits = list[Edit]()
        for keyword, source_keyword in message.forms.items():
            text = message.texts.get(source_keyword, "")
            translation = "" if overwrite or message.is_fuzzy else message.texts[keyword]
            text_edits = [] if translation else list(_read_message(text, dialect, untranslated))
            source = [part for edit in text_edits for part in edit.segment]
            if _needs_translation(source, text, translation, untranslated):
                first_line, last_line = message.lines[keyword]
                start = spans[first_line][0]
                end = spans[last_line][1]
                strings = insert_text(end, text, text_edits, lambda translated: translated.translate(_ESCAPED))
                form_edits = [replace_text(start, end, f'{keyword} "'), *strings, replace_text(end, end, '"')]
                edits += in_unit(form_edits, [edit.segment for edit in text_edits])
        if not edits:
            continue
        notes = [
            replace_text(*old_note.span(), "")
            for old_note in _QUALITY_NOTE.finditer(document, previous_end, message_start)
        ]
        if not message.is_fuzzy:
            flags = message.flags_line
            at = message_start if flags is None else spans[flags][1]
            notes.append(replace_text(at, at, f"#, fuzzy{line_end}" if flags is None else ", fuzzy"))
        segments = [edit.segment for edit in edits if edit.segment]
        note = Edit(
            message_start,
            message_start,
            [],
            partial(_note, f"# mtx: quality {{:g}}, {{}}{line_end}", segments, estimates),
        )
        yield from in_unit([*sorted(notes, key=attrgetter("start")), note], segments)
        yield from edits


def _read_message(text: str, dialect: str | None, untranslated: Counter[str]) -> Iterator[Edit]:
    """The edits that translate the text of a message."""
    if dialect == "markdown":
        yield from markdown.read(text, untranslated)
    else:
        segment = with_tags(with_lines(mark_up([text])), _NAMES[dialect], Tag)
        yield Edit(0, len(text), segment, _write_rst if dialect == "rst" else raw)


def _write_rst(translation: Marked) -> str:
    """A translation in RST, in which an escaped space separates marks from letters."""
    parts = Marked()
    for part in translation:
        if isinstance(part, Tag) and _RST_MARK.fullmatch(part.raw):
            mark = part.raw
            if part.kind != "close":
                mark = "\0" + mark
            if part.kind != "open":
                mark += "\0"
            parts.append(Tag(mark))
        else:
            parts.append(part)
    return re.sub(r"(?<=[^\W_])\0|\0\0|\0(?=[^\W_])", r"\\ ", raw(parts)).replace("\0", "")


EDITS = {"xliff": edit_xliff, "tmx": edit_tmx, "po": edit_po}
