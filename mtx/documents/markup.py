"""Text with markup inside, and the text without it. `placing` puts the tags into a translation.

Flow: `Marked` -> `bare` -> translation -> `placing.put_back` -> `Marked`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

from mtx.data.languages import IDEOGRAPHS

VOID = frozenset(
    ["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr"]
)  # elements of HTML without an end
_SPACES = re.compile(r"\s+")
# Tags as characters
_BREAK, _OPEN, _CLOSE, _ALONE = "\x00\x01\x02\x03"
_SIGN = re.compile("[\x00-\x03]")
_RUN, _GROUP = re.compile("[\x00-\x03 ]*[\x00-\x03][\x00-\x03 ]*"), re.compile("\x03+|[\x00-\x02]")
_CUT = re.compile("[\x00 ]")  # where a word ends
_BEFORE_END = re.compile(r"\x03[,.;:!?…]+(?![^\s\x00-\x03])")  # punctuation behind a word, unlike that of .txt or .50
_EAST_ASIAN = f"{IDEOGRAPHS}\u3000-\u303f\uff00-\uffef"  # with punctuation
# An address of a page, without the punctuation behind it, or of mail. Text of scripts without spaces ends it.
ADDRESS = (
    r"(?i:(?<![a-z0-9_])(?:https?://|www\.))"
    rf"(?:\([^\s()<>\"'{_EAST_ASIAN}]{{0,200}}\)|[^\s()<>\"'…—“”»{_EAST_ASIAN}]){{1,2000}}(?<![.,;:!?\]}}’])"
    r"|(?<![\w.+-])[\w.+-]{1,64}@(?:[\w-]{1,63}\.){1,8}\w{2,63}"
)
# The formats of C, Python, Ruby, Perl, Qt, JavaScript and the shell
_PLACEHOLDER = re.compile(
    r"(?<!\d)%(?:\([^()\s]{1,100}\)|\d{1,2}\$)?[-+#0']*+(?:\d{1,5}|\*)?(?:\.(?:\d{1,5}|\*))?"
    r"(?:hh|h|ll|l|L|q|j|z|t)?[diouxXeEfFgGcrsapn@%]"
    r"|%<\w{1,100}>[\d.]*+[a-z]|\{\{[^{}]{0,100}\}\}|[$%#]?\{ ?[^{}\s]{0,100} ?\}|%\d{1,2}(?!\w)"
    r"|" + ADDRESS
)
# Elements of HTML that stand inside of sentences or around them; <name> may be text
_ELEMENT = re.compile(
    r"</?(?:a|abbr|b|big|br|code|del|div|em|font|h[1-6]|hr|i|img|ins|kbd|li|mark|ol|p|q|s|small|span|strong|sub|sup|td"
    r"|th|tr|tt|u|ul|var|wbr)(?:\s[^<>]{0,1000})?/?>",
    re.IGNORECASE,
)
_CHOICE = re.compile(r"\{\s*\w+\s*,\s*(?:plural|select|selectordinal)\s*,")
Kind = Literal["open", "close", "alone"]


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag inside a sentence.

    Attributes:
        raw: the tag as the document writes it, with what belongs to it and is no text.
        pair: what an opening and its closing tag have in common; None for a tag that stands alone.
        is_break: whether it stands for a line break, so that the words on both sides are two.
    """

    raw: str
    kind: Kind = "alone"
    pair: str | None = None
    is_break: bool = False


def element_tag(markup: str) -> Tag:
    """The tag of HTML markup such as <b>, </b> or <br/>; a comment stands alone, and so does what has no end."""
    match = re.match(r"<(/?)(\w+)", markup)
    name = match[2].lower() if match else ""
    if match is None or markup.endswith("/>") or name in VOID:
        return Tag(markup, is_break=name == "br")
    return Tag(markup, "close" if match[1] else "open", name)


Marked = list[str | Tag]  # the text and the tags of a segment, in their order


@dataclass(frozen=True, slots=True)
class Placed:
    """A tag at a character of the bare text.

    Attributes:
        tags: the tag, and those directly behind it if all are alone, as in `%d%%`: they stay together.
        before, after: the characters that stood beside it; a space at an end, nothing beside another tag.
        ends_word: whether it ended a word whose end no space shows: a line break, or the first of two elements.
    """

    tags: tuple[Tag, ...]
    at: int
    before: str
    after: str
    ends_word: bool

    @property
    def is_word(self) -> bool:
        """Whether it stands for a word."""
        return self.tags[0].kind == "alone" and not self.tags[0].is_break


def bare(marked: Marked) -> tuple[str, list[Placed]]:
    """The text without its tags, and the tags with their places; runs of white space become one space."""
    tags = (part for part in marked if isinstance(part, Tag))
    signs = (_SIGN.sub(" ", part) if isinstance(part, str) else _sign(part) for part in marked)
    whole = f" {_SPACES.sub(' ', ''.join(signs)).strip(' ')} "
    text = ""
    placed = list[Placed]()
    end = 1
    for run in _RUN.finditer(whole, 1):
        text += whole[end : run.start()]
        start, end = run.span()
        found = _CUT.search(whole, start, end)
        cut = found.start() if found else -1
        if not found and text[-1:].isalnum() and whole[end].isalnum():
            cut = whole.find(_CLOSE, start, max(start, whole.rfind(_OPEN, start, end)))
        # a full stop behind a placeholder follows the word before it, as it would without the placeholder
        has_space = cut >= 0 and text != "" and end < len(whole) and not _BEFORE_END.match(whole, end - 1)
        for group in _GROUP.finditer(whole, start, end):
            first, last = group.span()
            before, after = (_SIGN.sub("", whole[index]) for index in (first - 1, last))
            at = len(text) + (has_space and first > cut)
            placed.append(Placed(tuple(islice(tags, last - first)), at, before, after, first == cut))
        text += " " * has_space
    return (text + whole[end:]).rstrip(" "), placed


def _sign(tag: Tag) -> str:
    return _BREAK if tag.is_break else {"open": _OPEN, "close": _CLOSE, "alone": _ALONE}[tag.kind]


def with_edges(source: Marked, translation: Marked) -> Marked:
    """A translation with the white space that its source had at both ends."""
    text = "".join(part if isinstance(part, str) else "\0" for part in source)
    before, after = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
    return [part for part in (before, *translation, after) if part != ""]


def raw(marked: Marked, escape: Callable[[str], str] = str) -> str:
    """Text and tags as the document writes them; `escape` is for the text."""
    return "".join(escape(part) if isinstance(part, str) else part.raw for part in marked)


def with_placeholders(marked: Marked, escape: Callable[[str], str] = str) -> Marked:
    """The parts of a segment, in which placeholders such as %s, {0} and {{name}}, and addresses, are tags.

    Args:
        escape: writes text as the document does, which tags are already.
    """
    return with_tags(marked, _PLACEHOLDER, lambda text: Tag(escape(text)))


def with_elements(marked: Marked, escape: Callable[[str], str]) -> Marked:
    """The parts of a segment, in which elements of HTML that are written as text are tags; see `with_placeholders`."""
    return with_tags(marked, _ELEMENT, lambda text: replace(element_tag(text), raw=escape(text)))


def with_tags(marked: Marked, pattern: re.Pattern[str], tag_of: Callable[[str], Tag]) -> Marked:
    """The parts of a segment, in which what matches a pattern is a tag."""
    parts = Marked()
    for part in marked:
        if isinstance(part, Tag):
            parts.append(part)
            continue
        at = 0
        for match in pattern.finditer(part):
            parts += [part[at : match.start()], tag_of(match[0])]
            at = match.end()
        parts.append(part[at:])
    return [part for part in parts if part != ""]


def is_choice(marked: Marked) -> bool:
    """Whether a segment is a message of ICU with texts for several numbers or cases, which is code in part."""
    return any(_CHOICE.search(part) for part in marked if isinstance(part, str))
