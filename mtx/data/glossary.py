"""Terms and their translations: read from a file, found in a sentence, and written into it for the model.

A model that learned it (`terms`) takes the translation that stands beside a term between three marks: `see the` mark
`house` mark `Haus` mark `today`. In text the marks are control characters, which `clean_text` removes from all that
users write, so only `annotate` can set them; `tokenizer` turns them into ids of their own.
Flow: a file of source TAB target -> `Glossary` -> `annotate` -> tokenizer.
"""

import functools
import itertools
import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mtx.data.cleaning import clean_text
from mtx.data.languages import WITHOUT_SPACES
from mtx.errors import DataError
from mtx.storage.text_files import printable, read_lines

TERM_MARKS = "\x1c\x1d\x1e"  # before a term, before its translation, and after both
MAX_TERMS, MAX_TERM_CHARS = 500_000, 200
logger = logging.getLogger(__name__)

_LAST_COMBINING = 0x1F000  # beyond it, only variation selectors combine with letters
_FROM_SPREADSHEET = "open the table in a spreadsheet and save it as text with TABs (tab delimited), in UTF-8"
_HEADINGS = {("source", "target"), ("source term", "target term"), ("src", "tgt"), ("term", "translation")}
_JOINERS = "\u200c\u200d"


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
        lengths: dict[str, set[int]] = {}
        for term in self.terms:
            lengths.setdefault(_first_word(term), set()).add(len(term))
        self._lengths = {word: sorted(values) for word, values in lengths.items()}

    @classmethod
    def read(cls, path: Path) -> "Glossary":
        """Read a file with a term, a TAB and its translation in each line; empty lines are left out.

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

    @functools.cached_property
    def letters(self) -> tuple[list[str], list[str]]:
        """The letters of each word of the terms, and of each word of their translations, in lower case."""
        src, tgt = (
            [_letters(word) for term in side for word in term.split()] for side in (self.terms, self.terms.values())
        )
        return [word for word in src if word], [word for word in tgt if word]

    def lines(self) -> Iterator[str]:
        """The lines of the file that `read` reads."""
        return (f"{src}\t{tgt}\n" for src, tgt in self.terms.items())

    def matches(self, text: str) -> list[Match]:
        """The terms in a text that is in NFC, in its order.

        Terms are whole words, or any characters in scripts without spaces. The longest is taken first; what overlaps
        it is left out. A term whose first word is in lower case also matches with a capital at its beginning.
        """
        words = word_spans(text)
        ends = {end for _, end in words}
        candidates = list[tuple[int, bool, Match]]()  # the least is taken first
        for start, end in words:
            for first in _spellings(word := text[start:end]):
                for length in self._lengths.get(first, ()):
                    term = first + text[end : start + length]
                    if start + length in ends and term in self.terms:
                        match = Match(start, start + length, term, self.terms[term])
                        candidates.append((-length, first != word, match))
        taken, matches = set[int](), list[Match]()
        for _, _, match in sorted(candidates, key=lambda candidate: candidate[:2]):
            if taken.isdisjoint(span := range(match.start, match.end)):
                taken.update(span)
                matches.append(match)
        return sorted(matches, key=lambda match: match.start)

    def annotate(self, text: str) -> str:
        """The text with the translation beside each term, between marks; without terms it stays as it is."""
        normal = _nfc(text)
        matches = self.matches(normal)
        return annotated(normal, ((match.start, match.end, match.tgt) for match in matches)) if matches else text


def annotated(text: str, terms: Iterable[tuple[int, int, str]]) -> str:
    """A text with terms, each from where to where it stands with its translation, between marks."""
    before_term, before_translation, after = tuple(TERM_MARKS)
    marked = (
        (start, end, f"{before_term}{text[start:end]}{before_translation}{translation}{after}")
        for start, end, translation in terms
    )
    return replaced(text, marked)


def replaced(text: str, spans: Iterable[tuple[int, int, str]]) -> str:
    """A text with something else in some places, each from where to where, in their order."""
    parts, done = list[str](), 0
    for start, end, new in spans:
        parts += [text[done:start], new]
        done = end
    return "".join([*parts, text[done:]])


def occurrences(term: str, text: str) -> list[tuple[int, int]]:
    """From where to where a term stands in a text as whole words, in this case, without overlap."""
    if term not in text:
        return []
    words = word_spans(text)
    starts, ends = {start for start, _ in words}, {end for _, end in words}
    found, at = list[tuple[int, int]](), text.find(term)
    while at >= 0:
        end = at + len(term)
        is_whole = at in starts and end in ends
        found += [(at, end)] * is_whole
        at = text.find(term, end if is_whole else at + 1)
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
    combining = (c for c in range(0x300, _LAST_COMBINING) if unicodedata.category(chr(c)).startswith("M"))
    runs = (
        [number for _, number in run]
        for _, run in itertools.groupby(enumerate(combining), lambda item: item[1] - item[0])
    )
    marks = "".join(f"{chr(run[0])}-{chr(run[-1])}" for run in runs)
    return re.compile(f"(?:(?![{WITHOUT_SPACES}])[\\w{marks}{_JOINERS}])+|\\S")


def _letters(word: str) -> str:
    return "".join(c for c in word.lower() if c.isalpha() or unicodedata.category(c).startswith("M"))


def _first_word(term: str) -> str:
    start, end = word_spans(term)[0]
    return term[start:end]


def _spellings(word: str) -> tuple[str, ...]:
    """A word of a text, and in lower case if it only begins with a capital, as it may at the start of a sentence."""
    lowered = word.lower()
    is_capitalised = lowered != word and len(lowered) == len(word) and lowered[1:] == word[1:]
    return (word, lowered) if is_capitalised else (word,)


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _term_pair(line: str, place: str) -> tuple[str, str]:
    sides = [_nfc(side.strip()) for side in line.split("\t")]
    if len(sides) != 2:
        text = f"{place}: has {len(sides) - 1} TABs, expected source term TAB target term"
        raise DataError(text, _FROM_SPREADSHEET)
    for side, name in zip(sides, ("source", "target"), strict=True):
        has_controls = clean_text(side) != side or any(unicodedata.category(character) == "Cc" for character in side)
        if has_controls or not 1 <= len(side) <= MAX_TERM_CHARS:
            text = f"{place}: its {name} term has a control character, or not 1 to {MAX_TERM_CHARS} characters"
            raise DataError(text)
    return sides[0], sides[1]
