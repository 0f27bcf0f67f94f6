"""Detects the language of a text.

Flow: some sentences -> py3langid -> `Profile` -> how much a text looks like each language. Languages unknown to
py3langid are judged by the letters of their script; Latin letters alone are not informative. Uncertain sentences count
for no language. For a single sentence, `rank_languages` ranks a few languages by likelihood, and `find_other_language`
finds only what is certainly wrong.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain, islice

import regex
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from mtx.data.languages import KNOWN, WITHOUT_SPACES, Languages, key_of, script_of

_SURE = 0.5  # probability from which a sentence counts for a language
# Rules of thumb. Over 99% of Multi30k's sentences count for their own language.
_SURE_WORDS = 5  # minimum number of words of a line, for a text to be in one language and in no other
_SURE_RATIO = 10  # and minimum ratio of its likelihood to another language's
_OTHER = 0.9  # minimum likelihood of a language, for a sentence not to be in the expected one
_UNEXPECTED = 0.01  # and maximum likelihood of that; relatives, such as Xhosa and Zulu, often have more
_BEGINNING = 48  # characters of the sentence, which are enough
_ALIKE = 0.5  # minimum likeness to a language
_ALIKE_RATIO = 1.5  # and minimum ratio to the likeness to another language, or of another text
_ENOUGH_TEXTS = 10  # minimum number of different sentences
_ENOUGH_LETTERS = 300  # minimum number of letters
_ENOUGH_OF_SCRIPT = 20  # minimum number of letters, since a name keeps its script
# ISO 15924 has codes for what is written together, which Unicode does not know
_PARTS_OF_SCRIPTS = {"Hans": ["Hani"], "Hant": ["Hani"], "Jpan": ["Hani", "Hira", "Kana"], "Kore": ["Hang", "Hani"]}
SAMPLE = 4_000  # inspected sentences or units
_LONE_LETTER = re.compile(f"[{WITHOUT_SPACES}]")


@cache
def _detector() -> LanguageIdentifier:
    """The detector of 140 languages; it takes half a second to load, and 74 MB."""
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True, min_confidence=_SURE)


@lru_cache(maxsize=1 << 13)  # both sides of a sample
def _classify(text: str) -> str:
    """The detector's code for a sentence. The first sentences of a corpus are read several times before training."""
    return str(_detector().classify(text)[0])


@dataclass(frozen=True)
class Profile:
    """The share of a text's sentences in each language, and its letters; both are empty if it is too small.

    Only the first sentences are inspected.
    """

    languages: defaultdict[str, float]
    letters: Counter[str]

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Profile":
        """The profile of some sentences; repeated sentences count once."""
        sample = set(islice(texts, SAMPLE))
        letters = _letters(sample)
        if len(sample) < _ENOUGH_TEXTS or letters.total() < _ENOUGH_LETTERS:
            sample = set()
            letters = Counter()
        return cls(_by_key((_classify(text), 1 / len(sample)) for text in sample), letters)

    def likeness(self, language: str) -> float | None:
        """The share of the sentences in a language, or of letters in its script if the detector does not support it.

        None if the language is unknown, or the text is too small.
        """
        if not self.letters:
            return None
        if _is_supported(language):
            return self.languages[key_of(language)]
        script = script_of(language)
        return None if script == "Latn" else _share_in_script(self.letters, script)

    def other_language(self, language: str) -> str | None:
        """The code of the language that a text looks like, if it is clearly not the given one."""
        likeness = self.likeness(language)
        best = max(KNOWN, key=lambda key: self.languages[key])
        is_other = likeness is not None and self.languages[best] >= max(_ALIKE, _ALIKE_RATIO * likeness)
        return best if is_other and best != key_of(language) else None


def language_of(texts: Iterable[str]) -> str | None:
    """The code of the language of some sentences; None if they are too few, or it is unclear."""
    shares = Profile.of(texts).languages
    *_, (second_best, _), (best, language) = sorted((shares[key], key) for key in KNOWN)
    return language if best >= max(_ALIKE, _ALIKE_RATIO * second_best) else None


def are_exchanged(src: Profile, tgt: Profile, languages: Languages) -> bool:
    """Whether the source text looks like the target language and the target text like the source language.

    One known language is enough; if both are known, both must look swapped.
    """
    is_known = False
    for side, other_side, language in ((src, tgt, languages[0]), (tgt, src, languages[1])):
        likeness = side.likeness(language)
        other_likeness = other_side.likeness(language)
        if likeness is not None and other_likeness is not None:
            if other_likeness < max(_ALIKE, _ALIKE_RATIO * likeness):
                return False
            is_known = True
    return is_known


def rank_languages(text: str, languages: Sequence[str]) -> list[tuple[str, float]]:
    """Some languages, the most likely for a short text first, each with its share of the likelihood in per cent.

    Languages that the detector does not support get the remaining likelihood, by the letters of their scripts. All
    shares are 0 without letters, and for a text in none of the languages.
    """
    weights = dict.fromkeys(languages, 0.0)
    if letters := _letters([text]):
        likelihood = _by_key(_detector().rank(text))
        remaining = max(0.0, 1 - sum(likelihood.get(key_of(language), 0.0) for language in languages))
        for language in languages:
            share = _share_in_script(letters, script_of(language))
            weights[language] = likelihood.get(key_of(language), remaining if share is None else remaining * share)
    total = sum(weights.values()) or 1.0
    shares = {language: round(100 * weight / total, 1) for language, weight in weights.items()}
    return sorted(shares.items(), key=lambda item: -item[1])


def is_surely_in(text: str, language: str, other_languages: Iterable[str]) -> bool:
    """Whether a text of at least five words, and each of its lines, is in a language and in none of some others.

    False if the detector does not support one of the languages: it would take Silesian for Polish.
    """
    lines = [line for line in (text, *text.split("\n")) if _has_enough_words(line)]
    for line in lines:
        likelihood = _by_key(_detector().rank(line))
        rivals = (_SURE_RATIO * likelihood.get(key_of(other), 1.0) for other in other_languages)
        if likelihood[key_of(language)] < max([_SURE, *rivals]):
            return False
    return bool(lines)


def find_other_language(text: str, language: str) -> str | None:
    """The language that a text of at least five words is in, if it is certainly not the expected one.

    None if that is uncertain, or the detector does not support the expected language.
    """
    if not _is_supported(language):
        return None
    beginning = text[:_BEGINNING]
    likelihood = _by_key(_detector().rank(beginning)[:10])  # the others are less likely than _UNEXPECTED
    other = max(likelihood, key=lambda key: likelihood[key])
    is_other = likelihood[other] >= _OTHER and likelihood[key_of(language)] < _UNEXPECTED
    return other if is_other and other in KNOWN and _has_enough_words(beginning) else None


def is_in_other_language(text: str, language: str) -> bool:
    """Whether a text is certainly not in the expected language, or most of its letters are not in its usual script."""
    letters = _letters([text])
    script = script_of(language)
    if letters.total() >= _ENOUGH_OF_SCRIPT:
        shares = [_share_in_script(letters, part) for part in _PARTS_OF_SCRIPTS.get(script, [script])]
        if sum(1.0 if share is None else share for share in shares) < _ALIKE:
            return True
    return find_other_language(text, language) is not None


@lru_cache
def _is_supported(language: str) -> bool:
    return key_of(language) in map(key_of, _detector().labels)


def _has_enough_words(line: str) -> bool:
    return len(_LONE_LETTER.sub(r"\g<0> ", line).split()) >= _SURE_WORDS


def _by_key(numbers: Iterable[tuple[str, float]]) -> defaultdict[str, float]:
    """The sums of the numbers of the detector's codes, by the keys of `KNOWN`, which some codes share."""
    sums = defaultdict[str, float](float)
    for code, number in numbers:
        sums[key_of(code)] += number
    return sums


def _letters(texts: Iterable[str]) -> Counter[str]:
    return Counter(filter(str.isalpha, chain.from_iterable(texts)))


def _share_in_script(letters: Counter[str], script: str) -> float | None:
    """The share of letters in a script by its ISO 15924 code; None if Unicode does not know it, such as Jpan."""
    try:
        in_script = regex.compile(rf"\p{{sc={script}}}").match
    except regex.error:
        return None
    return sum(number for letter, number in letters.items() if in_script(letter)) / letters.total()
