"""Changes the text of some training pairs in each epoch: case, end punctuation, typing errors, terms.

People write like this, and a model that has not seen such text translates it worse. Case and end punctuation change on
both sides, as in OpusTrainer (Bogoychev et al. 2023), typing errors only in the source. The text at a position of an
epoch is a function of the seed, the epoch and the position, so a resumed run has the same text. No torch.
Flow: token store -> `EpochText`: the augmentations, then perhaps BPE-dropout -> the batch sampler.
"""

import random
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress

import numpy as np

from mtx.config.schema import Config
from mtx.data.bpe_dropout import BpeDropout
from mtx.data.glossary import Glossary, find_words, letters_of, mark_term, replace_spans, word_spans
from mtx.data.letter_case import Case, in_case
from mtx.data.sampler import Encode, Ints, Side, join
from mtx.data.token_store import TokenStore
from mtx.data.tokenizer import Frame, Tokenizer

TYPO_SHARE = 0.1  # of the words that can have one
_END = re.compile(r"(?<=\w)[\s.!?…。！？।؟]+$")
_WORD = re.compile(r"[^\W\d_]{4,}")  # shorter words often become other words

TERMS_SHARE = 0.2  # of the pairs of an epoch that `Terms` changes
_MOST_TERMS = 3  # of a pair
_MADE_UP = 0.7  # of the terms have a made-up translation
_MADE_UP_SOURCE = 0.3  # of these are made up in the source too
_ONE_MORE = 0.2  # of the made-up terms have one word more, because terms of several words are rare in a lexicon
_WORD_LETTERS = (4, 12)  # from and to, of a made-up word
_FRAGMENT_LETTERS = (2, 4)  # likewise, of each fragment that it is made of


# An augmentation changes the source and the target of a pair, which remain translations of each other. The generator,
# its only source of randomness, is seeded from the run's seed, the epoch, the number of the chunk in it, and the
# position in the chunk. To add one, write a function or a class, and add a line to `AUGMENTATIONS`: its name and the
# function. The name is also its setting, the share of pairs that it changes (other pairs in each epoch): a field of
# `TrainingConfig` in config/schema.py, such as `upper_case`. They are applied in the order of the list, and a longer
# list draws other pairs for all of them. A pair is unchanged if a side would become empty or longer than
# data.max_tokens.
Pair = tuple[str, str]  # a source and its target
Augmentation = Callable[[str, str, random.Random], Pair]


def change_case(src: str, tgt: str, rng: random.Random, case: Case) -> Pair:
    """Both sides in upper case, or in title case."""
    return in_case(src, case), in_case(tgt, case)


def drop_end_punctuation(src: str, tgt: str, rng: random.Random) -> Pair:
    """Both sides without final punctuation."""
    return _END.sub("", src), _END.sub("", tgt)


def make_typing_errors(src: str, tgt: str, rng: random.Random) -> Pair:
    """A source with a typing error in a tenth of the longer words: a missing, doubled or transposed letter."""

    def mistype(match: re.Match[str]) -> str:
        word = match[0]
        if rng.random() >= TYPO_SHARE:
            return word
        at = rng.randrange(1, len(word) - 1)  # the first and the last letter are kept, as in most typing errors
        head = word[:at]
        letter = word[at]
        tail = word[at + 1 :]
        return head + rng.choice((tail, letter + letter + tail, tail[:1] + letter + tail[1:]))

    return _WORD.sub(mistype, src), tgt


class Terms:
    """Writes the translations of one to three terms after them, between marks; see `glossary`.

    The model should copy the translation given after a term, whatever it is (Dinu et al. 2019). So most of these
    translations are invented words, which also replace the words of the target: they can only be copied, not
    remembered. Only terms whose translation is in the target are used.
    """

    def __init__(self, glossary: Glossary):
        self._glossary = glossary
        self._src_letters = letters_of(glossary.terms)
        self._tgt_letters = letters_of(glossary.terms.values())

    def __call__(self, src: str, tgt: str, rng: random.Random) -> Pair:
        matches = self._glossary.matches(src)
        terms = list(dict.fromkeys(match.src for match in matches))
        rng.shuffle(terms)
        number = rng.randint(1, _MOST_TERMS)
        replacements = dict[str, Pair]()  # the written term ("": unchanged) and its written translation
        edits = list[tuple[int, int, str]]()
        covered = set[int]()
        for term in terms:
            translation = self._glossary.terms[term]
            spans = find_words(translation, tgt)
            places = {place for span in spans for place in range(*span)}
            if not places or covered & places or len(replacements) == number:
                continue
            covered |= places
            made_up = ""
            if rng.random() < _MADE_UP:
                translation = make_up(translation, self._tgt_letters, rng)
                if rng.random() < _MADE_UP_SOURCE:
                    made_up = make_up(term, self._src_letters, rng)
            replacements[term] = made_up, translation
            edits += [(*span, translation) for span in spans]
        marked = (
            (start, end, mark_term(replacements[term][0] or src[start:end], replacements[term][1]))
            for start, end, term, _ in matches
            if term in replacements
        )
        return replace_spans(src, marked), replace_spans(tgt, sorted(edits))


def make_up(term: str, letters: Sequence[str], rng: random.Random) -> str:
    """Invented words from random fragments of `letters`: as many as the term has, or one more, in its letter case."""
    if not letters:
        return term
    words = [_make_word(letters, rng) for _ in term.split()]
    if len(word_spans(words[0])) == 1 and rng.random() < _ONE_MORE:  # in scripts without spaces each letter is a word
        words.append(_make_word(letters, rng))
    invented = " ".join(words)
    if term.isupper() and len(term) > 1:
        return invented.upper()
    return invented[:1].upper() + invented[1:] if term[:1].isupper() else invented


def _make_word(letters: Sequence[str], rng: random.Random) -> str:
    length = rng.randint(*_WORD_LETTERS)
    word = ""
    while len(word) < length:
        text = rng.choice(letters)
        size = rng.randint(*_FRAGMENT_LETTERS)
        start = rng.randint(0, max(0, len(text) - size))
        word += text[start : start + size]
    return word[:length]


AUGMENTATIONS: dict[str, Augmentation] = {
    "upper_case": partial(change_case, case="upper"),
    "title_case": partial(change_case, case="title"),
    "no_end_punctuation": drop_end_punctuation,
    "typing_errors": make_typing_errors,
}  # and `Terms`, which is last because no other may change its marks; its setting is data.terms


def epoch_text(config: Config, store: TokenStore, tokenizer: Tokenizer, terms: Glossary | None) -> Encode | None:
    """The encoder that gives each epoch its own text or subwords; None if all epochs have the same.

    Args:
        terms: the terms from which the model learns to use a glossary.
    """
    augmentations = [(augmentation, getattr(config.training, name)) for name, augmentation in AUGMENTATIONS.items()]
    if terms:
        augmentations.append((Terms(terms), TERMS_SHARE))
    if config.training.bpe_dropout or any(share for _, share in augmentations):
        return EpochText(config, store, tokenizer, augmentations)
    return None


class EpochText:
    """Chunks of an epoch in which some pairs have changed text, and perhaps all pairs have other subwords.

    The frame of a pair is kept, such as a tag at the start of its source.

    Args:
        augmentations: in the order in which they are applied, each with the share of the pairs that it changes.
    """

    def __init__(
        self,
        config: Config,
        store: TokenStore,
        tokenizer: Tokenizer,
        augmentations: Sequence[tuple[Augmentation, float]],
    ):
        self._seed = config.seed
        self._max_tokens = config.data.max_tokens
        self._store = store
        self._tokenizer = tokenizer
        self._augmentations = augmentations
        self._dropouts = list[BpeDropout]()  # of source and target
        if rate := config.training.bpe_dropout:
            for target in (False, True):
                self._dropouts.append(BpeDropout(tokenizer, self._seed, rate, self._max_tokens, target))

    def __call__(self, epoch: int, number: int, pairs: Ints) -> tuple[Side, ...]:
        """Source and target of the pairs of a chunk; `number` is the number of the chunk in its epoch."""
        key = (self._seed, epoch, number)
        rng = np.random.default_rng((*key, 1))
        drawn = rng.random((len(pairs), len(self._augmentations))) < [share for _, share in self._augmentations]
        places = np.flatnonzero(drawn.any(axis=1))
        seeds = rng.integers(2**63, size=len(places)).tolist()
        numbers = pairs[places]
        store = self._store
        texts = list(zip(*store.texts(numbers), strict=True))
        for n, (seed, is_drawn) in enumerate(zip(seeds, drawn[places], strict=True)):
            pair_rng = random.Random(seed)
            for augment, _ in compress(self._augmentations, is_drawn):
                texts[n] = augment(*texts[n], pair_rng)
        by_frame = defaultdict[Frame, list[int]](list)
        for n, ids in enumerate(zip(store.src.sentences(numbers), store.tgt.sentences(numbers), strict=True)):
            by_frame[self._tokenizer.frame_of(*ids)].append(n)
        order = np.arange(len(pairs))
        changed_src = list[list[int]]()
        changed_tgt = list[list[int]]()
        for frame, changed in by_frame.items():
            src = self._tokenizer.encode([texts[n][0] for n in changed], frame, 1)
            tgt = self._tokenizer.encode([texts[n][1] for n in changed], frame, 1, target=True)
            for n, src_ids, tgt_ids in zip(changed, src, tgt, strict=True):
                has_text = src_ids[len(frame.before_src) : -1] and tgt_ids[len(frame.before_tgt) : -1]
                if has_text and max(len(src_ids), len(tgt_ids)) <= self._max_tokens:
                    order[places[n]] = len(pairs) + len(changed_src)
                    changed_src.append(src_ids)
                    changed_tgt.append(tgt_ids)
        sides = list[Side]()
        for side, sentences in ((store.src, changed_src), (store.tgt, changed_tgt)):
            sides.append(join([side.gather(pairs), Side.of(sentences, side.tokens.dtype)]).gather(order))
        if self._dropouts:
            rng = np.random.default_rng(key)
            chunk_places = np.arange(len(pairs))
            sides = [
                Side.of(dropout(side.sentences(chunk_places), rng), side.tokens.dtype)
                for dropout, side in zip(self._dropouts, sides, strict=True)
            ]
        return tuple(sides)
