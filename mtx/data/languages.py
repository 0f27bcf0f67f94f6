"""What mtx knows about languages: their codes and scripts (by langcodes), and names.

The names tell a header from a pair (`columns`), and a message calls languages by them.
"""

from functools import lru_cache
from typing import NamedTuple

from langcodes import Language
from langcodes.tag_parser import LanguageTagError


class Known(NamedTuple):
    """A language: its name in English and its own name, and its word for English."""

    name: str
    own_name: str
    english: str


KNOWN = {
    "af": Known("Afrikaans", "Afrikaans", "Engels"),
    "ar": Known("Arabic", "العربية", "الإنجليزية"),
    "bg": Known("Bulgarian", "български", "английски"),
    "ca": Known("Catalan", "català", "anglès"),
    "cs": Known("Czech", "čeština", "angličtina"),
    "da": Known("Danish", "dansk", "engelsk"),
    "de": Known("German", "Deutsch", "Englisch"),
    "el": Known("Greek", "ελληνικά", "αγγλικά"),
    "en": Known("English", "English", "English"),
    "es": Known("Spanish", "español", "inglés"),
    "et": Known("Estonian", "eesti", "inglise"),
    "fa": Known("Persian", "فارسی", "انگلیسی"),
    "fi": Known("Finnish", "suomi", "englanti"),
    "fr": Known("French", "français", "anglais"),
    "he": Known("Hebrew", "עברית", "אנגלית"),
    "hi": Known("Hindi", "हिन्दी", "अंग्रेज़ी"),
    "hr": Known("Croatian", "hrvatski", "engleski"),
    "hu": Known("Hungarian", "magyar", "angol"),
    "id": Known("Indonesian", "Bahasa Indonesia", "Bahasa Inggris"),
    "it": Known("Italian", "italiano", "inglese"),
    "ja": Known("Japanese", "日本語", "英語"),
    "ko": Known("Korean", "한국어", "영어"),
    "lt": Known("Lithuanian", "lietuvių", "anglų"),
    "lv": Known("Latvian", "latviešu", "angļu"),
    "nb": Known("Norwegian", "norsk", "engelsk"),
    "nl": Known("Dutch", "Nederlands", "Engels"),
    "pl": Known("Polish", "polski", "angielski"),
    "pt": Known("Portuguese", "português", "inglês"),
    "ro": Known("Romanian", "română", "engleză"),
    "ru": Known("Russian", "русский", "английский"),
    "sk": Known("Slovak", "slovenčina", "angličtina"),
    "sl": Known("Slovenian", "slovenščina", "angleščina"),
    "sv": Known("Swedish", "svenska", "engelska"),
    "sw": Known("Swahili", "Kiswahili", "Kiingereza"),
    "th": Known("Thai", "ไทย", "อังกฤษ"),
    "tl": Known("Filipino", "Tagalog", "Ingles"),
    "tr": Known("Turkish", "Türkçe", "İngilizce"),
    "uk": Known("Ukrainian", "українська", "англійська"),
    "ur": Known("Urdu", "اردو", "انگریزی"),
    "vi": Known("Vietnamese", "Tiếng Việt", "Tiếng Anh"),
    "zh": Known("Chinese", "中文", "英文"),
}
# Languages that share an entry: their texts are hard to tell apart.
_SAME = {"no": "nb", "nn": "nb", "bs": "hr", "sr": "hr", "sh": "hr", "ms": "id", "fil": "tl", "cmn": "zh"}


def code_of(language: str) -> str:
    """The shortest code of a language, without script and region: de for `deu`, `de-AT`, `German`; else the given."""
    try:
        return Language.get(tag_of(language)).language or language
    except LanguageTagError:
        return language


@lru_cache
def script_of(language: str) -> str:
    """The ISO 15924 code of the script that a language is usually written in; empty if nothing is known of it."""
    try:
        return Language.get(tag_of(language)).maximize().script or ""
    except LanguageTagError:
        return ""


def tag_of(language: str) -> str:
    """The code of a language that is given by its name; a code itself, and a name that is unknown, stay."""
    named = languages_named(language)
    return next(iter(named)) if len(named) == 1 else language


def key_of(language: str) -> str:
    """The key of a language in `KNOWN`, if it is there; else its shortest code."""
    code = code_of(language)
    return _SAME.get(code, code)


@lru_cache
def languages_named(name: str) -> frozenset[str]:
    """The keys of the languages in `KNOWN` with this name, in English, in the language itself, or for English."""
    name = name.casefold()
    keys = {key for key, known in KNOWN.items() if name in (known.name.casefold(), known.own_name.casefold())}
    return frozenset(keys | ({"en"} if any(name == known.english.casefold() for known in KNOWN.values()) else set()))
