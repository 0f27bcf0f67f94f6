"""Differences between a hypothesis and its reference, word by word, for the marks in a report."""

import re
from difflib import SequenceMatcher
from itertools import groupby

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


def joined(words: Words) -> Words:
    """The same text in as few parts as possible; a space between two words that differ counts as different."""
    flags = [False, *(differs for _, differs in words), False]
    marked = [
        (part, differs or (part.isspace() and flags[number] and flags[number + 2]))
        for number, (part, differs) in enumerate(words)
    ]
    return [
        ("".join(part for part, _ in group), differs) for differs, group in groupby(marked, key=lambda each: each[1])
    ]
