"""What a model learns terms from: a lexicon of the training text, and pairs with the translations beside the terms.

The model should take the translation that stands beside a term, whichever it is (Dinu et al. 2019). So most of these
translations are made-up words, which stand in the target too: there is nothing to remember, only to take over.
Flow: training text, perhaps a glossary -> `find_terms` -> data/terms.tsv -> `training_terms` -> tokenizer.
"""

import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mtx.config.schema import DataConfig
from mtx.data.glossary import MAX_TERM_CHARS, Glossary, annotated, occurrences, replaced, word_spans
from mtx.errors import UsageError

AUTO = "auto"  # of data.terms
SHARE = 0.2  # of the pairs of an epoch that `training_terms` changes
_MOST_TERMS = 3  # of a pair
_MADE_UP = 0.7  # of the terms have a made-up translation
_MADE_UP_SOURCE = 0.3  # of these are made up in the source too
_ONE_MORE = 0.2  # of the made-up terms have one word more, because terms of several words are rare in a lexicon
_FRAGMENT, _LENGTH = (2, 4), (4, 12)  # letters of a fragment, and of a made-up word
_MIN_PAIRS = 3  # of a lexicon, in which a word occurs
_MIN_DICE = 0.5
_MOST_PAIRS = 1000  # of one word that are looked at, evenly drawn; a more frequent word is counted by these

Texts = tuple[Sequence[str], Sequence[str]]  # the source and the target texts of some pairs


def training_terms(glossary: Glossary, src: str, tgt: str, rng: random.Random) -> tuple[str, str]:
    """A pair with the translations beside one to three of its terms; without terms it stays as it is.

    The same `rng` gives the same pair. Only terms of which the target text has the translation are taken.
    """
    chosen = _choose(glossary, src, tgt, rng)
    sources, targets = dict[str, str](), dict[str, str]()  # what each term and each translation becomes
    for term in chosen:
        old = glossary.terms[term]
        is_made_up = rng.random() < _MADE_UP
        src_letters, tgt_letters = glossary.letters
        targets[old] = made_up(old, tgt_letters, rng) if is_made_up else old
        if is_made_up and rng.random() < _MADE_UP_SOURCE:
            sources[term] = made_up(term, src_letters, rng)
    spans = sorted((*span, new) for old, new in targets.items() for span in occurrences(old, tgt))
    matches = [match for match in glossary.matches(src) if match.src in chosen]
    text = ""
    places = list[tuple[int, int, str]]()
    done = 0
    for match in matches:
        text += src[done : match.start]
        start = len(text)
        text += sources.get(match.src, src[match.start : match.end])
        places.append((start, len(text), targets[match.tgt]))
        done = match.end
    return annotated(text + src[done:], places), replaced(tgt, spans)


def _choose(glossary: Glossary, src: str, tgt: str, rng: random.Random) -> list[str]:
    """Some terms of a pair, of which the translations do not overlap in the target."""
    terms = list(dict.fromkeys(match.src for match in glossary.matches(src)))
    rng.shuffle(terms)
    number = rng.randint(1, _MOST_TERMS)
    chosen = list[str]()
    taken = set[int]()
    for term in terms:
        places = {place for span in occurrences(glossary.terms[term], tgt) for place in range(*span)}
        if places and taken.isdisjoint(places) and len(chosen) < number:
            chosen.append(term)
            taken |= places
    return chosen


def made_up(term: str, letters: Sequence[str], rng: random.Random) -> str:
    """As many words as the term has, or one more, of random fragments of `letters`, with its capital letters."""
    if not letters:
        return term
    words = [_word(letters, rng) for _ in term.split()]
    if len(word_spans(words[0])) == 1 and rng.random() < _ONE_MORE:  # in scripts without spaces each letter is a word
        words.append(_word(letters, rng))
    made = " ".join(words)
    if term.isupper() and len(term) > 1:
        return made.upper()
    return made[:1].upper() + made[1:] if term[:1].isupper() else made


def _word(letters: Sequence[str], rng: random.Random) -> str:
    word, length = "", rng.randint(*_LENGTH)
    while len(word) < length:
        text, size = rng.choice(letters), rng.randint(*_FRAGMENT)
        start = rng.randint(0, max(0, len(text) - size))
        word += text[start : start + size]
    return word[:length]


def glossary_file(data: DataConfig) -> Path | None:
    """The glossary of data.terms; None if it names none. Raises UsageError if it is missing."""
    if data.terms in (None, AUTO):
        return None
    path = Path(str(data.terms))
    if not path.is_file():
        raise UsageError(f"data.terms: {path}: no such file", "data.terms=auto learns without a glossary")
    return path.resolve()


def find_terms(pairs: Iterable[Texts], file: Path | None) -> Glossary:
    """The terms that a model learns from: a lexicon of the text, and those of a glossary that occur in it.

    A glossary alone would often be too rare in the text to teach anything. If both have a term, the glossary's counts.

    Args:
        pairs: training text, in blocks; it is read into memory.

    Raises:
        UsageError, DataError: see `Glossary.read`.
    """
    given = Glossary({}) if file is None else Glossary.read(file)
    src, tgt = Words(), Words()
    occurring = dict[str, str]()
    for src_texts, tgt_texts in pairs:
        src.add(src_texts)
        tgt.add(tgt_texts)
        for src_text, tgt_text in zip(src_texts, tgt_texts, strict=True) if given.terms else ():
            found = given.matches(src_text)
            occurring |= {match.src: match.tgt for match in found if occurrences(match.tgt, tgt_text)}
    return Glossary(learn_lexicon(src, tgt) | occurring)


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
    """The translation of each source word that has a clear one; no two words have the same. The texts are pairs.

    Dice's coefficient of two words is the number of pairs that have both, over the mean of the numbers that have each.
    Each word keeps its best partner. That finds names, nouns and other words with one usual translation, in seconds; it
    is no dictionary.
    """
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
