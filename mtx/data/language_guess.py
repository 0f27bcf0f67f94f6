"""In which language is a text? Flow: some sentences -> py3langid -> `Profile` -> how much it looks like each language.

A language that py3langid does not know is judged by the letters of its script, and Latin letters alone say nothing.
Sentences of which it is not sure count for no language. Of a single sentence only `rank_languages` says something:
which of a few languages is the likeliest.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import regex
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from mtx.data.languages import KNOWN, key_of, script_of

_SURE = 0.5  # probability from which a sentence counts for a language
# Rules of thumb. Over 99% of Multi30k's sentences count for their own language.
_LOOKS_ALIKE, _TIMES = 0.5, 1.5  # likeness; how many times that of another language or text
_ENOUGH_TEXTS, _ENOUGH_LETTERS = 50, 1000  # different sentences, and letters; less tells nothing


@cache
def _detector() -> LanguageIdentifier:
    """The detector of 140 languages; it takes half a second to load, and 74 MB."""
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True, min_confidence=_SURE)


@dataclass(frozen=True)
class Profile:
    """The share of a text's sentences in each language, and its letters; both are empty if it is too small."""

    languages: dict[str, float]
    letters: Counter[str]

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Profile":
        """The profile of some sentences; one that repeats itself counts once."""
        different = set(texts)
        letters = _letters(different)
        if len(different) < _ENOUGH_TEXTS or letters.total() < _ENOUGH_LETTERS:
            return cls({}, Counter())
        return cls(_by_key((_detector().classify(text)[0], 1 / len(different)) for text in different), letters)

    def likeness(self, language: str) -> float | None:
        """The share of the sentences in a language, or of the letters in its script if the detector does not know it.

        None if nothing is known of the language, or the text is too small.
        """
        if not self.letters:
            return None
        if (key := key_of(language)) in map(key_of, _detector().labels):
            return self.languages.get(key, 0.0)
        script = script_of(language)
        return None if script == "Latn" else _share_in_script(self.letters, script)

    def other_language(self, language: str) -> str | None:
        """The code of the language that a text looks like, if that is clearly another than the given one."""
        own = self.likeness(language)
        best = max(KNOWN, key=lambda key: self.languages.get(key, 0.0))
        is_other = own is not None and self.languages.get(best, 0.0) >= max(_LOOKS_ALIKE, _TIMES * own)
        return best if is_other and best != key_of(language) else None


def language_of(texts: Iterable[str]) -> str | None:
    """The code of the language that some sentences are in; None if they are too few, or it is not clear."""
    shares = Profile.of(texts).languages
    *_, (second, _), (best, language) = sorted((shares.get(key, 0.0), key) for key in KNOWN)
    return language if best >= max(_LOOKS_ALIKE, _TIMES * second) else None


def are_exchanged(src: Profile, tgt: Profile, languages: tuple[str, str]) -> bool:
    """Whether the source text looks like the target language and the target text like the source language.

    One language is enough of which something is known; if it is so of both, both must look exchanged.
    """
    sides = ((tgt, src, languages[0]), (src, tgt, languages[1]))
    pairs = [(there.likeness(language), here.likeness(language)) for there, here, language in sides]
    known = [(there, here) for there, here in pairs if there is not None and here is not None]
    return bool(known) and all(there >= max(_LOOKS_ALIKE, _TIMES * here) for there, here in known)


def rank_languages(text: str, languages: Sequence[str]) -> list[tuple[str, float]]:
    """Some languages, the likeliest for a short text first, each with its share of the likelihood in per cent.

    A language that the detector does not know gets what it leaves, by the letters of its script. All shares are 0
    without letters, and for a text that is in none of the languages.
    """
    weights = dict.fromkeys(languages, 0.0)
    if letters := _letters([text]):
        likelihood = _by_key(_detector().rank(text))
        rest = max(0.0, 1 - sum(likelihood.get(key_of(language), 0.0) for language in languages))
        for language in languages:
            share = _share_in_script(letters, script_of(language))
            weights[language] = likelihood.get(key_of(language), rest if share is None else rest * share)
    total = sum(weights.values()) or 1.0
    ranked = [(language, round(100 * weight / total, 1)) for language, weight in weights.items()]
    return sorted(ranked, key=lambda language: -language[1])


def _by_key(numbers: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The sums of the numbers of the detector's codes, by the keys of `KNOWN`, which some codes share."""
    sums = dict[str, float]()
    for code, number in numbers:
        sums[key_of(code)] = sums.get(key_of(code), 0.0) + number
    return sums


def _letters(texts: Iterable[str]) -> Counter[str]:
    return Counter(letter for text in texts for letter in text if letter.isalpha())


def _share_in_script(letters: Counter[str], script: str) -> float | None:
    """The share of letters in a script by its ISO 15924 code; None if Unicode does not know it, such as Jpan."""
    try:
        in_script = regex.compile(rf"\p{{sc={script}}}").match
    except regex.error:
        return None
    return sum(number for letter, number in letters.items() if in_script(letter)) / letters.total()
