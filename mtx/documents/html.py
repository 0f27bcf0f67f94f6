"""A web page as a document: the text of its blocks, and of the attributes that a reader sees. See `documents.document`.

Inline elements are tags of a sentence, all others end it. Scripts, styles, code and what says translate="no" stay.
"""

import html
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from html.parser import HTMLParser
from itertools import accumulate
from pathlib import Path

from mtx.documents.document import Edit
from mtx.documents.markup import VOID, Marked, Tag, bare, element_tag, raw, with_codes
from mtx.errors import DataError

_INLINE = frozenset(
    ["a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "data", "del", "dfn", "em", "font", "i", "ins", "label",
     "mark", "q", "rp", "rt", "ruby", "s", "small", "span", "strike", "strong", "sub", "sup", "time", "tt", "u"]
)  # fmt: skip
_VOID_INLINE = frozenset(["br", "img", "input", "wbr"])
_UNTOUCHED_INLINE = frozenset(["code", "kbd", "samp", "var", "svg", "math", "object", "picture", "canvas"])
_UNTOUCHED = frozenset(["script", "style", "pre", "textarea", "template", "noscript", "iframe", "xmp", "noembed"])
_KINDS = {  # of parts, by the parser's method that is called for them
    "handle_starttag": "start",
    "handle_startendtag": "empty",
    "handle_endtag": "end",
    "handle_data": "text",
    **dict.fromkeys(["handle_comment", "handle_decl", "handle_pi", "unknown_decl"], "other"),
}
_SEEN = frozenset(["alt", "title", "placeholder", "aria-label"])  # attributes whose text a reader sees
_ENDED_BY = {
    "li": {"li"},
    **dict.fromkeys(["dt", "dd"], {"dt", "dd"}),
    **dict.fromkeys(["td", "th"], {"td", "th", "tr"}),
    "tr": {"tr"},
    "option": {"option", "optgroup"},
}
_ATTRIBUTE = re.compile(r"[\s/]*+([^\s/>=]++)(?:\s*+=\s*+(\"[^\"]*+\"|'[^']*+'|[^\s>]*+))?")
_MOST_UNFINISHED = 1000  # tags without an end between two that have one
_UNFINISHED = re.compile(r"<[a-zA-Z/!?]")  # a tag that does not end, which browsers read in their own ways
_LETTER = re.compile(r"[^\W\d_]")
_NO_BREAK_SPACE = "\xa0"


@dataclass
class _Part:
    """A part of a page.

    Attributes:
        kind: text; start, end or empty (<x/>) for a tag; other for comments and the like; kept for damaged markup.
        name: that of a tag.
        last: for the start of an element that has an end, the number of the part that is its end.
        is_frozen: whether it is not to be translated.
    """

    start: int
    kind: str
    name: str
    attributes: dict[str, str | None]
    end: int = 0
    last: int | None = None
    is_frozen: bool = False


def read_attributes(path: Path, text: str) -> Iterator[Edit]:
    """The edits that translate the values of attributes that a reader sees.

    Raises:
        DataError: if the page is damaged; `path` is for the message.
    """
    _refuse_unfinished(path, text)
    for part in _parts(text):
        if part.kind in ("start", "empty") and not part.is_frozen:
            for start, end in _seen(text, part):
                value = text[start:end]
                value = html.unescape(value[1:-1] if value[0] in "\"'" else value)
                yield Edit(start, end, [value], lambda new: f'"{html.escape(raw(new))}"')


def _seen(text: str, part: _Part) -> Iterator[tuple[int, int]]:
    """From where to where the values of a tag's attributes go that a reader sees, with their quotes."""
    at, names = part.start + 1 + len(part.name), set[str]()
    while match := _ATTRIBUTE.match(text, at, part.end):
        at, name = match.end(), match[1].lower()
        if name in _SEEN and name not in names and _LETTER.search(match[2] or ""):
            yield match.span(2)
        names.add(name)


def read_blocks(text: str) -> Iterator[Edit]:
    """The edits that translate the text of the blocks."""
    for start, end, run in _spans(text):
        segment = with_codes(run, _escape)
        if _LETTER.search(bare(segment)[0]):
            yield Edit(start, end, segment, lambda new: raw(new, _escape))


def _escape(text: str) -> str:
    return html.escape(text, quote=False).replace(_NO_BREAK_SPACE, "&#160;")  # &nbsp; is unknown in XML


def _spans(text: str) -> Iterator[tuple[int, int, Marked]]:
    """From where to where each run of text and inline tags goes, and itself."""
    run = Marked()
    run_start = 0
    at = 0
    parts = _parts(text)
    for part in parts:
        if part.start < at:
            continue  # in an element that is one tag
        is_whole = part.name in _UNTOUCHED | _UNTOUCHED_INLINE or (part.is_frozen and part.name in _INLINE)
        last = part.last if is_whole else None
        at = part.end if last is None else parts[last].end
        is_inline = part.name in _INLINE | _VOID_INLINE | _UNTOUCHED_INLINE
        content = text[part.start : at]
        if part.kind == "text" and not part.is_frozen:
            run.append(html.unescape(content))
        elif part.kind == "other" or (is_inline and (last is not None or not part.is_frozen)):
            run.append(element_tag(content) if last is None else Tag(content))
        else:
            yield run_start, part.start, run
            run, run_start = [], at
    yield run_start, len(text), run


def _parts(text: str) -> list[_Part]:
    """The parts of a page, in their order, which have all of its characters."""
    parts = _Parser(text).parts
    for part, end in zip(parts, [*(part.start for part in parts[1:]), len(text)], strict=False):
        part.end = end
        if part.kind == "text" and _UNFINISHED.search(text, part.start, end):
            part.kind = "kept"
    open_elements = defaultdict[str, list[int]](list)
    for number, part in enumerate(parts):
        if part.kind == "start" and part.name not in VOID:
            open_elements[part.name].append(number)
        elif part.kind == "end" and open_elements[part.name]:
            parts[open_elements[part.name].pop()].last = number
    _freeze(parts)
    return parts


def _freeze(parts: list[_Part]) -> None:
    """Mark what is not to be translated: by its own attributes, or by those of the nearest element that says so."""
    enclosing = [(len(parts), False)]  # up to which part an element goes, and what it says
    for number, part in enumerate(parts):
        while number > enclosing[-1][0]:
            enclosing.pop()
        part.is_frozen = enclosing[-1][1]
        own = (part.attributes.get("translate", "inherited") or "yes").lower()
        if own == "no" or "notranslate" in (part.attributes.get("class") or "").split():
            part.is_frozen = True
        elif own == "yes":
            part.is_frozen = False
        last = part.last
        if last is None and part.kind == "start" and part.name not in VOID and part.is_frozen != enclosing[-1][1]:
            last = _implied_end(parts, number, enclosing[-1][0])
        if last is not None:
            enclosing.append((min(last, enclosing[-1][0]), part.is_frozen))


def _implied_end(parts: list[_Part], number: int, bound: int) -> int:
    """The last part of an element whose end tag was left out, as HTML allows: before the next of its kind."""
    name, at = parts[number].name, number + 1
    while at < bound:
        part = parts[at]
        if part.kind == "start" and (part.name not in _INLINE if name == "p" else part.name in _ENDED_BY.get(name, ())):
            break
        at = (part.last or at) + 1
    return min(at, bound) - 1


def _refuse_unfinished(path: Path, text: str) -> None:
    """Refuse a page with very many tags that do not end, which the parser of Python 3.11 reads again and again."""
    line = 1
    for part in text.split(">"):
        if part.count("<") > _MOST_UNFINISHED:
            line += part.count("\n", 0, part.index("<"))
            raise DataError(f"{path}:{line}: tags do not end; expected > after <")
        line += part.count("\n")


class _Parser(HTMLParser):
    """Finds the parts of a page as a browser does."""

    def __init__(self, text: str):
        super().__init__()
        self.parts = list[_Part]()
        self._lines = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
        for method, kind in _KINDS.items():
            setattr(self, method, partial(self._add, kind))
        self.feed(text)
        self.close()

    def _add(self, kind: str, name: str, attributes: Sequence[tuple[str, str | None]] = ()) -> None:
        line, column = self.getpos()
        if not (kind == "text" and self.parts and self.parts[-1].kind == "text"):  # a text may come in pieces
            self.parts.append(_Part(self._lines[line - 1] + column, kind, name, dict(reversed(attributes))))

    def parse_marked_section(self, i: int, report: int = 1) -> int:
        """What begins with `<![` is a comment, up to its end; the library's own version fails for some."""
        end = "]]>" if self.rawdata.startswith("<![CDATA[", i) else ">"
        found = self.rawdata.find(end, i)
        if found < 0:
            return -1
        self._add("other", "")
        return found + len(end)
