"""Terms and their translations: read from a file, learned from text, found in a sentence, written into it.

A model trained with `Terms` of `augmentation` copies the translation given next to a term between three marks:
`see the` mark `house` mark `Haus` mark `today`. In text the marks are control characters, which `clean_text` removes
from user text, so only `mark_term` can set them; `tokenizer` maps them to reserved ids.
Flow: a file of source TAB target, or training text and `learn_lexicon` -> `Glossary` -> `annotate` -> tokenizer.
"""

import functools
import logging
import re
import unicodedata
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

from mtx.data.languages import WITHOUT_SPACES
from mtx.errors import DataError
from mtx.formatting import divide_up
from mtx.storage.text_files import printable, read_lines

TERM_MARKS = "\x1c\x1d\x1e"  # before a term, before its translation, and after both
MAX_TERM_CHARS = 200
logger = logging.getLogger(__name__)

_TERM = re.compile(f"[^\x00-\x1f\x7f-\x9f\u2028\u2029]{{1,{MAX_TERM_CHARS}}}")
# Combining characters, and all scripts but Latin, Greek, Cyrillic and Armenian, without punctuation and symbols
_OTHER_SCRIPTS = re.compile("[\u0300-\u036f\u0483-\u0489\u0590-\u200d\u20d0-\u20ff\u2c00-\U0010ffff]")
_PLAIN_WORD = re.compile(r"\w+")
_LAST_COMBINING = 0x1F000  # above it, only variation selectors combine with letters
_FROM_SPREADSHEET = "open the table in a spreadsheet and save it as text with TABs (tab delimited), in UTF-8"
_HEADINGS = {("source", "target"), ("source term", "target term"), ("src", "tgt"), ("term", "translation")}

_nfc = functools.partial(unicodedata.normalize, "NFC")

_MIN_PAIRS = 3  # pairs in which a word of a lexicon must occur
_MIN_DICE = 0.5
_MOST_PAIRS = 1000  # evenly drawn pairs of a frequent word that are counted


class Match(NamedTuple):
    """A term in a text, from `start` to `end`, in the glossary's spelling, with its translation."""

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
        """Read a file with a term, a TAB and its translation per line; empty lines and a third column are skipped.

        Raises:
            UsageError: if the file is missing or not text.
            DataError: if a line is not a pair of terms, a term has two translations, or there are no terms.
        """
        terms = dict[str, str]()
        has_third_column = False
        for number, line in enumerate(read_lines(path, "strict"), 1):
            if not line.strip():
                continue
            sides = [_nfc(side.strip()) for side in line.split("\t")]
            if len(sides) == 3:
                has_third_column = True
                sides.pop()
            if len(sides) != 2 or not all(map(_TERM.fullmatch, sides)):
                limits = f"each of 1 to {MAX_TERM_CHARS} characters without control characters"
                raise DataError(f"{path}:{number}: expected source term TAB target term, {limits}", _FROM_SPREADSHEET)
            src, tgt = sides
            if not terms and (src.lower(), tgt.lower()) in _HEADINGS:
                logger.warning("%s:%d: skipping %s and %s, probably a heading", path, number, src, tgt)
                continue
            if terms.setdefault(src, tgt) != tgt:
                translations = f"{printable(terms[src])} and {printable(tgt)}"
                raise DataError(f"{path}:{number}: {printable(src)} has two translations, {translations}; expected one")
        if has_third_column:
            logger.info("%s: skipping the third column", path)
        if not terms:
            raise DataError(f"{path}: no terms, expected lines of source term TAB target term")
        return cls(terms)

    def lines(self) -> Iterator[str]:
        """The lines of a file for `read`."""
        return (f"{src}\t{tgt}\n" for src, tgt in self.terms.items())

    def matches(self, text: str) -> list[Match]:
        """The terms in an NFC text, in order.

        Terms are whole words, or any characters in scripts without spaces. The longest term wins; terms that overlap
        it are skipped. A term with a lower-case first word also matches with an initial capital.
        """
        words = word_spans(text)
        candidates = list[tuple[int, bool, Match]]()
        for number, (start, first_end) in enumerate(words):
            for _, end in words[number:]:
                if end - start > self._longest:
                    break
                written = text[start:end]
                term = written if written in self.terms else _decapitalize(written, first_end - start)
                if term in self.terms:
                    candidates.append((start - end, written != term, Match(start, end, term, self.terms[term])))
        covered = set[int]()
        matches = list[Match]()
        for _, _, match in sorted(candidates):
            if covered.isdisjoint(span := range(match.start, match.end)):
                covered.update(span)
                matches.append(match)
        return sorted(matches)

    def annotate(self, text: str) -> str:
        """The text with the translation after each term, between marks; unchanged without terms."""
        normal = _nfc(text)
        matches = self.matches(normal)
        marked = ((start, end, mark_term(normal[start:end], tgt)) for start, end, _, tgt in matches)
        return replace_spans(normal, marked) if matches else text


def mark_term(term: str, translation: str) -> str:
    """A term followed by its translation, between marks."""
    term_mark, translation_mark, end_mark = tuple(TERM_MARKS)
    return f"{term_mark}{term}{translation_mark}{translation}{end_mark}"


def replace_spans(text: str, spans: Iterable[tuple[int, int, str]]) -> str:
    """A text with some of its parts replaced, given by their spans, which are in order and do not overlap."""
    parts = list[str]()
    position = 0
    for start, end, replacement in spans:
        assert start >= position
        parts += [text[position:start], replacement]
        position = end
    return "".join([*parts, text[position:]])


def find_words(term: str, text: str) -> list[tuple[int, int]]:
    """The spans of a term in a text as whole words, case-sensitive, without overlap."""
    matches = Glossary({term: term}).matches(text) if term in text else []
    return [match[:2] for match in matches if text[match.start : match.end] == term]


def missing_terms(translations: Sequence[str], text: str) -> list[str]:
    """Those of some term translations that a text does not use; each use counts once, also with an initial capital."""
    if not translations:
        return []
    expected = Counter(filter(str.strip, map(_nfc, translations)))
    matches = Glossary({term: term for term in expected}).matches(_nfc(text))
    return [*(expected - Counter(match.src for match in matches)).elements()]


def word_spans(text: str) -> list[tuple[int, int]]:
    """The span of each word; signs and letters of scripts without spaces are words too."""
    return [match.span() for match in _word().finditer(text)]


def split_words(text: str) -> list[str]:
    """The words of a text in lower case, without signs; a letter or a mark of a script without spaces is one."""
    text = text.lower()
    if not _OTHER_SCRIPTS.search(text):
        return _PLAIN_WORD.findall(text)  # the same words in a third of the time
    words = _word().findall(text)
    return [word for word in words if len(word) > 1 or word.isalnum() or unicodedata.category(word).startswith("M")]


@functools.cache
def _word() -> re.Pattern[str]:
    """Python's own \\w lacks combining characters, so it would split Hindi words."""
    marks = [c for c in map(chr, range(0x300, _LAST_COMBINING)) if unicodedata.category(c).startswith("M")]
    basic = "".join(mark for mark in marks if mark < "\U00010000")
    others = "".join(mark for mark in marks if mark >= "\U00010000")
    # A set with characters beyond U+FFFF is searched one by one, which would take nine tenths of the time
    mark = f"(?![{WITHOUT_SPACES}])(?:[{basic}\u200c\u200d]|(?=[\U00010000-\U0010ffff])[{others}])"
    return re.compile(f"(?:[^\\W{WITHOUT_SPACES}]++|{mark})+|\\S")


def letters_of(terms: Iterable[str]) -> list[str]:
    """The letters of each word of the terms, in lower case."""
    words = " ".join(terms).lower().split()
    letters = ("".join(c for c in word if unicodedata.category(c)[0] in "LM") for word in words)
    return list(filter(None, letters))


def _decapitalize(text: str, size: int) -> str:
    """A text with its first letter in lower case, if the first word (of this length) has only an initial capital."""
    lowered = text[:size].lower()
    return lowered + text[size:] if len(lowered) == size and lowered[1:] == text[1:size] else text


def _words(text: str) -> list[str]:
    """The words of a text with at least one letter; in scripts without spaces, pairs of adjacent letters."""
    spans = word_spans(text)
    words = [text[start:end] for start, end in spans if 1 < end - start <= MAX_TERM_CHARS and text[start].isalpha()]
    for (start, middle), (next_start, end) in pairwise(spans):
        are_letters = (
            middle - start == 1 and end - next_start == 1 and text[start].isalpha() and text[next_start].isalpha()
        )
        if are_letters and middle == next_start:
            words.append(text[start:end])
    return words


def learn_lexicon(blocks: Iterable[tuple[Sequence[str], Sequence[str]]]) -> Glossary:
    """The translation of each source word that has a clear one; no two words share a translation.

    Dice's coefficient of two words is the number of pairs with both, over the mean of the numbers of pairs with each.
    Each word keeps its best partner. In seconds, this finds names, nouns and other words with one usual translation; it
    does not build a dictionary.

    Args:
        blocks: the source and the target texts of pairs; their words are kept in memory.
    """
    pairs_of: dict[str, array[int]] = defaultdict(lambda: array("i"))  # the pairs that have a source word, by number
    tgt_numbers = dict[str, int]()
    tgt_words: list[array[int]] = []  # the numbers of the target words of each pair
    for src_texts, tgt_texts in blocks:
        for src, tgt in zip(src_texts, tgt_texts, strict=True):
            for word in set(_words(src)):
                pairs_of[word].append(len(tgt_words))
            tgt_words.append(array("i", {tgt_numbers.setdefault(word, len(tgt_numbers)) for word in _words(tgt)}))
    num_pairs = Counter(chain.from_iterable(tgt_words))
    best = dict[int, tuple[float, str]]()  # of each target word, its score and the source word
    for word, pairs in pairs_of.items():
        if len(pairs) < _MIN_PAIRS:
            continue
        sample = pairs[:: divide_up(len(pairs), _MOST_PAIRS)]
        weight = len(pairs) / len(sample)
        counts = Counter(chain.from_iterable(tgt_words[pair] for pair in sample))
        scores = {
            number: 2 * count * weight / (len(pairs) + num_pairs[number])
            for number, count in counts.items()
            if num_pairs[number] >= _MIN_PAIRS
        }
        dice = max(scores.values(), default=0.0)
        if dice >= _MIN_DICE:
            partner = min(number for number, score in scores.items() if score == dice)
            best[partner] = max(best.get(partner, (0.0, "")), (dice, word))
    words = list(tgt_numbers)
    return Glossary({word: words[number] for number, (_, word) in sorted(best.items())})
