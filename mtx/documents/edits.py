"""Edits of a document's text: a reader of a format yields them in order, and only what they name changes."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import NewType

from mtx.data.glossary import replace_spans
from mtx.data.markup import Escape, Marked

# Two segments of a document may have the same text, so what is known of one is kept by its identity
SegmentId = NewType("SegmentId", int)


def segment_id(segment: Marked) -> SegmentId:
    """The identity of a segment, as long as its `Edit` exists."""
    return SegmentId(id(segment))


@dataclass(frozen=True)
class Edit:
    """Replaces a span of characters by a translation; an empty span is an insertion.

    Attributes:
        segment: the text to translate; empty if the new text is known.
        write: formats the translation for the document.
        unit_segments: the segments of the unit that it belongs to; empty if it is a unit of its own.
    """

    start: int
    end: int
    segment: Marked
    write: Callable[[Marked], str]
    unit_segments: Sequence[Marked] = ()


def replace_text(start: int, end: int, text: str) -> Edit:
    """An edit that replaces a span of characters by this text."""
    return Edit(start, end, [], lambda _: text)


def in_unit(edits: Iterable[Edit], segments: Sequence[Marked]) -> Iterator[Edit]:
    """The edits of a unit with these segments: none of them is made if all translations are empty."""
    return (replace(edit, unit_segments=segments) for edit in edits)


def moved(edits: Iterable[Edit], offset: int) -> Iterator[Edit]:
    """The edits of a part of a document, which begins at this character."""
    return (replace(edit, start=offset + edit.start, end=offset + edit.end) for edit in edits)


def insert_text(at: int, text: str, edits: Iterable[Edit], escape: Escape) -> Iterator[Edit]:
    """The edits that insert a text, with its own edits made, at a character of a document for which `escape` is."""

    def write_with(text_before: str, edit: Edit, translation: Marked) -> str:
        return escape(text_before + edit.write(translation))

    previous_end = 0
    for edit in edits:
        text_before = text[previous_end : edit.start]
        yield Edit(at, at, edit.segment, partial(write_with, text_before, edit))
        previous_end = edit.end
    yield replace_text(at, at, escape(text[previous_end:]))


def apply(text: str, edits: Iterable[Edit], translations: Iterable[Marked], empty: Set[SegmentId] = frozenset()) -> str:
    """The text after all edits, which are in order and do not overlap; consumes the translations that they need.

    Args:
        empty: the identities of the segments whose translation is empty. What they would replace stays, and so does a
            unit that has no other segments.
    """
    remaining = iter(translations)
    spans = list[tuple[int, int, str]]()
    for edit in edits:
        translation = next(remaining) if edit.segment else []
        is_replaced = edit.start < edit.end and segment_id(edit.segment) in empty
        is_unit_empty = all(segment_id(segment) in empty for segment in edit.unit_segments or [edit.segment])
        if not (is_replaced or is_unit_empty):
            spans.append((edit.start, edit.end, edit.write(translation)))
    return replace_spans(text, spans)


def space_before(text: str, at: int) -> str:
    """The white space before a character, such as the line break and the indentation of a tag."""
    text_before = text[max(0, at - 200) : at]  # more would make a search of the whole text for each edit
    return text_before[len(text_before.rstrip()) :]
