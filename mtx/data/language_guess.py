"""In which language is a text? Flow: some sentences -> `Profile` -> how much it looks like each language.

A language with frequent words in `languages.KNOWN` is judged by these, another by the letters of its script, and Latin
letters alone say nothing. So a text is only compared with text, and with languages that differ clearly. Of a single
sentence only `rank_languages` says something: which of a few languages is the likeliest.
"""

import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from mtx.data.languages import KNOWN, key_of, script_of

# Rules of thumb. The words of its own language are 25 to 50% of a text, those of others at most a few per cent.
_LOOKS_ALIKE, _TIMES = 0.1, 1.5  # likeness; how many times that of another language or text
_FEW_WORDS = 5  # different frequent words, with fewer of which a text is not of their language: names have de, la, van
_ENOUGH_TEXTS, _ENOUGH_LETTERS = 50, 1000  # different sentences, and letters; less tells nothing
_TIMES_FREQUENT = 4  # how much more a frequent word tells than that the letters fit, in `rank_languages`
_KANA = 0.1  # of Japanese letters; Chinese has none
_PUNCTUATION = ".,;:!?¡¿\"'()[]«»„“”‘’…–—।،؛؟"
# The first words of Unicode's names of letters, by ISO 15924 code; Latin letters tell no language.
_LETTERS = {
    "Arab": "ARABIC", "Armn": "ARMENIAN", "Beng": "BENGALI", "Cyrl": "CYRILLIC", "Deva": "DEVANAGARI",
    "Ethi": "ETHIOPIC", "Geor": "GEORGIAN", "Grek": "GREEK", "Gujr": "GUJARATI", "Guru": "GURMUKHI", "Hans": "CJK",
    "Hant": "CJK", "Hebr": "HEBREW", "Jpan": "CJK HIRAGANA KATAKANA", "Khmr": "KHMER", "Knda": "KANNADA",
    "Kore": "HANGUL", "Laoo": "LAO", "Mlym": "MALAYALAM", "Mymr": "MYANMAR", "Orya": "ORIYA", "Sinh": "SINHALA",
    "Taml": "TAMIL", "Telu": "TELUGU", "Thai": "THAI", "Tibt": "TIBETAN",
}  # fmt: skip


@dataclass(frozen=True)
class Profile:
    """The words of a text and the scripts of its letters, with their numbers; both are empty if it is too small."""

    words: Counter[str]
    letters: Counter[str]

    @classmethod
    def of(cls, texts: Iterable[str]) -> "Profile":
        """The profile of some sentences; one that repeats itself counts once."""
        different = set(texts)
        profile = cls.of_few(different)
        is_enough = len(different) >= _ENOUGH_TEXTS and profile.letters.total() >= _ENOUGH_LETTERS
        return profile if is_enough else cls(Counter(), Counter())

    @classmethod
    def of_few(cls, texts: Collection[str]) -> "Profile":
        """The profile of texts that may be too few to tell their language."""
        words = Counter(word.strip(_PUNCTUATION) for text in texts for word in text.lower().split())
        characters: Counter[str] = Counter()
        for text in texts:
            characters.update(text)
        letters: Counter[str] = Counter()
        for character, number in characters.items():
            if character.isalpha():
                letters[unicodedata.name(character, "").partition(" ")[0]] += number
        return cls(words, letters)

    def likeness(self, language: str) -> float | None:
        """The share of the words that are frequent ones of a language, or of the letters that its script has.

        None if nothing is known of the language, or the text is too small.
        """
        if not self.letters:
            return None
        key = key_of(language)
        if key in KNOWN and KNOWN[key].words:
            numbers = [self.words[word] for word in KNOWN[key].words.split()]
            return sum(numbers) / self.words.total() if sum(map(bool, numbers)) >= _FEW_WORDS else 0.0
        return self.in_script(script_of(language))

    def in_script(self, script: str) -> float | None:
        """The share of the letters that a script has; None if it is not in the table, or the text has no letters."""
        if script not in _LETTERS or not self.letters:
            return None
        number = sum(self.letters[name] for name in _LETTERS[script].split())
        is_japanese = self.letters["HIRAGANA"] + self.letters["KATAKANA"] > _KANA * max(self.letters["CJK"], 1)
        if script in ("Hans", "Hant", "Jpan") and is_japanese != (script == "Jpan"):
            return 0.0
        return number / self.letters.total()

    def other_language(self, language: str) -> str | None:
        """The code of the language that a text looks like, if that is clearly another than the given one."""
        own = self.likeness(language)
        if own is None:
            return None
        likeness = {key: self.likeness(key) or 0.0 for key in KNOWN}
        best = max(likeness, key=lambda key: likeness[key])
        is_other = best != key_of(language) and likeness[best] >= max(_LOOKS_ALIKE, _TIMES * own)
        return best if is_other else None


def language_of(texts: Iterable[str]) -> str | None:
    """The code of the language that some sentences are in; None if they are too few, or it is not clear."""
    profile = Profile.of(texts)
    (best, language), (second, _) = sorted(((profile.likeness(key) or 0.0, key) for key in KNOWN), reverse=True)[:2]
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

    A letter counts for the languages of its script, and a frequent word of a language four times as much as the rest
    of the text. Where nothing tells them apart, they stay in their order with equal shares; all are 0 without letters.
    """
    profile = Profile.of_few([text])
    weights = dict.fromkeys(languages, 0.0)
    for language in languages if profile.letters else ():
        script, known = script_of(language), KNOWN.get(key_of(language))
        share = profile.letters["LATIN"] / profile.letters.total() if script == "Latn" else profile.in_script(script)
        num_frequent = sum(profile.words[word] for word in known.words.split()) if known else 0
        weights[language] = (1.0 if share is None else share) * (1 + _TIMES_FREQUENT * num_frequent)
    total = sum(weights.values()) or 1.0
    ranked = [(language, round(100 * weight / total, 1)) for language, weight in weights.items()]
    return sorted(ranked, key=lambda language: -language[1])


def name_of(language: str) -> str:
    """The English name of a language; empty if it is not in the table."""
    key = key_of(language)
    return KNOWN[key].name if key in KNOWN else ""
