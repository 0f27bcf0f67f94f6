"""Cuts the training text into other pieces in each epoch: subword sampling. No torch.

With a BPE tokenizer this is BPE-dropout (Provilkov et al. 2020, arXiv 1910.13267): each merge is left out with some
probability. With a unigram tokenizer (Kudo 2018, arXiv 1804.10959) a segmentation is drawn, with alpha as its exponent.

The places of an epoch's order are encoded in chunks, each with random numbers of its own, so what a place holds is a
function of the seed, the epoch and the place. SentencePiece seeds the generator of a thread when the thread first draws
from it, so each chunk is encoded by a new thread. Flow: text in the token store -> `SubwordSampler` -> batch sampler.
"""

import threading
from itertools import chain
from typing import Any

import numpy as np
import sentencepiece

from mtx.data.sampler import Chunk, Ints
from mtx.data.token_store import Side, TokenStore
from mtx.data.tokenizer import Tokenizer

_LOCK = threading.Lock()  # the seed belongs to the whole process


class SubwordSampler:
    """Encodes chunks of an epoch's order anew; it is called by the batch sampler.

    Args:
        rate: the probability of BPE-dropout, or alpha.
        max_tokens: a sentence that would become longer keeps its usual pieces.
    """

    def __init__(self, store: TokenStore, tokenizer: Tokenizer, seed: int, rate: float, max_tokens: int):
        self._store, self._tokenizer, self._seed = store, tokenizer, seed
        self._rate, self._max_tokens = rate, max_tokens

    def __call__(self, epoch: int, number: int, pairs: Ints) -> Chunk:
        """The pairs of a chunk with new pieces.

        Args:
            number: of the chunk within its epoch.
            pairs: the numbers of the pairs at its places.
        """
        texts, sides = self._store.texts(pairs), (self._store.src, self._store.tgt)
        seeds = np.random.SeedSequence((self._seed, epoch, number)).generate_state(2)
        encoded = [self._encode(texts[k], int(seeds[k]) & 0x7FFFFFFF, target=bool(k)) for k in (0, 1)]
        return Chunk(pairs, *(self._side(side, pairs, ids) for side, ids in zip(sides, encoded, strict=True)))

    def _encode(self, texts: list[str], seed: int, target: bool) -> list[list[int]]:
        ids: list[list[int]] = []

        def encode() -> None:
            ids.extend(self._tokenizer.encode(texts, num_threads=1, target=target, sampling=self._rate))

        with _LOCK:
            sentencepiece.set_random_generator_seed(max(1, seed))
            thread = threading.Thread(target=encode, name="mtx-subwords")
            thread.start()
            thread.join()
        assert len(ids) == len(texts)
        return ids

    def _side(self, side: Side, pairs: Ints, encoded: list[list[int]]) -> Side:
        """One side of a chunk; a tag that the stored sentence begins with stays."""
        first = side.tokens[side.starts[pairs]]
        for row, pair in enumerate(pairs.tolist()):
            tag = [int(first[row])] if first[row] >= self._tokenizer.num_pieces else []
            if len(tag) + len(encoded[row]) > self._max_tokens:
                start = side.starts[pair]
                encoded[row] = side.tokens[start : start + side.lengths[pair]].tolist()
            elif tag:
                encoded[row] = tag + encoded[row]
        lengths = np.array([len(sentence) for sentence in encoded], dtype=np.int32)
        tokens: Any = np.fromiter(chain.from_iterable(encoded), dtype=side.tokens.dtype, count=int(lengths.sum()))
        return Side(tokens, np.cumsum(lengths, dtype=np.int64) - lengths, lengths)
