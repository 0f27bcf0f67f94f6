"""Results on a test set, as a report shows them: scores, traits of the translations, and sentences to look at.

Flow: run directories -> `test_set_results` -> `TestSetResults`. The worst, middle and best sentences are chosen here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mtx.data.writing_systems import writes_spaces
from mtx.evaluation.comparison import Comparison, compare
from mtx.evaluation.differing_settings import groups_of
from mtx.evaluation.evaluate import system_outputs
from mtx.evaluation.test_sets import TestSet, test_sets_of_runs
from mtx.evaluation.traits import Traits
from mtx.report.word_diff import Words, word_diff
from mtx.run.contents import translated_tests
from mtx.run.layout import RunLayout

_NUM_SENTENCES = 10


@dataclass(frozen=True)
class Sentence:
    """One sentence of a test set, with the sentence-level chrF of the hypothesis, 0 to 100."""

    line: int
    chrf: float
    src: str
    hyp: Words
    ref: Words


@dataclass(frozen=True)
class TestSetResults:
    """Results of all runs of a report on one test set.

    Attributes:
        traits: of each run.
        worst, middle, best: sentences of the first run by chrF, the most telling ones first.
        differing: the sentences on which another run (`Comparison.other`) differs most from the first, each in the
            version of every run.
    """

    name: str
    comparison: Comparison
    traits: list[Traits]
    worst: list[Sentence]
    middle: list[Sentence]
    best: list[Sentence]
    differing: list[list[Sentence]]


def test_set_results(roots: Sequence[Path], names: Sequence[str]) -> list[TestSetResults]:
    """The results on the test sets that all runs have translated; empty if there are none.

    Args:
        names: what the report calls the runs.
    """
    common = set.intersection(*({*translated_tests(RunLayout(root))} for root in roots))
    return [_results(test_set, roots, names) for test_set in test_sets_of_runs(roots)] if common else []


def _results(test_set: TestSet, roots: Sequence[Path], names: Sequence[str]) -> TestSetResults:
    outputs, references = system_outputs(test_set, roots, {})
    systems = [replace(system, name=name) for system, name in zip(outputs, names, strict=True)]
    comparison = compare(systems, references, tgt=test_set.tgt, groups=groups_of(roots, names))
    sentences = [_sentences(test_set, system.hypotheses, references) for system in systems]
    by_chrf = sorted(sentences[0], key=lambda sentence: (round(sentence.chrf, 1), len(sentence.src)))
    return TestSetResults(
        name=test_set.name, comparison=comparison,
        traits=[Traits.of(test_set.sources, system.hypotheses, references, test_set.tgt) for system in systems],
        worst=by_chrf[:_NUM_SENTENCES], middle=by_chrf[len(by_chrf) // 2 :][: _NUM_SENTENCES // 2],
        best=by_chrf[::-1][:_NUM_SENTENCES],
        differing=[[of_run[row.line - 1] for of_run in sentences] for row in comparison.sentences],
    )  # fmt: skip


def _sentences(test_set: TestSet, hypotheses: list[str], references: list[str]) -> list[Sentence]:
    from sacrebleu.metrics import CHRF

    metric, by_character, sentences = CHRF(), not writes_spaces(test_set.tgt, references), []
    for line, (src, hyp, ref) in enumerate(zip(test_set.sources, hypotheses, references, strict=True), start=1):
        chrf = float(metric.sentence_score(hyp, [ref]).score)
        sentences.append(Sentence(line, chrf, src, *word_diff(hyp, ref, by_character)))
    return sentences
