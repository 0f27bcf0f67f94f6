"""A web page as a document: the text of its blocks, and of visible attributes. See `documents.document`.

Inline elements are tags of a sentence; all others end it. Scripts, styles, code and elements with translate="no" are
kept. Templates (Jinja, Liquid, PHP, ERB ...) are found first, by their own delimiters, and are tags with all their
content.
"""

import html
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from mtx.data.languages import Languages, code_of, tag_of, writing_direction
from mtx.data.markup import (
    ELEMENT,
    MARKUP,
    VOID,
    Marked,
    Tag,
    element_tag,
    has_letters,
    raw,
    unescape,
    with_codes,
    with_tags,
)
from mtx.data.tables import PLAIN_NAMES
from mtx.documents.edits import Edit, replace_text
from mtx.errors import DataError

_WITH_TEXT = (  # inline elements
    "a|abbr|acronym|b|bdi|bdo|big|cite|data|del|dfn|em|font|i|ins|label|mark|q|ruby|s|small|span|strike|strong|sub|sup"
    "|time|u"
)
_WITH_CODE = "code|kbd|samp|tt|var|svg|math|object|picture|canvas|rp|rt|mat-icon"
_INLINE = re.compile(f"{_WITH_TEXT}|{_WITH_CODE}|br|img|input|wbr")
PHRASE = re.compile(_WITH_TEXT)
_UNTOUCHED = re.compile(f"{_WITH_CODE}|script|style|pre|iframe|xmp|noembed")
_INVISIBLE_KINDS = ("comment", "decl", "pi")  # parts that are inline
_VISIBLE_ATTRIBUTES = {  # of all elements except <meta>: their values are text
    *("alt", "title", "placeholder", "label"),
    *("aria-label", "aria-description", "aria-valuetext", "aria-roledescription", "aria-placeholder"),
}
_META_NAMES = {  # of a <meta> whose content is text
    *("title", "og:title", "twitter:title"),
    *("description", "og:description", "twitter:description"),
}
_BUTTON_TYPES = {"submit", "button", "reset"}  # of an <input> whose value is text
_CODES = re.compile("(?:[a-z]{1,8}(?:[-_, ]{1,2}[a-z0-9]{1,8}){0,20})?", re.IGNORECASE)  # of languages; no template
_UNKNOWN = ("", *PLAIN_NAMES)  # languages
# Icons; signatures and names in the pages of Sphinx, Javadoc, Doxygen, TypeDoc, rustdoc, phpDocumentor and mkdocstrings
_KEPT_CLASS = re.compile(
    r"(?<!\S)(?:notranslate|material-(?:icons|symbols)[\w-]*|sig-(?:object|(?:pre)?name|param)|desc(?:class)?name"
    r"|(?:type|member)-signature|element-name|mem(?:proto|title|ItemLeft|ItemRight|TemplParams)|param(?:name|type)"
    r"|tsd-signature[\w-]*|tsd-kind-parameter|code-header|phpdocumentor-signature|doc-object-name)(?!\S)"
)
_ENDED_BY = {  # by an element whose end tag may be omitted, those that end it; for <p> see `_ends`
    "li": {"li"},
    "dt": {"dt", "dd"},
    "dd": {"dt", "dd"},
    "td": {"td", "th", "tr"},
    "th": {"td", "th", "tr"},
    "tr": {"tr"},
    "option": {"option", "optgroup"},
}
_ATTRIBUTE = re.compile(r"[\s/]*+(?P<name>[^\s/>=]++)(?:\s*+=\s*+(?P<value>\"[^\"]*+\"|'[^']*+'|[^\s>]*+))?")
_MANY_UNFINISHED = re.compile(r"(?:\A|>)[^<>]*+(?P<unclosed>(?:<[^<>]*+){1001})")  # tags between two closed ones
_UNFINISHED = re.compile(r"<[a-zA-Z/!?]")  # an unclosed tag, which browsers treat differently


class _Template(NamedTuple):
    """How a template that was opened ends.

    Attributes:
        closing: the pattern of the closing delimiter.
        unclosed: the pattern of what shows, before any closing delimiter, that the template is not closed.
        content: the pattern of all that precedes the closing delimiter, where strings may contain one; else empty.
        is_long: whether the closing delimiter is searched in the whole page, and not only nearby.
    """

    closing: str
    unclosed: str = "(?!)"
    content: str = ""
    is_long: bool = False


_TEMPLATES = {  # by the opening delimiter
    "<?": _Template(r"\?>", unclosed=r"<\?", is_long=True),
    "<?php": _Template(r"\?>|\Z", is_long=True),  # PHP at the end of a page need not be closed
    "<%": _Template("%>", unclosed="<%", is_long=True),
    "<%--": _Template("--%>", unclosed="<%--", is_long=True),
    "<![CDATA[": _Template(r"\]\]>", unclosed=r"<!\[CDATA\[", is_long=True),
    "{{": _Template(
        r"\}\}",
        unclosed=r"\{\{|</|\Z",
        content=r"(?:\"[^\"\n]*\"|(?<!\w)'[^'\n]*'|`[^`\n]*`|(?!\}\}|\{\{|</)[\s\S])*+",
    ),
    "{{{": _Template(r"\}{3}", unclosed=r"\{{3}"),
    "{{{{": _Template(r"\}{4}", unclosed=r"\{{4}"),
    "{{/*": _Template(r"\*/(?: -)?\}\}", unclosed=r"\{\{(?:- )?/\*", is_long=True),
    "{{- /*": _Template(r"\*/(?: -)?\}\}", unclosed=r"\{\{(?:- )?/\*", is_long=True),
    "{{!--": _Template(r"--\}\}", unclosed=r"\{\{!--", is_long=True),
    "{{--": _Template(r"--\}\}", unclosed=r"\{\{--", is_long=True),
    "{{!": _Template(r"\}\}", unclosed=r"\{\{!"),
    "{%": _Template(r"%\}", unclosed=r"\{%"),
    "{#": _Template(r"\#\}", unclosed=r"\{\#"),
    "={": _Template(r"\}", unclosed="</"),
    "@": _Template(r"\{"),
    "@let": _Template(";", unclosed="@let|</"),
}
_TEMPLATE_OPENING = re.compile(
    r"<\?(?:php)?|<%(?:--)?|<!\[CDATA\[|\{\{(?:- )?/\*|\{\{!?--|\{\{!|\{{2,4}"
    # A block of Liquid that holds code or a comment is one template
    r"|\{%-?\s*(?P<block>schema|javascript|stylesheet|style|comment|raw|verbatim)\b"
    r"|\{%|\{\#|=\{(?!\{)"
    # of Angular
    r"|@(?=(?:if|else if|for|switch|case|defer|placeholder|loading|error)\b *"
    r"(?:\((?:[^(){}\n]|\((?:[^(){}\n]|\([^(){}\n]{0,200}\)){0,200}\)){0,200}+\) *)?\{)|@let(?=\s+[\w$]+\s*=)"
)
_NEARBY = 2000  # characters in which a template that is not long must be closed
_FILLER = "\ue000"  # replaces each character of a template
_COMMENT = re.compile(r"<!--(?:(?P<empty>-?>)|.*?(?:-->|\Z))", re.DOTALL)
_FILLED = re.compile(rf"{_FILLER}(?:(?:[{_FILLER}\n]|[-/.:](?={_FILLER}))*{_FILLER})?")


@dataclass
class _Part:
    """A part of a page.

    Attributes:
        kind: by the method of the parser: data, or starttag, endtag or startendtag (<x/>); kept for damaged markup.
        name: the name of a tag.
        value_spans: the span of the value of each attribute with its quotes; (-1, -1) without a value.
        attributes: the value of each attribute, with its references.
        end_part: for the start of an element, the number of the part with its end, if it has one.
        is_frozen: whether it must not be translated.
    """

    start: int
    kind: str
    name: str
    end: int = 0
    value_spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)
    end_part: int | None = None
    is_frozen: bool = False


def read_attributes(text: str, languages: Languages = ("", "")) -> Iterator[Edit]:
    """The edits that translate the values of visible attributes, and declare the target language of the page.

    They are made after those of `read_blocks`, in whose segments the tags are.
    """
    masked = _mask_templates(text)
    src, tgt = languages
    for part in _parts(masked, src):
        for name, (start, end) in part.value_spans.items():
            if start < 0:
                continue
            quote = text[start] if text[start] in "\"'" else '"'
            if declared := _new_declaration(part, name, tgt):
                yield replace_text(start, end, f"{quote}{declared}{quote}")
            elif not part.is_frozen and _is_visible(part, name) and has_letters([part.attributes[name]]):
                has_quotes = text[start] == quote
                inner_start = start + 1 if has_quotes else start
                inner_end = end - 1 if has_quotes else end
                segment = with_codes(_unescape(text, masked, inner_start, inner_end), html.escape)
                yield Edit(start, end, segment, partial(_write_value, quote))


def _new_declaration(part: _Part, name: str, tgt: str) -> str:
    """The new value of an attribute that declares the language or the direction of the page; empty if it stays."""
    if tgt in _UNKNOWN:
        return ""
    value = part.attributes[name].strip()
    if _declares_language(part, name) and _CODES.fullmatch(value):
        return tag_of(tgt)
    direction = writing_direction(tgt)
    if part.name in ("html", "body") and name == "dir" and {value.lower(), direction} == {"ltr", "rtl"}:
        return direction
    return ""


def _declares_language(part: _Part, name: str) -> bool:
    """Whether an attribute declares the language of the page."""
    if part.name == "meta":
        return name == "content" and _purpose(part) == "content-language"
    return part.name == "html" and name in ("lang", "xml:lang")


def _is_visible(part: _Part, name: str) -> bool:
    """Whether the value of an attribute is text that a browser shows, or reads aloud."""
    if part.name == "meta":
        return name == "content" and _purpose(part) in _META_NAMES
    if part.name == "input" and name == "value":
        return _purpose(part) in _BUTTON_TYPES
    return name in _VISIBLE_ATTRIBUTES


def _purpose(part: _Part) -> str:
    """What a <meta> or <input> is for, by the first of its attributes that says it; may be empty."""
    for name in ("http-equiv", "type", "name", "property"):
        if value := part.attributes.get(name):
            return value.lower()
    return ""


def _write_value(quote: str, translation: Marked) -> str:
    return f"{quote}{raw(translation, html.escape)}{quote}"


def read_blocks(path: Path, text: str, src: str = "") -> Iterator[Edit]:
    """The edits that translate the text of the blocks, except for elements in another language than `src`.

    Raises:
        DataError: if the page is damaged; `path` is for the message.
    """
    masked = _mask_templates(text)
    _refuse_unfinished(path, masked)
    for start, end, run in _spans(text, masked, _parts(masked, src)):
        segment = with_codes(with_tags(with_tags(run, MARKUP, element_tag, _escape), ELEMENT, Tag, _escape), _escape)
        if has_letters(segment):
            yield Edit(start, end, segment, partial(_write_block, segment))


def _write_block(source: Marked, translation: Marked) -> str:
    """The HTML of a translation; white space before a tag is as in the source."""
    spaces = {id(tag): text[len(text.rstrip()) :] for text, tag in pairwise(source) if isinstance(text, str)}
    written = ""
    for part in translation:
        if written.endswith(" ") and (space := spaces.get(id(part))):
            written = written.rstrip() + _escape(space)
        written += raw([part], _escape)
    return written


def _mask_templates(text: str) -> str:
    """The page with a filler in place of each template."""
    parts = list[str]()
    copied_until = 0
    searched_until = dict[_Template, int]()  # up to where no closing delimiter was found
    for opening in _TEMPLATE_OPENING.finditer(text):
        template = _template_of(opening)
        if opening.start() < copied_until or opening.start() < searched_until.get(template, 0):
            continue
        limit = len(text) if template.is_long else min(len(text), opening.end() + _NEARBY)
        pattern = f"{template.content}(?:(?P<closing>{template.closing})|(?P<unclosed>{template.unclosed}))"
        match = re.compile(pattern).search(text, opening.end(), limit)
        if match and match.lastgroup == "closing":
            parts.append(text[copied_until : opening.start()])
            parts.append(re.sub(r"[^\n]", _FILLER, text[opening.start() : match.end()]))
            copied_until = match.end()
        elif match is None or match.end() == limit:
            searched_until[template] = limit
    return "".join([*parts, text[copied_until:]])


def _template_of(opening: re.Match[str]) -> _Template:
    """How the template with this opening delimiter ends; a block ends with its own tag, as in {% endraw %}."""
    if block := opening["block"]:
        return _Template(rf"\{{%-?\s*end{block}\b[^%]*%\}}", unclosed=rf"\{{%-?\s*{block}\b", is_long=True)
    return _TEMPLATES[opening[0]]


def _unescape(text: str, masked: str, start: int, end: int) -> Marked:
    """A part of a page as text, in which templates are tags."""
    parts = Marked()
    for template in _FILLED.finditer(masked, start, end):
        parts += [unescape(text[start : template.start()]), Tag(text[template.start() : template.end()])]
        start = template.end()
    return [*parts, unescape(text[start:end])]


def _escape(text: str) -> str:
    return html.escape(text, quote=False).replace("\xa0", "&#160;")  # &nbsp; is unknown in XML


def _spans(text: str, masked: str, parts: list[_Part]) -> Iterator[tuple[int, int, Marked]]:
    """The span of each run of text and inline tags, and the run."""
    run = Marked()
    run_start = 0
    at = 0
    for part in parts:
        if part.start < at:
            continue  # in an element that is one tag
        is_whole = _UNTOUCHED.fullmatch(part.name) or (part.is_frozen and PHRASE.fullmatch(part.name))
        end_part = part.end_part if is_whole else None
        at = part.end if end_part is None else parts[end_part].end
        is_inline = _INLINE.fullmatch(part.name)
        content = text[part.start : at]
        if part.kind == "data" and not part.is_frozen:
            run += _unescape(text, masked, part.start, at)
        elif part.kind in _INVISIBLE_KINDS or (is_inline and (end_part is not None or not part.is_frozen)):
            run.append(element_tag(content))
        else:
            yield run_start, part.start, run
            run = []
            run_start = at
    yield run_start, len(text), run


def _parts(text: str, src: str = "") -> list[_Part]:
    """The parts of a page, in order; together they contain all of its characters."""
    parts = _find_parts(text)
    for part, following in pairwise([*parts, _Part(len(text), "", "")]):
        part.end = following.start
        if part.kind == "data" and _UNFINISHED.search(text, part.start, part.end):
            part.kind = "kept"
        elif part.kind.startswith("start"):
            at = part.start + 1 + len(part.name)
            while match := _ATTRIBUTE.match(text, at, part.end):
                at = match.end()
                part.value_spans.setdefault(match["name"].lower(), match.span("value"))
            part.attributes = {name: text[slice(*span)].strip("\"'") for name, span in part.value_spans.items()}
    open_elements = defaultdict[str, list[int]](list)
    for number, part in enumerate(parts):
        if part.kind == "starttag" and part.name not in VOID:
            open_elements[part.name].append(number)
        elif part.kind == "endtag" and open_elements[part.name]:
            parts[open_elements[part.name].pop()].end_part = number
    _freeze(parts, src)
    return parts


def _freeze(parts: list[_Part], src: str) -> None:
    """Mark parts that must not be translated, by their attributes or the nearest enclosing element that has some.

    So are those in another language than `src`.
    """
    enclosing = [(len(parts), False)]  # the last part of an element, and whether it is frozen
    for number, part in enumerate(parts):
        while number > enclosing[-1][0]:
            enclosing.pop()
        part.is_frozen = enclosing[-1][1]
        translate = part.attributes.get("translate", "inherited").lower()
        if translate == "no" or _KEPT_CLASS.search(part.attributes.get("class", "")):
            part.is_frozen = True
        elif translate in ("yes", ""):
            part.is_frozen = False
        elif "lang" in part.attributes and src not in _UNKNOWN and part.name != "html":
            language = code_of(part.attributes["lang"])
            if language.isalpha() and language != code_of(src):
                part.is_frozen = True
        end_part = part.end_part
        if (
            end_part is None
            and part.kind == "starttag"
            and part.name not in VOID
            and part.is_frozen != enclosing[-1][1]
        ):
            end_part = _implied_end(parts, number, enclosing[-1][0])
        if end_part is not None:
            enclosing.append((min(end_part, enclosing[-1][0]), part.is_frozen))


def _implied_end(parts: list[_Part], number: int, bound: int) -> int:
    """The last part of an element with an omitted end tag, as HTML allows: before the next of its kind."""
    name = parts[number].name
    at = number + 1
    while at < bound:
        part = parts[at]
        if part.kind == "starttag" and _ends(part.name, name):
            break
        at = (part.end_part or at) + 1
    return min(at, bound) - 1


def _ends(name: str, open_name: str) -> bool:
    """Whether the start of an element ends an open one whose end tag is omitted: a <p>, any other than a phrase."""
    if open_name == "p":
        return PHRASE.fullmatch(name) is None
    return name in _ENDED_BY.get(open_name, ())


def _refuse_unfinished(path: Path, text: str) -> None:
    """Refuse a page with very many unclosed tags, which the parser of Python 3.11 reads again and again."""
    if match := _MANY_UNFINISHED.search(text):
        line = text.count("\n", 0, match.start("unclosed")) + 1
        raise DataError(f"{path}:{line}: unclosed tags; expected > after <")


def _find_parts(text: str) -> list[_Part]:
    """The parts of a page without their ends, as a browser finds them."""
    parser = HTMLParser()
    parts = list[_Part]()

    def add(kind: str, name: str, attributes: object = ()) -> None:
        if not (kind == "data" and parts and parts[-1].kind == "data"):  # the parser may split a text
            parts.append(_Part(parser.getpos()[1], kind, name))

    parser.unknown_decl = partial(add, "decl")  # type: ignore[method-assign]
    for kind in ("starttag", "startendtag", "endtag", "data", *_INVISIBLE_KINDS):
        setattr(parser, f"handle_{kind}", partial(add, kind))
    # It fails for references with thousands of digits, and for some of <![if x]>, which is a comment; on one line, the
    # column is the position. It does not know empty comments.
    text = _COMMENT.sub(lambda match: match[0].replace("<!-", f"<!{_FILLER}", 1) if match["empty"] else match[0], text)
    text_before, bracket, text_after = text.rpartition(">")  # without one behind, < is text
    text = text_before + bracket + text_after.replace("<", _FILLER)
    parser.feed(text.replace("&", _FILLER).replace("<![", f"<!{_FILLER}").replace("\n", " "))
    parser.close()
    return parts
