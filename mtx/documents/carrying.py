"""Where a model puts the tags of a sentence that learned it, by a translation with marks (`mtx.data.inline_tags`).

Flow: the tags of a segment -> `plan` -> `Carrying.marked` -> translation with marks -> `Carrying.placed` in the bare
translation. Marks make the model write other sentences, and worse ones, so the bare translation is what counts; each
tag goes where the same words are. What the model does not carry whole, each mark once and nested as in the source, or
to words that the bare translation does not have, is placed by attention (`placing`).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import accumulate

from mtx.data.glossary import word_spans
from mtx.data.inline_tags import ALONE, CLOSING, MOST_TAGS, OPENING
from mtx.data.sentencepiece_models import num_bytes
from mtx.documents.markup import Placed
from mtx.documents.placing import is_nested, partners_of

At = tuple[int, Placed]  # the character of a translation, and the tag before it
Inline = tuple[int, str]  # the number of bytes of words before a mark, and the mark


@dataclass(frozen=True)
class Carrying:
    """A sentence with its tags, in order; those at its beginning and end need no marks.

    Attributes:
        marks: those of the tags between the first and the last ones.
    """

    text: str
    first: Sequence[Placed]
    inner: Sequence[Placed]
    last: Sequence[Placed]
    marks: str

    def marked(self, text: str) -> str:
        """The text of the sentence, perhaps in another case, with its marks."""
        parts, done = "", 0
        for tag, mark in zip(self.inner, self.marks, strict=True):
            parts, done = parts + text[done : tag.at] + mark, tag.at
        return parts + text[done:]

    @property
    def places(self) -> list[Inline]:
        """Where the marks are in the source."""
        return [(num_bytes(self.text[: tag.at]), mark) for tag, mark in zip(self.inner, self.marks, strict=True)]

    def placed(self, translation: str, other: str = "", marks: Sequence[Inline] = ()) -> list[At] | None:
        """The tags, each with its character of the translation, in their order; None if not all have a place.

        Args:
            other: the translation with marks, without them.
            marks: where they are in it.
        """
        if _structure(marks) is None or _structure(marks) != _structure(self.places):
            return None
        tags = dict(zip(self.marks, self.inner, strict=True))
        before = list(accumulate(map(num_bytes, other), initial=0))
        found = {mark: _character(before, place, tags[mark]) for place, mark in marks}
        moved = _moved(found, _Same(other, translation), {mark: _is_behind(tag) for mark, tag in tags.items()})
        if None in moved.values():
            return None
        inner = [(at, tags[mark]) for mark, at in moved.items() if at is not None]
        return [*((0, tag) for tag in self.first), *inner, *((len(translation), tag) for tag in self.last)]


def plan(tags: Sequence[Placed], sentences: Sequence[tuple[int, str]]) -> list[Carrying] | None:
    """How the model carries the tags of a segment; None if it cannot, as pairs overlap or there are too many.

    Args:
        sentences: from which character of the segment's bare text each goes, and its text.
    """
    partners = partners_of(tags)
    home = [_sentence_of(tag, [start for start, _ in sentences]) for tag in tags]
    is_together = all(home[one] == home[other] for one, other in partners.items())
    if not (tags and is_together and home == sorted(home) and is_nested(tags, partners)):
        return None
    planned = list[Carrying]()
    for number, (start, text) in enumerate(sentences):
        own = [
            replace(tag, at=min(max(0, tag.at - start), len(text)))
            for tag, place in zip(tags, home, strict=True)
            if place == number
        ]
        sentence = _sentence(text, own)
        if sentence is None:
            return None
        planned.append(sentence)
    return planned


def _is_behind(tag: Placed) -> bool:
    """Whether a tag belongs to what stands before it, because it ends that or follows it without a space."""
    return tag.tag.kind == "close" or not tag.before.isspace()


def _sentence_of(tag: Placed, starts: Sequence[int]) -> int:
    return max(0, (bisect_left(starts, tag.at) if _is_behind(tag) else bisect_right(starts, tag.at)) - 1)


def _sentence(text: str, tags: Sequence[Placed]) -> Carrying | None:
    partners, first, last = partners_of(tags), 0, len(tags)
    while first < last:
        if tags[first].at == 0 and first not in partners:
            first += 1
        elif tags[last - 1].at == len(text) and last - 1 not in partners:
            last -= 1
        elif tags[first].at == 0 and tags[last - 1].at == len(text) and partners.get(first) == last - 1:
            first, last = first + 1, last - 1
        else:
            break
    pairs = [number for number in range(first, last) if partners.get(number, -1) > number]
    alone = [number for number in range(first, last) if number not in partners]
    if max(len(pairs), len(alone)) > MOST_TAGS:
        return None
    marks = dict(zip(pairs, OPENING, strict=False)) | dict(zip(alone, ALONE, strict=False))
    marks |= {partners[number]: mark for number, mark in zip(pairs, CLOSING, strict=False)}
    in_order = "".join(marks[number] for number in range(first, last))
    return Carrying(text, tags[:first], tags[first:last], tags[last:], in_order)


def _structure(marks: Sequence[Inline]) -> dict[str, tuple[str, bool]] | None:
    """Around each mark the innermost pair, and whether a pair encloses no text; None if pairs are not nested.

    Args:
        marks: in their order.
    """
    found, stack = dict[str, tuple[str, bool]](), list[Inline]()
    for place, mark in marks:
        if mark in found:
            return None
        if mark in CLOSING:
            start, opening = stack.pop() if stack else (0, "")
            if not opening or OPENING.index(opening) != CLOSING.index(mark):
                return None
            found[mark] = opening, start == place
            continue
        found[mark] = (stack[-1][1] if stack else ""), False
        if mark in OPENING:
            stack.append((place, mark))
    return None if stack else found


def _character(before: Sequence[int], place: int, tag: Placed) -> int:
    """The character that has so many bytes of words before it: of two, with a space between, the one on the tag's side.

    Args:
        before: the number of bytes of words before each character, and in all.
    """
    at = bisect_left(before, place) if _is_behind(tag) else bisect_right(before, place) - 1
    return min(at, len(before) - 1)


class _Same:
    """The words that two texts have in common, in one order."""

    def __init__(self, one: str, other: str):
        self._one, self._other = word_spans(one), word_spans(other)
        words = [one[slice(*span)] for span in self._one], [other[slice(*span)] for span in self._other]
        blocks = SequenceMatcher(None, *words, autojunk=False).get_matching_blocks()
        self._number: dict[int, int] = {block.a + n: block.b + n for block in blocks for n in range(block.size)}

    def character(self, at: int, is_behind: bool) -> int | None:
        """The character of the other text for one of the first: in, at or, if it `is_behind`, behind the same word."""
        numbers = range(len(self._one))
        if is_behind:
            number = next((n for n in reversed(numbers) if self._one[n][0] < at), None)
        else:
            number = next((n for n in numbers if self._one[n][1] > at), None)
        if number is None or number not in self._number:
            return None
        start, end = self._one[number]
        return self._other[self._number[number]][0] + min(max(at, start), end) - start

    def has_run(self, start: int, end: int) -> bool:
        """Whether the other text has all words between two characters, side by side."""
        inside = [number for number, span in enumerate(self._one) if span[1] > start and span[0] < end]
        found = [self._number.get(number) for number in inside]
        first = found[0] if found else None
        return not found or (first is not None and found == list(range(first, first + len(found))))


def _moved(places: dict[str, int], same: _Same, is_behind: dict[str, bool]) -> dict[str, int | None]:
    """The characters of the marks in the other text; None for those whose words it does not have."""
    result = dict[str, int | None]()
    for mark, at in places.items():
        side = is_behind[mark]
        found = same.character(at, side)
        if mark in ALONE and found is None:
            found = same.character(at, not side)
        if mark in OPENING:
            end = places[CLOSING[OPENING.index(mark)]]
            found = found if same.has_run(at, end) else None
        result[mark] = found
    return result
