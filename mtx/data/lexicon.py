"""Learns which words of the two sides translate each other, from how often they stand in the same pairs.

Dice's coefficient of two words is the number of pairs that have both, over the mean of the numbers that have each. Each
word keeps its best partner. That finds names, nouns and other words with one usual translation, in seconds; it is no
dictionary. Flow: texts -> `Words` of each side -> `learn_lexicon` -> `terms`.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mtx.data.glossary import MAX_TERM_CHARS, word_spans

_MIN_PAIRS = 3  # in which a word occurs
_MIN_DICE = 0.5
_MOST_PAIRS = 1000  # of one word that are looked at, evenly drawn; a more frequent word is counted by these


class Words:
    """The words of the texts of one side, each once a text.

    Attributes:
        numbers: the number of each word.
        by_text: the numbers of the words of each text.
    """

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.by_text: list[NDArray[np.int32]] = []

    def add(self, texts: Sequence[str]) -> None:
        """Add the words of some texts."""
        for text in texts:
            numbers = {self.numbers.setdefault(word, len(self.numbers)) for word in _words(text)}
            self.by_text.append(np.fromiter(sorted(numbers), np.int32, len(numbers)))

    def by_word(self) -> list[NDArray[np.int64]]:
        """The numbers of the texts of each word, in ascending order."""
        texts = np.repeat(np.arange(len(self.by_text)), [len(words) for words in self.by_text])
        words = np.concatenate([np.empty(0, np.int32), *self.by_text])
        counts = np.bincount(words, minlength=len(self.numbers))
        return np.split(texts[np.argsort(words, kind="stable")], np.cumsum(counts)[:-1])


def _words(text: str) -> list[str]:
    """The words of a text that have a letter; in scripts without spaces, two letters that stand side by side."""
    spans = word_spans(text)
    words = [text[start:end] for start, end in spans if 1 < end - start <= MAX_TERM_CHARS and text[start].isalpha()]
    for (start, middle), (same, end) in zip(spans, spans[1:], strict=False):
        if middle == same == start + 1 == end - 1 and text[start].isalpha() and text[same].isalpha():
            words.append(text[start:end])
    return words


def learn_lexicon(src: Words, tgt: Words) -> dict[str, str]:
    """The translation of each source word that has a clear one; no two words have the same. The texts are pairs."""
    tgt_words = list(tgt.numbers)
    num_tgt = np.array([len(texts) for texts in tgt.by_word()], np.float64)
    best = dict[int, tuple[float, str]]()  # of each target word, its score and the source word
    for word, texts in zip(src.numbers, src.by_word(), strict=True):
        if len(texts) < _MIN_PAIRS:
            continue
        seen = texts[:: -(-len(texts) // _MOST_PAIRS)]
        others, counts = np.unique(np.concatenate([tgt.by_text[text] for text in seen]), return_counts=True)
        dice = 2 * counts * (len(texts) / len(seen)) / (len(texts) + num_tgt[others])
        dice[num_tgt[others] < _MIN_PAIRS] = 0
        place = int(dice.argmax()) if dice.size else 0
        if dice.size and dice[place] >= _MIN_DICE:
            other = int(others[place])
            best[other] = max(best.get(other, (0.0, "")), (float(dice[place]), word))
    return {word: tgt_words[other] for other, (_, word) in sorted(best.items())}
