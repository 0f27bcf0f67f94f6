"""The content of an element of XML as text with tags, and back. Flow: `Node` -> `Marked` -> translation -> raw XML."""

import re
from xml.sax.saxutils import escape, quoteattr

from mtx.data.tmx_xliff import CLOSING_CODES, CODES, DELETED, OPENING_CODES, Node
from mtx.documents.markup import Kind, Marked, Tag, raw, with_elements, with_placeholders, with_tags

_ATTRIBUTE = re.compile(r"([^\s=]++)\s*+=\s*+(\"[^\"]*+\"|'[^']*+')")
_LINE_BREAK = re.compile(r" *[\t\r\n]\s*")
_PROTECTED = frozenset(["protected", DELETED])  # types of marks whose text is not translated


def with_attribute(tag: str, name: str, value: str, after: str = "") -> str:
    """An opening tag with an attribute of this value: in its place, or behind the attribute `after` or all others."""
    own = {match[1]: match for match in _ATTRIBUTE.finditer(tag)}
    if name in own:
        start, end = own[name].span(2)
        return tag[:start] + quoteattr(value) + tag[end:]
    at = own[after].end() if after in own else len(_opened(tag))
    rest = tag[at:] if after in own else tag[at:].lstrip()
    return f"{tag[:at]} {name}={quoteattr(value)}{rest}"


def element(tag: str, content: str) -> str:
    """An element by its opening tag, or by its empty tag."""
    opened = _opened(tag)
    return f"{opened}>{content}</{opened.split()[0].removeprefix('<')}>"


def _opened(tag: str) -> str:
    return tag.removesuffix(">").removesuffix("/").rstrip()


def parse(document: str, node: Node, keeps_lines: bool = False) -> Marked:
    """The text and tags in an element: codes with what they hold, the parts of pairs, and tags that stand alone.

    Elements of HTML that are text there, as in &lt;b&gt;, are tags too.

    Args:
        keeps_lines: line breaks and tabs are tags, as the element says xml:space="preserve"; else they are white space.
    """
    line_end = "\r\n" if "\r\n" in document[node.start : node.inner_end] else "\n"
    parts = with_placeholders(with_elements(_parts(document, node, line_end), escape), escape)
    return with_lines(parts) if keeps_lines else parts


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
            parts.append(Tag(document[child.start : child.end], kind, pair, child.is_break))
        else:
            pair = f"element {child.start}"
            parts.append(Tag(document[child.start : child.inner_start], "open", pair))
            parts += _parts(document, child, line_end)
            parts.append(Tag(document[child.inner_end : child.end], "close", pair))
    return parts


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


def write_xml(marked: Marked) -> str:
    """Text and tags as raw XML."""
    return raw(marked, escape)
