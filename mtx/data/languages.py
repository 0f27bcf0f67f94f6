"""Facts about languages: their names, codes and scripts (by langcodes), and whether they write spaces between words.

The names distinguish a header from a pair (`tables`), and are used in messages. Codes are read in all spellings (`zh`,
`zho`, `zh-CN`, `zh_Hans`, `cmn`). If a code is not informative (`tgt`), the letters of a text show its script.
"""

import re
from collections.abc import Iterable
from functools import lru_cache

from langcodes import Language
from langcodes.tag_parser import LanguageTagError

Languages = tuple[str, str]  # of source and target, by their codes or names
# For each language its code, its name in English, its own name, and its word for English
_TABLE = """
af Afrikaans, Afrikaans, Engels
am Amharic, አማርኛ, እንግሊዝኛ
ar Arabic, العربية, الإنجليزية
az Azerbaijani, Azərbaycan dili, ingilis dili
be Belarusian, беларуская, англійская
bg Bulgarian, български, английски
bn Bengali, বাংলা, ইংরেজি
ca Catalan, català, anglès
cs Czech, čeština, angličtina
cy Welsh, Cymraeg, Saesneg
da Danish, dansk, engelsk
de German, Deutsch, Englisch
el Greek, ελληνικά, αγγλικά
en English, English, English
eo Esperanto, Esperanto, angla
es Spanish, español, inglés
et Estonian, eesti, inglise
eu Basque, euskara, ingelesa
fa Persian, فارسی, انگلیسی
fi Finnish, suomi, englanti
fr French, français, anglais
ga Irish, Gaeilge, Béarla
gl Galician, galego, inglés
gu Gujarati, ગુજરાતી, અંગ્રેજી
ha Hausa, Hausa, Turanci
he Hebrew, עברית, אנגלית
hi Hindi, हिन्दी, अंग्रेज़ी
hr Croatian, hrvatski, engleski
hu Hungarian, magyar, angol
hy Armenian, հայերեն, անգլերեն
id Indonesian, Bahasa Indonesia, Bahasa Inggris
ig Igbo, Igbo, Bekee
is Icelandic, íslenska, enska
it Italian, italiano, inglese
ja Japanese, 日本語, 英語
ka Georgian, ქართული, ინგლისური
kk Kazakh, қазақ тілі, ағылшын тілі
km Khmer, ខ្មែរ, អង់គ្លេស
kn Kannada, ಕನ್ನಡ, ಇಂಗ್ಲಿಷ್
ko Korean, 한국어, 영어
ky Kyrgyz, кыргызча, англисче
lb Luxembourgish, Lëtzebuergesch, Englesch
lo Lao, ລາວ, ອັງກິດ
lt Lithuanian, lietuvių, anglų
lv Latvian, latviešu, angļu
mg Malagasy, Malagasy, anglisy
mk Macedonian, македонски, англиски
ml Malayalam, മലയാളം, ഇംഗ്ലീഷ്
mn Mongolian, монгол, англи
mr Marathi, मराठी, इंग्रजी
mt Maltese, Malti, Ingliż
my Burmese, မြန်မာ, အင်္ဂလိပ်
nb Norwegian, norsk, engelsk
ne Nepali, नेपाली, अङ्ग्रेजी
nl Dutch, Nederlands, Engels
pa Punjabi, ਪੰਜਾਬੀ, ਅੰਗਰੇਜ਼ੀ
pl Polish, polski, angielski
ps Pashto, پښتو, انګلیسي
pt Portuguese, português, inglês
ro Romanian, română, engleză
ru Russian, русский, английский
rw Kinyarwanda, Ikinyarwanda, Icyongereza
si Sinhala, සිංහල, ඉංග්‍රීසි
sk Slovak, slovenčina, angličtina
sl Slovenian, slovenščina, angleščina
sn Shona, chiShona, Chirungu
so Somali, Soomaali, Ingiriisi
sq Albanian, shqip, anglisht
sv Swedish, svenska, engelska
sw Swahili, Kiswahili, Kiingereza
ta Tamil, தமிழ், ஆங்கிலம்
te Telugu, తెలుగు, ఆంగ్లం
th Thai, ไทย, อังกฤษ
tl Filipino, Tagalog, Ingles
tr Turkish, Türkçe, İngilizce
uk Ukrainian, українська, англійська
ur Urdu, اردو, انگریزی
uz Uzbek, oʻzbekcha, inglizcha
vi Vietnamese, Tiếng Việt, Tiếng Anh
xh Xhosa, isiXhosa, isiNgesi
yo Yoruba, Yorùbá, Gẹ̀ẹ́sì
zh Chinese, 中文, 英文
zu Zulu, isiZulu, isiNgisi
"""
KNOWN = {line[:2]: line[3:].split(", ") for line in _TABLE.strip().split("\n")}
_BY_NAME = {name.casefold(): key for key, names in KNOWN.items() for name in names[:2]}
_BY_NAME |= {names[2].casefold(): "en" for names in KNOWN.values()}
# Languages that share an entry: their texts are hard to tell apart.
_SAME = {"no": "nb", "nn": "nb", "bs": "hr", "sr": "hr", "sh": "hr", "ms": "id", "fil": "tl", "cmn": "zh"}
# ISO 15924 codes of the scripts without spaces between words.
_CHINESE_SCRIPTS = "Hani Hans Hant Hanb Bopo"
_OTHER_SCRIPTS_WITHOUT_SPACES = "Jpan Hrkt Hira Kana Thai Laoo Khmr Mymr Tibt"
_RIGHT_TO_LEFT = "Arab Hebr Thaa Syrc Nkoo Adlm Rohg Mand Samr Mend Yezi"
_HAN = "\u2e80-\u2fdf\u3005\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_KANA = "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9d"
_SOUTH_EAST = "\u0e01-\u0e4e\u0e81-\u0edf\u0f40-\u0fbc\u1000-\u109f\u1780-\u17d3\ua9e0-\ua9fe\uaa60-\uaa7f"
_HAN_LETTER = re.compile(f"[{_HAN}]")
# The insides of character classes: ideographs with kana, and all letters of scripts without spaces.
IDEOGRAPHS = f"{_HAN}{_KANA}"
WITHOUT_SPACES = f"{IDEOGRAPHS}{_SOUTH_EAST}"
_LETTER_WITHOUT_SPACES = re.compile(f"[{WITHOUT_SPACES}]")
_CHINESE_SHARE = 0.8  # of Han letters; Japanese has fewer


# Codes that are, as an ending or a key, copies of a text, its sets and sides, or what is known about its lines
_OTHER_WORDS = """
bak cfg err log lst map new old org ori out raw tmp txt tsv csv xml sgm
dev tst val trn tra src trg tgt ref sys hyp cor
age ali aln cat doc dom ids key lab len lid ner num pid pos sco seg set sex sha sid sig sim std sub sum tag top typ
uid uri url val var vec ver
"""


def code_of(language: str) -> str:
    """The shortest code of a language, without script and region: de for `deu`, `de-AT`, `German`; else unchanged."""
    try:
        return Language.get(tag_of(language)).language or language
    except LanguageTagError:
        return language


def is_code(word: str) -> bool:
    """Whether a word is a code of ISO 639, in any spelling (bbj, bbj_Latn), also of a language that is not in `KNOWN`.

    ISO 639 has half of all words of three letters. Those in `_OTHER_WORDS` are not taken for languages.
    """
    try:
        return word.lower() not in _OTHER_WORDS.split() and Language.get(word).is_valid()
    except LanguageTagError:
        return False


@lru_cache
def script_of(language: str) -> str:
    """The ISO 15924 code of the usual script of a language; empty if unknown."""
    try:
        return Language.get(tag_of(language)).maximize().script or ""
    except LanguageTagError:
        return ""


def writing_direction(language: str) -> str:
    """The direction of the usual script of a language, as HTML names it: rtl or ltr; empty if it is unknown."""
    script = script_of(language)
    if not script:
        return ""
    return "rtl" if script in _RIGHT_TO_LEFT.split() else "ltr"


def tag_of(language: str) -> str:
    """The code of a language in `KNOWN` for its name; everything else is unchanged."""
    return _BY_NAME.get(language.casefold(), language)


def key_of(language: str) -> str:
    """The key of a language in `KNOWN`, if it is there; else its shortest code."""
    code = code_of(language)
    return _SAME.get(code, code)


def name_of(language: str) -> str:
    """The English name of a language; empty if it is not in the table."""
    return KNOWN.get(key_of(language), ("",))[0]


def tokenizer_of(language: str, texts: Iterable[str]) -> str:
    """The name of sacreBLEU's BLEU tokenizer for a language: 13a, or one that splits characters, zh or char.

    Args:
        texts: text of the language, the references; if most of its letters belong to scripts without spaces, it
            counts as such a language whatever its code.
    """
    script = script_of(language)
    if script in _CHINESE_SCRIPTS.split():
        return "zh"
    if script in _OTHER_SCRIPTS_WITHOUT_SPACES.split():
        return "char"
    text = "\n".join(texts)
    num_without_spaces = len(_LETTER_WITHOUT_SPACES.findall(text))
    if num_without_spaces <= sum(map(str.isalpha, _LETTER_WITHOUT_SPACES.sub("", text))):
        return "13a"
    return "zh" if len(_HAN_LETTER.findall(text)) > _CHINESE_SHARE * num_without_spaces else "char"


def writes_spaces(language: str, texts: Iterable[str]) -> bool:
    """Whether a language writes spaces between words, by its code and text, see `tokenizer_of`."""
    return counts_words(tokenizer_of(language, texts))


def counts_words(tokenizer: str) -> bool:
    """Whether a BLEU tokenizer of `tokenizer_of` separates words; the others separate characters."""
    return tokenizer == "13a"
