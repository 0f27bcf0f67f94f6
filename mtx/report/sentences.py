"""The sentences of a report: samples of the validations, and the most telling sentences of a test set, with marks.

Flow: texts -> `word_diff` -> marked words -> values for report.html.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby
from typing import Any

from mtx.data.writing_systems import tokenizer_of, writes_spaces
from mtx.evaluation.scores import words
from mtx.evaluation.test_sets import TestSet
from mtx.report.run_summary import RunSummary

_TOKEN, _CHARACTER = re.compile(r"\w+|[^\w\s]|\s+"), re.compile(r"\S|\s+")
_SENTENCE_BYTES, _TEXT_BYTES = 200, 200  # of HTML around a sentence, and around and in one of its texts, about
_MAX_SAMPLED, _MAX_SAMPLED_OF_MANY = 8, 3  # validations of up to three runs, and of more, whose samples are shown
Words = list[tuple[str, bool]]  # words, punctuation and spaces, each with whether the other text lacks it at this place


@dataclass(frozen=True)
class Sentence:
    """One sentence of a test set.

    Attributes:
        length: words or characters of the reference.
        ref: its marked parts are in none of the translations.
        translations: of each system the sentence-level chrF, 0 to 100, and the hypothesis.
    """

    line: int
    length: int
    src: str
    ref: Words
    translations: list[tuple[float, Words]]


def telling_sentences(
    test_set: TestSet, systems: list[list[str]], references: list[str], max_bytes: int
) -> list[Sentence]:
    """The sentences that a page shows, most telling first, with the hypotheses of all systems.

    Of one system these are the worst by chrF, of several those on which their chrF differs most. A long test set is
    shown in part: the first half from the head of this order, the others evenly from the rest.

    Args:
        max_bytes: about how much of the page they may take.
    """
    from sacrebleu.metrics import CHRF

    metric, by_character = CHRF(), not writes_spaces(test_set.tgt, references)
    tokenizer = tokenizer_of(test_set.tgt, references)
    rows = list(zip(test_set.sources, references, *systems, strict=True))
    chrf = [[float(metric.sentence_score(hyp, [ref]).score) for hyp in hyps] for _, ref, *hyps in rows]

    def merit(row: int) -> tuple[float, float, int]:
        return round(min(chrf[row]) - max(chrf[row]), 1), round(chrf[row][0], 1), len(rows[row][0])

    order = sorted(range(len(rows)), key=merit)
    num_bytes = sum(_SENTENCE_BYTES + sum(_TEXT_BYTES + len(text.encode()) for text in row) for row in rows)
    if (num_shown := max(1, int(max_bytes * len(rows) / num_bytes))) < len(rows):
        half = num_shown // 2
        rest = order[num_shown - half :]
        order = order[: num_shown - half] + [rest[len(rest) * place // half] for place in range(half)]
    sentences = []
    for row in order:
        src, reference, *hyps = rows[row]
        diffs = [word_diff(hyp, reference, by_character) for hyp in hyps]
        in_no_hyp = [(of[0][0], all(flag for _, flag in of)) for of in zip(*(ref for _, ref in diffs), strict=True)]
        translations = [(score, joined(hyp)) for score, (hyp, _) in zip(chrf[row], diffs, strict=True)]
        sentences.append(Sentence(row + 1, len(words(reference, tokenizer)), src, joined(in_no_hyp), translations))
    return sentences


def samples(runs: Sequence[RunSummary]) -> list[dict[str, Any]]:
    """For each sample sentence source, reference, and for each step the translation of every run.

    Each translation has marks on the words that the reference lacks; it is None if the run has none at that step.
    """
    hyps: dict[tuple[str, str], dict[int, list[Words | None]]] = {}
    for number, run in enumerate(runs):
        if not (events := run.validations_with_samples()):
            continue
        by_character = not writes_spaces(run.config.data.tgt, [sample["ref"] for sample in events[0]["samples"]])
        count = min(_MAX_SAMPLED if len(runs) <= 3 else _MAX_SAMPLED_OF_MANY, len(events))
        for index in range(count):
            event = events[round(index * (len(events) - 1) / max(1, count - 1))]
            for sample in event["samples"]:
                steps = hyps.setdefault((sample["src"], sample["ref"]), {})
                of_runs = steps.setdefault(event["step"], [None] * len(runs))
                of_runs[number] = joined(word_diff(sample["hyp"], sample["ref"], by_character)[0])
    return [{"src": src, "ref": ref, "steps": sorted(steps.items())} for (src, ref), steps in hyps.items()]


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


def joined(marked: Words) -> Words:
    """The same text in as few parts as possible; a space between two words that differ counts as different."""
    flags = [False, *(differs for _, differs in marked), False]
    parts = (
        (part, differs or (part.isspace() and flags[number] and flags[number + 2]))
        for number, (part, differs) in enumerate(marked)
    )
    return [
        ("".join(part for part, _ in group), differs) for differs, group in groupby(parts, key=lambda each: each[1])
    ]
