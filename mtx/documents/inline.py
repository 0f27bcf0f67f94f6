"""The content of an element of XML as text with tags, and back. Flow: raw XML -> `Marked` -> translation -> raw XML.

The XML is known to be well-formed: `xml_stream` has read it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from mtx.data.bilingual import CODES, is_break
from mtx.documents.markup import Kind, Marked, Tag, raw, with_elements, with_placeholders

# A comment, CDATA, an instruction, or a tag: its slash, name, attributes, and the slash of an empty one
TOKEN = re.compile(
    r"<!--.*?-->|<!\[CDATA\[(?P<cdata>.*?)\]\]>|<\?.*?\?>"
    r"|<(?P<close>/?)(?P<name>[^\s/>!?]++)(?P<attributes>(?:\"[^\"]*+\"|'[^']*+'|[^>\"'/]|/(?!>))*+)(?P<empty>/?)>",
    re.DOTALL,
)
_ATTRIBUTE = re.compile(r"\s*+([^\s=]++)\s*+=\s*+(?:\"([^\"]*+)\"|'([^']*+)')")
_REFERENCE = re.compile(r"&(?:#(\d+)|#x([0-9a-fA-F]+)|(lt|gt|amp|quot|apos));")
_NAMED = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}
_LINE_BREAK = re.compile(r" *[\t\r\n]\s*")
# Elements that open or close a pair each, of which those of `CODES` are one tag with all that they hold
_OPENINGS = frozenset(["bpt", "bx", "sc", "sm"])
_CLOSINGS = frozenset(["ept", "ex", "ec", "em"])
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


def local_name(token: re.Match[str]) -> str:
    """The name of a tag without its prefix; empty for what is no tag."""
    return (token["name"] or "").rpartition(":")[2]


def attributes_of(token: re.Match[str]) -> dict[str, str]:
    """The attributes of a tag."""
    return {match[1]: unescape(match[2] or match[3] or "") for match in _ATTRIBUTE.finditer(token["attributes"] or "")}


def with_attribute(tag: str, name: str, value: str, after: str = "") -> str:
    """An opening tag with an attribute of this value: in its place, or behind the attribute `after` or all others."""
    token = TOKEN.match(tag)
    assert token is not None
    start, at = token.start("attributes"), token.end("attributes")
    for match in _ATTRIBUTE.finditer(token["attributes"]):
        if match[1] == name:
            quoted = start + match.start(2 if match[2] is not None else 3) - 1
            return tag[:quoted] + quoteattr(value) + tag[start + match.end() :]
        if match[1] == after:
            at = start + match.end()
    before = tag[:at] if at < token.end("attributes") else tag[:at].rstrip()
    return f"{before} {name}={quoteattr(value)}{tag[at:]}"


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
    words = [number for number, part in enumerate(parts) if isinstance(part, Tag) or part.strip()]
    result = Marked()
    for number, part in enumerate(parts):
        if isinstance(part, Tag):
            result.append(part)
            continue
        begin = 0 if words and words[0] < number else len(part) - len(part.lstrip())
        end = len(part) if words and words[-1] > number else len(part.rstrip())
        at = 0
        for match in spaces.finditer(part, begin, max(begin, end)):
            result += [part[at : match.start()], Tag(match[0], is_break=True)]
            at = match.end()
        result.append(part[at:])
    return [part for part in result if part != ""]


def _parts(content: str) -> Iterator[str | Tag]:
    at, number, open_pairs = 0, 0, list[str]()
    while match := TOKEN.search(content, at):
        if match.start() > at:
            yield unescape(content[at : match.start()])
        start, at = match.start(), match.end()
        name = local_name(match)
        if match["cdata"] is not None:
            yield match["cdata"]
        elif not name:
            yield Tag(match[0])
        elif match["close"]:
            yield Tag(match[0], "close", open_pairs.pop(), is_element=True)
        else:
            attributes = attributes_of(match)
            is_whole = name in CODES or (name == "mrk" and _is_protected(attributes))
            if is_whole and not match["empty"]:
                at = end_of(content, match)
            if is_whole or name in _OPENINGS or name in _CLOSINGS or match["empty"]:
                yield _code(content[start:at], name, attributes)
            else:
                number += 1
                open_pairs.append(f"element {number}")
                yield Tag(match[0], "open", open_pairs[-1], is_element=True)
    if at < len(content):
        yield unescape(content[at:])


def _is_protected(attributes: dict[str, str]) -> bool:
    return attributes.get("translate") == "no" or attributes.get("mtype") in _PROTECTED


def _code(raw_code: str, name: str, attributes: dict[str, str]) -> Tag:
    kind: Kind = "open" if name in _OPENINGS else "close" if name in _CLOSINGS else "alone"
    pair = next((attributes[key] for key in ("rid", "startRef", "i", "id") if key in attributes), None)
    return Tag(raw_code, kind, None if kind == "alone" else f"code {pair}", is_break(attributes))


def end_of(content: str, opening: re.Match[str]) -> int:
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
