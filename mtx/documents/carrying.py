"""Where a model puts the tags of a sentence that learned it, by a translation with marks (`mtx.data.inline_tags`).

Flow: the tags of a segment -> `plan` -> `Carrying.marked` -> translation with marks -> `Carrying.placed` in the bare
translation. Marks make the model write other sentences, and worse ones, so the bare translation is what counts; each
tag goes where the same words are. What the model does not carry whole, each mark once and nested as in the source, or
to words that the bare translation does not have, is placed by attention (`placing`).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import accumulate

from mtx.data.glossary import word_spans
from mtx.data.inline_tags import ALONE, CLOSING, MOST_TAGS, OPENING
from mtx.data.sentencepiece_models import num_bytes
from mtx.data.tokenizer import Inline
from mtx.documents.markup import Placed
from mtx.documents.placing import is_nested, partners_of, skip_space

_MOST_WORDS = 300  # of a sentence; the time to compare two texts grows with their cube where words repeat

At = tuple[int, Placed]  # the character of a translation, and the tag before it


@dataclass(frozen=True)
class Carrying:
    """A sentence with its tags, in order.

    Attributes:
        first, last: the tags at its beginning and end, which need no marks.
        inner: the others.
        marks: those of the inner tags.
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

    def placed(
        self, translation: str, marked_text: str = "", marks: tuple[Sequence[Inline], int] = ((), 0)
    ) -> list[At] | None:
        """The tags, each with its character of the translation, in their order; None if not all have a place.

        Args:
            marked_text: the translation with marks, of which these are left out.
            marks: where they are, as by `Tokenizer.inline_marks`.
        """
        source = [(num_bytes(self.text[: tag.at]), mark) for tag, mark in zip(self.inner, self.marks, strict=True)]
        structure, size = _structure(marks[0]), num_bytes(marked_text)
        if structure is None or structure != _structure(source) or size != marks[1]:  # its bytes are not its pieces'
            return None
        inner = list[At]()
        if self.inner:
            tags = dict(zip(self.marks, self.inner, strict=True))
            order = [(tags[mark], mark, place) for place, mark in marks[0]]
            found = _found_again(order, marked_text, translation)
            if found is None:
                return None
            inner = list(zip(found, (tag for tag, *_ in order), strict=True))
        return [*((0, tag) for tag in self.first), *inner, *((len(translation), tag) for tag in self.last)]


def plan(tags: Sequence[Placed], sentences: Sequence[tuple[int, str]]) -> list[Carrying] | None:
    """How the model carries the tags of a segment; None if it cannot, as pairs overlap or there are too many.

    Args:
        sentences: from which character of the segment's bare text each goes, and its text.
    """
    partners = partners_of(tags)
    if not (tags and sentences and is_nested(tags, partners)):
        return None
    first, last = _edges(tags, partners, sentences[0][0], sentences[-1][0] + len(sentences[-1][1]))
    starts, inner = [start for start, _ in sentences], range(first, last)
    home = [max(0, (bisect_left if _is_behind(tag) else bisect_right)(starts, tag.at) - 1) for tag in tags]
    if any(home[one] != home[other] for one, other in partners.items() if one in inner):
        return None
    own: list[list[Placed]] = [[] for _ in sentences]
    for number in inner:
        start, text = sentences[home[number]]
        own[home[number]].append(replace(tags[number], at=min(max(0, tags[number].at - start), len(text))))
    planned = list[Carrying]()
    for (_, text), some in zip(sentences, own, strict=True):
        sentence = _sentence(text, some)
        if sentence is None:
            return None
        planned.append(sentence)
    planned[0] = replace(planned[0], first=[*tags[:first], *planned[0].first])
    planned[-1] = replace(planned[-1], last=[*planned[-1].last, *tags[last:]])
    return planned


def _is_behind(tag: Placed) -> bool:
    """Whether a tag belongs to what stands before it, because it ends that or follows it without a space."""
    return tag.tag.kind == "close" or not (tag.before.isspace() or tag.before == "")


def _edges(tags: Sequence[Placed], partners: Mapping[int, int], start: int, end: int) -> tuple[int, int]:
    """The number of the first tag that does not stand at the beginning of a text, or encloses it, and of the last."""
    first, last = 0, len(tags)
    while first < last:
        if tags[first].at <= start and first not in partners:
            first += 1
        elif tags[last - 1].at >= end and last - 1 not in partners:
            last -= 1
        elif tags[first].at <= start and tags[last - 1].at >= end and partners.get(first) == last - 1:
            first, last = first + 1, last - 1
        else:
            break
    return first, last


def _sentence(text: str, tags: Sequence[Placed]) -> Carrying | None:
    partners = partners_of(tags)
    first, last = _edges(tags, partners, 0, len(text))
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


def _found_again(tags: Sequence[tuple[Placed, str, int]], marked_text: str, translation: str) -> list[int] | None:
    """The characters of tags in a translation: at the words that they stand at in the text that had marks.

    None if it lacks such a word, or some of those that a pair encloses, or has them in another order.

    Args:
        tags: in their order, each with its mark and the number of bytes of words before it.
    """
    one, other = word_spans(marked_text), word_spans(translation)
    if max(len(one), len(other)) > _MOST_WORDS:
        return None
    words = [marked_text[slice(*span)] for span in one], [translation[slice(*span)] for span in other]
    blocks = SequenceMatcher(None, *words, autojunk=False).get_matching_blocks()
    same: dict[int, int] = {block.a + number: block.b + number for block in blocks for number in range(block.size)}
    before = list(accumulate(map(num_bytes, marked_text), initial=0))
    starts, ends = [start for start, _ in one], [end for _, end in one]
    open_at, found = dict[int, int](), list[int]()  # by the number of a pair, its first word

    def character(place: int, is_behind: bool) -> int | None:
        """That in, at or behind the word before or after so many bytes."""
        at = bisect_left(before, place) if is_behind else bisect_right(before, place) - 1
        number = bisect_left(starts, at) - 1 if is_behind else bisect_right(ends, at)
        if number not in same:
            return None
        start, end = one[number]
        return other[same[number]][0] + min(max(at, start), end) - start

    followed = [(mark in CLOSING, place) for _, mark, place in tags[1:]]
    for (tag, mark, place), following in zip(tags, [*followed, None], strict=True):
        is_alone = mark in ALONE
        is_behind = mark in CLOSING or (is_alone and (_is_behind(tag) or following == (True, place)))
        at = character(place, is_behind)
        if at is None and is_alone:
            at = character(place, not is_behind)
        if mark in OPENING:
            open_at[OPENING.index(mark)] = bisect_right(ends, bisect_right(before, place) - 1)
        elif mark in CLOSING:
            inside = range(open_at[CLOSING.index(mark)], bisect_left(starts, bisect_left(before, place)))
            if any(same.get(number) != same.get(inside[0], -1) + number - inside[0] for number in inside):
                return None
        if at is None:
            return None
        found.append(at)
    skipped = [skip_space(translation, at) for at in found]
    return found if skipped == sorted(skipped) else None
