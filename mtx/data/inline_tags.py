"""Tags inside sentences as marks that a model carries into its translation, and what it learns that from.

A mark is a control character, which training text does not have; `tokenizer` turns it into the id of a byte that no
text has. A pair of tags has an opening and a closing mark of one number; what stands alone, such as a placeholder, has
a mark of its own. Most text has no tags, so training text gets artificial ones around, beside and instead of words that
translate each other (Hanneman and Dinu 2020).
Flow: training text, a lexicon -> `training_tags` -> tokenizer. `mtx.documents.carrying` marks what is translated.
"""

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from mtx.data.glossary import Glossary, occurrences

BYTES = (0xC0, 0xC1, *range(0xF5, 0xFF))  # which no text in UTF-8 has, for the marks; `tokenizer` has pieces for them
MOST_TAGS = len(BYTES) // 3  # pairs in a sentence, and tags that stand alone
OPENING, CLOSING, ALONE = ("".join(map(chr, range(first, first + MOST_TAGS))) for first in (0x86, 0x8A, 0x8E))
MARKS = OPENING + CLOSING + ALONE
SHARE = 0.2  # of the pairs of an epoch that `training_tags` changes
_MOST_NEW = 3  # tags of a pair
_LONGER = 0.5  # of the pairs of tags enclose more than a word, if they can

END_SIGNS = re.compile(rf"[,.;:!?…]+(?![^\s{MARKS}])")  # punctuation behind a word, unlike that of .txt or .50
_GAP = re.compile(f" (?=[ {MARKS}]*$)")  # each space among the marks at the end

Kind = Literal["around", "beside", "instead"]
_KINDS: tuple[Kind, ...] = ("around", "around", "beside", "instead")
Span = tuple[int, int]


@dataclass(frozen=True)
class Mark:
    """A tag in a text: a pair around a span, or one that stands alone before it or instead of it."""

    kind: Kind
    number: int
    span: Span


def training_tags(lexicon: Glossary, src: str, tgt: str, rng: random.Random) -> tuple[str, str]:
    """A pair with one to three tags at words that translate each other; without such words it stays as it is.

    The same `rng` gives the same pair.
    """
    words = _aligned(lexicon, src, tgt)
    chosen = list[tuple[Mark, Mark]]()
    for number in rng.sample(range(MOST_TAGS), rng.randint(1, _MOST_NEW)) if words else ():
        kind = rng.choice(_KINDS)
        spans = _longer(words, rng) if kind == "around" and rng.random() < _LONGER else rng.choice(words)
        if kind == "beside":
            end = rng.randrange(2)
            spans = ((spans[0][end],) * 2, (spans[1][end],) * 2)
        new = Mark(kind, number, spans[0]), Mark(kind, number, spans[1])
        if all(_fit(old, new) for old in chosen):
            chosen.append(new)
    return with_marks(src, (mark for mark, _ in chosen)), with_marks(tgt, (mark for _, mark in chosen))


def _aligned(lexicon: Glossary, src: str, tgt: str) -> list[tuple[Span, Span]]:
    """Where the words stand that translate each other by the lexicon, both once in their sentences."""
    matches = lexicon.matches(src)
    terms = [match.src for match in matches]
    found = list[tuple[Span, Span]]()
    for match in matches:
        places = occurrences(match.tgt, tgt) if terms.count(match.src) == 1 else []
        if len(places) == 1:
            found.append(((match.start, match.end), places[0]))
    return found


def _longer(words: list[tuple[Span, Span]], rng: random.Random) -> tuple[Span, Span]:
    """From one word to another on both sides, if the words between are the same on both; else one word."""
    first, last = sorted(rng.choices(range(len(words)), k=2))
    inside = words[first : last + 1]
    start, end = min(tgt[0] for _, tgt in inside), max(tgt[1] for _, tgt in inside)
    if any(start <= tgt[0] < end for _, tgt in words[:first] + words[last + 1 :]):
        return words[first]
    return (inside[0][0][0], inside[-1][0][1]), (start, end)


def _fit(old: tuple[Mark, Mark], new: tuple[Mark, Mark]) -> bool:
    """Whether two tags lie to each other in one way on both sides, apart or one in the other, and none is replaced."""
    src, tgt = (_relation(one.span, other.span) for one, other in zip(old, new, strict=True))
    is_replaced = src != "apart" and "instead" in (old[0].kind, new[0].kind)
    return src == tgt != "crossed" and not is_replaced


def _relation(one: Span, other: Span) -> str:
    if one[1] <= other[0] or other[1] <= one[0]:
        return "apart"
    if one[0] <= other[0] and other[1] <= one[1]:
        return "around"
    return "inside" if other[0] <= one[0] and one[1] <= other[1] else "crossed"


def _before_mark(text: str, following: str) -> str:
    """The text before a mark that stands alone: without spaces at its end if punctuation follows, as in `see {0}, too`.

    So the text is written as it would be without the tag, and its pieces are those that the model knows.
    """
    return _GAP.sub("", text) if END_SIGNS.match(following) else text


def with_marks(text: str, marks: Iterable[Mark]) -> str:
    """A text with marks. Of two spans one is in the other or they are apart; of equal ones the first is around."""
    places = list[tuple[int, int, int, int, str]]()  # character, and what decides between marks at one character
    replaced = list[Span]()
    for order, mark in enumerate(marks):
        start, end = mark.span
        if mark.kind == "around":
            places.append((start, 2, -end, order, OPENING[mark.number]))
            places.append((end, 0, -start, -order, CLOSING[mark.number]))
        else:
            places.append((start, 1, order, 0, ALONE[mark.number]))
            replaced += [mark.span] if mark.kind == "instead" else []
    result, done = "", 0
    for at, *_, mark_character in sorted(places):
        end = max([at, *(end for start, end in replaced if start == at)])
        before = result + text[done:at]
        result, done = (_before_mark(before, text[end:]) if end > at else before) + mark_character, end
    return result + text[done:]
