"""Subtitles as a document, SRT and WebVTT: the text of each cue; numbers, times, notes and styles are kept.

The lines of a cue are one text, which is divided into the same number of lines again. The text of each speaker, after a
dash or a name, is separate.
"""

import itertools
import re
import textwrap
from collections.abc import Iterator
from functools import partial

from mtx.data.markup import Marked, Tag, element_tag, has_letters, mark_up, raw, with_tags
from mtx.documents.document import Edit

_TIMES = re.compile(
    r"[ \t]*(?:\d{1,3}:)?\d{1,2}:\d{2}[,.:]\d{1,3}[ \t]*-+>[ \t]*(?:\d{1,3}:)?\d{1,2}:\d{2}[,.:]\d{1,3}"
)
_TAG = re.compile(r"<[^<>]{1,200}>|\\[Nh]")
# The start of the words of another speaker, or of a sound; names, brackets and notes belong to the text
_DASH = re.compile(r"\s*(?:[-‐–—]+|>>+|(?:&gt;)+)\s*|(?=[(\[♪#*]|[A-Z][A-Z .'\d]{1,30}:\s)")

_SOUND = re.compile(r"[(\[]([^()\[\]]*)[)\]]")  # a line in brackets is its own


def read(text: str) -> Iterator[Edit]:
    """The edits that translate the cues."""
    at, is_cue = 0, False
    cue = list[tuple[int, int]]()  # the span of each line of its text
    for line in [*text.split("\n"), ""]:
        content = line.rstrip()
        is_time = bool(_TIMES.match(line))
        if is_time or (not content and (cue or not line.strip("\r"))):
            if is_time and cue and text[slice(*cue[-1])].strip().isdigit():
                cue.pop()  # the number of a cue without a blank line before it
            yield from _cue_edits(text, cue)
            cue, is_cue = [], is_time
        elif is_cue and content:
            cue.append((at, at + len(content)))
        at += len(line) + 1


def _cue_edits(text: str, lines: list[tuple[int, int]]) -> Iterator[Edit]:
    groups, sound = list[list[tuple[int, int]]](), None
    for start, end in lines:
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
            line_end = "\r\n" if text.startswith("\r\n", group[0][1]) else "\n"
            yield Edit(group[0][0], group[-1][1], segment, partial(_write, len(group), line_end))


def _write(num_lines: int, line_end: str, translation: Marked) -> str:
    """A translation divided into at most this number of lines, of about the same length."""
    text = raw([part if isinstance(part, str) else Tag(part.raw.replace(" ", "\0")) for part in translation])
    widths = itertools.count(max(1, len(text) // num_lines))
    wrapped = (textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) for width in widths)
    return line_end.join(next(lines for lines in wrapped if len(lines) <= num_lines)).replace("\0", " ")
