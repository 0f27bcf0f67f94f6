"""Differences between a hypothesis and its reference, word by word, for the marks in a report."""

import re
from difflib import SequenceMatcher

_TOKEN, _CHARACTER = re.compile(r"\w+|[^\w\s]|\s+"), re.compile(r"\S|\s+")
Words = list[tuple[str, bool]]  # words, punctuation and spaces, each with whether the other text lacks it at this place


def word_diff(hyp: str, ref: str, by_character: bool = False) -> tuple[Words, Words]:
    """Compare two texts word by word, or character by character; spaces never count as different."""
    pattern = _CHARACTER if by_character else _TOKEN
    parts = [pattern.findall(text) for text in (hyp, ref)]
    a, b = ([part for part in text if not part.isspace()] for text in parts)
    differs = [True] * len(a), [True] * len(b)
    for match in SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks():
        differs[0][match.a : match.a + match.size] = [False] * match.size
        differs[1][match.b : match.b + match.size] = [False] * match.size
    hyp_words, ref_words = (
        [(part, not part.isspace() and next(flags)) for part in text]
        for text, flags in zip(parts, map(iter, differs), strict=True)
    )
    return hyp_words, ref_words
