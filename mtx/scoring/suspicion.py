"""Finds suspicious translations without a reference: repetitions, copies of the source, and omissions."""

import re
from typing import Literal

from mtx.data.cleaning import omission
from mtx.data.languages import WITHOUT_SPACES
from mtx.data.markup import CODE, needs_no_translation

Suspicion = Literal["repetition", "copy", "short", "numbers"]

# A letter of a script without spaces between words, or a word
_TOKEN = re.compile(rf"[{WITHOUT_SPACES}]|[^\W_](?:[^\W_]|[\u0300-\u036f])*")
_STUTTER = re.compile(r"([^\W\d_]{1,10}?)\1{4}")
_LONGEST_UNIT = 20  # tokens of a repeated unit
_FEWEST_TIMES = 3
_FEWEST_OF_ONE_LETTER = 5
_PHRASE_WORDS = 3  # at least
_PHRASE_CHARS = 6  # at least, since ideographs are words of one character
_FEWEST_WORDS = 3  # of a copy: it is right to copy names and numbers


def suspicion(src: str, translation: str) -> Suspicion | None:
    """Why a translation is suspicious; None if it is not.

    repetition: words are repeated at least three times in a row, or a phrase twice, and more often than any in the
    source. Or letters are repeated at least five times in a row in a word, and nothing as often in the source.
    copy: it equals the source, which has at least three words other than placeholders and addresses.
    short, numbers: it omits something, see `mtx.data.cleaning.omission`.
    """
    src_repetitions = _repetitions(src)
    stutters = _STUTTER.search(translation) and not _STUTTER.search(src) and src_repetitions < _FEWEST_OF_ONE_LETTER
    if stutters or _repetitions(translation) > src_repetitions:
        return "repetition"
    words = [word for word in _TOKEN.findall(re.sub(CODE, " ", src)) if word.isalpha()]
    is_copy = len(words) >= _FEWEST_WORDS and translation.split() == src.split() and not needs_no_translation(src)
    return "copy" if is_copy else omission(src, translation)


def _repetitions(text: str) -> int:
    """The most repetitions of any words in a row; 0 if there are few. For a phrase, two are many."""
    tokens = _TOKEN.findall(text)
    most_times = 0
    for length in range(1, min(_LONGEST_UNIT, len(tokens) // 2) + 1):
        run = 0
        fewest = 2 if length >= _PHRASE_WORDS else _FEWEST_TIMES
        for number in range(length, len(tokens)):
            run = run + 1 if tokens[number] == tokens[number - length] else 0
            times = run // length + 1
            if times >= max(fewest, most_times + 1):
                unit = "".join(tokens[number - length + 1 : number + 1])
                if unit.isdigit() or (len(unit) == 1 and times < _FEWEST_OF_ONE_LETTER):
                    continue
                is_phrase = len(unit) >= _PHRASE_CHARS and not any(map(str.isdigit, unit))
                if times >= _FEWEST_TIMES or is_phrase:
                    most_times = times
    return most_times
