"""In which language is a text? Flow: some sentences -> `Profile` -> how much it looks like each language.

A language with frequent words in `languages.KNOWN` is judged by these, another by the letters of its script, and Latin
letters alone say nothing. So a text is only compared with text, and with languages that differ clearly.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from mtx.data.languages import KNOWN, key_of, script_of

# Rules of thumb. The words of its own language are 25 to 50% of a text, those of others at most a few per cent.
_LOOKS_ALIKE, _TIMES = 0.1, 1.5  # likeness; how many times that of another language or text
_FEW_WORDS = 5  # different frequent words, with fewer of which a text is not of their language: names have de, la, van
_ENOUGH_TEXTS, _ENOUGH_LETTERS = 50, 1000  # different sentences, and letters; less tells nothing
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
        words = Counter(word.strip(_PUNCTUATION) for text in different for word in text.lower().split())
        characters: Counter[str] = Counter()
        for text in different:
            characters.update(text)
        letters: Counter[str] = Counter()
        for character, number in characters.items():
            if character.isalpha():
                letters[unicodedata.name(character, "").partition(" ")[0]] += number
        is_enough = len(different) >= _ENOUGH_TEXTS and letters.total() >= _ENOUGH_LETTERS
        return cls(words, letters) if is_enough else cls(Counter(), Counter())

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
        return self._in_script(script_of(language))

    def _in_script(self, script: str) -> float | None:
        if script not in _LETTERS:
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


def are_exchanged(src: Profile, tgt: Profile, languages: tuple[str, str]) -> bool:
    """Whether the source text looks like the target language and the target text like the source language.

    One language is enough of which something is known; if it is so of both, both must look exchanged.
    """
    sides = ((tgt, src, languages[0]), (src, tgt, languages[1]))
    pairs = [(there.likeness(language), here.likeness(language)) for there, here, language in sides]
    known = [(there, here) for there, here in pairs if there is not None and here is not None]
    return bool(known) and all(there >= max(_LOOKS_ALIKE, _TIMES * here) for there, here in known)


def name_of(language: str) -> str:
    """The English name of a language; empty if it is not in the table."""
    key = key_of(language)
    return KNOWN[key].name if key in KNOWN else ""
