"""Which words of a text and of its translation belong together, by the cross attention of the model.

Flow: attention -> `link_pieces` -> `join_links` -> the places of tags (`mtx.decoding.tag_placement`), or the numbers
of words (`word_numbers`).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple
from unicodedata import normalize

import numpy as np

from mtx.data.languages import writes_spaces
from mtx.data.markup import LETTER, Marked
from mtx.data.sentencepiece_models import piece_bytes
from mtx.decoding.options import Attention

_BALANCING_ROUNDS = 5
_MIN_TOTAL = 1e-9  # of attention, so that nothing is divided by zero
_INK = re.compile(r"\S*\d(?=\W+\Z)|\S(?:.*\S)?", re.DOTALL)  # a piece may have a digit and the full stop after it
# Between two letters other than ideographs, or between two digits: the 2 of CO2 may have a tag
WITHIN_WORD = re.compile(rf"(?<={LETTER})(?={LETTER})|(?<=\d)(?=\d)")
_IN_TAG = "\0"  # for each character of a tag


class Link(NamedTuple):
    """A part of a translation, from `start` to `end`, and the character of the source that it translates.

    Attributes:
        src: the middle of a source piece.
    """

    start: int
    end: int
    src: float
    is_word: bool = True


Links = Sequence[Link]  # in the order of the translation


def link_pieces(attention: Attention, src: tuple[Sequence[str], str], tgt: tuple[Sequence[str], str]) -> list[Link]:
    """Links each piece of a translation to the middle of its source piece, by the attention.

    Args:
        attention: its rows and columns for `</s>` do not count.
        src, tgt: the pieces of each side, and its text.
    """
    links = []
    src_ends = [0.0, *_piece_ends(*src)]
    tgt_ends = [0.0, *_piece_ends(*tgt)]
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
    if len(attention) <= 1:
        return attention
    for axis in (1, 0) * _BALANCING_ROUNDS:
        attention = attention / np.maximum(attention.sum(axis, keepdims=True), _MIN_TOTAL)
    return attention


def _piece_ends(pieces: Sequence[str], text: str) -> list[float]:
    """The end of each piece but `</s>` in a text, in characters, even if normalisation has changed its length."""
    texts = accumulate(map(piece_bytes, pieces[:-1]))  # `</s>` has no text
    ends = [len(data.decode("utf-8", "ignore")) - 1 for data in texts]  # the first piece begins with a space
    scale = len(text) / ends[-1] if ends and ends[-1] > 0 else 1.0
    return [max(0, end) * scale for end in ends]


def join_links(tgt: str, links: Links) -> list[Link]:
    """The links, joined where a boundary would divide a word, without surrounding space.

    Punctuation has one link for each character.
    """
    joined = list[Link]()
    for link in links:
        for ink in _INK.finditer(tgt, link.start, link.end):
            start, end = ink.span()
            if joined and joined[-1].end == start and WITHIN_WORD.match(tgt, start):
                joined[-1] = joined[-1]._replace(end=end)  # the first piece determines the word's link
            elif any(map(str.isalnum, ink[0])):
                joined.append(link._replace(start=start, end=end))
            else:
                middle = (start + end - 1) / 2
                joined += [Link(at, at + 1, link.src + at - middle, False) for at in range(start, end)]
    return joined


def word_numbers(lines: Iterable[Marked], language: str) -> Iterator[int]:
    """The number of the word of each character of text in NFC, but not of spaces and tags.

    The words of all lines are counted from 0 as in `text.split()`. In a language without spaces, the number is that of
    the character itself; a line end counts as one.
    """
    text = ""
    for line in lines:
        for part in line:
            text += part if isinstance(part, str) else re.sub(r"\S", _IN_TAG, part.raw)
        text += "\n"
    for number, word in enumerate(text.split() if writes_spaces(language, ()) else text):
        for character in normalize("NFC", word):
            if character != _IN_TAG and not character.isspace():
                yield number


def with_spaces(text: str, numbers: Iterator[int]) -> list[int]:
    """The next of these `word_numbers` for each character of a text; a space has that of the word after it."""
    signs = re.findall(r"\s*\S", text.rstrip())
    return [number for sign, number in zip(signs, numbers, strict=False) for _ in sign]
