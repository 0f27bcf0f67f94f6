"""Changes of a pair of sentences after which it still is one: upper and title case, no end punctuation, typing errors.

People write so, and a model that has not seen it translates worse. Case and end punctuation change on both sides, as in
the augmentation of OpusTrainer (Bogoychev et al. 2023), typing errors in the source alone. The keys of `CHANGES` are
keys of the section training too (`mtx.data.epoch_text`).
"""

import random
import re
from collections.abc import Callable

from mtx.data.letter_case import in_case

Change = Callable[[str, str, random.Random], tuple[str, str]]

TYPO_SHARE = 0.1  # of the words that can have one
_END = re.compile(r"(?<=\w)[\s.!?…。！？।؟]+$")
_WORD = re.compile(r"[^\W\d_]{4,}")  # shorter words often become others


def upper_case(src: str, tgt: str, rng: random.Random) -> tuple[str, str]:
    """Both sides in capital letters."""
    return in_case(src, "upper"), in_case(tgt, "upper")


def title_case(src: str, tgt: str, rng: random.Random) -> tuple[str, str]:
    """Both sides with a capital letter at the beginning of each word."""
    return in_case(src, "title"), in_case(tgt, "title")


def no_end_punctuation(src: str, tgt: str, rng: random.Random) -> tuple[str, str]:
    """Both sides without the punctuation after their last words."""
    return _END.sub("", src), _END.sub("", tgt)


def typing_errors(src: str, tgt: str, rng: random.Random) -> tuple[str, str]:
    """A source in which a tenth of the longer words have a letter too few or too many, or two in the wrong order."""
    return _WORD.sub(lambda match: _mistyped(match[0], rng) if rng.random() < TYPO_SHARE else match[0], src), tgt


def _mistyped(word: str, rng: random.Random) -> str:
    at = rng.randrange(1, len(word) - 1)  # the first and the last letter stay, as in most typing errors
    start, letter, rest = word[:at], word[at], word[at + 1 :]
    return start + rng.choice((rest, letter + letter + rest, rest[:1] + letter + rest[1:]))


CHANGES: dict[str, Change] = {
    "upper_case": upper_case,
    "title_case": title_case,
    "no_end_punctuation": no_end_punctuation,
    "typing_errors": typing_errors,
}
