"""What is suspicious of a translation, without any reference: it repeats itself, or copies its source."""

import re
from typing import Literal

from mtx.data.inline_codes import CODE
from mtx.data.languages import WITHOUT_SPACES

Suspicion = Literal["repetition", "copy"]

# A letter of a script that puts no spaces between words, or a word
_TOKEN = re.compile(rf"[{WITHOUT_SPACES}]|[^\W_](?:[^\W_]|[\u0300-\u036f])*")
_STUTTER = re.compile(r"([^\W\d_]{1,10}?)\1{4}")
_LONGEST_UNIT = 20  # tokens of what is repeated
_FEWEST_TIMES, _FEWEST_OF_ONE_LETTER = 3, 5
_PHRASE_WORDS, _PHRASE_CHARS = 3, 6  # at least; ideographs are words of one character
_FEWEST_WORDS = 3  # of a copy: names and numbers are copied with good reason


def suspicion(src: str, translation: str) -> Suspicion | None:
    """What is suspicious of a translation; None if nothing is.

    repetition: some words stand at least three times in a row, or a phrase twice, and more often than any in the
    source. Or some letters stand at least five times in a row in a word, and nothing so often in the source.
    copy: it is the source, which has at least three words that are no placeholders or addresses.
    """
    of_src = _repetitions(src)
    stutters = _STUTTER.search(translation) and not _STUTTER.search(src) and of_src < _FEWEST_OF_ONE_LETTER
    if stutters or _repetitions(translation) > of_src:
        return "repetition"
    words = [word for word in _TOKEN.findall(CODE.sub(" ", src)) if word.isalpha()]
    return "copy" if len(words) >= _FEWEST_WORDS and translation.split() == src.split() else None


def _repetitions(text: str) -> int:
    """How often some words stand in a row, at most; 0 if not often. Twice is often for a phrase."""
    tokens, most = _TOKEN.findall(text), 0
    for length in range(1, min(_LONGEST_UNIT, len(tokens) // 2) + 1):
        run, fewest = 0, 2 if length >= _PHRASE_WORDS else _FEWEST_TIMES
        for number in range(length, len(tokens)):
            run = run + 1 if tokens[number] == tokens[number - length] else 0
            times = run // length + 1
            if times >= max(fewest, most + 1):
                unit = "".join(tokens[number - length + 1 : number + 1])
                is_often = len(unit) > 1 or times >= _FEWEST_OF_ONE_LETTER
                is_often &= times >= _FEWEST_TIMES or (len(unit) >= _PHRASE_CHARS and not any(map(str.isdigit, unit)))
                most = times if is_often and not unit.isdigit() else most
    return most
