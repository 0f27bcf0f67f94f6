"""Subtitles as a document, SRT and WebVTT: the text of each cue; numbers, times, notes and styles are kept.

The lines of a cue, between which there may be blank ones, are one text, which is divided into the same number of lines
again. The text of each speaker, after a dash or a name, is separate.
"""

import re
import textwrap
from collections.abc import Iterator
from functools import partial
from itertools import chain, count, pairwise

from mtx.data.markup import Marked, Tag, element_tag, has_letters, mark_up, raw, with_tags
from mtx.documents.edits import Edit

_TIMES = r"[ \t]*(?:\d{1,3}:)?\d{1,2}:\d{2}[,.:]\d{1,3}[ \t]*-+>[ \t]*(?:\d{1,3}:)?\d{1,2}:\d{2}[,.:]\d{1,3}"
_CUE = re.compile(  # to the next one, with its number or its name, or to a block of WebVTT
    rf"^{_TIMES}[^\n]*\n(.*?)(?=(?:\n[ \t\r]*\n[^\n]+|\n[ \t]*\d+[ \t\r]*)?\n{_TIMES}"
    r"|\n[ \t\r]*\n(?:NOTE|STYLE|REGION)(?!\S)|\Z)",
    re.MULTILINE | re.DOTALL,
)
_LINE = re.compile(r"^[^\n]*\S", re.MULTILINE)
_TAG = re.compile(r"<rt>[^<>]{0,200}(?:</rt>)?|<[^<>]{1,200}>|\\[Nh]")  # with the note to a word
# The start of the words of another speaker, of a sound, or of another tag; names, brackets and notes belong to the text
_DASH = re.compile(
    r"\s*(?:[-‐–—]+|>>+|(?:&gt;)+)\s*|(?=[(\[♪#*]|[A-Z][A-Z .'\d]{1,30}:\s)"
    r"|(?:(?<=</([biuc])>\n)(?!<\1)|(?<=</([biuc])>\r\n)(?!<\2))(?=<\w)"
)

_SOUND = re.compile(r"[(\[]([^()\[\]]*)[)\]]")  # a line in brackets is its own


def read(text: str) -> Iterator[Edit]:
    """The edits that translate the cues."""
    for cue in _CUE.finditer(text):
        groups, sound = list[list[tuple[int, int]]](), None
        for line in _LINE.finditer(text, *cue.span(1)):
            start, end = line.span()
            if dash := _DASH.match(text, start, end):
                start = dash.end()
            if dash or sound or not groups:
                groups.append([])
            sound = _SOUND.fullmatch(text, start, end)
            groups[-1].append(sound.span(1) if sound else (start, end))
        for group in groups:
            words = " ".join(text[start:end].strip() for start, end in group)
            segment = mark_up(with_tags([words], _TAG, element_tag))
            if has_letters(segment):
                breaks = [text[end:start] for (_, end), (start, _) in pairwise(group)]
                yield Edit(group[0][0], group[-1][1], segment, partial(_write, breaks))


def _write(breaks: list[str], translation: Marked) -> str:
    """A translation divided into lines of about the same length, at most one more than these breaks between lines."""
    text = raw([part if isinstance(part, str) else Tag(part.raw.replace(" ", "\0")) for part in translation])
    widths = count(max(1, len(text) // (len(breaks) + 1)))
    wrapped = (textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) for width in widths)
    lines = next(lines for lines in wrapped if len(lines) <= len(breaks) + 1)
    return "".join(chain(*zip(["", *breaks], lines, strict=False))).replace("\0", " ")
