"""Changes the text of some training pairs in each epoch: case, end punctuation, typing errors, terms.

People write so, and a model that has not seen it translates worse. Case and end punctuation change on both sides, as in
the augmentation of OpusTrainer (Bogoychev et al. 2023), typing errors in the source alone. What a place of an epoch's
order holds is a function of the seed, the epoch and the place, so a resumed run has the same text. No torch.
Flow: token store -> `EpochText`: the augmentations, then perhaps BPE-dropout -> the batch sampler.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mtx.config.schema import Config
from mtx.data.bpe_dropout import BpeDropout
from mtx.data.glossary import TERM_MARKS, Glossary, find_words, letters_of, mark_term, replace_spans, word_spans
from mtx.data.letter_case import Case, in_case
from mtx.data.sampler import Chunk, Encode, Ints
from mtx.data.token_store import Side, TokenStore
from mtx.data.tokenizer import Tokenizer

TYPO_SHARE = 0.1  # of the words that can have one
_END = re.compile(r"(?<=\w)[\s.!?…。！？।؟]+$")
_WORD = re.compile(r"[^\W\d_]{4,}")  # shorter words often become others

TERMS_SHARE = 0.2  # of the pairs of an epoch that `Terms` changes
_MOST_TERMS = 3  # of a pair
_MADE_UP = 0.7  # of the terms have a made-up translation
_MADE_UP_SOURCE = 0.3  # of these are made up in the source too
_ONE_MORE = 0.2  # of the made-up terms have one word more, because terms of several words are rare in a lexicon
_FRAGMENT, _LENGTH = (2, 4), (4, 12)  # letters of a fragment, and of a made-up word


class Augmentation(Protocol):
    """Changes a training pair. Each epoch draws again which pairs are changed.

    To add one, write a class with `symbols` and `__call__` in a file of its own, and add a line to `AUGMENTATIONS`: its
    name and an object of the class. The name is that of its setting, the share of the pairs that it changes: a field
    of `TrainingConfig` in config/schema.py, such as `upper_case`. They are applied in the order of the list, and a
    longer list draws other pairs for all of them.

    Attributes:
        symbols: the characters that it writes into sources and that the tokenizer turns into reserved ids
            (`Tokenizer.marks`); empty for most.
    """

    symbols: str

    def __call__(self, src: str, tgt: str, rng: random.Random) -> tuple[str, str]:
        """The changed pair, which is still a pair of translations.

        It is dropped, and the pair stays as it is, if a side becomes empty or longer than data.max_tokens.

        Args:
            rng: the only source of chance; seeded from the run's seed, the epoch, the number of the chunk in it, and
                the place in the chunk.
        """


@dataclass(frozen=True)
class ChangeCase:
    """Both sides in capital letters, or with a capital letter at the beginning of each word."""

    case: Case
    symbols = ""

    def __call__(self, src: str, tgt: str, rng: random.Random) -> tuple[str, str]:
        return in_case(src, self.case), in_case(tgt, self.case)


class DropEndPunctuation:
    """Both sides without the punctuation after their last words."""

    symbols = ""

    def __call__(self, src: str, tgt: str, rng: random.Random) -> tuple[str, str]:
        return _END.sub("", src), _END.sub("", tgt)


class MakeTypingErrors:
    """A source in which a tenth of the longer words have a letter too few or too many, or two in the wrong order."""

    symbols = ""

    def __call__(self, src: str, tgt: str, rng: random.Random) -> tuple[str, str]:
        return _WORD.sub(lambda match: _mistype(match[0], rng) if rng.random() < TYPO_SHARE else match[0], src), tgt


def _mistype(word: str, rng: random.Random) -> str:
    at = rng.randrange(1, len(word) - 1)  # the first and the last letter stay, as in most typing errors
    start, letter, rest = word[:at], word[at], word[at + 1 :]
    return start + rng.choice((rest, letter + letter + rest, rest[:1] + letter + rest[1:]))


class Terms:
    """Writes the translations of one to three terms beside them, between marks; see `glossary`.

    The model should take the translation that stands beside a term, whichever it is (Dinu et al. 2019). So most of
    these translations are made-up words, which stand in the target too: there is nothing to remember, only to copy.
    Only terms of which the target has the translation are taken.
    """

    symbols = TERM_MARKS

    def __init__(self, glossary: Glossary):
        self._glossary = glossary
        self._src_letters = letters_of(glossary.terms)
        self._tgt_letters = letters_of(glossary.terms.values())

    def __call__(self, src: str, tgt: str, rng: random.Random) -> tuple[str, str]:
        matches = self._glossary.matches(src)
        sources, targets = dict[str, str](), dict[str, str]()  # what each term and each translation becomes
        for term in self._choose([match.src for match in matches], tgt, rng):
            old = self._glossary.terms[term]
            is_made_up = rng.random() < _MADE_UP
            sources[term], targets[old] = "", make_up(old, self._tgt_letters, rng) if is_made_up else old
            if is_made_up and rng.random() < _MADE_UP_SOURCE:
                sources[term] = make_up(term, self._src_letters, rng)
        spans = sorted((*span, new) for old, new in targets.items() for span in find_words(old, tgt))
        marked = (
            (match.start, match.end, mark_term(sources[match.src] or src[match.start : match.end], targets[match.tgt]))
            for match in matches
            if match.src in sources
        )
        return replace_spans(src, marked), replace_spans(tgt, spans)

    def _choose(self, terms: list[str], tgt: str, rng: random.Random) -> list[str]:
        """Some of the terms, of which the translations do not overlap in the target."""
        terms = list(dict.fromkeys(terms))
        rng.shuffle(terms)
        number = rng.randint(1, _MOST_TERMS)
        chosen, taken = list[str](), set[int]()
        for term in terms:
            places = {place for span in find_words(self._glossary.terms[term], tgt) for place in range(*span)}
            if places and taken.isdisjoint(places) and len(chosen) < number:
                chosen.append(term)
                taken |= places
        return chosen


def make_up(term: str, letters: Sequence[str], rng: random.Random) -> str:
    """As many words as the term has, or one more, of random fragments of `letters`, with its capital letters."""
    if not letters:
        return term
    words = [_make_word(letters, rng) for _ in term.split()]
    if len(word_spans(words[0])) == 1 and rng.random() < _ONE_MORE:  # in scripts without spaces each letter is a word
        words.append(_make_word(letters, rng))
    made = " ".join(words)
    if term.isupper() and len(term) > 1:
        return made.upper()
    return made[:1].upper() + made[1:] if term[:1].isupper() else made


def _make_word(letters: Sequence[str], rng: random.Random) -> str:
    word, length = "", rng.randint(*_LENGTH)
    while len(word) < length:
        text, size = rng.choice(letters), rng.randint(*_FRAGMENT)
        start = rng.randint(0, max(0, len(text) - size))
        word += text[start : start + size]
    return word[:length]


AUGMENTATIONS: dict[str, Augmentation] = {
    "upper_case": ChangeCase("upper"),
    "title_case": ChangeCase("title"),
    "no_end_punctuation": DropEndPunctuation(),
    "typing_errors": MakeTypingErrors(),
}  # and `Terms`, the last, because none may touch its marks; its setting is data.terms


def epoch_text(config: Config, store: TokenStore, tokenizer: Tokenizer, terms: Glossary | None) -> Encode | None:
    """What gives each epoch its own text or pieces, as the configuration says; None if all epochs have the same.

    Args:
        terms: what the model learns to use a glossary from.
    """
    training = config.training
    augmentations = [(augmentation, getattr(training, name)) for name, augmentation in AUGMENTATIONS.items()]
    if terms is not None:
        augmentations.append((Terms(terms), TERMS_SHARE))
    if not any([training.bpe_dropout, *(share for _, share in augmentations)]):
        return None
    assert all(augmentation.symbols in "".join(tokenizer.marks) for augmentation, _ in augmentations)
    rate, most = training.bpe_dropout, config.data.max_tokens
    dropouts = [BpeDropout(tokenizer, config.seed, rate, most, target) for target in (False, True) if rate]
    return EpochText(config, store, tokenizer, augmentations, dropouts)


@dataclass(frozen=True)
class EpochText:
    """Chunks of an epoch's order in which some pairs have changed text, and perhaps all have other pieces.

    A tag at the beginning of a source stays.

    Attributes:
        augmentations: in the order in which they are applied, each with the share of the pairs that it changes.
        dropouts: of the two sides; empty without BPE-dropout.
    """

    config: Config
    store: TokenStore
    tokenizer: Tokenizer
    augmentations: Sequence[tuple[Augmentation, float]]
    dropouts: Sequence[BpeDropout]

    def __call__(self, epoch: int, number: int, pairs: Ints) -> Chunk:
        """The pairs of a chunk; `number` is that of the chunk in its epoch."""
        key = (self.config.seed, epoch, number)
        sides = self.store.src, self.store.tgt
        src, tgt = (side.sentences(pairs) for side in sides)
        self._augment(np.random.default_rng((*key, 1)), pairs, src, tgt)
        if self.dropouts:
            rng = np.random.default_rng(key)
            src, tgt = (dropout(side, rng) for dropout, side in zip(self.dropouts, (src, tgt), strict=True))
        return Chunk(pairs, tuple(Side.of(ids, side.tokens.dtype) for ids, side in zip((src, tgt), sides, strict=True)))

    def _augment(self, rng: np.random.Generator, pairs: Ints, src: list[list[int]], tgt: list[list[int]]) -> None:
        """Replace the ids of the pairs whose text changes."""
        shares = np.array([share for _, share in self.augmentations])
        drawn = rng.random((len(pairs), len(shares))) < shares
        places = np.flatnonzero(drawn.any(axis=1))
        seeds = rng.integers(2**63, size=len(places)).tolist()
        texts = zip(*self.store.texts(pairs[places]), strict=True)
        for place, seed, pair in zip(places.tolist(), seeds, texts, strict=True):
            pair_rng = random.Random(seed)
            for (augmentation, _), is_drawn in zip(self.augmentations, drawn[place], strict=True):
                if is_drawn:
                    pair = augmentation(*pair, pair_rng)
            [src_ids], [tgt_ids] = self.tokenizer.encode([pair[0]]), self.tokenizer.encode([pair[1]], target=True)
            tag = [token for token in src[place][:1] if token in self.tokenizer.tags.values()]
            lengths = len(src_ids), len(tgt_ids)
            if min(lengths) > 1 and max(len(tag) + lengths[0], lengths[1]) <= self.config.data.max_tokens:
                src[place], tgt[place] = tag + src_ids, tgt_ids
