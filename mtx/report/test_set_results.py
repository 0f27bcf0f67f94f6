"""What a report shows of the test sets: scores, traits of the translations, and the most telling sentences, marked.

Flow: run directories -> `test_set_values` -> values of report.html; texts -> `word_diff` -> marked words.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import groupby
from pathlib import Path
from typing import Any

from mtx.data.languages import tokenizer_of, writes_spaces
from mtx.evaluation.comparison import compare, groups_of, mean_and_p, words
from mtx.evaluation.significance import MetricComparison
from mtx.evaluation.test_set_scores import Traits, system_outputs
from mtx.evaluation.test_sets import TestSet, test_sets_of_runs
from mtx.report.run_history import RunSummary
from mtx.storage.run_contents import translated_tests
from mtx.storage.run_files import RunLayout

_MAX_BYTES = 1_300_000  # of a page, for the sentences of all test sets together


def test_set_values(roots: Sequence[Path], names: Sequence[str], metric: str) -> list[dict[str, Any]]:
    """The results on the test sets that all runs have translated; empty if there are none.

    Args:
        names: what the report calls the runs.
        metric: the name of the metric that comes first, if it was computed.
    """
    if not set.intersection(*({*translated_tests(RunLayout(root))} for root in roots)):
        return []
    test_sets = test_sets_of_runs(roots)
    return [_values(test_set, roots, names, metric, _MAX_BYTES // len(test_sets)) for test_set in test_sets]


def _values(
    test_set: TestSet, roots: Sequence[Path], names: Sequence[str], metric: str, max_bytes: int
) -> dict[str, Any]:
    outputs, references = system_outputs(test_set, roots, {})
    systems = [replace(system, name=name) for system, name in zip(outputs, names, strict=True)]
    hypotheses = [system.hypotheses for system in systems]
    comparison = compare(systems, references, tgt=test_set.tgt, groups=groups_of(roots, names))
    sentences = telling_sentences(test_set, hypotheses, references, max_bytes)
    headline = comparison.headline()
    decider = next(each for each in comparison.metrics if each.name == comparison.decided_by)
    traits = [Traits.of(test_set.sources, lines, references) for lines in hypotheses]
    return {
        "name": test_set.name,
        "comparison": comparison,
        "verdicts": headline,
        "other_verdicts": [verdict for verdict in comparison.verdicts() if verdict not in headline],
        "metrics": [_metric(each) for each in sorted(comparison.metrics, key=lambda each: each.name != metric)],
        "groups": [
            (group.label, len(group.members), *mean_and_p(score))
            for group, score in zip(comparison.groups, decider.groups, strict=True)
            if comparison.has_seeds()
        ],
        "traits": [
            (name, each.exact, each.empty, each.repeating, f"{each.length_ratio:.2f}")
            for name, each in zip(names, traits, strict=True)
        ],
        "lengths": [(bin.length, bin.count, *(f"{bleu:.2f}" for bleu in bin.bleu)) for bin in comparison.lengths],
        "sentences": sentences,
        "typical": sorted(sentences, key=lambda each: each.translations[0][0])[len(sentences) // 2],
    }


def _metric(metric: MetricComparison) -> dict[str, Any]:
    """The scores of all systems by one metric, with intervals as numbers and as percentages of their common scale."""
    ranges = [system.interval for system in metric.systems]
    low = math.floor(min(low for low, _ in ranges))
    high = max(math.ceil(max(high for _, high in ranges)), low + 1)

    def place(value: float) -> str:
        return f"{100 * (value - low) / (high - low):.1f}"

    p_values = [mean_and_p(group)[1] for group in metric.groups]
    if len(p_values) < len(ranges):
        p_values = [""] * len(ranges)  # of the groups alone
    rows = [
        {
            "score": f"{system.score:.2f}",
            "p": p_value,
            "interval": system.interval_text,
            "from": place(start),
            "to": place(end),
            "at": place(system.score),
        }
        for system, (start, end), p_value in zip(metric.systems, ranges, p_values, strict=True)
    ]
    return {"name": metric.name, "is_error": metric.is_error, "low": low, "high": high, "rows": rows}


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
