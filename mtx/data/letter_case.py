"""Sentences in capital letters and in title case, and the same sentences as they are usually written.

A model that has seen little of such text cuts its words into single letters and translates them badly. So it is
translated as it is usually written, and the translation gets the case of its source (`mtx.decoding.translator`).
Which words have a capital usually, the pieces of the tokenizer tell: it knows `Haus` as a whole, and `haus` in two. Of
names that are words, too (`US`), they tell nothing.
"""

import re
from collections.abc import Callable, Sequence
from typing import Literal

from mtx.data.languages import code_of

Case = Literal["upper", "title"]
CountTokens = Callable[[list[str]], list[int]]  # of each text, </s> included

_WORD = re.compile(r"[^\W\d_](?:['’]?[^\W\d_]|[\u0300-\u036f])*")  # with the combining marks of scripts with case
_BEGINNING = re.compile(r"(?<!\S)[^\W\d_]")  # a letter that begins a word between spaces
_FEWEST_TITLE_WORDS = 3  # two words may be a name
_FEWEST_LETTERS = 4  # fewer, all in capitals, are mostly an abbreviation
_SENTENCE_START = re.compile(r"(?:^|[.!?…][\"'’”»)]*\s)[\W_]{0,20}(?=[^\W\d_])")
_PRONOUN = re.compile(r"I(?:['’].*)?")  # of English
_WHOLE = 2  # the tokens of a word that is one piece, with </s>
_KNOWN_SHARE = 0.2  # of the words of a title are whole pieces in small letters only; names are not
_DOTTED = frozenset(["tr", "az", "crh"])  # languages in which I and i are two letters: I ı and İ i


def case_of(text: str) -> Case | None:
    """upper: at least two letters, all of them capitals; title: at least three words, each with a capital first."""
    if text.isupper():  # letters without case count as neither here
        letters = [character for character in text if character.isalpha()]
        return "upper" if len(letters) > 1 and all(map(str.isupper, letters)) else None
    first = _BEGINNING.findall(text)
    return "title" if len(first) >= _FEWEST_TITLE_WORDS and all(map(str.isupper, first)) else None


def usual_case(
    sentence: str, case: Case, language: str, count_tokens: CountTokens, kept: Sequence[tuple[int, int]] = ()
) -> str | None:
    """A sentence in capitals or in title case as it is usually written; None if the tokenizer knows it no better so.

    The first word has a capital. Another word has small letters if it has fewer pieces so than with a capital, or is
    one piece, or was all in capitals and has as many pieces.

    Args:
        kept: from where to where words stay as they are.
    """
    words = list(_WORD.finditer(sentence))
    given = [word[0] for word in words]
    if case == "upper" and sum(map(len, given)) < _FEWEST_LETTERS:
        return None
    small = [in_small_letters(word, language) for word in given]
    capital = [word[:1] + lower[1:] for word, lower in zip(given, small, strict=True)]
    counts = count_tokens([*given, *small, *capital])
    of_given, of_small, of_capital = (counts[start : start + len(words)] for start in range(0, len(counts), len(words)))
    forms, starts = list[str](), {match.end() for match in _SENTENCE_START.finditer(sentence)}
    for word, lower, upper, a, b in zip(words, small, capital, of_small, of_capital, strict=True):
        is_pronoun = _PRONOUN.fullmatch(word[0]) is not None and code_of(language) == "en"
        is_small = word.start() not in starts and (a < b or a == _WHOLE or (a == b and case == "upper"))
        stays = (case == "title" and word[0] != upper) or any(start <= word.start() < end for start, end in kept)
        forms.append(word[0] if stays else lower if is_small and not is_pronoun else upper)
    rest = iter(forms)
    usual = _WORD.sub(lambda _: next(rest), sentence)
    if case == "title":
        known = sum(a == _WHOLE < b for a, b in zip(of_small, of_given, strict=True))
        return usual if known >= max(1, _KNOWN_SHARE * len(words)) else None
    after, before = count_tokens([usual, sentence])
    return usual if after < before else None


def in_small_letters(text: str, language: str) -> str:
    """A text in small letters."""
    text = text.replace("I", "ı") if code_of(language) in _DOTTED else text
    return text.replace("İ", "i").lower()  # Python would make two characters of it


def in_case(text: str, case: Case, language: str = "") -> str:
    """A text in capital letters, or with a capital at the beginning of each word."""
    has_dotted = code_of(language) in _DOTTED
    if case == "title":
        return _BEGINNING.sub(lambda match: "İ" if has_dotted and match[0] == "i" else match[0].title(), text)
    return (text.replace("i", "İ") if has_dotted else text).upper()
