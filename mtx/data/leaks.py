"""Leaks: training pairs with an exact or near match in a validation or test set. No pair is dropped for a near match.

Two sentences are a near match if they have the same words but for `_CUT_WORDS` in one place, such as a name, and at
least `_LEAST_SAME` of the same. Case, signs and the values of numbers do not count. What is left of a sentence without
the words in one place is a rest of it. Near matches share a rest, so hashes of all rests find them in time linear in
the text.
Flow: sets -> `Leaks`; training pairs -> `find_matches` -> `Leaks` -> report.json. `mtx evaluate --without-leaks` reads
the lines there.
"""

import re
import unicodedata
from collections import Counter
from itertools import accumulate
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from mtx.data.blocks import learned_text, texts_of
from mtx.data.glossary import split_words
from mtx.data.markup import clean_text
from mtx.data.sources import Corpus
from mtx.data.tables import PairGroup
from mtx.data.token_store import Batch
from mtx.storage import durable
from mtx.storage.text_files import printable

# Digits and separators between them, a space only before three digits
_NUMBER = re.compile(r"\d(?:[\d.,:/]|[ \xa0\u2009\u202f](?=\d{3}))*")
_CUT_WORDS = 2
_LEAST_SAME = 6  # where words differ: "Tom is not at home" and "Tom is not at work" are different sentences
_NUM_EXAMPLES = 3

Words = tuple[str, ...]
Ends = dict[str, set[Words]]  # by side
Hashes = NDArray[np.int64]
Match = tuple[int, int, PairGroup, Hashes]  # the numbers of the set and of the corpus, the pair, and the shared rests


class Leaks:
    """The text of a set, and the training pairs with a match in it.

    Attributes:
        sides: names for the sides of pairs; the same if the source of one direction is the target of another.
        ends: for each side, first and last words of all texts, as many as near matches of any length look up.
        rests: hashes of the rests of all texts, in ascending order.
    """

    def __init__(self, src: list[str], tgt: list[str], has_directions: bool) -> None:
        """Index the text of a set.

        Args:
            has_directions: whether the model has several.
        """
        self.sides = ("text", "text") if has_directions else ("src", "tgt")
        self.ends: Ends = {side: set() for side in self.sides}
        self._texts = list[tuple[int, str, str]]()  # line, side and text
        rests = list[Hashes]()
        for line, pair in enumerate(zip(src, tgt, strict=True), 1):
            for side, text in zip(self.sides, map(learned_text, map(clean_text, pair)), strict=True):
                words = _split(text)
                for num_words in range(len(words) - _CUT_WORDS, len(words) + _CUT_WORDS + 1):
                    self.ends[side].update(_ends(words, num_words))
                rests.append(_hash_rests(side, words))
                self._texts.append((line, side, _normalize(text)))
        numbers = np.arange(len(rests)).repeat(np.array([of_text.size for of_text in rests], np.int64))
        hashes = np.concatenate([np.empty(0, np.int64), *rests])
        order = np.argsort(hashes)
        self.rests: Hashes = hashes[order]
        self._numbers = numbers[order]  # of the text with each rest
        self._exact_texts = {(side, text) for _, side, text in self._texts}
        self._found = set[int]()
        self._entry: durable.Json = {"train_pairs": 0, "example": None, "near_pairs": 0, "near_examples": []}

    def count(self, corpus: Corpus, pair: PairGroup, rests: Hashes) -> None:
        """Count a training pair that shares rests with the set."""
        self._found.update(rests.tolist())
        texts = map(_normalize, map(learned_text, (pair.src, pair.tgt)))
        if not self._exact_texts.isdisjoint(zip(self.sides, texts, strict=True)):
            self._entry["train_pairs"] += 1
            if self._entry["example"] is None:
                self._entry["example"] = corpus.example(pair)
            return
        self._entry["near_pairs"] += 1
        if len(self._entry["near_examples"]) < _NUM_EXAMPLES:
            [(number, _)] = Counter(self._numbers[np.isin(self.rests, rests)].tolist()).most_common(1)
            like = self._texts[number][2]
            self._entry["near_examples"].append({**corpus.example(pair), "like": printable(like[:80])})

    def report(self) -> durable.Json:
        """The set's entry in report.json about leaks; its lines are numbered from 1."""
        numbers = self._numbers[np.isin(self.rests, [*self._found])]
        return {**self._entry, "lines": sorted({self._texts[number][0] for number in numbers.tolist()})}


def find_matches(batch: Batch, sides: tuple[str, str], indexes: list[tuple[Ends, Hashes]]) -> list[Match]:
    """The training pairs that share a rest with a set: those with an exact or near match in it.

    Args:
        batch: of `choosing.CLEANED` without dates and hashes, not empty.
        sides, indexes: of `Leaks`; the ends and the rests of each set.
    """
    matches = []
    corpus = batch["corpus"][0].as_py()
    for row, pair in enumerate(zip(*texts_of(batch), strict=True)):
        sides_of_pair = [
            (side, words, *_ends(words, len(words))) for side, words in zip(sides, map(_split, pair), strict=True)
        ]
        for number, (ends, set_rests) in enumerate(indexes):
            hashes = [
                _hash_rests(side, words)
                for side, words, first, last in sides_of_pair
                if first in ends[side] or last in ends[side]
            ]
            if not hashes:
                continue
            rests = np.concatenate(hashes)
            places = np.searchsorted(set_rests, rests).clip(max=set_rests.size - 1)
            shared = rests[set_rests[places] == rests]
            if shared.size:
                matches.append((number, corpus, PairGroup.of(batch.slice(row, 1), np.array([True])), shared))
    return matches


def _normalize(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _split(text: str) -> list[str]:
    """The words of a text, with the same digit for all numbers; a text without words is one."""
    return split_words(_NUMBER.sub("0", _normalize(text).replace("_", ""))) or [text]


def _ends(words: list[str], num_words: int) -> tuple[Words, Words]:
    """The first and the last words, half of what a cut leaves: a near match with `num_words` shares one of both."""
    size = max(_LEAST_SAME // 2, (num_words - _CUT_WORDS + 1) // 2)
    return tuple(words[:size]), tuple(words[-size:])


def _hash_rests(side: str, words: list[str]) -> Hashes:
    """A hash of every rest: of the words before a place, and of those behind it.

    Where no word is cut, each place gives another rest too, since the other text may have more words there.
    """
    hashes = [crc32(word.encode(errors="surrogatepass")) for word in words]
    before = [*accumulate(hashes, _hash_both, initial=crc32(side.encode()))]
    behind = [*accumulate(reversed(hashes), _hash_both, initial=0)]
    behind.reverse()
    rests = list[int]()
    for num_cut in range(_CUT_WORDS + 1):
        if num_cut == 0 or len(words) - num_cut >= _LEAST_SAME:
            rests += map(hash, zip(before, behind[num_cut:], strict=False))
    return np.array(rests, np.int64)


def _hash_both(one: int, other: int) -> int:
    return hash((one, other))  # of numbers, it is the same in every process
