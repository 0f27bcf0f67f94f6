"""Puts the tags of a sentence into its translation, at the words that they belong to.

Every tag that went in comes out once, pairs well nested. Where a tag goes follows from the alignment of the words,
which the model's cross attention gives. Flow: see `markup`.
"""

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise

from mtx.data.writing_systems import IDEOGRAPHS
from mtx.documents.markup import Marked, Placed

_SPACES = re.compile(r"\s+")
_IDEOGRAPH = re.compile(f"[{IDEOGRAPHS}]")
_OPENING, _CLOSING = tuple("([{«„“‘¿¡"), tuple(",.;:!?)]}»”’…%")
_EMPTY_QUOTES = re.compile("[\"'„“”«»‘’‚‹›(\\[{][\"'“”«»‘’‹›)\\]}]")
_MOST_WORK = 1_000_000  # tags times words, which took a second


@dataclass(frozen=True, slots=True)
class Link:
    """A part of a translation, from `start` to `end`, and the character of the source that it translates."""

    start: int
    end: int
    src: float


@dataclass
class _Node:
    """A pair of tags, or one that stands alone, and what it encloses; the root has no tags."""

    tags: tuple[Placed, ...]
    children: list["_Node"] = field(default_factory=list)

    @property
    def is_pair(self) -> bool:
        return len(self.tags) == 2


def put_back(tags: Sequence[Placed], src: str, tgt: str, links: Sequence[Link]) -> Marked:
    """A translation with the tags of its source.

    Args:
        src, tgt: the bare text of both sides.
        links: the parts of the translation, in its order; where there are none, tags are placed in proportion.
    """
    if not tags:
        return [tgt]
    units = _units(tgt, links) or in_proportion(src, tgt)
    is_large = len(tags) * len(units) > _MOST_WORK
    return _written(tgt, _in_order(tags, src, tgt) if is_large else _place(_tree(tags), units, src, tgt))


def _written(tgt: str, placed: Sequence[tuple[int, Placed]]) -> Marked:
    """A translation with tags, each with its character, in their order; spaces around them are as in the source."""
    result, end = Marked(), 0
    for at, group in groupby(placed, key=lambda item: _skip_space(tgt, item[0])):
        here = list(group)
        result += [
            tgt[end:at].rstrip(),
            *_spaced([tag for _, tag in here], tgt, at, sum(tag_at < at for tag_at, _ in here)),
        ]
        end = at
    return [part for part in [*result, tgt[end:]] if part != ""]


def _skip_space(text: str, at: int) -> int:
    """The character that follows in a text, behind white space."""
    match = _SPACES.match(text, at)
    return match.end() if match else at


def _spaced(tags: Sequence[Placed], tgt: str, at: int, num_before: int) -> Marked:
    """The tags of one place, with spaces before, between and behind them: as in the source, and so that words are two.

    Args:
        at: the character of the translation that follows, which is no space.
        num_before: the number of tags that belong to what stands before.
    """
    between = [
        (one.after.isspace() and other.before.isspace())
        or (_stands_apart(one, one.after) and _stands_apart(other, other.before))
        for one, other in pairwise(tags)
    ]
    spaces = [tags[0].before.isspace(), *between, tags[-1].after.isspace()]
    if tgt[:at][-1:].isspace():
        spaces[num_before] |= not any(spaces) and not any(placed.tag.is_break or placed.splits for placed in tags)
    else:  # only what stands for a word needs spaces here
        pairs = [{p.tag.pair for p in tags if p.tag.kind == kind} for kind in ("open", "close")]
        is_word = any(p.tag.kind == "alone" for p in tags) or not pairs[0].isdisjoint(pairs[1])
        preceding, following = tgt[at - 1 : at], tgt[at : at + 1]
        spaces[0] &= is_word and not _is_opening(tgt[:at])
        spaces[-1] &= is_word and following not in _CLOSING
        spaces[0] |= preceding.isalnum() and _stands_apart(tags[0], tags[0].before)
        spaces[0] &= not tags[0].tag.is_break
        spaces[-1] &= not tags[-1].tag.is_break
    spaces[-1] |= tgt[at : at + 1].isalnum() and _stands_apart(tags[-1], tags[-1].after)
    spaces[0] &= at > 0
    spaces[-1] &= at < len(tgt)
    parts = Marked()
    for space, placed in zip(spaces, tags, strict=False):
        parts += [" " * space, placed.tag, *placed.more]
    return [*parts, " " * spaces[-1]]


def _is_opening(text: str) -> bool:
    """Whether a text ends in an opening bracket or quotation mark; in German and its neighbours “ closes."""
    is_closing = text.endswith("“") and text.count("„") >= text.count("“")
    return text.endswith(_OPENING) and not is_closing


def _stands_apart(placed: Placed, neighbour: str) -> bool:
    """Whether a tag stands for a word, whose neighbour in the source was no letter or digit."""
    is_word = placed.tag.kind == "alone" and not placed.tag.is_break
    return is_word and neighbour != "" and not neighbour.isalnum()


def _in_order(tags: Sequence[Placed], src: str, tgt: str) -> list[tuple[int, Placed]]:
    """The tags in the order of the source, in proportion: for a segment with so many that more would take too long."""
    starts = [link.start for link in in_proportion(src, tgt)]
    result = list[tuple[int, Placed]]()
    for number, at in _nested(tags, _partners_of(tags)):
        word = bisect_left(starts, at * len(tgt) / max(1, len(src)))
        result.append((starts[word] if word < len(starts) else len(tgt), tags[number]))
    return result


def in_proportion(src: str, tgt: str) -> list[Link]:
    """Links each word of a translation to the same place in the source, where nothing better is known."""
    return [Link(m.start(), m.end(), m.start() * len(src) / len(tgt)) for m in re.finditer(r"\S+", tgt)]


def _units(tgt: str, links: Sequence[Link]) -> list[Link]:
    """The links, joined where a cut between two would divide a word; without the space around them.

    Punctuation is one unit for each character.
    """
    units = list[Link]()
    for link in links:
        text = tgt[link.start : link.end]
        start, end = link.start + len(text) - len(text.lstrip()), link.end - len(text) + len(text.rstrip())
        if start >= end:
            continue
        if units and units[-1].end == start and _is_in_word(tgt, start):
            units[-1] = Link(units[-1].start, end, units[-1].src)  # the first piece decides for the word
        elif any(map(str.isalnum, text)):
            units.append(Link(start, end, link.src))
        else:
            middle = (end - start - 1) / 2
            units += [Link(at, at + 1, link.src + at - start - middle) for at in range(start, end)]
    return units


def _is_in_word(text: str, at: int) -> bool:
    before, after = text[at - 1], text[at]
    if before.isdigit() != after.isdigit():  # as in CO2, whose 2 may have a tag
        return False
    return before.isalnum() and after.isalnum() and not _IDEOGRAPH.search(before + after)


def _tree(tags: Sequence[Placed]) -> _Node:
    """The pairs of tags with what they enclose; a tag without a partner stands alone."""
    partners = _partners_of(tags)
    root = _Node(())
    stack = [root]
    for number, at in _nested(tags, partners):
        placed = replace(tags[number], at=at)
        partner = partners.get(number)
        if partner is None:
            stack[-1].children.append(_Node((placed,)))
        elif partner > number:
            stack.append(_Node((placed,)))
        else:
            node = stack.pop()
            node.tags += (placed,)
            stack[-1].children.append(node)
    return root


def _partners_of(tags: Sequence[Placed]) -> dict[int, int]:
    """The other tag of each one that has one, both by their numbers."""
    partners, open_tags = dict[int, int](), defaultdict[str | None, list[int]](list)
    for number, tag in enumerate(placed.tag for placed in tags):
        if tag.kind == "open":
            open_tags[tag.pair].append(number)
        elif tag.kind == "close" and open_tags[tag.pair]:
            partner = open_tags[tag.pair].pop()
            partners[number], partners[partner] = partner, number
    return partners


def _nested(tags: Sequence[Placed], partners: dict[int, int]) -> list[tuple[int, int]]:
    """The tags, by their numbers, with their characters, in an order in which all pairs are nested.

    Where a pair overlaps another, it grows until it encloses that one: its end moves behind what is open inside of it,
    or, at the end of an element, the pairs that began inside of that begin before it.
    """
    order, open_pairs, ended = list[tuple[int, int]](), list[int](), set[int]()
    for number, placed in enumerate(tags):
        partner = partners.get(number)
        if partner is None or partner > number:
            order.append((number, placed.at))
            open_pairs += [number] * (partner is not None)
            continue
        if placed.tag.is_element:
            own = open_pairs.index(partner)
            inside = set(open_pairs[own + 1 :])
            open_pairs = [*open_pairs[:own], *open_pairs[own + 1 :], partner]
            if inside:
                begin = next(index for index, (other, _) in enumerate(order) if other == partner)
                moved = [(other, order[begin][1]) for other, _ in order if other in inside]
                order = [*order[:begin], *moved, *(pair for pair in order[begin:] if pair[0] not in inside)]
        ended.add(partner)
        while open_pairs and open_pairs[-1] in ended:
            order.append((partners[open_pairs.pop()], placed.at))
    return order


def _place(root: _Node, units: Sequence[Link], src: str, tgt: str) -> list[tuple[int, Placed]]:
    """The tags, each with its character of the translation, in the order of the result."""
    result = list[tuple[int, Placed]]()
    stack = [_Open(root, units, (0, len(tgt)), src, tgt)]
    while stack:
        top = stack[-1]
        if not top.children:
            stack.pop()
            if top.node.is_pair:
                result.append((top.bounds[1], top.node.tags[1]))
            continue
        start, stop, _, child = top.children.pop()
        start, stop = max(start, top.end), max(stop, top.end)
        top.end = stop
        if child.is_pair:
            result.append((start, child.tags[0]))
            inside = [unit for unit in top.units if start <= unit.start and unit.end <= stop]
            stack.append(_Open(child, inside, (start, stop), src, tgt))
        else:
            result.append((start, child.tags[0]))
    return result


class _Open:
    """A node whose tags are being placed.

    Attributes:
        units, bounds: the part of the translation that it encloses.
        children: from where to where each child goes that has not been placed; the next one is the last.
        end: up to where the translation has tags.
    """

    def __init__(self, node: _Node, units: Sequence[Link], bounds: tuple[int, int], src: str, tgt: str):
        self.node, self.units, self.bounds, self.end = node, units, bounds, bounds[0]
        spans = [(*_span(child, units, bounds, src, tgt), order, child) for order, child in enumerate(node.children)]
        self.children = sorted(spans, key=lambda span: span[:3], reverse=True)


def _span(node: _Node, units: Sequence[Link], bounds: tuple[int, int], src: str, tgt: str) -> tuple[int, int]:
    """From where to where a node encloses the translation: the run of units with the most that it enclosed in `src`."""
    first, last = node.tags[0], node.tags[-1]
    if not node.is_pair or first.at == last.at:
        at = _point(first, units, bounds, src, tgt)
        return at, at
    if first.at == 0 and last.at == len(src):
        return bounds
    best: tuple[int, int] | None = None
    best_sum = start = total = 0
    for number, unit in enumerate(units):
        if total <= 0:
            start, total = number, 0
        total += _weight(unit, first.at, last.at, src, tgt)
        if total > best_sum:
            best, best_sum = (units[start].start, unit.end), total
    if best is None and units:  # no unit translates what it encloses: the nearest one takes its place
        words = [unit for unit in units if any(map(str.isalnum, tgt[unit.start : unit.end]))]
        has_word = any(map(str.isalnum, src[first.at : last.at]))
        candidates = words if has_word and words else units
        nearest = min(candidates, key=lambda unit: _distance(unit, (first.at + last.at) / 2, bounds, src))
        best = nearest.start, nearest.end
    return best or (bounds[0], bounds[0])


def _weight(unit: Link, start: int, end: int, src: str, tgt: str) -> int:
    """1 if a unit translates what stands from `start` to `end`, else -1; 0 for punctuation, of which it is unclear."""
    is_inside, text = start <= unit.src < end, tgt[unit.start : unit.end]
    if any(map(str.isalnum, text)):
        return 1 if is_inside else -1
    return int(is_inside and text in src[start:end])


def _point(placed: Placed, units: Sequence[Link], bounds: tuple[int, int], src: str, tgt: str) -> int:
    """The character of the translation for a tag that encloses nothing: beside the word that it stood beside."""
    if placed.at == 0 or not units:
        return bounds[0]
    if placed.at >= len(src):
        return bounds[1]

    def distance(unit: Link) -> tuple[float, float]:
        return _distance(unit, placed.at, bounds, src)

    enclosed = _enclosed(placed, src, tgt, bounds)
    if enclosed is not None:
        return enclosed
    following, preceding = src[placed.at : placed.at + 1], src[max(0, placed.at - 2) : placed.at].strip()[-1:]
    is_before = _is_punctuation(following) and not placed.after.isspace()  # such as `x` in "see `x`."
    mark = following if is_before else preceding if _is_punctuation(preceding) else None
    same = [unit for unit in units if tgt[unit.start : unit.end] == mark]
    if same:
        nearest = min(same, key=lambda unit: ((unit.src < placed.at) == is_before, *distance(unit)))
        return nearest.start if is_before else nearest.end
    units = [unit for unit in units if any(map(str.isalnum, tgt[unit.start : unit.end]))] or units
    after = [unit for unit in units if unit.src >= placed.at]
    before = [unit for unit in units if unit.src < placed.at]
    if after and (not before or (placed.before.isspace() and not placed.after.isspace())):
        return min(after, key=distance).start
    return min(before, key=distance).end


def _enclosed(placed: Placed, src: str, tgt: str, bounds: tuple[int, int]) -> int | None:
    """Where a tag goes that stood alone in quotes or brackets, as in '%s': into those of the translation."""
    if not _EMPTY_QUOTES.fullmatch(src[placed.at - 1 : placed.at + 1]) or placed.before.isspace():
        return None
    expected = bounds[0] + placed.at / len(src) * (bounds[1] - bounds[0])
    places = [match.start() + 1 for match in _EMPTY_QUOTES.finditer(tgt, *bounds)]
    return min(places, key=lambda at: abs(at - expected), default=None)


def _is_punctuation(character: str) -> bool:
    return not character.isalnum() and not character.isspace() and character != ""


def _distance(unit: Link, at: float, bounds: tuple[int, int], src: str) -> tuple[float, float]:
    """How far the source of a unit is from a character, and the unit itself from the same place in the sentence."""
    expected = bounds[0] + at / len(src) * (bounds[1] - bounds[0])
    return abs(unit.src - at), abs((unit.start + unit.end) / 2 - expected)
