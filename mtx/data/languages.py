"""What mtx knows about languages: their codes and scripts (by langcodes), and names.

The names tell a header from a pair (`columns`), and a message calls languages by them.
"""

from functools import lru_cache

from langcodes import Language
from langcodes.tag_parser import LanguageTagError

# Of each language its name in English, its own name, and its word for English
KNOWN = {
    "af": ("Afrikaans", "Afrikaans", "Engels"),
    "ar": ("Arabic", "العربية", "الإنجليزية"),
    "bg": ("Bulgarian", "български", "английски"),
    "ca": ("Catalan", "català", "anglès"),
    "cs": ("Czech", "čeština", "angličtina"),
    "da": ("Danish", "dansk", "engelsk"),
    "de": ("German", "Deutsch", "Englisch"),
    "el": ("Greek", "ελληνικά", "αγγλικά"),
    "en": ("English", "English", "English"),
    "es": ("Spanish", "español", "inglés"),
    "et": ("Estonian", "eesti", "inglise"),
    "fa": ("Persian", "فارسی", "انگلیسی"),
    "fi": ("Finnish", "suomi", "englanti"),
    "fr": ("French", "français", "anglais"),
    "he": ("Hebrew", "עברית", "אנגלית"),
    "hi": ("Hindi", "हिन्दी", "अंग्रेज़ी"),
    "hr": ("Croatian", "hrvatski", "engleski"),
    "hu": ("Hungarian", "magyar", "angol"),
    "id": ("Indonesian", "Bahasa Indonesia", "Bahasa Inggris"),
    "it": ("Italian", "italiano", "inglese"),
    "ja": ("Japanese", "日本語", "英語"),
    "ko": ("Korean", "한국어", "영어"),
    "lt": ("Lithuanian", "lietuvių", "anglų"),
    "lv": ("Latvian", "latviešu", "angļu"),
    "nb": ("Norwegian", "norsk", "engelsk"),
    "nl": ("Dutch", "Nederlands", "Engels"),
    "pl": ("Polish", "polski", "angielski"),
    "pt": ("Portuguese", "português", "inglês"),
    "ro": ("Romanian", "română", "engleză"),
    "ru": ("Russian", "русский", "английский"),
    "sk": ("Slovak", "slovenčina", "angličtina"),
    "sl": ("Slovenian", "slovenščina", "angleščina"),
    "sv": ("Swedish", "svenska", "engelska"),
    "sw": ("Swahili", "Kiswahili", "Kiingereza"),
    "th": ("Thai", "ไทย", "อังกฤษ"),
    "tl": ("Filipino", "Tagalog", "Ingles"),
    "tr": ("Turkish", "Türkçe", "İngilizce"),
    "uk": ("Ukrainian", "українська", "англійська"),
    "ur": ("Urdu", "اردو", "انگریزی"),
    "vi": ("Vietnamese", "Tiếng Việt", "Tiếng Anh"),
    "zh": ("Chinese", "中文", "英文"),
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
    keys = {key for key, (in_english, own, _) in KNOWN.items() if name in (in_english.casefold(), own.casefold())}
    return frozenset(keys | {"en" for _, _, english in KNOWN.values() if name == english.casefold()})


def name_of(language: str) -> str:
    """The English name of a language; empty if it is not in the table."""
    return KNOWN.get(key_of(language), ("",))[0]
