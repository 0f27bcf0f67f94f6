"""Terms and their translations: read from a file, learned from text, found in a sentence, written into it.

A model that learned it (`Terms` of `augmentation`) takes the translation that stands beside a term between three marks:
`see the` mark `house` mark `Haus` mark `today`. In text the marks are control characters, which `clean_text` removes
from all that users write, so only `mark_term` can set them; `tokenizer` turns them into ids of their own.
Flow: a file of source TAB target -> `Glossary` -> `annotate` -> tokenizer; training text -> `find_terms` -> `Glossary`.
"""

import functools
import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mtx.config.schema import DataConfig
from mtx.data.cleaning import clean_text
from mtx.data.languages import WITHOUT_SPACES
from mtx.errors import DataError, UsageError
from mtx.storage.text_files import printable, read_lines

AUTO = "auto"  # of data.terms
TERM_MARKS = "\x1c\x1d\x1e"  # before a term, before its translation, and after both
MAX_TERMS, MAX_TERM_CHARS = 500_000, 200
logger = logging.getLogger(__name__)

_LAST_COMBINING = 0x1F000  # beyond it, only variation selectors combine with letters
_FROM_SPREADSHEET = "open the table in a spreadsheet and save it as text with TABs (tab delimited), in UTF-8"
_HEADINGS = {("source", "target"), ("source term", "target term"), ("src", "tgt"), ("term", "translation")}
_JOINERS = "\u200c\u200d"

_MIN_PAIRS = 3  # of a lexicon, in which a word occurs
_MIN_DICE = 0.5
_MOST_PAIRS = 1000  # of one word that are looked at, evenly drawn; a more frequent word is counted by these


@dataclass(frozen=True, slots=True)
class Match:
    """A term in a text: from `start` to `end`, as the glossary writes it, with its translation."""

    start: int
    end: int
    src: str
    tgt: str


class Glossary:
    """Terms with one translation each, in NFC.

    Attributes:
        terms: the translation of each term.
    """

    def __init__(self, terms: Mapping[str, str]):
        self.terms = {_nfc(src): _nfc(tgt) for src, tgt in terms.items()}
        self._longest = max(map(len, self.terms), default=0)

    @classmethod
    def read(cls, path: Path) -> "Glossary":
        """Read a file with a term, a TAB and its translation in each line; empty lines are skipped.

        Raises:
            UsageError: if the file is missing or not text.
            DataError: if a line is no pair of terms, a term has two translations, or there is none or too many.
        """
        terms = dict[str, str]()
        for number, line in enumerate(read_lines(path, "strict"), 1):
            if not line.strip():
                continue
            src, tgt = _term_pair(line, f"{path}:{number}")
            if not terms and (src.lower(), tgt.lower()) in _HEADINGS:
                logger.warning("%s:%d: %s and %s are taken for a heading and left out", path, number, src, tgt)
                continue
            if terms.setdefault(src, tgt) != tgt:
                both = f"{printable(terms[src])} and {printable(tgt)}"
                raise DataError(f"{path}:{number}: {printable(src)} has two translations, {both}; expected one")
            if len(terms) > MAX_TERMS:
                raise DataError(f"{path}:{number}: expected at most {MAX_TERMS:,} terms")
        if not terms:
            raise DataError(f"{path}: has no terms, expected lines of source term TAB target term")
        return cls(terms)

    def lines(self) -> Iterator[str]:
        """The lines of the file that `read` reads."""
        return (f"{src}\t{tgt}\n" for src, tgt in self.terms.items())

    def matches(self, text: str) -> list[Match]:
        """The terms in a text that is in NFC, in its order.

        Terms are whole words, or any characters in scripts without spaces. The longest is taken first; what overlaps
        it is skipped. A term whose first word is in lower case also matches with a capital at its beginning.
        """
        words = word_spans(text)
        found = list[tuple[int, bool, int, int, str]]()  # the least is taken first
        for number, (start, first_end) in enumerate(words):
            for _, end in words[number:]:
                if end - start > self._longest:
                    break
                written = text[start:end]
                term = written if written in self.terms else _decapitalize(written, first_end - start)
                if term in self.terms:
                    found.append((start - end, term != written, start, end, term))
        taken, matches = set[int](), list[Match]()
        for _, _, start, end, term in sorted(found):
            if taken.isdisjoint(span := range(start, end)):
                taken.update(span)
                matches.append(Match(start, end, term, self.terms[term]))
        return sorted(matches, key=lambda match: match.start)

    def annotate(self, text: str) -> str:
        """The text with the translation beside each term, between marks; without terms it stays as it is."""
        normal = _nfc(text)
        matches = self.matches(normal)
        marked = ((m.start, m.end, mark_term(normal[m.start : m.end], m.tgt)) for m in matches)
        return replace_spans(normal, marked) if matches else text


def mark_term(term: str, translation: str) -> str:
    """A term with its translation beside it, between marks."""
    before_term, before_translation, after = tuple(TERM_MARKS)
    return f"{before_term}{term}{before_translation}{translation}{after}"


def replace_spans(text: str, spans: Iterable[tuple[int, int, str]]) -> str:
    """A text with something else in some places, each from where to where, in their order."""
    parts, done = list[str](), 0
    for start, end, new in spans:
        parts += [text[done:start], new]
        done = end
    return "".join([*parts, text[done:]])


def find_words(term: str, text: str) -> list[tuple[int, int]]:
    """From where to where a term stands in a text as whole words, in this case, without overlap."""
    if term not in text:
        return []
    words = word_spans(text)
    ends = {end for _, end in words}
    found = list[tuple[int, int]]()
    for start, _ in words:
        end = start + len(term)
        if end in ends and text.startswith(term, start) and (not found or found[-1][1] <= start):
            found.append((start, end))
    return found


def num_used(translations: Sequence[str], text: str) -> int:
    """How many of these translations of terms a text has, each once; also with a capital at its beginning."""
    if not translations:
        return 0
    expected = Counter(translation for translation in map(_nfc, translations) if translation.strip())
    found = Counter(match.src for match in Glossary({term: term for term in expected}).matches(_nfc(text)))
    return (expected & found).total()


def word_spans(text: str) -> list[tuple[int, int]]:
    """From where to where each word stands; a letter of a script without spaces and a sign are words too."""
    return [match.span() for match in _word().finditer(text)]


@functools.cache
def _word() -> re.Pattern[str]:
    """Python's own \\w has no combining characters, without which Hindi words would fall apart."""
    characters = map(chr, range(0x300, _LAST_COMBINING))
    marks = "".join(c for c in characters if unicodedata.category(c).startswith("M"))
    return re.compile(f"(?:(?![{WITHOUT_SPACES}])[\\w{marks}{_JOINERS}])+|\\S")


def letters_of(terms: Iterable[str]) -> list[str]:
    """The letters of each word of some terms, in lower case."""
    words = (word.lower() for term in terms for word in term.split())
    letters = ("".join(c for c in word if c.isalpha() or unicodedata.category(c).startswith("M")) for word in words)
    return [word for word in letters if word]


def _decapitalize(text: str, size: int) -> str:
    """A text whose first word, of this size, only begins with a capital, with a small letter there."""
    word, lowered = text[:size], text[:size].lower()
    return lowered + text[size:] if len(lowered) == size and lowered[1:] == word[1:] else text


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _term_pair(line: str, place: str) -> tuple[str, str]:
    sides = [_nfc(side.strip()) for side in line.split("\t")]
    text = "".join(sides)
    is_clean = clean_text(text) == text and all(unicodedata.category(character) != "Cc" for character in text)
    if len(sides) != 2 or not is_clean or not all(1 <= len(side) <= MAX_TERM_CHARS for side in sides):
        each = f"each of 1 to {MAX_TERM_CHARS} characters without control characters"
        raise DataError(f"{place}: expected source term TAB target term, {each}", _FROM_SPREADSHEET)
    return sides[0], sides[1]


def glossary_file(data: DataConfig) -> Path | None:
    """The glossary of data.terms; None if it names none. Raises UsageError if it is missing."""
    if data.terms in (None, AUTO):
        return None
    path = Path(str(data.terms))
    if not path.is_file():
        raise UsageError(f"data.terms: {path}: no such file", "data.terms=auto learns without a glossary")
    return path.resolve()


def find_terms(pairs: Iterable[tuple[Sequence[str], Sequence[str]]], file: Path | None) -> Glossary:
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
            occurring |= {match.src: match.tgt for match in found if find_words(match.tgt, tgt_text)}
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
        if dice.size and (score := float(dice.max())) >= _MIN_DICE:
            other = int(others[dice.argmax()])
            best[other] = max(best.get(other, (0.0, "")), (score, word))
    return {word: tgt_words[other] for other, (_, word) in sorted(best.items())}
