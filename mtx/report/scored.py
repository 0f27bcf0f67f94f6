"""What the translations of a test set are worth, and the sentences to look at. Flow: runs -> `Scored`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path

from mtx.evaluation import compared_systems
from mtx.evaluation.compared_systems import TestSet
from mtx.evaluation.comparison import Comparison, compare
from mtx.evaluation.metrics import words, writes_spaces
from mtx.run.contents import translated_tests
from mtx.run.layout import RunLayout

_NUM_SENTENCES = 10
_TOKEN, _CHARACTER = re.compile(r"\w+|[^\w\s]|\s+"), re.compile(r"\S|\s+")
Words = list[tuple[str, bool]]  # each with whether the other text lacks it


@dataclass(frozen=True)
class Sentence:
    """One sentence of a test set.

    Attributes:
        chrf: of the hypothesis, 0 to 100.
    """

    line: int
    chrf: float
    src: str
    hyp: Words
    ref: Words


@dataclass(frozen=True)
class Traits:
    """How translations are, beside their score.

    Attributes:
        right: as the reference has it, word for word.
        repeating: with a phrase three times in a row, of up to four words, or of 2 to 16 characters in a language
            that writes no spaces.
        length: characters, for one of the reference.
    """

    right: int
    empty: int
    repeating: int
    length: float

    @classmethod
    def of(cls, hypotheses: Sequence[str], references: Sequence[str], tgt: str) -> "Traits":
        right = sum(hyp == ref for hyp, ref in zip(hypotheses, references, strict=True))
        empty = sum(not hyp.strip() for hyp in hypotheses)
        sizes = range(1, 5) if writes_spaces(tgt) else range(2, 17)
        repeating = sum(_repeats(words(hyp, tgt), sizes) for hyp in hypotheses)
        return cls(right, empty, repeating, sum(map(len, hypotheses)) / max(1, sum(map(len, references))))


def _repeats(units: list[str], sizes: range) -> bool:
    return any(
        units[i : i + n] == units[i + n : i + 2 * n] == units[i + 2 * n : i + 3 * n]
        for n in sizes
        for i in range(len(units) - 3 * n + 1)
    )


@dataclass(frozen=True)
class Scored:
    """One test set: the systems' scores with confidence intervals and tests, and sentences of the first system.

    Attributes:
        traits: of each system.
        differing: where the second system differs most from the first, the same sentence of each system.
    """

    name: str
    found: Comparison
    traits: list[Traits]
    worst: list[Sentence]
    middle: list[Sentence]
    best: list[Sentence]
    differing: list[list[Sentence]]


def score_runs(roots: Sequence[Path], names: Sequence[str]) -> list[Scored]:
    """The test sets that all of these runs, called `names`, have translated; none where a run is not that far."""
    shared = set.intersection(*({*translated_tests(RunLayout(root))} for root in roots))
    return [_scored(text, roots, names) for text in compared_systems.of_runs(roots, None)] if shared else []


def _scored(text: TestSet, roots: Sequence[Path], names: Sequence[str]) -> Scored:
    contest = compared_systems.contest(text, roots, {})
    systems = [replace(system, name=name) for system, name in zip(contest.systems, names, strict=True)]
    found = compare(systems, contest.references, tgt=text.tgt)
    by_character = not writes_spaces(text.tgt)
    traits = [Traits.of(system.hypotheses, contest.references, text.tgt) for system in systems]
    sentences = [_sentences(text, system.hypotheses, contest.references, by_character) for system in systems]
    order = sorted(sentences[0], key=lambda each: (round(each.chrf, 1), len(each.src)))
    middle = order[len(order) // 2 :][: _NUM_SENTENCES // 2]
    differing = [[of_one[row.line - 1] for of_one in sentences] for row in found.sentences]
    return Scored(
        text.name, found, traits, order[:_NUM_SENTENCES], middle, order[::-1][:_NUM_SENTENCES], differing
    )  # fmt: skip


def _sentences(text: TestSet, hypotheses: list[str], references: list[str], by_character: bool) -> list[Sentence]:
    from sacrebleu.metrics import CHRF

    metric, found = CHRF(), []
    for line, (src, hyp, ref) in enumerate(zip(text.sources, hypotheses, references, strict=True), start=1):
        chrf = float(metric.sentence_score(hyp, [ref]).score)
        found.append(Sentence(line, chrf, src, *marked(hyp, ref, by_character)))
    return found


def marked(hyp: str, ref: str, by_character: bool = False) -> tuple[Words, Words]:
    """The words, marks and spaces of two texts, each with whether it is missing in the other at that place."""
    pattern = _CHARACTER if by_character else _TOKEN
    parts = [pattern.findall(text) for text in (hyp, ref)]
    a, b = ([part for part in text if not part.isspace()] for text in parts)
    is_other = [True] * len(a), [True] * len(b)
    for match in SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks():
        is_other[0][match.a : match.a + match.size] = [False] * match.size
        is_other[1][match.b : match.b + match.size] = [False] * match.size
    found = []
    for text, flags in zip(parts, map(iter, is_other), strict=True):
        found.append([(part, False if part.isspace() else next(flags)) for part in text])
    return found[0], found[1]
