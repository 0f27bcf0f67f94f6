"""Truecasing of sentences in upper case and in title case.

A model that has seen little of such text splits its words into single letters and translates them badly. So such text
is truecased and then translated, and the translation gets the case of its source (`mtx.decoding.translator`).
The tokenizer shows the usual case of a word: `Haus` is one piece, `haus` two. Names that are also words (`US`) remain
ambiguous.
"""

import re
from collections.abc import Callable, Sequence
from typing import Literal

from mtx.data.languages import code_of

Case = Literal["upper", "title"]
CountTokens = Callable[[list[str]], list[int]]  # of each text, </s> included

_WORD = re.compile(r"[^\W\d_](?:['’]?[^\W\d_]|[\u0300-\u036f])*")  # with the combining marks of scripts with case
_BEGINNING = re.compile(r"(?<!\S)[^\W\d_]")  # the first letter of a word after a space
_FEWEST_TITLE_WORDS = 3  # two words may be a name
_FEWEST_LETTERS = 4  # fewer upper-case letters are mostly an abbreviation
_SENTENCE_START = re.compile(r"(?:^|[.!?…][\"'’”»)]*\s)[\W_]{0,20}(?=[^\W\d_])")
_PRONOUN = re.compile(r"I(?:['’].*)?")  # of English
_ONE_PIECE = 2  # the tokens of a one-piece word, with </s>
_KNOWN_SHARE = 0.2  # minimum share of words in a title that are single pieces only in lower case; names are not
_DOTTED = frozenset(["tr", "az", "crh"])  # languages in which I and i are two letters: I ı and İ i


def case_of(text: str) -> Case | None:
    """upper: at least two letters, all of them upper case; title: at least three words with initial capitals."""
    if text.isupper():  # letters without case count as neither here
        letters = list(filter(str.isalpha, text))
        return "upper" if len(letters) > 1 and all(map(str.isupper, letters)) else None
    if not all(letter[0].isupper() for letter in _BEGINNING.finditer(text)):  # most texts end it at their second word
        return None
    return "title" if len(_BEGINNING.findall(text)) >= _FEWEST_TITLE_WORDS else None


def truecase(
    sentence: str, case: Case, language: str, count_tokens: CountTokens, unchanged: Sequence[tuple[int, int]] = ()
) -> str | None:
    """A truecased sentence in upper case or title case; None if the tokenizer does not handle it better.

    The first word gets a capital. Another word gets lower case if it then has fewer pieces than with a capital, or is
    one piece, or was in upper case and has the same number of pieces.

    Args:
        unchanged: spans of words that are not changed.
    """
    words: list[str] = _WORD.findall(sentence)
    if case == "upper" and sum(map(len, words)) < _FEWEST_LETTERS:
        return None
    starts = {match.end() for match in _SENTENCE_START.finditer(sentence)}
    num_known = 0

    def write(match: re.Match[str]) -> str:
        nonlocal num_known
        word = match[0]
        at = match.start()
        small = _lower(word, language)
        capital = word[:1] + small[1:]
        num_in_word, num_in_small, num_in_capital = count_tokens([word, small, capital])
        if num_in_small == _ONE_PIECE and num_in_word > _ONE_PIECE:
            num_known += 1
        if (case == "title" and word != capital) or any(start <= at < end for start, end in unchanged):
            return word
        if at in starts or (_PRONOUN.fullmatch(word) and code_of(language) == "en"):
            return capital
        if num_in_small < num_in_capital or num_in_small == _ONE_PIECE:
            return small
        return small if num_in_small == num_in_capital and case == "upper" else capital

    truecased = _WORD.sub(write, sentence)
    if case == "title":
        return truecased if num_known >= max(1, _KNOWN_SHARE * len(words)) else None
    num_truecased, num_unchanged = count_tokens([truecased, sentence])
    return truecased if num_truecased < num_unchanged else None


def _lower(text: str, language: str) -> str:
    text = text.replace("I", "ı") if code_of(language) in _DOTTED else text
    return text.replace("İ", "i").lower()  # Python would convert it to two characters


def in_case(text: str, case: Case, language: str = "") -> str:
    """A text in upper case or in title case."""
    has_dotted = code_of(language) in _DOTTED
    if case == "title":
        return _BEGINNING.sub(lambda match: "İ" if has_dotted and match[0] == "i" else match[0].title(), text)
    return (text.replace("i", "İ") if has_dotted else text).upper()
