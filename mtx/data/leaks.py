"""Leaks: training pairs that have a sentence of a validation or test set, or nearly one. None is dropped for it.

Two sentences are nearly the same if they have the same words but for `_CUT_WORDS` in one place, such as a name. Case,
punctuation and the values of numbers do not count. What is left of a sentence without the words in one place is a rest
of it. Sentences that are nearly the same share a rest, so hashes of all rests find them in time linear in the text.
Flow: training pairs and sets -> `find_leaks` -> report.json, and the lines that `mtx evaluate --without-leaks` skips.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from contextlib import closing
from functools import partial
from itertools import accumulate, chain
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from mtx.data.blocks import texts_of
from mtx.data.glossary import split_words
from mtx.data.markup import clean_text, strip_codes
from mtx.data.sources import Corpus
from mtx.data.tables import PairGroup
from mtx.data.token_store import Batch
from mtx.data.workers import map_in_workers
from mtx.storage import durable
from mtx.storage.text_files import printable

_NUMBER = re.compile(r"\d[\d.,:/]*")
_CUT_WORDS = 2
_END_WORDS = 3  # a rest without some words has twice as many: "Tom is not at home" and "Tom is not at work" differ
_NUM_EXAMPLES = 3

Index = tuple[set[str], set[tuple[str, ...]], NDArray[np.int64]]


class SetText:
    """The text of a set, both sides together, to be found in training pairs.

    Attributes:
        lines: for each rest, the lines with it, from 1, and their texts.
        index: what workers look up: all texts, the first and the last words of each, and the rests.
    """

    def __init__(self, src: list[str], tgt: list[str]) -> None:
        self.lines = defaultdict[int, list[tuple[int, str]]](list)
        texts = set[str]()
        ends = set[tuple[str, ...]]()
        for line, pair in enumerate(zip(src, tgt, strict=True), 1):
            for text in map(strip_codes, map(clean_text, pair)):
                words = _split(text)
                texts.add(_normalize(text))
                ends |= _ends(words)
                for rest in _hash_rests(words):
                    self.lines[rest].append((line, text))
        self.index: Index = (texts, ends, np.array([*self.lines], np.int64))  # an array is sent to a worker at once


def find_leaks(batches: Iterable[Batch], sets: list[SetText], corpora: list[Corpus]) -> list[durable.Json]:
    """What training pairs have of each set, as report.json says it.

    Args:
        batches: of `choosing.CLEANED` without dates and hashes, none of them empty.
        corpora: of the training text.
    """
    entries: list[durable.Json] = [
        {"train_pairs": 0, "example": None, "near_pairs": 0, "near_examples": []} for _ in sets
    ]
    found = [set[int]() for _ in sets]
    find = partial(_find_in_batch, indexes=[set_text.index for set_text in sets])
    with closing(map_in_workers(find, batches)) as results:
        for corpus, number, pair, has_text, rests in chain.from_iterable(results):
            entry = entries[number]
            found[number] |= rests
            if has_text:
                entry["train_pairs"] += 1
                entry["example"] = entry["example"] or corpora[corpus].example(pair)
            else:
                entry["near_pairs"] += 1
                if len(entry["near_examples"]) < _NUM_EXAMPLES:
                    _, text = sets[number].lines[min(rests)][0]
                    entry["near_examples"].append(corpora[corpus].example(pair) | {"like": printable(text[:80])})
    for entry, set_text, rests in zip(entries, sets, found, strict=True):
        entry["lines"] = sorted({line for rest in rests for line, _ in set_text.lines[rest]})
    return entries


def _find_in_batch(batch: Batch, indexes: list[Index]) -> list[tuple[int, int, PairGroup, bool, set[int]]]:
    """The pairs with something of a set: the numbers of the corpus and the set, the pair, whether it has a text of the
    set, and the rests that they share.
    """
    hits = []
    rests_of_sets = [frozenset(rests.tolist()) for _, _, rests in indexes]
    corpus = batch["corpus"][0].as_py()
    for row, pair in enumerate(zip(*texts_of(batch), strict=True)):
        sides = [(words, _ends(words)) for words in map(_split, pair)]
        for number, (texts, set_ends, _) in enumerate(indexes):
            rests = set[int]()
            for words, ends in sides:
                if not set_ends.isdisjoint(ends):
                    rests |= _hash_rests(words) & rests_of_sets[number]
            if rests:
                group = PairGroup.of(batch.slice(row, 1), np.array([True]))
                has_text = not texts.isdisjoint(map(_normalize, pair))
                hits.append((corpus, number, group, has_text, rests))
    return hits


def _normalize(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _split(text: str) -> list[str]:
    """The words of a text, with the same word for all numbers."""
    return split_words(_NUMBER.sub("0", _normalize(text)))


def _ends(words: list[str]) -> set[tuple[str, ...]]:
    """The first and the last words. Texts that share a rest share one of these, so the rests of most are not needed."""
    return {tuple(words[:_END_WORDS]), tuple(words[-_END_WORDS:])}


def _hash_rests(words: list[str]) -> set[int]:
    """A hash of every rest: of the words before a place, and of those behind it.

    Where no word is cut, each place gives another rest too, since the other text may have more words there.
    """
    before = [*accumulate(words, _hash_more, initial=0)]
    behind = [*accumulate(reversed(words), _hash_more, initial=0)]
    behind.reverse()
    rests = set[int]()
    for num_cut in range(_CUT_WORDS + 1):
        if num_cut == 0 or len(words) - num_cut >= 2 * _END_WORDS:
            rests.update(map(hash, zip(before, behind[num_cut:], strict=False)))
    return rests


def _hash_more(value: int, word: str) -> int:
    return hash((value, crc32(word.encode(errors="surrogatepass"))))  # of numbers, it is the same in every process
