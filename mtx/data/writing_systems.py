"""Does a language, or a text, write spaces between words? Flow: code, text -> BLEU's tokenizer.

`mtx.data.languages` reads codes in all spellings (`zh`, `zho`, `zh-CN`, `zh_Hans`, `cmn`). Where a code says nothing
(`tgt`, a language's name), the letters of the text do.
"""

import re
from collections.abc import Iterable

from mtx.data.languages import script_of

# ISO 15924 codes of the scripts without spaces between words.
_CHINESE = ("Hani", "Hans", "Hant", "Hanb", "Bopo")
_OTHERS = ("Jpan", "Hrkt", "Hira", "Kana", "Thai", "Laoo", "Khmr", "Mymr", "Tibt")
_HAN = "\u2e80-\u2fdf\u3005\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_KANA = "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9d"
_SOUTH_EAST = "\u0e01-\u0e4e\u0e81-\u0edf\u0f40-\u0fbc\u1000-\u109f\u1780-\u17d3\ua9e0-\ua9fe\uaa60-\uaa7f"
_HAN_LETTER = re.compile(f"[{_HAN}]")
# The insides of character classes: ideographs with kana, and all letters of scripts without spaces.
IDEOGRAPHS = f"{_HAN}{_KANA}"
WITHOUT_SPACES = f"{IDEOGRAPHS}{_SOUTH_EAST}"
_LETTER_WITHOUT_SPACES = re.compile(f"[{WITHOUT_SPACES}]")
_CHINESE_SHARE = 0.8  # of Han letters; Japanese has fewer


def tokenizer_of(language: str, texts: Iterable[str]) -> str:
    """The name of sacreBLEU's BLEU tokenizer for a language: 13a, or one that splits characters, zh or char.

    Args:
        texts: text of the language, the references; if most of its letters belong to scripts without spaces, it
            counts as such a language whatever its code says.
    """
    script = script_of(language)
    if script in (*_CHINESE, *_OTHERS):
        return "zh" if script in _CHINESE else "char"
    text = "\n".join(texts)
    num_without_spaces = len(_LETTER_WITHOUT_SPACES.findall(text))
    if num_without_spaces <= sum(map(str.isalpha, _LETTER_WITHOUT_SPACES.sub("", text))):
        return "13a"
    return "zh" if len(_HAN_LETTER.findall(text)) > _CHINESE_SHARE * num_without_spaces else "char"


def writes_spaces(language: str, texts: Iterable[str]) -> bool:
    """Whether a language writes spaces between words, by its code and by text of it, as `tokenizer_of` decides."""
    return counts_words(tokenizer_of(language, texts))


def counts_words(tokenizer: str) -> bool:
    """Whether a BLEU tokenizer of `tokenizer_of` separates words; the others separate characters."""
    return tokenizer == "13a"
