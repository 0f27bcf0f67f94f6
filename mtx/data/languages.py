"""What mtx knows about languages: their codes and scripts (by langcodes), names, and most frequent words.

The names tell a header from a pair (`columns`), the words and scripts tell which language a text is in
(`language_guess`). A language that is not in the table is judged by nothing, or by its script alone.
"""

from functools import lru_cache
from typing import NamedTuple

from langcodes import Language
from langcodes.tag_parser import LanguageTagError


class Known(NamedTuple):
    """A language: its name in English and its own name, its word for English, and its most frequent words."""

    name: str
    own_name: str
    english: str
    words: str = ""  # none where words are not separated by spaces, or carry their particles: the script decides


KNOWN = {
    "af": Known("Afrikaans", "Afrikaans", "Engels", "die van en in is het nie dat om te vir wat met sy 'n"),
    "ar": Known("Arabic", "العربية", "الإنجليزية", "في من على أن إلى لا ما هذا التي عن مع هذه كان و الذي"),
    "bg": Known("Bulgarian", "български", "английски", "и на да в се за от е не че са с по като това"),
    "ca": Known("Catalan", "català", "anglès", "de la i que el a en un per amb una les del és els"),
    "cs": Known("Czech", "čeština", "angličtina", "a v na se je že to s do z i o pro k ale"),
    "da": Known("Danish", "dansk", "engelsk", "og i at det en er på af for til der med den ikke som"),
    "de": Known("German", "Deutsch", "Englisch", "der die und das in ein eine ist mit nicht zu den auf von im"),
    "el": Known("Greek", "ελληνικά", "αγγλικά", "και το να του η της με για την ο τα είναι από στο που"),
    "en": Known("English", "English", "English", "the of to and a in is that for it on with was are as"),
    "es": Known("Spanish", "español", "inglés", "de la que el en y los se un una las por con es para"),
    "et": Known("Estonian", "eesti", "inglise", "ja on ei et see ka oli kui aga mis ta ning või oma kes"),
    "fa": Known("Persian", "فارسی", "انگلیسی", "و در به از که این را با است برای آن یک هم تا می"),
    "fi": Known("Finnish", "suomi", "englanti", "ja on ei se että oli hän mutta ovat kun niin myös joka kuin tai"),
    "fr": Known("French", "français", "anglais", "de la le et les des un une est en du dans que à pour"),
    "he": Known("Hebrew", "עברית", "אנגלית", "של את על לא הוא זה אני כל עם היא כי גם אם מה יש"),
    "hi": Known("Hindi", "हिन्दी", "अंग्रेज़ी", "के में है की और से का को पर ने यह कि हैं एक भी"),
    "hr": Known("Croatian", "hrvatski", "engleski", "i u je se na da za su od što и у је се на да за су од што"),
    "hu": Known("Hungarian", "magyar", "angol", "a az és hogy nem is egy ez van azt meg de csak volt mint"),
    "id": Known("Indonesian", "Bahasa Indonesia", "Bahasa Inggris",
                "yang dan di dengan untuk dari ini itu tidak dalam pada ke ada"),
    "it": Known("Italian", "italiano", "inglese", "di che il la e un una in per è del non con sono della"),
    "ja": Known("Japanese", "日本語", "英語"),
    "ko": Known("Korean", "한국어", "영어"),
    "lt": Known("Lithuanian", "lietuvių", "anglų", "ir kad yra į su iš tai kaip o bet ne buvo jis ar už"),
    "lv": Known("Latvian", "latviešu", "angļu", "un ir ka no uz ar par tas kas bet arī kā bija lai vai"),
    "nb": Known("Norwegian", "norsk", "engelsk", "og i det er på en som av for til at med har den ikke"),
    "nl": Known("Dutch", "Nederlands", "Engels", "de het een van en in is dat op te met zijn voor niet aan"),
    "pl": Known("Polish", "polski", "angielski", "i w na nie z się do to jest że o jak po co od"),
    "pt": Known("Portuguese", "português", "inglês", "de que o a e do da em um uma para com os não se"),
    "ro": Known("Romanian", "română", "engleză", "de și în a la cu pe o un din că nu este care se"),
    "ru": Known("Russian", "русский", "английский", "и в не на что я с он по как это но к из у"),
    "sk": Known("Slovak", "slovenčina", "angličtina", "a v na sa je že to s do z aj o pre k ale"),
    "sl": Known("Slovenian", "slovenščina", "angleščina", "in je v na se da za so ne pa z tudi po ki s"),
    "sv": Known("Swedish", "svenska", "engelska", "och att i en som det är på av för den med till ett inte"),
    "sw": Known("Swahili", "Kiswahili", "Kiingereza", "na ya wa kwa ni katika la za kuwa hii cha yake au si hiyo"),
    "th": Known("Thai", "ไทย", "อังกฤษ"),
    "tl": Known("Filipino", "Tagalog", "Ingles", "ang ng sa na mga at ay si ako ito hindi ni para kung niya"),
    "tr": Known("Turkish", "Türkçe", "İngilizce", "ve bir bu da de için ile çok ne o gibi daha olarak en değil"),
    "uk": Known("Ukrainian", "українська", "англійська", "і в не на що з у я та до як це за від й"),
    "ur": Known("Urdu", "اردو", "انگریزی", "کے میں کی ہے اور سے کا کو اس نے پر کہ ہیں یہ تھا"),
    "vi": Known("Vietnamese", "Tiếng Việt", "Tiếng Anh",
                "và của là có không cho trong được một người các những với này đã"),
    "zh": Known("Chinese", "中文", "英文"),
}  # fmt: skip
# Languages that share an entry: their frequent words are the same, or nearly.
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
