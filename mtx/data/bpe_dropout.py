"""BPE-dropout: splits the words of the training text differently in each epoch. No torch, no text.

BPE-dropout (Provilkov et al. 2020, arXiv 1910.13267) skips each merge with some probability. SentencePiece also
supports it, but draws other pieces in each process, whatever its seed is; a resumed run would have other text. So the
merges are made here, word by word: SentencePiece's pieces never cross word boundaries. `_NUM_CUTS` random splits of a
word are drawn once, and each occurrence uses one of them.
Flow: chunks of text (`mtx.data.augmentation`) -> `BpeDropout` -> the batch sampler.
"""

import random
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from mtx.data.sentencepiece_models import BYTE, SPACE, Encoded
from mtx.data.tokenizer import Tokenizer

_NUM_CUTS = 32
_MAX_IDS = 8_000_000  # of words and their splits kept in memory: 200 MB of text without spaces, 400 MB of short words
Word = tuple[int, ...]  # the ids of its pieces


class BpeDropout:
    """Splits the sentences of one side; it caches the splits of words.

    Args:
        rate: the probability that a merge is skipped.
        max_tokens: a sentence that would become longer keeps its usual pieces.
        target: whether the side is the target.
    """

    def __init__(self, tokenizer: Tokenizer, seed: int, rate: float, max_tokens: int, target: bool):
        self._texts, self._ranks = tokenizer.models.merges(target)
        self._ids = {text: token for token, text in self._texts.items()}
        self._seed = seed
        self._rate = rate
        self._max_tokens = max_tokens
        self._cuts = dict[tuple[Word, int], Word]()
        self._num_ids = 0  # in `_cuts`
        # Pieces without a merge, such as user-defined symbols, stay whole, and end a word.
        self._texts = {token: text for token, text in self._texts.items() if self._merge((token,), None) == (token,)}
        self._begins = {
            token
            for token, piece in enumerate(tokenizer.models.pieces)
            if not BYTE.fullmatch(piece) and self._texts.get(token, SPACE).startswith(SPACE)
        }

    def __call__(self, sentences: Encoded, rng: np.random.Generator) -> Encoded:
        """The ids of the sentences after BPE-dropout."""
        draws = iter(rng.integers(_NUM_CUTS, size=sum(map(len, sentences)), dtype=np.uint8).tolist())
        sentences_cut = (self.cut(ids, [next(draws) for _ in ids]) for ids in sentences)
        return [
            ids_cut if len(ids_cut) <= self._max_tokens else ids
            for ids_cut, ids in zip(sentences_cut, sentences, strict=True)
        ]

    def cut(self, ids: list[int], draws: Sequence[int]) -> list[int]:
        """The ids of a sentence after BPE-dropout; `draws` has a number below `_NUM_CUTS` for at least each word."""
        starts = [place for place, token in enumerate(ids) if not place or token in self._begins]
        ids_cut = list[int]()
        for (start, end), draw in zip(pairwise((*starts, len(ids))), draws, strict=False):
            word = tuple(ids[start:end])
            word_cut = self._cuts.get((word, draw))
            if word_cut is None:
                if self._num_ids > _MAX_IDS:
                    self._cuts.clear()
                    self._num_ids = 0
                word_cut = self._merge(word, draw)
                self._cuts[word, draw] = word_cut
                self._num_ids += len(word) + len(word_cut)  # without spaces, a word is a sentence
            ids_cut += word_cut
        return ids_cut

    def _merge(self, word: Word, draw: int | None) -> Word:
        """The ids of a word after BPE; `draw` determines the skipped merges, and None skips none.

        As in SentencePiece, the best possible merge is made next, the leftmost of equal ones; a skipped merge stays
        skipped until one of its two pieces changes. Ids that are not pieces of text, such as `</s>`, are kept.
        """
        if any(token not in self._texts for token in word):
            return word
        rng = random.Random(f"{self._seed} {draw} {word}")
        rate = 0.0 if draw is None else self._rate
        symbols = [character for token in word for character in self._texts[token]]
        skipped = set[int]()  # positions of the first piece of a merge
        while possible_merges := [
            (self._ranks[text], at)
            for at, text in enumerate(map("".join, pairwise(symbols)))
            if text in self._ranks and at not in skipped
        ]:
            _, at = min(possible_merges)
            if rng.random() < rate:
                skipped.add(at)
                continue
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
            distant = (place for place in skipped if place not in (at - 1, at, at + 1))
            skipped = {place - 1 if place > at else place for place in distant}  # the merge moves later places by one
        if any(symbol not in self._ids for symbol in symbols):  # a character without a piece
            return word
        return tuple(self._ids[symbol] for symbol in symbols)
