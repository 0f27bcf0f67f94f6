"""Subtitles as a document, SRT and WebVTT: the text of each cue; numbers, times, notes and styles are kept.

A line with times in any form begins a cue. A blank line ends its text: words never move over it, and further lines are
a text of their own, unless a number before them shows that their time is missing. The lines of a text are divided into
the same number of lines again. The text of each speaker, after a dash or a name, is separate.
"""

import logging
import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import chain, pairwise
from pathlib import Path

from mtx.data.languages import WITHOUT_SPACES
from mtx.data.markup import Marked, Tag, element_tag, has_letters, mark_up, raw, with_tags
from mtx.documents.edits import Edit

logger = logging.getLogger(__name__)

_MARKS = "\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff"  # of the direction of text, and without width
_SIGN = r"[^\w\n]"
_SEEN = rf"[^\s{_MARKS}]"
_ARROW = "(?:[>＞»\u2190-\u21ff\u2794-\u27bf\u27f0-\u27ff]|--|&gt;)"
_NO_LETTER = rf"(?:&gt;|{_SIGN}|\d)"
_SETTING = rf"\w+[:=]\S+{_SIGN}*"  # such as align:start
# The kinds of a line, without white space and marks around it. Times in any form, of which one may be missing:
# `00:00:01,000 --> 00:00:02,000 align:start`, `2 00:01 → 00:02`, `--> 0:0:9,5`
_TIME = (
    rf"(?={_SIGN}*(?:\d|-->))(?={_NO_LETTER}*?{_ARROW})"  # a number first, and an arrow before any letter
    rf"{_NO_LETTER}*+(?:(?<=\d)\w{{1,9}})?(?:{_SETTING})*+$"
)
# A whole time before an arrow, and words: `00:00:01,000 --> 00:00:02,000 The words.`
_TIME_AND_WORDS = rf"{_SIGN}?(?:\d+{_SIGN}{{1,3}})?\d+ ?: ?\d+ ?[:;.,] ?\d{_NO_LETTER}{{0,20}}?{_ARROW}[^\n]*"
_NUMBER = rf"{_SIGN}?\d+[^\w\s]{{0,3}}(?=[^\S\n]*$)"
# Of WebVTT, without text: all lines up to a blank one or a time
_BLOCK = (
    r"(?:\A|(?<=\n\n)|(?<=\n\r\n))(?:WEBVTT|NOTE|STYLE|REGION)(?!\S)[^\n]*"
    rf"(?:\n(?![^\n]*-->)[^\n]*{_SEEN})*"
)
_LINE = re.compile(
    rf"^(?:[^\S\n]|[{_MARKS}])*+(?:(?P<time>{_TIME})|(?P<time_words>{_TIME_AND_WORDS})|(?P<number>{_NUMBER})"
    rf"|(?P<block>{_BLOCK})|(?P<text>[^\n]*{_SEEN})|(?P<blank>))",
    re.MULTILINE,
)
_TAG = re.compile(r"<rt>[^<>]{0,200}(?:</rt>)?|<[^<>]{1,200}>|\\[Nh]")  # with the note to a word
# The start of the words of another speaker, of a sound, or of another tag; names, brackets and notes belong to the text
_DASH = re.compile(
    r"\s*(?:[-‐–—]+|>>+|(?:&gt;)+)\s*|(?=[(\[♪#*]|[A-Z][A-Z .'\d]{1,30}:\s)"
    r"|(?:(?<=</([biuc])>\n)(?!<\1)|(?<=</([biuc])>\r\n)(?!<\2))(?=<\w)"
)
_SOUND = re.compile(r"[(\[]([^()\[\]]*)[)\]]")  # a line in brackets is its own
_PLACE = "\x01"  # where a text without spaces may be divided
# Such places: not within a syllable, a number or a word, nor before a closing mark
_DIVISION = re.compile(
    r"(?<![เ-ไເ-ໄ\u17d2\u1039])(?<!\d[，．：])(?=[\w(（［「『【〈《“])(?![ะาำๅๆະາຳໆーァィゥェォッャュョぁぃぅぇぉっゃゅょ々]|.[\u1039\u103a])"
    rf"(?:(?<=[{WITHOUT_SPACES}、。，．！？；：）］」』】〉》”…])|(?<=\w)(?=[{WITHOUT_SPACES}]))"
)


def read(path: Path, text: str, untranslated: Counter[str]) -> Iterator[Edit]:
    """The edits that translate the cues; counts in `untranslated` the texts that have no readable time.

    Warns if no text has one; `path` is for the message.
    """
    lines = list(_LINE.finditer(text))
    kinds = ["blank", *(str(line.lastgroup) for line in lines), "blank"]
    untranslated["unreadable cue"] += kinds.count("time_words")
    is_cue = False
    paragraphs = [(is_cue, list[tuple[int, int]]())]
    for line, kind_before, kind, kind_after in zip(lines, kinds, kinds[1:], kinds[2:], strict=False):
        if _is_text(kind_before, kind, kind_after):
            paragraphs[-1][1].append(line.span(kind))
        else:
            has_no_time = kind == "number" and kind_before == "blank" and kind_after == "text"
            if kind.startswith("time"):
                is_cue = True
            elif kind == "block" or has_no_time:
                is_cue = False
            paragraphs.append((is_cue, []))
    for is_cue, spans in paragraphs:
        if is_cue:
            yield from _edit(text, spans)
        else:
            has_words = bool(spans) and has_letters([text[spans[0][0] : spans[-1][1]]])
            if has_words:
                untranslated["unreadable cue"] += 1
    if untranslated["unreadable cue"] and "time" not in kinds:
        logger.warning("%s: no cue has readable times, such as 00:00:01,000 --> 00:00:02,000", path)


def _is_text(kind_before: str, kind: str, kind_after: str) -> bool:
    """Whether a line is text, by the kinds of it and its neighbours; not the name or the number of a cue."""
    is_after_blank = kind_before == "blank"
    is_before_time = kind_after.startswith("time")
    if kind == "text":
        return not (is_after_blank and is_before_time)  # which the name of a cue is
    return kind == "number" and not (is_after_blank or is_before_time or kind_after == "blank")


def _edit(text: str, lines: list[tuple[int, int]]) -> Iterator[Edit]:
    """The edits that translate the lines between two that are no text."""
    groups = list[list[tuple[int, int]]]()
    sound_match = None
    for start, end in lines:
        if dash := _DASH.match(text, start, end):
            start = dash.end()
        if dash or sound_match or not groups:
            groups.append([])
        sound_match = _SOUND.fullmatch(text, start, end)
        groups[-1].append(sound_match.span(1) if sound_match else (start, end))
    for group in groups:
        words = " ".join(text[start:end].strip() for start, end in group)
        segment = mark_up(with_tags([words], _TAG, element_tag))
        if has_letters(segment):
            breaks = [text[end:start] for (_, end), (start, _) in pairwise(group)]
            yield Edit(group[0][0], group[-1][1], segment, partial(_write, breaks))


def _write(breaks: list[str], translation: Marked) -> str:
    """A translation divided into lines of about the same length, at most one more than these breaks between lines."""
    parts = [part if isinstance(part, str) else Tag(part.raw.replace(" ", "\0")) for part in translation]
    num_lines = len(breaks) + 1
    lines = _wrap(raw(parts), num_lines)
    if len(lines) < num_lines or max(map(len, lines)) > 1.5 * len(raw(parts)) / num_lines:  # it may have no spaces
        divided = [_DIVISION.sub(f"{_PLACE} ", part) if isinstance(part, str) else part for part in parts]
        lines = _wrap(raw(divided), num_lines)
    joined = "".join(chain(*zip(["", *breaks], lines, strict=False)))
    return re.sub(f"{_PLACE} ?", "", joined).replace("\0", " ")


def _wrap(text: str, num_lines: int) -> list[str]:
    """The lines of a text, at most `num_lines` of about the same length, divided at spaces."""
    wrap = partial(textwrap.wrap, text, expand_tabs=False, break_long_words=False, break_on_hyphens=False)
    min_width = max(1, len(text) // num_lines)
    max_width = min_width + max(map(len, text.split(" ")))  # enough: no line is shorter by more than a word
    while min_width < max_width:  # a binary search for the smallest width with few enough lines
        width = (min_width + max_width) // 2
        if len(wrap(width)) <= num_lines:
            max_width = width
        else:
            min_width = width + 1
    return wrap(min_width)
