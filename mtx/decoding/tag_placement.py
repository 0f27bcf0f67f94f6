"""The codes of a text on its way through a `Translator`: out of its sentences, and back into their translations.

Flow: a line or a segment of a document -> `units` -> `sentences` -> search -> `link_pieces` -> `put_back`. Every tag of
the source appears once in the translation, at the matching words, with pairs well nested: its position follows from the
links of `mtx.decoding.word_alignment`.
"""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise, takewhile
from operator import itemgetter
from typing import NamedTuple

from mtx.data.markup import LETTER, Marked, Placed, Tag, Tags, clean_text, mark_up, raw, with_tags
from mtx.decoding.word_alignment import WITHIN_WORD, Link, Links, join_links
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
_INITIAL = re.compile(rf"\b{LETTER}{WITHIN_WORD.pattern}")  # the first letter of a word
_NUMBER = re.compile(r" \d+\Z")  # at the end of a pair, the same in every language
_OPENING = frozenset(["", *"([{«„‘¿¡"])  # characters without a space next to them; "" is an end of the text
_CLOSING = frozenset(["", *",.;:!?)]}»”’…%"])
_EMPTY_QUOTES = re.compile("[\"'„“”«»‘’‚‹›(\\[{][\"'“”«»‘’‹›)\\]}]")
_MOST_WORK = 1_000_000  # tags times words, about a second

Span = tuple[int, int]  # the first character of a part of a text, and its end


def mark_up_line(line: str, lead: re.Pattern[str] | None) -> Marked:
    """A plain line as what `lead` matches, text, codes and TABs; None leaves all of it text. Controls are spaces."""
    text = _CONTROLS.sub(" ", replace_surrogates(line))
    stripped = text.rstrip(" ")
    is_signature_mark = stripped == "--" and text != stripped  # it ends in a space
    text = "-- " if is_signature_mark else stripped
    if not (text.strip() and lead):
        return [clean_text(text)]
    _, lead_text, sentence = lead.split(text, 1)
    marked = with_tags(mark_up([sentence]), _TABS, lambda tab: Tag(tab, is_break=True))
    return [lead_text, *marked] if lead_text else marked


def units(marked: Marked, lead: re.Pattern[str]) -> Iterator[Marked]:
    """The texts of a segment that are translated one by one, and what separates them: their joined parts are all of it.

    Separators are tags between sentences outside all pairs, breaks after a short line, unless the next one begins with
    a small letter, white space at the edges of a text, and what `lead` matches before it.
    """
    texts = [Marked()]
    depth = 0
    length = 0
    for number, part in enumerate(marked):
        if isinstance(part, str):
            length += len(part)
        else:
            following = raw(marked[number + 1 : number + 2])
            is_line = part.is_break and not _BLANK.search(part.raw)
            is_cut = is_line and length < _SHORT_LINE and not following.lstrip()[:1].islower()
            if is_line:
                length = 0
            if not depth and (is_cut or _BETWEEN_SENTENCES.search(part.raw)):
                texts += [[part], []]
                continue
            if part.kind == "open":
                depth += 1
            elif part.kind == "close":
                depth -= 1
        texts[-1].append(part)
    for text in texts:
        leading = ""
        trailing = ""
        if text and isinstance(text[0], str) and (match := lead.match(text[0])):
            leading = match[0]
            text = [text[0][match.end() :], *text[1:]]
        if text and isinstance(text[-1], str):
            stripped = text[-1].rstrip()
            trailing = text[-1][len(stripped) :]
            text = [*text[:-1], stripped]
        yield [leading]
        yield text
        yield [trailing]


def sentences(text: str, tags: Tags, split: Callable[[str], list[str]] | None) -> list[tuple[str, Tags]]:
    """The sentences of a bare text, each with its tags; a pair around several sentences encloses a part of each."""
    cuts = {placed.at for placed in tags if any(_BETWEEN_SENTENCES.search(tag.raw) for tag in placed.tags)}
    texts = list[str]()
    for start, stop in pairwise(sorted({0, *cuts, len(text)})):
        part = text[start:stop].strip()
        if part:
            texts += split(part) if split else [part]
    starts = list[int]()
    sentence_end = 0
    for sentence in texts:
        starts.append(max(sentence_end, text.find(sentence, sentence_end)))
        sentence_end = starts[-1] + len(sentence)
    return divided(texts, starts, tags)


def divided(texts: Sequence[str], starts: Sequence[int], tags: Tags) -> list[tuple[str, Tags]]:
    """Parts of a text, which begin at these characters, each with its tags.

    A pair around several parts encloses each of them: between two parts it has ends that are not written.
    """
    if not tags:
        return [(text, []) for text in texts]
    numbers = list[int]()  # of the part of each tag
    tags_by_part = [list[Placed]() for _ in texts]
    for tag in tags:
        # A closing tag where one part ends and the next one begins is that of the first.
        is_closing = tag.tags[0].kind == "close"
        number = max(0, bisect_right(starts, tag.at - 1 if is_closing else tag.at) - 1)
        numbers.append(number)
        tags_by_part[number].append(replace(tag, at=min(tag.at - starts[number], len(texts[number]))))
    for opening, closing in sorted(match_pairs(tags).items(), reverse=True):
        pair = tags[opening].tags[0].pair
        for number in range(numbers[opening], numbers[closing]):
            tags_by_part[number].append(Placed((Tag("", "close", pair),), len(texts[number])))
            tags_by_part[number + 1].insert(0, Placed((Tag("", "open", pair),), 0))
    return list(zip(texts, tags_by_part, strict=True))


def put_back(tags: Tags, src: str, tgt: str, links: Links) -> Marked:
    """A translation with the tags of its source; spaces around them are as in the source.

    Args:
        src, tgt: the bare text of both sides.
        links: the parts of the translation, in its order; without links, tags are placed proportionally.
    """
    if not tags:
        return [tgt]
    if not links:
        words = re.finditer(r"\S+", tgt)
        links = [Link(*word.span(), word.start() * len(src) / len(tgt)) for word in words]
    joined_links = join_links(tgt, links)
    work = len(tags) * len(joined_links)
    if work >= _MOST_WORK:
        joined_links = joined_links[:: 1 + work // _MOST_WORK]  # every second or third one, and so on, to save time
    places = _places(tags, _Aligned(src, tgt, joined_links, 0, len(tgt)))
    placed = [(_skip_space(tgt, at), tag) for at, tag in places]
    result = Marked()
    num_written = 0  # characters of the translation
    for at, group in groupby(placed, key=itemgetter(0)):
        result += [tgt[num_written:at].rstrip(), *_add_spaces([tag for _, tag in group], tgt[:at], tgt[at : at + 1])]
        num_written = at
    return [part for part in [*result, tgt[num_written:]] if raw([part])]  # without the ends that `divided` adds


def _skip_space(text: str, start: int) -> int:
    """The first character from `start` on that is not a space; the end of the text if there is none."""
    return len(text) - len(text[start:].lstrip())


def _add_spaces(tags: Tags, before: str, following: str) -> Marked:
    """The tags of one position, with spaces before, between and after them as in the source and between words.

    Args:
        before, following: the translation up to here, and its next character, not a space.
    """
    first = tags[0]
    last = tags[-1]
    preceding = before.rstrip()[-1:]
    has_space_before = first.before.isspace() or (preceding.isalnum() and _stands_apart(first, first.before))
    has_space_after = last.after.isspace() or (following.isalnum() and _stands_apart(last, last.after))
    have_space_between = [
        (tag.after.isspace() and next_tag.before.isspace())
        or (_stands_apart(tag, tag.after) and _stands_apart(next_tag, next_tag.before))
        for tag, next_tag in pairwise(tags)
    ]
    if before[-1:].isspace():
        has_space = has_space_before or any(have_space_between) or has_space_after
        if not has_space and not any(placed.ends_word for placed in tags):
            closing = list(takewhile(lambda placed: placed.tags[0].kind == "close", tags))
            return [*_tags_of(closing), " ", *_tags_of(tags[len(closing) :])]
    else:  # only tags that replace a word need spaces here
        kinds = [placed.tags[0].kind for placed in tags]
        has_empty_pair = ("open", "close") in pairwise(kinds)
        is_word = has_empty_pair or any(placed.is_word for placed in tags)
        if not is_word or first.ends_word or preceding in _OPENING:
            has_space_before = False
        if not is_word or last.ends_word or following in _CLOSING:
            has_space_after = False
    parts = Marked()
    if has_space_before:
        parts.append(" ")
    for placed, has_space in zip(tags, [*have_space_between, has_space_after], strict=True):
        parts += placed.tags
        if has_space:
            parts.append(" ")
    return parts


def _tags_of(tags: Tags) -> list[Tag]:
    """The tags without their positions."""
    return [tag for placed in tags for tag in placed.tags]


def _stands_apart(placed: Placed, neighbour: str) -> bool:
    """Whether a tag replaces a word, and its neighbour in the source was not a letter or digit."""
    return placed.is_word and neighbour != "" and not neighbour.isalnum()


def match_pairs(tags: Tags) -> dict[int, int]:
    """The number of the closing tag for the number of each opening one that has it."""
    closings = dict[int, int]()
    open_tags = defaultdict[str | None, list[int]](list)
    for number, tag in enumerate(placed.tags[0] for placed in tags):
        if tag.kind == "open":
            open_tags[tag.pair].append(number)
        elif tag.kind == "close" and open_tags[tag.pair]:
            closings[open_tags[tag.pair].pop()] = number
    return closings


class _Region(NamedTuple):
    """A part of a translation into which tags are still to be placed.

    Attributes:
        start, stop: its first character and its end.
        tag: the one that it begins with; None for a sentence.
        src_span: the part of the source that it translates.
        inner: the numbers of the tags inside of it.
    """

    start: int
    stop: int
    tag: Placed | None
    src_span: Span
    inner: Sequence[int]


def _places(tags: Tags, sentence: "_Aligned") -> list[tuple[int, Placed]]:
    """The tags, each with its character of the translation, in the order of the result, in which all pairs are nested.

    A pair that overlaps another grows: its end moves after the tags that are open inside it.
    """
    closings = match_pairs(tags)
    openings = {closing: opening for opening, closing in closings.items()}
    outermost = list[int]()  # the numbers of the tags outside all pairs
    inside = dict[int, list[int]]()  # those directly inside each pair, by the number of its opening tag
    ends = dict[int, Placed]()  # the closing tag of each pair, where it may end
    open_pairs = list[int]()
    ended = set[int]()
    for number, placed in enumerate(tags):
        if number in openings:
            ended.add(openings[number])
            while open_pairs and open_pairs[-1] in ended:
                opening = open_pairs.pop()
                ends[opening] = replace(tags[closings[opening]], at=placed.at)
            continue
        siblings = inside[open_pairs[-1]] if open_pairs else outermost
        siblings.append(number)
        if number in closings:
            inside[number] = []
            open_pairs.append(number)
    result = list[tuple[int, Placed]]()
    todo = [_Region(0, len(sentence.tgt), None, (0, len(sentence.src)), outermost)]
    while todo:
        region = todo.pop()
        if region.tag:
            result.append((region.start, region.tag))
        if not region.inner:
            continue
        links = [link for link in sentence.links if region.start <= link.start and link.end <= region.stop]
        part = replace(sentence, links=links, start=region.start, stop=region.stop)
        spans = [(*part.span(tags[n], ends.get(n, tags[n]), region.src_span), n) for n in region.inner]
        children = list[_Region]()
        num_filled = region.start  # characters before the next tag
        for start, stop, number in sorted(spans):
            start = max(start, num_filled)
            num_filled = max(stop, num_filled)
            closing = ends.get(number)
            src_span = (tags[number].at, closing.at if closing else tags[number].at)
            children.append(_Region(start, num_filled, tags[number], src_span, inside.get(number, ())))
            if closing:
                children.append(_Region(num_filled, num_filled, closing, (closing.at, closing.at), ()))
        todo += reversed(children)
    return result


@dataclass(frozen=True)
class _Aligned:
    """A sentence and its translation, or a part of the translation from `start` to `stop`, with its links."""

    src: str
    tgt: str
    links: Links
    start: int
    stop: int

    def span(self, opening: Placed, closing: Placed, src_span: Span) -> Span:
        """The span that a pair of tags encloses in the translation, or the position of a single tag.

        Args:
            src_span: the part of the source that this part translates.
        """
        if (opening.at, closing.at) == src_span:
            return self.start, self.stop
        if not self.links:
            return self.start, self.start
        if opening.at == closing.at:
            at = self._point(opening, src_span)
            return at, at
        alike = self._alike(self.src[opening.at : closing.at])
        start, stop = self._run(opening.at, closing.at) or self._nearest(alike, (opening.at + closing.at) / 2)[:2]
        number = _NUMBER.search(self.src, opening.at, closing.at)
        if number and re.match(rf"{number[0]}\b", self.tgt[stop : self.stop]):
            stop += len(number[0])
        is_last = closing.at == src_span[1] and not any(map(str.isalnum, self.tgt[stop : self.stop]))
        if closing.at - opening.at == 1 and _INITIAL.match(self.src, opening.at):
            return start, start + 1
        return start, self.stop if is_last else stop

    def _run(self, start: int, stop: int) -> Span | None:
        """The run of links with the most translations of a part of the source, and the fewest others.

        A word counts 1 or -1. Punctuation counts 1 if the part has it too, else 0, since its source is unclear.
        """
        part = self.src[start:stop]
        best: Span | None = None
        best_total = 0
        total = 0
        run_start = 0
        for link in self.links:
            if total <= 0:
                run_start = link.start
                total = 0
            if start <= link.src < stop:
                if link.is_word or self.tgt[link.start : link.end] in part:
                    total += 1
            elif link.is_word:
                total -= 1
            if total > best_total:
                best = (run_start, link.end)
                best_total = total
        return best

    def _point(self, placed: Placed, src_span: Span) -> int:
        """The position of a tag that encloses nothing: next to the translation of its neighbouring word or sign."""
        at = placed.at
        if at in src_span:
            return self.start if at == src_span[0] else self.stop
        if _EMPTY_QUOTES.fullmatch(self.src, at - 1, at + 1):  # as in '%s'
            places = [match.start() + 1 for match in _EMPTY_QUOTES.finditer(self.tgt, self.start, self.stop)]
            if places:
                return min(places, key=lambda place: abs(place - at * len(self.tgt) / len(self.src)))
        preceding = self.src[max(0, at - 2) : at].strip()[-1:]
        following = self.src[at]
        is_sign = not (following.isalnum() or following.isspace())
        is_before = " " not in (placed.after, following) and (is_sign or placed.before.isspace())
        links = self._alike(following if is_before else preceding)
        links_on_side = [link for link in links if (link.src >= at) == is_before]
        if not links_on_side and links[0].is_word:
            is_before = not is_before
        link = self._nearest(links_on_side or links, at)
        return link.start if is_before else link.end

    def _alike(self, part: str) -> Links:
        """The links that may translate a part of the source, wherever they lead: words, or the same signs."""
        words = [link for link in self.links if link.is_word]
        signs = [link for link in self.links if not link.is_word and self.tgt[link.start : link.end] in part]
        has_word = any(map(str.isalnum, part))
        return (words if has_word else signs) or words or self.links

    def _nearest(self, links: Links, at: float) -> Link:
        """The link nearest to a character of the source, by the character that it translates, then by its position."""
        expected = at * len(self.tgt) / len(self.src)
        return min(links, key=lambda link: (abs(link.src - at), abs((link.start + link.end) / 2 - expected)))
