"""The content of an element of XML as text with tags, and back. Flow: raw XML -> `Marked` -> translation -> raw XML.

The XML is known to be well-formed: `xml_stream` has read it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from mtx.data.bilingual import CODES, is_break
from mtx.documents.markup import Kind, Marked, Tag, raw, with_elements, with_placeholders, with_tags

# A comment, CDATA, an instruction, or a tag: its slash, name, attributes, and the slash of an empty one
TOKEN = re.compile(
    r"<!--.*?-->|<!\[CDATA\[(?P<cdata>.*?)\]\]>|<\?.*?\?>"
    r"|<(?P<close>/?)(?P<name>[^\s/>!?]++)(?P<attributes>(?:\"[^\"]*+\"|'[^']*+'|[^>\"'/]|/(?!>))*+)(?P<empty>/?)>",
    re.DOTALL,
)
_ATTRIBUTE = re.compile(r"([^\s=]++)\s*+=\s*+(\"[^\"]*+\"|'[^']*+')")
_REFERENCE = re.compile(r"&(?:#(\d+)|#x([0-9a-fA-F]+)|(lt|gt|amp|quot|apos));")
_NAMED = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}
_LINE_BREAK = re.compile(r" *[\t\r\n]\s*")
# Elements that open or close a pair each
_OPENINGS = frozenset(["bpt", "bx", "sc", "sm"])
_CLOSINGS = frozenset(["ept", "ex", "ec", "em"])
_CODES = CODES | _OPENINGS | _CLOSINGS | {"x"}  # that are one tag with what they hold
_PROTECTED = frozenset(["protected", "x-sdl-deleted"])  # types of marks whose text is not translated


@dataclass(frozen=True)
class Element:
    """An element of a document: from `start` to `end`, and its content."""

    start: int
    end: int
    inner_start: int
    inner_end: int

    @classmethod
    def at(cls, text: str, start: int, inner_end: int) -> "Element":
        """The element whose tag is at `start`; `inner_end` is the place behind its content, or behind an empty tag."""
        tag = TOKEN.match(text, start)
        assert tag is not None
        if tag["empty"]:
            return cls(start, tag.end(), tag.end(), tag.end())
        return cls(start, text.index(">", inner_end) + 1, tag.end(), inner_end)

    def content(self, text: str) -> str:
        """What the element holds, as the document writes it."""
        return text[self.inner_start : self.inner_end]


def with_attribute(tag: str, name: str, value: str, after: str = "") -> str:
    """An opening tag with an attribute of this value: in its place, or behind the attribute `after` or all others."""
    token = TOKEN.match(tag)
    assert token is not None
    own = {match[1]: match for match in _ATTRIBUTE.finditer(tag, *token.span("attributes"))}
    if name in own:
        start, end = own[name].span(2)
        return tag[:start] + quoteattr(value) + tag[end:]
    at = own[after].end() if after in own else token.end("attributes")
    return f"{tag[:at].rstrip()} {name}={quoteattr(value)}{tag[at:]}"


def element(tag: str, content: str) -> str:
    """An element by its opening tag, or by its empty tag."""
    token = TOKEN.match(tag)
    assert token is not None
    return f"{tag.removesuffix('/>').removesuffix('>').rstrip()}>{content}</{token['name']}>"


def unescape(text: str) -> str:
    """Text of XML without its references."""
    return _REFERENCE.sub(_character, text) if "&" in text else text


def _character(match: re.Match[str]) -> str:
    return _NAMED[match[3]] if match[3] else chr(int(match[1] or match[2], 10 if match[1] else 16))


def parse(content: str, keeps_lines: bool = False) -> Marked:
    """The text and tags of raw XML: codes with what they hold, the parts of pairs, and tags that stand alone.

    Elements of HTML that are text there, as in &lt;b&gt;, are tags too.

    Args:
        keeps_lines: line breaks and tabs are tags, as the element says xml:space="preserve"; else they are white space.
    """
    parts = with_placeholders(with_elements(list(_parts(content)), escape), escape)
    return with_lines(parts) if keeps_lines else parts


def with_lines(parts: Marked, spaces: re.Pattern[str] = _LINE_BREAK) -> Marked:
    """The parts of a segment, in which white space between words, by default line breaks and tabs, is a tag."""
    result = Marked()
    for number, part in enumerate(parts):
        if isinstance(part, Tag):
            result.append(part)
            continue
        begin = 0 if number else len(part) - len(part.lstrip())
        end = len(part) if number < len(parts) - 1 else max(begin, len(part.rstrip()))
        inside = with_tags([part[begin:end]], spaces, lambda text: Tag(text, is_break=True))
        result += [part[:begin], *inside, part[end:]]
    return [part for part in result if part != ""]


def _parts(content: str) -> Iterator[str | Tag]:
    at, open_pairs = 0, list[str]()
    while match := TOKEN.search(content, at):
        yield unescape(content[at : match.start()])
        start, at = match.span()
        name = (match["name"] or "").rpartition(":")[2]
        attributes = {found[1]: unescape(found[2][1:-1]) for found in _ATTRIBUTE.finditer(match["attributes"] or "")}
        is_protected = attributes.get("translate") == "no" or attributes.get("mtype") in _PROTECTED
        if match["cdata"] is not None:
            yield match["cdata"]
        elif not name:
            yield Tag(match[0])
        elif match["close"]:
            yield Tag(match[0], "close", open_pairs.pop())
        elif match["empty"] or name in _CODES or (name == "mrk" and is_protected):
            at = at if match["empty"] else _end_of(content, match)
            yield _code(content[start:at], name, attributes)
        else:
            open_pairs.append(f"element {start}")
            yield Tag(match[0], "open", open_pairs[-1])
    yield unescape(content[at:])


def _code(raw_code: str, name: str, attributes: dict[str, str]) -> Tag:
    kind: Kind = "open" if name in _OPENINGS else "close" if name in _CLOSINGS else "alone"
    pair = next((attributes[key] for key in ("rid", "startRef", "i", "id") if key in attributes), None)
    return Tag(raw_code, kind, None if kind == "alone" else f"code {pair}", is_break(attributes))


def _end_of(content: str, opening: re.Match[str]) -> int:
    """Where an element ends that may hold others of its name."""
    depth, at = 1, opening.end()
    while depth and (match := TOKEN.search(content, at)):
        if match["name"] == opening["name"] and not match["empty"]:
            depth += -1 if match["close"] else 1
        at = match.end()
    return at


def written(marked: Marked) -> str:
    """Text and tags as raw XML."""
    return raw(marked, escape)
