"""Results on a test set, as a report shows them: scores, traits of the translations, and sentences to look at.

Flow: run directories -> `test_set_results` -> `TestSetResults`. Which sentences a page shows, and in which order, is
decided here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mtx.data.writing_systems import tokenizer_of, writes_spaces
from mtx.evaluation.comparison import Comparison, compare
from mtx.evaluation.differing_settings import groups_of
from mtx.evaluation.evaluate import system_outputs
from mtx.evaluation.metrics import words
from mtx.evaluation.test_sets import TestSet, test_sets_of_runs
from mtx.evaluation.traits import Traits
from mtx.report.word_diff import Words, joined, word_diff
from mtx.run.contents import translated_tests
from mtx.run.layout import RunLayout

_MAX_BYTES = 1_300_000  # of a page, for the sentences of all test sets together
_SENTENCE_BYTES, _TEXT_BYTES, _PART_BYTES = 200, 120, 27  # of HTML around a sentence, a text and a part of it, about


@dataclass(frozen=True)
class Translation:
    """The hypothesis of one system, with its sentence-level chrF, 0 to 100."""

    chrf: float
    hyp: Words


@dataclass(frozen=True)
class Sentence:
    """One sentence of a test set.

    Attributes:
        length: words or characters of the reference.
        ref: its marked parts are in none of the translations.
        translations: of each system.
    """

    line: int
    length: int
    src: str
    ref: Words
    translations: list[Translation]


@dataclass(frozen=True)
class TestSetResults:
    """Results of all runs of a report on one test set.

    Attributes:
        traits: of each run.
        sentences: of one run the worst by chrF first, of several runs those on which their chrF differs most. A long
            test set is shown in part: the first half from the head of this order, the others evenly from the rest.
    """

    name: str
    comparison: Comparison
    traits: list[Traits]
    sentences: list[Sentence]

    @property
    def typical(self) -> Sentence:
        """Of `sentences`, the one that is in the middle by the first run's chrF."""
        return sorted(self.sentences, key=lambda each: each.translations[0].chrf)[len(self.sentences) // 2]


def test_set_results(roots: Sequence[Path], names: Sequence[str]) -> list[TestSetResults]:
    """The results on the test sets that all runs have translated; empty if there are none.

    Args:
        names: what the report calls the runs.
    """
    common = set.intersection(*({*translated_tests(RunLayout(root))} for root in roots))
    test_sets = list(test_sets_of_runs(roots)) if common else []
    return [_results(test_set, roots, names, _MAX_BYTES // len(test_sets)) for test_set in test_sets]


def _results(test_set: TestSet, roots: Sequence[Path], names: Sequence[str], max_bytes: int) -> TestSetResults:
    outputs, references = system_outputs(test_set, roots, {})
    systems = [replace(system, name=name) for system, name in zip(outputs, names, strict=True)]
    return TestSetResults(
        name=test_set.name, comparison=compare(systems, references, tgt=test_set.tgt, groups=groups_of(roots, names)),
        traits=[Traits.of(test_set.sources, system.hypotheses, references) for system in systems],
        sentences=_sentences(test_set, [system.hypotheses for system in systems], references, max_bytes),
    )  # fmt: skip


def _sentences(test_set: TestSet, systems: list[list[str]], references: list[str], max_bytes: int) -> list[Sentence]:
    """The sentences that a page shows, most telling first, with the hypotheses of all systems."""
    from sacrebleu.metrics import CHRF

    metric, by_character = CHRF(), not writes_spaces(test_set.tgt, references)
    tokenizer = tokenizer_of(test_set.tgt, references)
    rows = list(zip(test_set.sources, references, *systems, strict=True))
    chrf = [[float(metric.sentence_score(hyp, [ref]).score) for hyp in hyps] for _, ref, *hyps in rows]
    order = sorted(range(len(rows)), key=lambda row: (round(min(chrf[row]) - max(chrf[row]), 1),
                                                      round(chrf[row][0], 1), len(rows[row][0])))  # fmt: skip
    mean = sum(_size(texts) for texts in rows) / len(rows)
    sentences = []
    for row in _in_part(order, int(max_bytes / mean)):
        src, reference, *hyps = rows[row]
        diffs = [word_diff(hyp, reference, by_character) for hyp in hyps]
        in_no_hyp = [
            (of[0][0], all(differs for _, differs in of)) for of in zip(*(ref for _, ref in diffs), strict=True)
        ]
        ref, *parts = (joined(text) for text in (in_no_hyp, *(hyp for hyp, _ in diffs)))
        max_bytes -= _size(rows[row]) + _PART_BYTES * sum(map(len, (ref, *parts)))
        if max_bytes >= 0:
            translations = [Translation(*of) for of in zip(chrf[row], parts, strict=True)]
            sentences.append(Sentence(row + 1, len(words(reference, tokenizer)), src, ref, translations))
    return sentences


def _size(texts: Sequence[str]) -> int:
    """About how many bytes a sentence with these texts takes in the page, without its marks."""
    return _SENTENCE_BYTES + sum(_TEXT_BYTES + len(text.encode()) for text in texts)


def _in_part(order: list[int], num_rows: int) -> list[int]:
    """All of `order`; or of a long one `num_rows`: half from its head, half from the rest at even distances."""
    if num_rows >= len(order):
        return order
    head, rest = order[: (num_rows + 1) // 2], order[(num_rows + 1) // 2 :]
    return [*head, *(rest[len(rest) * n // (num_rows // 2)] for n in range(num_rows // 2))]
