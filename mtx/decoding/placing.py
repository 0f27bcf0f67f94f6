"""Puts the tags of a sentence into its translation, at the matching words.

Every tag of the source appears once in the translation, with pairs well nested. Its position follows from the word
alignment of the model's cross attention. Flow: see `codes`.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise, takewhile
from typing import NamedTuple

from mtx.data.inline_codes import LETTER
from mtx.data.markup import Marked, Placed

_INK = re.compile(r"\S(?:.*\S)?", re.DOTALL)
# Between two letters other than ideographs, or between two digits: the 2 of CO2 may have a tag
_WITHIN_WORD = re.compile(rf"(?<={LETTER})(?={LETTER})|(?<=\d)(?=\d)")
_OPENING = frozenset(["", *"([{«„‘¿¡"])  # characters without a space next to them; "" is an end of the text
_CLOSING = frozenset(["", *",.;:!?)]}»”’…%"])
_EMPTY_QUOTES = re.compile("[\"'„“”«»‘’‚‹›(\\[{][\"'“”«»‘’‹›)\\]}]")
_MOST_WORK = 1_000_000  # tags times words, about a second


class Link(NamedTuple):
    """A part of a translation, from `start` to `end`, and the character of the source that it translates."""

    start: int
    end: int
    src: float
    is_word: bool = True


def put_back(tags: Sequence[Placed], src: str, tgt: str, links: Sequence[Link]) -> Marked:
    """A translation with the tags of its source.

    Args:
        src, tgt: the bare text of both sides.
        links: the parts of the translation, in its order; without links, tags are placed proportionally.
    """
    if not tags:
        return [tgt]
    words = re.finditer(r"\S+", tgt)
    units = _units(tgt, links or [Link(*word.span(), word.start() * len(src) / len(tgt)) for word in words])
    units = units[:: 1 + len(tags) * len(units) // _MOST_WORK]
    return _write(tgt, _places(tags, _Aligned(src, tgt, units, 0, len(tgt))))


def _units(tgt: str, links: Sequence[Link]) -> list[Link]:
    """The links, joined where a boundary would divide a word, without surrounding space.

    Punctuation is one unit for each character.
    """
    units = list[Link]()
    for link in links:
        match = _INK.search(tgt, link.start, link.end)
        if match is None:
            continue
        start, end = match.span()
        if units and units[-1].end == start and _WITHIN_WORD.match(tgt, start):
            units[-1] = units[-1]._replace(end=end)  # the first piece determines the word's link
        elif any(map(str.isalnum, match[0])):
            units.append(Link(start, end, link.src))
        else:
            middle = (start + end - 1) / 2
            units += [Link(at, at + 1, link.src + at - middle, False) for at in range(start, end)]
    return units


def _write(tgt: str, placed: Sequence[tuple[int, Placed]]) -> Marked:
    """A translation with tags at the given characters, in order; spaces around them are as in the source."""
    result, end = Marked(), 0
    for at, group in groupby(placed, key=lambda item: len(tgt) - len(tgt[item[0] :].lstrip())):
        result += [tgt[end:at].rstrip(), *_space([tag for _, tag in group], tgt[:at], tgt[at : at + 1])]
        end = at
    return [part for part in [*result, tgt[end:]] if part != ""]


def _space(tags: Sequence[Placed], before: str, following: str) -> Marked:
    """The tags of one position, with spaces before, between and after them as in the source and between words.

    Args:
        before, following: the translation up to here, and its next character, not a space.
    """
    first = tags[0]
    last = tags[-1]
    preceding = before.rstrip()[-1:]
    spaces = [
        first.before.isspace() or (preceding.isalnum() and _stands_apart(first, first.before)),
        *(
            (one.after.isspace() and other.before.isspace())
            or (_stands_apart(one, one.after) and _stands_apart(other, other.before))
            for one, other in pairwise(tags)
        ),
        last.after.isspace() or (following.isalnum() and _stands_apart(last, last.after)),
    ]
    if not before[-1:].isspace():  # only tags that replace a word need spaces here
        kinds = "".join(placed.tags[0].kind for placed in tags)
        is_word = any(placed.is_word for placed in tags) or "openclose" in kinds
        spaces[0] &= is_word and not first.ends_word and preceding not in _OPENING
        spaces[-1] &= is_word and not last.ends_word and following not in _CLOSING
    elif not any(spaces) and not any(placed.ends_word for placed in tags):
        num_closing = sum(1 for _ in takewhile(lambda placed: placed.tags[0].kind == "close", tags))
        spaces[num_closing] = True
    parts = Marked()
    for space, placed in zip(spaces, tags, strict=False):
        parts += [" " * space, *placed.tags]
    return [*parts, " " * spaces[-1]]


def _stands_apart(placed: Placed, neighbour: str) -> bool:
    """Whether a tag replaces a word, and its neighbour in the source was not a letter or digit."""
    return placed.is_word and neighbour != "" and not neighbour.isalnum()


def match_pairs(tags: Sequence[Placed]) -> dict[int, int]:
    """The number of the closing tag for the number of each opening one that has it."""
    lasts, open_tags = dict[int, int](), defaultdict[str | None, list[int]](list)
    for number, tag in enumerate(placed.tags[0] for placed in tags):
        if tag.kind == "open":
            open_tags[tag.pair].append(number)
        elif tag.kind == "close" and open_tags[tag.pair]:
            lasts[open_tags[tag.pair].pop()] = number
    return lasts


def _nest(tags: Sequence[Placed]) -> tuple[list[Placed], dict[int, int]]:
    """The tags in an order in which all pairs are nested, and the start and end of each pair in it.

    A pair that overlaps another grows: its end moves after the tags that are open inside it.
    """
    lasts = match_pairs(tags)
    firsts = {last: first for first, last in lasts.items()}
    order = list[Placed]()
    pairs = dict[int, int]()
    open_pairs = list[tuple[int, int]]()
    ended = set[int]()
    for number, placed in enumerate(tags):
        if number not in firsts:
            open_pairs += [(number, len(order))] * (number in lasts)
            order.append(placed)
            continue
        ended.add(firsts[number])
        while open_pairs and open_pairs[-1][0] in ended:
            first, begin = open_pairs.pop()
            pairs[begin] = len(order)
            order.append(replace(tags[lasts[first]], at=placed.at))
    return order, pairs


def _places(tags: Sequence[Placed], whole: "_Aligned") -> list[tuple[int, Placed]]:
    """The tags, each with its character of the translation, in the order of the result."""
    order, pairs = _nest(tags)
    pairs[-1] = len(order)  # the sentence, as if it were enclosed in a pair
    result, todo = list[tuple[int, Placed]](), [(0, len(whole.tgt), -1)]
    while todo:
        start, stop, number = todo.pop()
        if number >= 0:
            result.append((start, order[number]))
        if number not in pairs:
            continue
        around = (order[number].at, order[pairs[number]].at) if number >= 0 else (0, len(whole.src))
        inside = whole.part(start, stop)
        spans, child = list[tuple[int, int, int]](), number + 1
        while child < pairs[number]:
            last = pairs.get(child, child)
            spans.append((*inside.span(order[child], order[last], around), child))
            child = last + 1
        children, end = list[tuple[int, int, int]](), start
        for first, last, child in sorted(spans):
            first, end = max(first, end), max(last, end)
            children.append((first, end, child))
            if child in pairs:
                children.append((end, end, pairs[child]))
        todo += reversed(children)
    return result


@dataclass(frozen=True)
class _Aligned:
    """A sentence and its translation, or a part of the translation from `start` to `stop`, with its units."""

    src: str
    tgt: str
    units: Sequence[Link]
    start: int
    stop: int

    def part(self, start: int, stop: int) -> "_Aligned":
        """The part between two characters of the translation."""
        units = [unit for unit in self.units if start <= unit.start and unit.end <= stop]
        return replace(self, units=units, start=start, stop=stop)

    def span(self, first: Placed, last: Placed, around: tuple[int, int]) -> tuple[int, int]:
        """The span that a pair of tags encloses in the translation, or the position of a single tag.

        Args:
            around: the span of the source that this part translates.
        """
        if (first.at, last.at) == around:
            return self.start, self.stop
        if not self.units:
            return self.start, self.start
        if first.at == last.at:
            at = self._point(first, around)
            return at, at
        alike = self._alike(self.src[first.at : last.at])
        start, end = self._run(first.at, last.at) or self._nearest(alike, (first.at + last.at) / 2)[:2]
        is_last = last.at == around[1] and not any(map(str.isalnum, self.tgt[end : self.stop]))
        return start, self.stop if is_last else end

    def _run(self, start: int, end: int) -> tuple[int, int] | None:
        """The run of units with the most translations of a part of the source, and the fewest others.

        A word counts 1 or -1. Punctuation counts 1 if the part has it too, else 0, since its source is unclear.
        """
        part = self.src[start:end]
        best: tuple[int, int] | None = None
        best_sum = total = begin = 0
        for unit in self.units:
            if total <= 0:
                begin, total = unit.start, 0
            is_found = unit.is_word or self.tgt[unit.start : unit.end] in part
            total += is_found if start <= unit.src < end else -unit.is_word
            if total > best_sum:
                best, best_sum = (begin, unit.end), total
        return best

    def _point(self, placed: Placed, around: tuple[int, int]) -> int:
        """The position of a tag that encloses nothing: next to the translation of its neighbouring word or sign."""
        at = placed.at
        if at in around:
            return self.start if at == around[0] else self.stop
        if _EMPTY_QUOTES.fullmatch(self.src, at - 1, at + 1):  # as in '%s'
            places = [match.start() + 1 for match in _EMPTY_QUOTES.finditer(self.tgt, self.start, self.stop)]
            if places:
                return min(places, key=lambda place: abs(place - at * len(self.tgt) / len(self.src)))
        preceding, following = self.src[max(0, at - 2) : at].strip()[-1:], self.src[at]
        is_before = not placed.after.isspace() and (_is_sign(following) or placed.before.isspace())
        units = self._alike(following if is_before else preceding)
        near = [unit for unit in units if (unit.src >= at) == is_before]
        is_before ^= not near and units[0].is_word
        unit = self._nearest(near or units, at)
        return unit.start if is_before else unit.end

    def _alike(self, part: str) -> Sequence[Link]:
        """The units that may translate a part of the source, whatever their links: words, or the same signs."""
        words = [unit for unit in self.units if unit.is_word]
        signs = [unit for unit in self.units if not unit.is_word and self.tgt[unit.start : unit.end] in part]
        return (signs if not any(map(str.isalnum, part)) else words) or words or self.units

    def _nearest(self, units: Sequence[Link], at: float) -> Link:
        """The unit nearest to a character of the source, by its link, then by its position."""
        expected = at * len(self.tgt) / len(self.src)
        return min(units, key=lambda unit: (abs(unit.src - at), abs((unit.start + unit.end) / 2 - expected)))


def _is_sign(character: str) -> bool:
    return not character.isalnum() and character.strip() != ""
