"""A web page as a document: the text of its blocks, and of the attributes that a reader sees. See `documents.xliff`.

Inline elements are tags of a sentence, all others end it. Scripts, styles, code and what says translate="no" stay.
"""

import html
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import accumulate
from pathlib import Path

from mtx.documents.edits import Edit
from mtx.documents.markup import VOID, Marked, Tag, bare, element_tag, raw, with_placeholders
from mtx.errors import DataError

_INLINE = frozenset(
    ["a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "data", "del", "dfn", "em", "font", "i", "ins", "label",
     "mark", "q", "rp", "rt", "ruby", "s", "small", "span", "strike", "strong", "sub", "sup", "time", "tt", "u"]
)  # fmt: skip
_VOID_INLINE = frozenset(["br", "img", "input", "wbr"])
_UNTOUCHED_INLINE = frozenset(["code", "kbd", "samp", "var", "svg", "math", "object", "picture", "canvas"])
_UNTOUCHED = frozenset(["script", "style", "pre", "textarea", "template", "noscript", "iframe", "xmp", "noembed"])
_SEEN = frozenset(["alt", "title", "placeholder", "aria-label"])  # attributes whose text a reader sees
_ENDED_BY = {
    "li": ("li",), "dt": ("dt", "dd"), "dd": ("dt", "dd"), "td": ("td", "th", "tr"), "th": ("td", "th", "tr"),
    "tr": ("tr",), "option": ("option", "optgroup"),
}  # fmt: skip
_ATTRIBUTE = re.compile(r"[\s/]*+([^\s/>=][^\s/>=]*+)(?:\s*+=\s*+(?:\"([^\"]*+)\"|'([^']*+)'|([^\s>]*+)))?")
_MOST_UNFINISHED = 1000  # tags without an end between two that have one
_UNFINISHED = re.compile(r"<[a-zA-Z/!?]")  # a tag that does not end, which browsers read in their own ways
_LETTER = re.compile(r"[^\W\d_]")
_NO_BREAK_SPACE = "\xa0"


@dataclass
class _Part:
    """A part of a page.

    Attributes:
        kind: text; start, end or empty (<x/>) for a tag; other for comments and the like; kept for damaged markup.
        last: for the start of an element that has an end, the number of the part that is its end.
        is_frozen: whether it is not to be translated.
    """

    start: int
    kind: str
    name: str = ""
    attributes: tuple[tuple[str, str | None], ...] = ()
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
    while (match := _ATTRIBUTE.match(text, at, part.end)) and match.end() > at:
        at, name = match.end(), match[1].lower()
        value = next((number for number in (2, 3, 4) if match[number] is not None), None)
        if name in _SEEN and name not in names and value and _LETTER.search(match[value]):
            quote = int(value < 4)
            yield match.start(value) - quote, match.end(value) + quote
        names.add(name)


def read_blocks(text: str) -> Iterator[Edit]:
    """The edits that translate the text of the blocks."""
    for start, end, run in _spans(text):
        segment = with_placeholders(run, _escape)
        if _LETTER.search(bare(segment)[0]):
            yield Edit(start, end, segment, lambda new: raw(new, _escape))


def _escape(text: str) -> str:
    return html.escape(text, quote=False).replace(_NO_BREAK_SPACE, "&#160;")  # &nbsp; is unknown in XML


def _spans(text: str) -> Iterator[tuple[int, int, Marked]]:
    """From where to where each run of text and inline tags goes, and itself."""
    parts, number, run, run_start = _parts(text), 0, Marked(), 0
    while number < len(parts):
        part = parts[number]
        number, end = number + 1, part.end
        is_whole = part.kind == "start" and part.last is not None and (
            part.name in _UNTOUCHED | _UNTOUCHED_INLINE or (part.is_frozen and part.name in _INLINE)
        )  # fmt: skip
        if is_whole:
            assert part.last is not None
            number, end = part.last + 1, parts[part.last].end
        content = text[part.start : end]
        is_inline = part.name in _INLINE | _VOID_INLINE | _UNTOUCHED_INLINE
        if part.kind == "text" and not part.is_frozen:
            run.append(html.unescape(content))
        elif part.kind == "other" or (is_inline and (is_whole or not part.is_frozen)):
            run.append(Tag(content) if is_whole or part.kind == "other" else element_tag(content))
        else:
            yield run_start, part.start, run
            run, run_start = [], end
    yield run_start, len(text), run


def _parts(text: str) -> list[_Part]:
    """The parts of a page, in their order, which have all of its characters."""
    parser = _Parser(text)
    parts = parser.parts
    for part, following in zip(parts, parts[1:], strict=False):
        part.end = following.start
    if parts:
        parts[-1].end = len(text)
    for part in parts:
        if part.kind == "text" and _UNFINISHED.search(text, part.start, part.end):
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
        attributes = {name: value or "" for name, value in reversed(part.attributes)}
        own = attributes.get("translate", "").lower()
        if own == "no" or "notranslate" in attributes.get("class", "").split():
            part.is_frozen = True
        elif own in ("yes", "") and "translate" in attributes:
            part.is_frozen = False
        last = part.last
        if last is None and part.kind == "start" and part.name not in VOID and part.is_frozen != enclosing[-1][1]:
            last = _implied_end(parts, number, enclosing[-1][0])
        if last is not None:
            enclosing.append((min(last, enclosing[-1][0]), part.is_frozen))


def _implied_end(parts: list[_Part], number: int, bound: int) -> int:
    """The last part of an element whose end tag was left out, as HTML allows: before the next of its kind."""
    name, depth = parts[number].name, 0
    for other in range(number + 1, min(bound, len(parts))):
        part = parts[other]
        if part.kind == "end" and not depth:
            return other - 1  # of what encloses it
        depth -= part.kind == "end"
        if part.kind == "start" and not depth:
            is_next = part.name not in _INLINE if name == "p" else part.name in _ENDED_BY.get(name, ())
            if is_next:
                return other - 1
        depth += part.kind == "start" and part.last is not None
    return bound - 1


def _refuse_unfinished(path: Path, text: str) -> None:
    """Refuse a page with very many tags that do not end, which the parser of Python 3.11 reads again and again."""
    at = 0
    while (found := text.find(">", at)) >= 0 or at < len(text):
        end = found if found >= 0 else len(text)
        if text.count("<", at, end) > _MOST_UNFINISHED:
            line = text.count("\n", 0, text.index("<", at)) + 1
            raise DataError(f"{path}:{line}: tags do not end; expected > after <")
        at = end + 1


class _Parser(HTMLParser):
    """Finds the parts of a page as a browser does."""

    def __init__(self, text: str):
        super().__init__()
        self.parts = list[_Part]()
        self._lines = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
        self.feed(text)
        self.close()

    def _add(self, kind: str, name: str = "", attributes: Sequence[tuple[str, str | None]] = ()) -> None:
        line, column = self.getpos()
        start = self._lines[line - 1] + column
        if not (kind == "text" and self.parts and self.parts[-1].kind == "text"):  # a text may come in pieces
            self.parts.append(_Part(start, kind, name, tuple(attributes)))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._add("start", tag, attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._add("empty", tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        self._add("end", tag)

    def handle_data(self, data: str) -> None:
        self._add("text")

    def handle_comment(self, data: str) -> None:
        self._add("other")

    def handle_decl(self, decl: str) -> None:
        self._add("other")

    def handle_pi(self, data: str) -> None:
        self._add("other")

    def parse_marked_section(self, i: int, report: int = 1) -> int:
        """What begins with `<![` is a comment, up to its end; the library's own version fails for some."""
        end = "]]>" if self.rawdata.startswith("<![CDATA[", i) else ">"
        found = self.rawdata.find(end, i)
        if found < 0:
            return -1
        self._add("other")
        return found + len(end)

    def unknown_decl(self, data: str) -> None:
        self._add("other")
