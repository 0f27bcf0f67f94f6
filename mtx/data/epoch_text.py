"""Changes the text of some training pairs anew in each epoch: case, punctuation, typing errors, terms.

`mtx.data.text_changes` and `terms` say what a change is. What a place of an epoch's order holds is a
function of the seed, the epoch and the place, so that a run that goes on has the same text. No torch.
Flow: token store -> `StoredText` or `TextChanger` -> perhaps `SubwordSampler` -> the batch sampler.
"""

import random
from collections.abc import Sequence
from functools import partial

import numpy as np

from mtx.config.schema import Config
from mtx.data.bpe_dropout import SubwordSampler
from mtx.data.glossary import Glossary
from mtx.data.sampler import Chunk, Encode, Ints
from mtx.data.terms import SHARE as TERMS_SHARE
from mtx.data.terms import training_terms
from mtx.data.text_changes import CHANGES, Change
from mtx.data.token_store import Side, TokenStore
from mtx.data.tokenizer import Tokenizer


def changed_every_epoch(
    config: Config, text: TokenStore, tokenizer: Tokenizer, terms: Glossary | None
) -> Encode | None:
    """What gives each epoch its own text or pieces, as the configuration says; None if all epochs have the same.

    Args:
        terms: what the model learns to use a glossary from.

    Raises:
        UsageError: if subword sampling is wanted and the tokenizer is not BPE.
    """
    training, longest = config.training, config.data.max_tokens
    encode: Encode | None = None
    changes: list[tuple[Change, float]] = [(change, getattr(training, name)) for name, change in CHANGES.items()]
    if terms is not None:  # the last, because no change may touch its marks
        changes.append((partial(training_terms, terms), TERMS_SHARE))
    if any(rate for _, rate in changes):
        encode = TextChanger(text, tokenizer, config.seed, changes, longest)
    if training.bpe_dropout:
        encode = SubwordSampler(encode or StoredText(text), tokenizer, config.seed, training.bpe_dropout, longest)
    return encode


class StoredText:
    """Chunks of the text as it is in the store."""

    def __init__(self, store: TokenStore):
        self._store = store

    def __call__(self, epoch: int, number: int, pairs: Ints) -> Chunk:
        """The pairs of a chunk; see `sampler.Encode`."""
        return Chunk(pairs, self._store.src.take(pairs), self._store.tgt.take(pairs))


class TextChanger:
    """Chunks in which some pairs have changed text; it is called by the batch sampler.

    A pair that would have a longer side than `max_tokens`, or lose the text of a side, stays as it is. A tag at the
    beginning of a source stays.

    Args:
        changes: in the order in which they are made, each with its probability for a pair.
    """

    def __init__(
        self,
        store: TokenStore,
        tokenizer: Tokenizer,
        seed: int,
        changes: Sequence[tuple[Change, float]],
        max_tokens: int,
    ):
        self._store = store
        self._tokenizer = tokenizer
        self._seed = seed
        self._max_tokens = max_tokens
        self._changes = changes
        self._tags = frozenset(tokenizer.tags.values())

    def __call__(self, epoch: int, number: int, pairs: Ints) -> Chunk:
        """The pairs of a chunk; see `sampler.Encode`."""
        rng = np.random.default_rng((self._seed, epoch, number, 1))  # three numbers are the key of subword sampling
        rates = np.array([rate for _, rate in self._changes])
        drawn = rng.random((len(pairs), len(rates))) < rates
        places = np.flatnonzero(drawn.any(axis=1))
        seeds = rng.integers(2**63, size=len(places))
        texts = [
            self._change(src, tgt, drawn[place], random.Random(int(seed)))
            for src, tgt, place, seed in zip(*self._store.texts(pairs[places]), places, seeds, strict=True)
        ]
        store = self._store
        src, tgt = store.src.sentences(pairs), store.tgt.sentences(pairs)
        new_src = self._tokenizer.encode([pair[0] for pair in texts], num_threads=1)
        new_tgt = self._tokenizer.encode([pair[1] for pair in texts], num_threads=1, target=True)
        for place, src_ids, tgt_ids in zip(places.tolist(), new_src, new_tgt, strict=True):
            if src[place][0] in self._tags:
                src_ids = [src[place][0], *src_ids]
            if min(len(src_ids), len(tgt_ids)) > 1 and max(len(src_ids), len(tgt_ids)) <= self._max_tokens:
                src[place], tgt[place] = src_ids, tgt_ids
        return Chunk(pairs, Side.of(src, store.src.tokens.dtype), Side.of(tgt, store.tgt.tokens.dtype))

    def _change(self, src: str, tgt: str, drawn: np.ndarray, rng: random.Random) -> tuple[str, str]:
        for (change, _), is_drawn in zip(self._changes, drawn, strict=True):
            if is_drawn:
                src, tgt = change(src, tgt, rng)
        return src, tgt
