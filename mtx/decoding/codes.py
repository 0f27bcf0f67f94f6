"""The codes of a text on its way through a `Translator`: out of its sentences, and back into their translations.

Flow: a line or a segment of a document -> `units` -> `sentences` -> search -> `link_pieces` -> `put_back`. Every tag of
the source appears once in the translation, at the matching words, with pairs well nested: its position follows from the
word alignment of the model's cross attention.
"""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise, takewhile, zip_longest
from typing import NamedTuple

import numpy as np

from mtx.data.markup import LETTER, Marked, Placed, Tag, Tags, clean_text, mark_up, raw, with_tags
from mtx.data.sentencepiece_models import piece_bytes
from mtx.decoding.options import Attention
from mtx.storage.text_files import replace_surrogates

# Tags between sentences: blocks of HTML, blank lines, bullets, the mark between plural forms, and between cells
_BETWEEN_SENTENCES = re.compile(
    r"(?:<|&lt;)/?(?:p(?:ara)?|li|div|h[1-6]|t[dhr]|[uod]l|d[td]|blockquote)(?![\w-])"
    r"|^\|+$|^ *\t[ \t]*$|\n\s*[\n>•*+–-]",
    re.IGNORECASE,
)
_CONTROLS = re.compile("[\x00-\x08\n-\x1f\x7f-\x9f\u2028\u2029]")
_TABS = re.compile("(?<! ) *\t[ \t]*")
_SHORT_LINE = 40  # characters; no program has wrapped it
_BLANK = re.compile(r"nbsp|space|#(?:160|xa0);|\xa0|^ +$", re.IGNORECASE)  # a break that ends no line
_BALANCING_ROUNDS = 5
_LEAST = 1e-9
_INK = re.compile(r"\S*\d(?=\W+\Z)|\S(?:.*\S)?", re.DOTALL)  # a piece may have a digit and the full stop after it
# Between two letters other than ideographs, or between two digits: the 2 of CO2 may have a tag
_WITHIN_WORD = re.compile(rf"(?<={LETTER})(?={LETTER})|(?<=\d)(?=\d)")
_INITIAL = re.compile(rf"\b{LETTER}{_WITHIN_WORD.pattern}")  # the first letter of a word
_NUMBER = re.compile(r" \d+\Z")  # at the end of a pair, the same in every language
_OPENING = frozenset(["", *"([{«„‘¿¡"])  # characters without a space next to them; "" is an end of the text
_CLOSING = frozenset(["", *",.;:!?)]}»”’…%"])
_EMPTY_QUOTES = re.compile("[\"'„“”«»‘’‚‹›(\\[{][\"'“”«»‘’‹›)\\]}]")
_ALL, _END = -1, -2  # instead of the number of a tag: the sentence, and the end of a pair
_MOST_WORK = 1_000_000  # tags times words, about a second

_Todo = tuple[int, int, int, Placed | None]  # the span of a tag in a translation, its number, and itself
Span = tuple[int, int]  # the first character of a part of a text, and its end


class Link(NamedTuple):
    """A part of a translation, from `start` to `end`, and the character of the source that it translates."""

    start: int
    end: int
    src: float
    is_word: bool = True


Links = Sequence[Link]  # in the order of the translation


def mark_up_line(line: str, lead: re.Pattern[str] | None) -> Marked:
    """A plain line as what `lead` matches, text, codes and TABs; None leaves all of it text. Controls are spaces."""
    text = _CONTROLS.sub(" ", replace_surrogates(line))
    bare = text.rstrip(" ")
    text = "-- " if bare == "--" and text != bare else bare  # the mark above a signature ends in a space
    if not (text.strip() and lead):
        return [clean_text(text)]
    _, before, rest = lead.split(text, 1)
    return [before] * bool(before) + with_tags(mark_up([rest]), _TABS, lambda tab: Tag(tab, is_break=True))


def units(marked: Marked, lead: re.Pattern[str]) -> Iterator[Marked]:
    """The texts of a segment that are translated one by one, and what separates them: their joined parts are all of it.

    Separators are tags between sentences outside all pairs, breaks after a short line, unless the next one begins with
    a small letter, white space at the edges of a text, and what `lead` matches before it.
    """
    texts = [Marked()]
    depth = 0
    length = 0
    for part, following in zip_longest(marked, marked[1:], fillvalue=""):
        if isinstance(part, str):
            length += len(part)
        else:
            is_line = part.is_break and not _BLANK.search(part.raw)
            is_cut = is_line and length < _SHORT_LINE and not raw([following]).lstrip()[:1].islower()
            length *= not is_line
            if not depth and (is_cut or _BETWEEN_SENTENCES.search(part.raw)):
                texts += [[part], []]
                continue
            depth += (part.kind == "open") - (part.kind == "close")
        texts[-1].append(part)
    for text in texts:
        before = after = ""
        if text and isinstance(text[0], str) and (match := lead.match(text[0])):
            before = match[0]
            text = [text[0][match.end() :], *text[1:]]
        if text and isinstance(text[-1], str):
            end = text[-1].rstrip()
            after = text[-1][len(end) :]
            text = [*text[:-1], end]
        yield [before]
        yield text
        yield [after]


def sentences(text: str, tags: Tags, split: Callable[[str], list[str]] | None) -> list[tuple[str, Tags]]:
    """The sentences of a bare text, each with its tags; a pair around several sentences encloses a part of each."""
    cuts = {tag.at for tag in tags if any(_BETWEEN_SENTENCES.search(each.raw) for each in tag.tags)}
    parts = [text[begin:end].strip() for begin, end in pairwise(sorted({0, *cuts, len(text)}))]
    texts = [sentence for part in parts if part for sentence in (split(part) if split else [part])]
    starts = list[int]()
    end = 0
    for sentence in texts:
        starts.append(max(end, text.find(sentence, end)))
        end = starts[-1] + len(sentence)
    return divided(texts, starts, tags)


def divided(texts: Sequence[str], starts: Sequence[int], tags: Tags) -> list[tuple[str, Tags]]:
    """Parts of a text, which begin at these characters, each with its tags.

    A pair around several parts encloses each of them: between two parts it has ends that are not written.
    """
    if not tags:
        return [(text, []) for text in texts]
    numbers = [max(0, bisect_right(starts, tag.at - (tag.tags[0].kind == "close")) - 1) for tag in tags]
    by_text = [list[Placed]() for _ in texts]
    for number, tag in zip(numbers, tags, strict=True):
        by_text[number].append(replace(tag, at=min(tag.at - starts[number], len(texts[number]))))
    for first, last in sorted(match_pairs(tags).items(), reverse=True):
        pair = tags[first].tags[0].pair
        for number in range(numbers[first], numbers[last]):
            by_text[number].append(Placed((Tag("", "close", pair),), len(texts[number])))
            by_text[number + 1].insert(0, Placed((Tag("", "open", pair),), 0))
    return list(zip(texts, by_text, strict=True))


def link_pieces(attention: Attention, src: tuple[Sequence[str], str], tgt: tuple[Sequence[str], str]) -> list[Link]:
    """Links each piece of a translation to the middle of its source piece, by the attention.

    Args:
        attention: its rows and columns for `</s>` do not count.
        src, tgt: the pieces of each side, and its text.
    """
    links = []
    src_ends, tgt_ends = ([0.0, *_ends(*side)] for side in (src, tgt))
    balanced = _balance(attention[: len(tgt_ends) - 1, : len(src_ends) - 1])
    for row, (start, end) in zip(balanced, pairwise(map(round, tgt_ends)), strict=False):
        column = int(row.argmax())
        if end > start:
            links.append(Link(start, end, (src_ends[column] + src_ends[column + 1]) / 2))
    return links


def _balance(attention: Attention) -> Attention:
    """Balanced attention: each source piece gets the same total, and so does each piece of the translation.

    Some pieces attract the attention of many others, such as the first noun or a full stop. Sinkhorn and Knopp 1967.
    """
    for axis in (1, 0) * _BALANCING_ROUNDS if len(attention) > 1 else ():
        attention = attention / np.maximum(attention.sum(axis, keepdims=True), _LEAST)
    return attention


def _ends(pieces: Sequence[str], text: str) -> list[float]:
    """The end of each piece but `</s>` in a text, in characters, even if normalisation has changed its length."""
    texts = accumulate(map(piece_bytes, pieces[:-1]))  # `</s>` has no text
    ends = [len(data.decode("utf-8", "ignore")) - 1 for data in texts]  # the first piece begins with a space
    scale = len(text) / ends[-1] if ends and ends[-1] > 0 else 1.0
    return [max(0, end) * scale for end in ends]


def put_back(tags: Tags, src: str, tgt: str, links: Links) -> Marked:
    """A translation with the tags of its source; spaces around them are as in the source.

    Args:
        src, tgt: the bare text of both sides.
        links: the parts of the translation, in its order; without links, tags are placed proportionally.
    """
    if not tags:
        return [tgt]
    words = re.finditer(r"\S+", tgt)
    units = _units(tgt, links or [Link(*word.span(), word.start() * len(src) / len(tgt)) for word in words])
    units = units[:: 1 + len(tags) * len(units) // _MOST_WORK]
    placed = _places(tags, _Aligned(src, tgt, units, 0, len(tgt)))
    result = Marked()
    end = 0
    for at, group in groupby(placed, key=lambda item: len(tgt) - len(tgt[item[0] :].lstrip())):
        result += [tgt[end:at].rstrip(), *_space([tag for _, tag in group], tgt[:at], tgt[at : at + 1])]
        end = at
    return [part for part in [*result, tgt[end:]] if raw([part])]  # without the ends that `divided` adds


def _units(tgt: str, links: Links) -> list[Link]:
    """The links, joined where a boundary would divide a word, without surrounding space.

    Punctuation is one unit for each character.
    """
    units = list[Link]()
    for link in links:
        for ink in _INK.finditer(tgt, link.start, link.end):
            start, end = ink.span()
            if units and units[-1].end == start and _WITHIN_WORD.match(tgt, start):
                units[-1] = units[-1]._replace(end=end)  # the first piece determines the word's link
            elif any(map(str.isalnum, ink[0])):
                units.append(Link(start, end, link.src))
            else:
                middle = (start + end - 1) / 2
                units += [Link(at, at + 1, link.src + at - middle, False) for at in range(start, end)]
    return units


def _space(tags: Tags, before: str, following: str) -> Marked:
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


def match_pairs(tags: Tags) -> dict[int, int]:
    """The number of the closing tag for the number of each opening one that has it."""
    lasts = dict[int, int]()
    open_tags = defaultdict[str | None, list[int]](list)
    for number, tag in enumerate(placed.tags[0] for placed in tags):
        if tag.kind == "open":
            open_tags[tag.pair].append(number)
        elif tag.kind == "close" and open_tags[tag.pair]:
            lasts[open_tags[tag.pair].pop()] = number
    return lasts


def _places(tags: Tags, whole: "_Aligned") -> list[tuple[int, Placed]]:
    """The tags, each with its character of the translation, in the order of the result, in which all pairs are nested.

    A pair that overlaps another grows: its end moves after the tags that are open inside it.
    """
    lasts = match_pairs(tags)
    firsts = {last: first for first, last in lasts.items()}
    inside, ends = {_ALL: list[int]()}, dict[int, Placed]()  # of each pair, and of the sentence as if it were in one
    open_pairs = [_ALL]
    ended = set[int]()
    for number, placed in enumerate(tags):
        if number in firsts:
            ended.add(firsts[number])
            while open_pairs[-1] in ended:
                first = open_pairs.pop()
                ends[first] = replace(tags[lasts[first]], at=placed.at)
            continue
        inside[open_pairs[-1]].append(number)
        if number in lasts:
            inside[number] = []
            open_pairs.append(number)
    result = list[tuple[int, Placed]]()
    todo: list[_Todo] = [(0, len(whole.tgt), _ALL, None)]
    while todo:
        start, stop, number, tag = todo.pop()
        result += [(start, tag)] if tag else []
        if number not in inside:
            continue
        around = (tags[number].at, ends[number].at) if tag else (0, len(whole.src))
        units = [unit for unit in whole.units if start <= unit.start and unit.end <= stop]
        part = replace(whole, units=units, start=start, stop=stop)
        spans = [(*part.span(tags[child], ends.get(child, tags[child]), around), child) for child in inside[number]]
        children = list[_Todo]()
        end = start
        for first, last, child in sorted(spans):
            first = max(first, end)
            end = max(last, end)
            children.append((first, end, child, tags[child]))
            if child in ends:
                children.append((end, end, _END, ends[child]))
        todo += reversed(children)
    return result


@dataclass(frozen=True)
class _Aligned:
    """A sentence and its translation, or a part of the translation from `start` to `stop`, with its units."""

    src: str
    tgt: str
    units: Links
    start: int
    stop: int

    def span(self, first: Placed, last: Placed, around: Span) -> Span:
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
        number = _NUMBER.search(self.src, first.at, last.at)
        if number and re.match(rf"{number[0]}\b", self.tgt[end : self.stop]):
            end += len(number[0])
        is_last = last.at == around[1] and not any(map(str.isalnum, self.tgt[end : self.stop]))
        if last.at - first.at == 1 and _INITIAL.match(self.src, first.at):
            return start, start + 1
        return start, self.stop if is_last else end

    def _run(self, start: int, end: int) -> Span | None:
        """The run of units with the most translations of a part of the source, and the fewest others.

        A word counts 1 or -1. Punctuation counts 1 if the part has it too, else 0, since its source is unclear.
        """
        part = self.src[start:end]
        best: Span | None = None
        best_sum = total = begin = 0
        for unit in self.units:
            if total <= 0:
                begin = unit.start
                total = 0
            is_found = unit.is_word or self.tgt[unit.start : unit.end] in part
            total += is_found if start <= unit.src < end else -unit.is_word
            if total > best_sum:
                best = (begin, unit.end)
                best_sum = total
        return best

    def _point(self, placed: Placed, around: Span) -> int:
        """The position of a tag that encloses nothing: next to the translation of its neighbouring word or sign."""
        at = placed.at
        if at in around:
            return self.start if at == around[0] else self.stop
        if _EMPTY_QUOTES.fullmatch(self.src, at - 1, at + 1):  # as in '%s'
            places = [match.start() + 1 for match in _EMPTY_QUOTES.finditer(self.tgt, self.start, self.stop)]
            if places:
                return min(places, key=lambda place: abs(place - at * len(self.tgt) / len(self.src)))
        preceding = self.src[max(0, at - 2) : at].strip()[-1:]
        following = self.src[at]
        is_sign = not (following.isalnum() or following.isspace())
        is_before = " " not in (placed.after, following) and (is_sign or placed.before.isspace())
        units = self._alike(following if is_before else preceding)
        near = [unit for unit in units if (unit.src >= at) == is_before]
        is_before ^= not near and units[0].is_word
        unit = self._nearest(near or units, at)
        return unit.start if is_before else unit.end

    def _alike(self, part: str) -> Links:
        """The units that may translate a part of the source, whatever their links: words, or the same signs."""
        words = [unit for unit in self.units if unit.is_word]
        signs = [unit for unit in self.units if not unit.is_word and self.tgt[unit.start : unit.end] in part]
        return (signs if not any(map(str.isalnum, part)) else words) or words or self.units

    def _nearest(self, units: Links, at: float) -> Link:
        """The unit nearest to a character of the source, by its link, then by its position."""
        expected = at * len(self.tgt) / len(self.src)
        return min(units, key=lambda unit: (abs(unit.src - at), abs((unit.start + unit.end) / 2 - expected)))
