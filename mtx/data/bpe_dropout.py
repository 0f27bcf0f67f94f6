"""Cuts the words of the training text into other pieces in each epoch: BPE-dropout. No torch, no text.

BPE-dropout (Provilkov et al. 2020, arXiv 1910.13267) leaves each merge out with some probability. SentencePiece can do
it too, but draws other pieces in each process, whatever its seed is; a run that goes on would have other text. So the
merges are made here, word by word: SentencePiece's pieces never begin in one word and end in the next. A word's random
cuts are drawn once, `_NUM_CUTS` of them, and each occurrence takes one of these.

What a place of an epoch's order holds is a function of the seed, the epoch and the place.
Flow: chunks of text (`mtx.data.epoch_text`) -> `SubwordSampler` -> the batch sampler.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from mtx.data.sampler import Chunk, Encode, Ints
from mtx.data.sentencepiece_models import Merges
from mtx.data.token_store import Side
from mtx.data.tokenizer import Tokenizer

_NUM_CUTS = 32
_MAX_WORDS = 200_000  # whose cuts are kept in memory
Word = tuple[int, ...]  # the ids of its pieces


class SubwordSampler:
    """Encodes chunks of an epoch's order anew; it is called by the batch sampler.

    Args:
        chunks: the text that is cut anew.
        rate: the probability that a merge is left out.
        max_tokens: a sentence that would become longer keeps its usual pieces.

    Raises:
        UsageError: if the tokenizer is not BPE.
    """

    def __init__(self, chunks: Encode, tokenizer: Tokenizer, seed: int, rate: float, max_tokens: int):
        self._chunks = chunks
        self._seed = seed
        self._max_tokens = max_tokens
        self._cutters = [_Cutter(tokenizer, seed, rate, target) for target in (False, True)]

    def __call__(self, epoch: int, number: int, pairs: Ints) -> Chunk:
        """The pairs of a chunk with new pieces.

        Args:
            number: of the chunk within its epoch.
            pairs: the numbers of the pairs at its places.
        """
        rng = np.random.default_rng((self._seed, epoch, number))
        chunk = self._chunks(epoch, number, pairs)
        sides = zip((chunk.src, chunk.tgt), self._cutters, strict=True)
        return Chunk(pairs, *(self._encode(side, cutter, rng) for side, cutter in sides))

    def _encode(self, side: Side, cutter: "_Cutter", rng: np.random.Generator) -> Side:
        usual = side.sentences(np.arange(len(side.lengths)))
        draws = rng.integers(_NUM_CUTS, size=int(side.lengths.sum()), dtype=np.uint8).tolist()
        encoded, used = [], 0
        for ids in usual:
            new = cutter.cut(ids, draws[used : used + len(ids)])
            used += len(ids)
            encoded.append(new if len(new) <= self._max_tokens else ids)
        return Side.of(encoded, side.tokens.dtype)


class _Cutter:
    """Random cuts of the words of one side."""

    def __init__(self, tokenizer: Tokenizer, seed: int, rate: float, target: bool):
        self._merges = _with_symbols(tokenizer.models.merges(target))
        self._seed = seed
        self._rate = rate
        self._begins = [token in self._merges.begins_word for token in range(tokenizer.num_ids)]
        self._cuts: dict[Word, list[Word | None]] = {}

    def cut(self, ids: list[int], draws: Sequence[int]) -> list[int]:
        """The ids of a sentence with other pieces; `draws` has a number below `_NUM_CUTS` for each word, or more."""
        starts = [place for place, token in enumerate(ids) if not place or self._begins[token]]
        new = list[int]()
        for (start, end), draw in zip(pairwise((*starts, len(ids))), draws, strict=False):
            new += self._cut_word(tuple(ids[start:end]), draw)
        return new

    def _cut_word(self, word: Word, draw: int) -> Word:
        cuts = self._cuts.get(word)
        if cuts is None:
            if len(self._cuts) >= _MAX_WORDS:
                self._cuts.clear()
            cuts = self._cuts[word] = [None] * _NUM_CUTS
        cut = cuts[draw]
        if cut is None:
            cut = cuts[draw] = merge(word, self._merges, self._rate, random.Random(f"{self._seed} {draw} {word}"))
        return cut


def _with_symbols(merges: Merges) -> Merges:
    """The merges without the pieces that none makes, such as symbols that the user defined; these stay whole."""
    rng = random.Random(0)  # with a rate of 0 it decides nothing
    symbols = {token for token in merges.texts if merge((token,), merges, 0.0, rng) != (token,)}
    texts = {token: text for token, text in merges.texts.items() if token not in symbols}
    return replace(merges, texts=texts, begins_word=merges.begins_word | symbols)


def merge(word: Word, merges: Merges, rate: float, rng: random.Random) -> Word:
    """The ids of a word after BPE in which each merge is left out with probability `rate`.

    As in SentencePiece, the best of all possible merges is made next, the leftmost of several; one that was left out
    stays out until one of its two pieces changes. Ids that are not pieces of text, such as `</s>`, stay as they are.
    """
    symbols: list[str] = []
    for token in word:
        if (text := merges.texts.get(token)) is None:
            return word
        symbols += text
    left_out: set[int] = set()  # places of the first piece of a merge
    while True:
        best, at = -1, -1
        for place in range(len(symbols) - 1):
            rank = merges.ranks.get(symbols[place] + symbols[place + 1])
            if rank is not None and place not in left_out and (best < 0 or rank < best):
                best, at = rank, place
        if at < 0:
            break
        if rng.random() < rate:
            left_out.add(at)
            continue
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
        left_out = {place - (place > at) for place in left_out if place not in (at - 1, at, at + 1)}
    ids = [merges.ids.get(symbol) for symbol in symbols]
    return word if None in ids else tuple(ids)  # type: ignore[arg-type]  # a character without a piece of its own
