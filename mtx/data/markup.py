"""Text with codes inside, and the text without them.

Flow: `Marked` -> `bare` -> a translation, into which `mtx.decoding.codes` puts the tags -> `Marked`.
"""

import html
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from typing import Literal

from mtx.data.inline_codes import ALONE, BREAK, CHOICE, CODE, ELEMENT, ENTITY, SEAM, SIGN

_VOID = "area base br col embed hr img input link meta param source track wbr"
VOID = frozenset(_VOID.split())  # elements of HTML without an end
_SPACES = re.compile(r"\s+")
# Tags as characters
_BREAK, _OPEN, _CLOSE = "\x00\x01\x02"
_SIGN = re.compile("[\x00-\x03]")
_RUN, _GROUP = re.compile("[\x00-\x03 ]*[\x00-\x03][\x00-\x03 ]*"), re.compile("\x03+|[\x00-\x02]")
_CUT = re.compile("[\x00 ]")  # where a word ends
_BEFORE_END = re.compile(r"\x03[,.;:!?…]+(?![^\s\x00-\x03])")  # punctuation after a word, unlike in .txt or .50
# Entities whose characters could be markup or be lost; others are characters of a word
_KEPT_ENTITY = re.compile("&(?:amp|lt|gt|quot|apos|nbsp);")
_CODE = re.compile(f"{CODE.pattern}|{BREAK.pattern}|{_KEPT_ENTITY.pattern}")
Kind = Literal["open", "close", "alone"]


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag inside a sentence.

    Attributes:
        raw: the tag as written in the document, with all its code.
        pair: the common identifier of an opening and its closing tag; None for a single tag.
        is_break: whether it is a line break or a space, so that it separates words.
    """

    raw: str
    kind: Kind = "alone"
    pair: str | None = None
    is_break: bool = False


def element_tag(markup: str) -> Tag:
    """The tag of HTML markup such as <b>, </b> or <br/>; comments and tags without an end are single tags."""
    match = re.match(r"<(/?)(\w+)", markup)
    name = match[2].lower() if match else ""
    if match is None or markup.endswith("/>") or name in VOID or "</" in markup[1:]:
        return Tag(markup, is_break=name in ("br", "nl"))
    return Tag(markup, "close" if match[1] else "open", name)


Marked = list[str | Tag]  # the text and the tags of a segment, in their order


@dataclass(frozen=True, slots=True)
class Placed:
    """A tag at a character of the bare text.

    Attributes:
        tags: the tag and the single tags directly after it, as in `%d%%`: they stay together.
        before, after: the neighbouring characters; a space at an end, empty next to another tag.
        ends_word: whether it ended a word without a space: a line break, or the first of two elements.
    """

    tags: tuple[Tag, ...]
    at: int
    before: str
    after: str
    ends_word: bool

    @property
    def is_word(self) -> bool:
        """Whether it replaces a word."""
        return self.tags[0].kind == "alone" and not self.tags[0].is_break


def bare(marked: Marked) -> tuple[str, list[Placed]]:
    """The text without its tags, and the tags with their positions; runs of white space become one space."""
    tags = (part for part in marked if isinstance(part, Tag))
    signs = (_SIGN.sub(" ", part) if isinstance(part, str) else _sign(part) for part in marked)
    whole = f" {_SPACES.sub(' ', ''.join(signs)).strip(' ')} "
    text = ""
    placed = list[Placed]()
    end = 1
    for run in _RUN.finditer(whole, 1):
        text += whole[end : run.start()]
        start, end = run.span()
        word_end = _CUT.search(whole, start, end)
        cut = word_end.start() if word_end else -1
        if cut < 0 and text[-1:].isalnum() and whole[end].isalnum():
            cut = whole.find(_CLOSE, start, max(start, whole.rfind(_OPEN, start, end)))
        if SEAM.match(whole, start):
            cut = start
        # a full stop after a placeholder follows the word before it, as without the placeholder
        has_space = cut >= 0 and text != "" and end < len(whole) and not _BEFORE_END.match(whole, end - 1)
        for group in _GROUP.finditer(whole, start, end):
            first, last = group.span()
            before, after = (_SIGN.sub("", whole[index]) for index in (first - 1, last))
            at = len(text) + (has_space and first > cut)
            placed.append(Placed(tuple(islice(tags, last - first)), at, before, after, first == cut))
        text += " " * has_space
    return (text + whole[end:]).rstrip(" "), placed


def _sign(tag: Tag) -> str:
    return _BREAK if tag.is_break else {"open": _OPEN, "close": _CLOSE, "alone": ALONE}[tag.kind]


def has_letters(marked: Marked) -> bool:
    """Whether a segment has text to translate."""
    return any(map(str.isalpha, bare(marked)[0]))


def text_of(marked: Marked) -> str:
    """The text around the tags, unchanged."""
    return "".join(part for part in marked if isinstance(part, str))


def raw(marked: Marked, escape: Callable[[str], str] = str) -> str:
    """Text and tags as written in the document; `escape` is for the text."""
    return "".join(escape(part) if isinstance(part, str) else part.raw for part in marked)


def mark_up(marked: Marked, escape: Callable[[str], str] = str) -> Marked:
    """The parts of a segment; elements written as text, and all other codes, become tags.

    Args:
        escape: escapes text for the document; tags are already escaped.
    """
    if not SIGN.search(text_of(marked)):
        return marked
    parts = [part if isinstance(part, Tag) else ENTITY.sub(_unescape, part) for part in marked]
    return with_codes(with_tags(parts, ELEMENT, element_tag, escape), escape)


def codes_of(text: str) -> list[str]:
    """The codes in a text, in the order of their characters."""
    return sorted(part.raw for part in mark_up([text]) if isinstance(part, Tag))


def _unescape(entity: re.Match[str]) -> str:
    return entity[0] if _KEPT_ENTITY.fullmatch(entity[0]) else html.unescape(entity[0])


def with_codes(marked: Marked, escape: Callable[[str], str] = str) -> Marked:
    """The parts of a segment; placeholders, addresses and the like become tags, see `mark_up`.

    So does an element that holds no letter, such as <sup>[1]</sup>, as a whole.
    """
    parts = with_tags(marked, _CODE, _code_tag, escape)
    result = Marked()
    for part, following in zip_longest(parts, parts[1:], fillvalue=""):
        result.append(part)
        match result[-3:]:
            case [Tag(kind="open", pair=pair), inside, Tag(kind="close", pair=end)] if pair == end:
                text = _sign(inside) if isinstance(inside, Tag) else inside.strip()
                is_code = text not in ("", _BREAK, _OPEN, _CLOSE) and not any(map(str.isalpha, text))
                if is_code and not raw([following])[:1].isalpha():  # unlike H<sub>2</sub>O
                    result[-3:] = [Tag(raw(result[-3:], escape))]
    return result


def _code_tag(text: str) -> Tag:
    """The tag of a code: an escaped line break, one end of a pair of Phrase ({b>words<b}), or a single tag."""
    if text.startswith("{") and text.endswith(">"):
        return Tag(text, "open", f"code {text[1:-1]}")
    if text.startswith("<") and text.endswith("}"):
        return Tag(text, "close", f"code {text[1:-1]}")
    return Tag(text, is_break=text.endswith("\\n"))


def with_tags(
    marked: Marked, pattern: re.Pattern[str], tag_of: Callable[[str], Tag], escape: Callable[[str], str] = str
) -> Marked:
    """The parts of a segment; matches of a pattern become tags, see `mark_up`."""
    parts = Marked()
    for part in marked:
        if isinstance(part, Tag):
            parts.append(part)
            continue
        at = 0
        for match in pattern.finditer(part):
            parts += [part[at : match.start()], replace(tag_of(match[0]), raw=escape(match[0]))]
            at = match.end()
        parts.append(part[at:])
    return [part for part in parts if part != ""]


def is_choice(marked: Marked) -> bool:
    """Whether a segment is an ICU message with texts for several numbers or cases, which is partly code."""
    return CHOICE.search(text_of(marked)) is not None
