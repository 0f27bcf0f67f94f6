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

from mtx.data.bilingual import match_rank, require_languages
from mtx.data.languages import Languages
from mtx.data.markup import (
    EMOJI,
    OPTION,
    Kind,
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
    CLOSING_CODES,
    CODES,
    DELETED,
    OPENING_CODES,
    SIDES,
    UNTRANSLATED,
    Node,
    language_of,
    languages_of,
    marks_of,
    messages,
    plain_text,
    read_units,
    sides_of,
)
from mtx.documents import markdown
from mtx.documents.edits import Edit, in_unit, inserted, replace_text, space_before
from mtx.formatting import counted, shell_command

logger = logging.getLogger(__name__)

_ATTRIBUTE = re.compile(r"([^\s=]++)\s*+=\s*+(\"[^\"]*+\"|'[^']*+')")
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


# The quality and the advice of translations by the identity of their segments, known when edits are written; None is
# the quality of text that is unlike what the model was checked with
Found = Mapping[int, tuple[float | None, str | None]]


def _find_worst(segments: Iterable[object], found: Found) -> tuple[float, str | None] | None:
    """What is known of the translation with the lowest quality; None if it is known of none, or unknown of one."""
    estimates = list[tuple[float, str | None]]()
    for segment in segments:
        if id(segment) in found:
            quality, advice = found[id(segment)]
            if quality is None:
                return None
            estimates.append((quality, advice))
    return min(estimates, key=itemgetter(0), default=None)


def _note(form: str, segments: Iterable[object], found: Found, _: Marked) -> str:
    """The quality and the advice of the worst segment, in this form; empty if they are not known."""
    worst = _find_worst(segments, found)
    return form.format(*worst) if worst else ""


def with_attribute(tag: str, name: str, value: str) -> str:
    """An opening tag with an attribute set to this value, in place or after all others."""
    for match in _ATTRIBUTE.finditer(tag):
        if match[1] == name:
            return tag[: match.start(2)] + quoteattr(value) + tag[match.end(2) :]
    opened = _opened(tag)
    return f"{opened} {name}={quoteattr(value)}{tag[len(opened) :].lstrip()}"


def without_attribute(tag: str, name: str) -> str:
    """An opening tag without this attribute."""
    for match in _ATTRIBUTE.finditer(tag):
        if match[1] == name:
            return tag[: match.start()].rstrip() + tag[match.end() :]
    return tag


def element(tag: str, content: str) -> str:
    """An element by its opening tag, or by its empty tag."""
    opened = _opened(tag)
    return f"{opened}>{content}</{opened.split()[0].removeprefix('<')}>"


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
        is_protected = attributes.get("translate") == "no" or attributes.get("mtype") in ("protected", DELETED)
        if child.inner_start == child.end or name in CODES or is_protected:
            kind: Kind = "open" if name in OPENING_CODES else "close" if name in CLOSING_CODES else "alone"
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
    first = text_of(parts[:1])
    begin = len(first) - len(first.lstrip()) if spaces.search(first) and not spaces.match(first) else 0
    rest = [first[begin:], *parts[1:]] if first else parts
    return [*filter(None, [first[:begin]]), *with_tags(rest, spaces, lambda text: Tag(text, is_break=True))]


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
    path: Path, languages: Languages, overwrite: bool, document: str, left: Counter[str], found: Found
) -> Iterator[Edit]:
    """The edits that translate a document.

    Args:
        languages: the languages of the model.
        overwrite: whether existing translations are replaced, except confirmed ones.
        left: counts what stays in the source language, by its kind.
        found: the quality of the translations, once they are there.

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
    files = set[Node]()  # those whose language is set
    copies, are_all = _find_copies(units)
    for unit in units:
        num_left = left.total()
        edits = list(_edit_unit(document, unit, overwrite or (are_all and unit in copies), left, found))
        if not edits:
            left["copied source"] += unit in copies and left.total() == num_left
            copies.discard(unit)
            continue
        file = unit.nearest("source-language", "srcLang")
        if file and file not in files and not languages_of(unit)[1] and languages[1] not in PLAIN_NAMES:
            files.add(file)
            key = "trgLang" if "srcLang" in file.attributes else "target-language"
            tag = with_attribute(document[file.start : file.inner_start], key, languages[1])
            yield replace_text(file.start, file.inner_start, tag)
        yield from in_unit(edits, [edit.segment for edit in edits if edit.segment])
    if are_all and copies:
        replaced = counted(len(copies), "translation")
        logger.info("%s: %s identical to the source: translated, as nothing of the file is", path, replaced)


def _find_copies(units: list[Node]) -> tuple[set[Node], bool]:
    """The units whose target is a copy of the source, and whether a program has written nearly all so."""
    targets, copies, has_states = 0, set[Node](), False
    for unit in units:
        sides = sides_of(unit)
        if target := sides.get("target"):
            has_states |= "state" in unit.attributes | target.attributes or bool(_definitions(unit))
            targets += has_letters([plain_text(target)])
            if _is_copy(plain_text(sides["source"]), plain_text(target)):
                copies.add(unit)
    return copies, not has_states and len(copies) >= max(_COPIES * targets, min(10, targets))


def _is_copy(source: str, target: str) -> bool:
    return target == source and has_letters([target])


def _edit_unit(document: str, unit: Node, overwrite: bool, left: Counter[str], found: Found) -> Iterator[Edit]:
    """The edits that write the target of a unit; none if it needs no translation."""
    sides = sides_of(unit)
    source, target = sides["source"], sides.get("target")
    spaces = [node.attributes.get("xml:space") for node in (unit.nearest("xml:space"), *sides.values()) if node]
    read = partial(parse, document, keeps_lines="preserve" in spaces)
    has_target = target is not None and _has_text(read(target))
    attributes = unit.attributes | (target.attributes if target else {})
    is_copy = plain_text(sides.get("target", source)) in ("", plain_text(source))
    if _says(attributes, _CONFIRMED):
        left["locked segment"] += is_copy and has_letters(read(source))
        return
    definitions = _definitions(unit)
    state = attributes.get("state")
    is_translated = has_target and state not in UNTRANSLATED and not (is_copy and state == "initial")
    has_confirmed = has_target and any(_says(definition, _CONFIRMED) for definition in definitions.values())
    is_whole = not has_confirmed and (overwrite or not is_translated)
    template = sides.get("seg-source", source)
    template = template if _has_text(read(template)) else source
    marks, target_marks = marks_of(template), marks_of(target) if target else []
    sources = {_number(mark): mark for mark in marks}
    counts = [Counter(map(_number, side)) for side in (marks, target_marks)]
    contents = dict[Node, Marked | str]()  # of the places in the target, or in the template of a whole one
    has_only_marks = target and all(child in target_marks or str(child).isspace() for child in target.children)
    if has_only_marks and set(counts[0].values()) == {1}:
        if counts[1] == counts[0]:
            is_whole = False  # each mark is written by itself, so that an empty one stays
        elif not is_whole and counts[1] < counts[0]:  # it lacks some; it becomes whole: all of it is marks
            is_whole = True
            for mark in target_marks:
                if _has_text(read(mark)):
                    contents[sources[_number(mark)]] = document[mark.inner_start : mark.inner_end]
    if is_whole:
        places = [(mark, mark) for mark in marks] or [(template, template)]
    else:
        once = (mark for mark in target_marks if [count[_number(mark)] for count in counts] == [1, 1])
        places = [(sources[_number(mark)], mark) for mark in once]
    for origin, place in places:
        definition, segment = definitions.get(_number(place), {}), read(origin)
        is_confirmed = not is_whole and _says(definition, _CONFIRMED)
        left["locked segment"] += is_confirmed and _is_copy(plain_text(origin), plain_text(place))
        may_stay = is_confirmed or not (is_whole or overwrite or not is_translated)
        if (may_stay and _has_text(read(place))) or place in contents or not _has_text(segment):
            continue
        contents[place] = segment
        if _says(definition, _LOCKED) or is_choice(segment):
            contents[place] = ""
            left["ICU message" if is_choice(segment) else "locked segment"] += 1
    if not all(isinstance(content, str) for content in contents.values()):
        yield from _write_target(document, unit, contents, template if is_whole else None, found)


def _write_target(
    document: str, unit: Node, contents: Mapping[Node, Marked | str], template: Node | None, found: Found
) -> Iterator[Edit]:
    """The edits that write these contents: in the template's places, or in the target's own without a template.

    In XLIFF 1 the target gets the state of a machine's proposal (1.2, section 3.2), in XLIFF 2 the segment the state
    translated.
    """
    sides = sides_of(unit)
    source, target = sides["source"], sides.get("target")
    if target:
        start, at, tag = target.start, target.end, document[target.start : target.inner_start]
    else:
        start = at = sides.get("seg-source", source).end
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

    def opened(_: Marked) -> str:
        worst = _find_worst(contents.values(), found)
        if unit.name == "segment":
            return tag
        marked = without_attribute(tag, "its:mtConfidence")  # of an older translation
        if not worst:
            return marked
        for name, value in {**_ITS, "its:mtConfidence": f"{worst[0] / 100:.3f}"}.items():
            marked = with_attribute(marked, name, value)
        return marked

    if template is None:
        assert target is not None
        yield Edit(start, target.inner_start, [], opened)
        for place, content in contents.items():
            if not isinstance(content, str):
                yield _fill(document, place, content)
        return
    yield Edit(start, at, [], lambda new: f"{_opened(opened(new))}>")
    begin = template.inner_start
    for place, content in sorted(contents.items(), key=lambda item: item[0].start):
        yield replace_text(at, at, document[begin : place.inner_start])
        yield replace_text(at, at, content) if isinstance(content, str) else Edit(at, at, content, write_xml)
        begin = place.inner_end
    after = element(tag, "\0").split("\0")[1]
    yield replace_text(at, at, document[begin : template.inner_end] + after)


def _fill(document: str, node: Node, segment: Marked) -> Edit:
    """The edit that gives an element this content; it may be an empty tag."""
    tag = document[node.start : node.inner_start]
    return Edit(node.start, node.end, segment, lambda translation: element(tag, write_xml(translation)))


def _has_text(segment: Marked) -> bool:
    return bool(bare(segment)[0] or _EMOJI.search(raw(segment)))


def _definitions(node: Node) -> dict[str, dict[str, str]]:
    """The attributes of a unit's segments by their numbers, which Trados keeps outside source and target."""
    definitions = dict[str, dict[str, str]]()
    for child in node.children:
        if isinstance(child, Node) and child.name not in SIDES:
            if child.name.endswith(":seg") and "id" in child.attributes:
                definitions[child.attributes["id"]] = child.attributes
            definitions |= _definitions(child)
    return definitions


def _number(mark: Node) -> str:
    return mark.attributes.get("mid", "")


def _says(attributes: Mapping[str, str], values: Mapping[str, str]) -> bool:
    """Whether one of the attributes has one of these values, by its name without prefix."""
    return any(
        re.fullmatch(values.get(name.rpartition(":")[2], "(?!)"), value.lower()) for name, value in attributes.items()
    )


def edit_tmx(
    path: Path, languages: Languages, overwrite: bool, document: str, left: Counter[str], found: Found
) -> Iterator[Edit]:
    """The edits that translate a memory; see `edit_xliff`."""
    codes = dict.fromkeys(re.findall(r"<tuv\b[^<>]*\blang=[\"']([^\"'<>]+)", document))
    code = next((code for code in codes if match_rank(code, languages[1]) is not None), languages[1])
    for unit in read_units(path, "TMX", document):
        variants = [variant for variant in unit.named("tuv") if variant.named("seg")]
        if _find_variant([variant for variant in unit.named("tuv") if not variant.named("seg")], languages[1]):
            continue  # it is damaged
        source, variant = (_find_variant(variants, language) for language in languages)
        if source is None:
            continue  # no text in this language
        variant = None if variant is source else variant
        source, target = source.named("seg")[-1], variant and variant.named("seg")[-1]
        segment = parse(document, source)
        translation = "" if overwrite or target is None else plain_text(target)
        if not _needs_translation(segment, plain_text(source), translation, left):
            continue
        note = partial(_note, f'<prop type="{_QUALITY_PROP}">{{:g}}, {{}}</prop>', [segment], found)
        if variant and target:
            edits = [
                replace_text(prop.start, prop.end, "")
                for prop in variant.named("prop")
                if prop.attributes.get("type") == _QUALITY_PROP
            ]
            edits += [Edit(target.start, target.start, [], note), _fill(document, target, segment)]
        else:
            last = variants[-1]
            tag = f"{space_before(document, last.start)}<tuv xml:lang={quoteattr(code)}>"
            edits = [
                replace_text(last.end, last.end, tag),
                Edit(last.end, last.end, [], note),
                Edit(last.end, last.end, segment, lambda new: f"<seg>{write_xml(new)}</seg></tuv>"),
            ]
        yield from in_unit(edits, [segment])


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
    path: Path, languages: Languages, overwrite: bool, document: str, left: Counter[str], found: Found
) -> Iterator[Edit]:
    """The edits that translate a catalogue; see `edit_xliff`. Placeholders such as %s and {0} are tags.

    A message in Markdown is a page of its own.
    """
    default = None
    lines, line_end = document.split("\n"), "\r\n" if "\r\n" in document else "\n"
    spans = [(0, 0), *(line.span(1) for line in _LINE.finditer(document))]  # by their numbers, from 1
    end = 0
    for message in messages(path, lines):
        previous_end, begin = end, spans[message.line][0]
        end = spans[max(last for _, last in message.lines.values())][1]
        if message.is_header:
            require_languages(path, message.languages, languages)
            header = message.texts.get("msgstr", "")
            default = _DIALECT.search(message.comments + header)
            if "=CHARSET" in header:
                command = shell_command("msginit", "-l", languages[1], "-i", path)
                logger.warning(
                    "%s: is a template, without plural forms; first make a catalogue of it: %s", path, command
                )
            continue
        match = _DIALECT.search(message.comments) or default
        dialect = match.lastgroup if match else None
        if dialect == "code" or any(map(_KEPT.match, message.texts.values())):
            continue
        forms = [key for key in message.texts if key.startswith("msgstr")]
        left["incomplete message"] += not forms
        edits = list[Edit]()
        for key in forms:
            is_plural = "msgid_plural" in message.texts and (key != "msgstr[0]" or len(forms) == 1)
            text = message.texts.get("msgid_plural" if is_plural else "msgid", "")
            translation = "" if overwrite or message.is_fuzzy else message.texts[key]
            inner = [] if translation else list(_read_message(text, dialect, left))
            source = [part for edit in inner for part in edit.segment]
            if _needs_translation(source, text, translation, left):
                first, last = message.lines[key]
                start, at = spans[first][0], spans[last][1]
                strings = inserted(at, text, inner, lambda new: new.translate(_ESCAPED))
                whole = [replace_text(start, at, f'{key} "'), *strings, replace_text(at, at, '"')]
                edits += in_unit(whole, [edit.segment for edit in inner])
        if not edits:
            continue
        notes = [replace_text(*old.span(), "") for old in _QUALITY_NOTE.finditer(document, previous_end, begin)]
        if not message.is_fuzzy:
            flags = message.flags_line
            at = begin if flags is None else spans[flags][1]
            notes.append(replace_text(at, at, f"#, fuzzy{line_end}" if flags is None else ", fuzzy"))
        segments = [edit.segment for edit in edits if edit.segment]
        note = Edit(begin, begin, [], partial(_note, f"# mtx: quality {{:g}}, {{}}{line_end}", segments, found))
        yield from in_unit([*sorted(notes, key=attrgetter("start")), note], segments)
        yield from edits


def _read_message(text: str, dialect: str | None, left: Counter[str]) -> Iterator[Edit]:
    """The edits that translate the text of a message."""
    if dialect == "markdown":
        yield from markdown.read(text, left)
    else:
        segment = with_tags(with_lines(mark_up([text])), _NAMES[dialect], Tag)
        yield Edit(0, len(text), segment, _write_rst if dialect == "rst" else raw)


def _write_rst(translation: Marked) -> str:
    """A translation in RST, in which an escaped space separates marks from letters."""
    parts = [
        Tag("\0" * (part.kind != "close") + part.raw + "\0" * (part.kind != "open"))
        if isinstance(part, Tag) and _RST_MARK.fullmatch(part.raw)
        else part
        for part in translation
    ]
    return re.sub(r"(?<=[^\W_])\0|\0\0|\0(?=[^\W_])", r"\\ ", raw(parts)).replace("\0", "")


EDITS = {"xliff": edit_xliff, "tmx": edit_tmx, "po": edit_po}
