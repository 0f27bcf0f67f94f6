"""Cuts the words of the training text into other pieces in each epoch: BPE-dropout. No torch, no text.

BPE-dropout (Provilkov et al. 2020, arXiv 1910.13267) skips each merge with some probability. SentencePiece can do it
too, but draws other pieces in each process, whatever its seed is; a resumed run would have other text. So the merges
are made here, word by word: SentencePiece's pieces never begin in one word and end in the next. A word's random cuts
are drawn once, `_NUM_CUTS` of them, and each occurrence takes one of these.
Flow: chunks of text (`mtx.data.augmentation`) -> `BpeDropout` -> the batch sampler.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from mtx.data.sentencepiece_models import Merges
from mtx.data.tokenizer import Tokenizer

_NUM_CUTS = 32
_MAX_WORDS = 200_000  # whose cuts are kept in memory
Word = tuple[int, ...]  # the ids of its pieces


class BpeDropout:
    """Cuts the sentences of one side; it keeps the cuts of their words.

    Args:
        rate: the probability that a merge is skipped.
        max_tokens: a sentence that would become longer keeps its usual pieces.
        target: whether the side is the target.
    """

    def __init__(self, tokenizer: Tokenizer, seed: int, rate: float, max_tokens: int, target: bool):
        self._merges = _without_symbols(tokenizer.models.merges(target))
        self._seed = seed
        self._rate = rate
        self._max_tokens = max_tokens
        self._begins = [token in self._merges.begins_word for token in range(tokenizer.num_ids)]
        self._cuts: dict[Word, list[Word | None]] = {}

    def __call__(self, sentences: list[list[int]], rng: np.random.Generator) -> list[list[int]]:
        """The ids of the sentences with other pieces."""
        draws = iter(rng.integers(_NUM_CUTS, size=sum(map(len, sentences)), dtype=np.uint8).tolist())
        cut = (self.cut(ids, [next(draws) for _ in ids]) for ids in sentences)
        return [new if len(new) <= self._max_tokens else ids for new, ids in zip(cut, sentences, strict=True)]

    def cut(self, ids: list[int], draws: Sequence[int]) -> list[int]:
        """The ids of a sentence with other pieces; `draws` has a number below `_NUM_CUTS` for each word, or more."""
        starts = [place for place, token in enumerate(ids) if not place or self._begins[token]]
        new = list[int]()
        for (start, end), draw in zip(pairwise((*starts, len(ids))), draws, strict=False):
            new += self._cut_word(tuple(ids[start:end]), draw)
        return new

    def _cut_word(self, word: Word, draw: int) -> Word:
        if word not in self._cuts:
            if len(self._cuts) >= _MAX_WORDS:
                self._cuts.clear()
            self._cuts[word] = [None] * _NUM_CUTS
        cuts = self._cuts[word]
        cut = cuts[draw]
        if cut is None:
            cut = cuts[draw] = merge(word, self._merges, self._rate, random.Random(f"{self._seed} {draw} {word}"))
        return cut


def _without_symbols(merges: Merges) -> Merges:
    """The merges without the pieces that none makes, such as symbols that the user defined; these stay whole."""
    rng = random.Random(0)  # with a rate of 0 it decides nothing
    symbols = {token for token in merges.texts if merge((token,), merges, 0.0, rng) != (token,)}
    texts = {token: text for token, text in merges.texts.items() if token not in symbols}
    return replace(merges, texts=texts, begins_word=merges.begins_word | symbols)


def merge(word: Word, merges: Merges, rate: float, rng: random.Random) -> Word:
    """The ids of a word after BPE in which each merge is skipped with probability `rate`.

    As in SentencePiece, the best of all possible merges is made next, the leftmost of several; one that was skipped
    stays so until one of its two pieces changes. Ids that are not pieces of text, such as `</s>`, stay as they are.
    """
    if any(token not in merges.texts for token in word):
        return word
    symbols = [character for token in word for character in merges.texts[token]]
    skipped: set[int] = set()  # places of the first piece of a merge
    while True:
        pairs = enumerate(map("".join, pairwise(symbols)))
        possible = [(merges.ranks[text], at) for at, text in pairs if text in merges.ranks and at not in skipped]
        if not possible:
            break
        _, at = min(possible)
        if rng.random() < rate:
            skipped.add(at)
            continue
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
        skipped = {place - (place > at) for place in skipped if place not in (at - 1, at, at + 1)}
    if any(symbol not in merges.ids for symbol in symbols):  # a character without a piece of its own
        return word
    return tuple(merges.ids[symbol] for symbol in symbols)
