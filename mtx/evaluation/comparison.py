"""Comparison of systems on one test set: significance tests, BLEU by sentence length, and the sentences that differ.

Flow: systems (hypotheses) + references -> `compare` -> `Comparison`. The first system is the baseline. This module
translates nothing and reads no runs; `evaluate.system_outputs` provides the hypotheses.
"""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mtx.data.languages import counts_words, tokenizer_of
from mtx.errors import DataError
from mtx.evaluation.metrics import bleu, words
from mtx.evaluation.protocols import Protocol
from mtx.evaluation.significance import METRICS, SIGNIFICANCE_LEVEL, MetricComparison, System, TestType, paired_tests

_NUM_BINS, _BIN_WORDS, _BIN_CHARACTERS = 5, 10, 20  # of reference lengths; the last bin has no end
_NUM_SENTENCES = 5


@dataclass(frozen=True)
class LengthBin:
    """Sentences whose references have `shortest` to `longest` words or characters, and each system's BLEU on them."""

    shortest: int
    longest: int | None
    count: int
    bleu: list[float]

    @property
    def length(self) -> str:
        """The range of lengths in words."""
        return f"{self.shortest} to {self.longest}" if self.longest else f"{self.shortest} and more"


@dataclass(frozen=True)
class DifferingSentence:
    """A sentence with the hypothesis of each system and its sentence-level chrF."""

    line: int
    reference: str
    hypotheses: list[str]
    chrf: list[float]


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`.

    Attributes:
        length_unit: words, or characters if the target language writes no spaces.
        sentences: those on which the second system differs most from the baseline, the largest difference first.
    """

    names: list[str]
    num_lines: int
    paired: TestType
    metrics: list[MetricComparison]
    length_unit: str
    lengths: list[LengthBin]
    sentences: list[DifferingSentence]

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "verdicts": self.verdicts()}

    def verdicts(self) -> list[str]:
        """For each system except the baseline, and for each metric, a sentence."""
        return [self._verdict(metric, index) for index in range(1, len(self.names)) for metric in self.metrics]

    def _verdict(self, metric: MetricComparison, index: int) -> str:
        baseline, system = self.names[0], self.names[index]
        p_value, gain = metric.systems[index].p_value, metric.gain(index)
        assert p_value is not None
        if gain == 0:
            return f"{system} and {baseline} are equal in {metric.name}"
        difference = f"{'better' if gain > 0 else 'worse'} than {baseline} by {abs(gain):.2f} {metric.name}"
        significance = "which may be chance" if p_value >= SIGNIFICANCE_LEVEL else "and not by chance"
        test = "paired bootstrap" if self.paired == "bs" else "approximate randomisation"
        return f"{system} is {difference}, {significance} (p = {p_value:.4f}, {test})"


def compare(
    systems: Sequence[System], references: list[str], paired: TestType = "bs", metrics: Sequence[str] = METRICS,
    tgt: str = "", protocol: Protocol | None = None,
) -> Comparison:  # fmt: skip
    """Compare systems with the first of them, the baseline.

    Args:
        paired: the significance test.
        metrics: some of bleu, chrf and ter.
        tgt: target language, which decides BLEU's tokenizer and the unit of lengths.
        protocol: adds BLEU by this published protocol, with the same significance test.

    Raises:
        DataError: if a system has more or fewer lines than there are references, or there are none.
    """
    for system in systems:
        if len(system.hypotheses) != len(references):
            raise DataError(f"{system.name} has {len(system.hypotheses)} lines, the references have {len(references)}")
    if not references:
        raise DataError("nothing to compare: no lines")
    tokenizer = tokenizer_of(tgt, references)
    return Comparison(
        names=[system.name for system in systems], num_lines=len(references), paired=paired,
        metrics=paired_tests(systems, references, paired, metrics, tgt, protocol),
        length_unit="words" if counts_words(tokenizer) else "characters",
        lengths=_by_length(systems, references, tokenizer), sentences=_differing_sentences(systems, references),
    )  # fmt: skip


def _by_length(systems: Sequence[System], references: list[str], tokenizer: str) -> list[LengthBin]:
    size = _BIN_WORDS if counts_words(tokenizer) else _BIN_CHARACTERS
    bins: list[list[int]] = [[] for _ in range(_NUM_BINS)]
    for row, reference in enumerate(references):
        bins[min(max(len(words(reference, tokenizer)) - 1, 0) // size, _NUM_BINS - 1)].append(row)
    lengths = []
    for number, rows in enumerate(bins):
        if rows:
            part = [references[i] for i in rows]
            scores = [bleu([s.hypotheses[i] for i in rows], part, tokenizer=tokenizer) for s in systems]
            longest = (number + 1) * size if number < _NUM_BINS - 1 else None
            lengths.append(LengthBin(number * size + 1, longest, len(rows), scores))
    return lengths


def _differing_sentences(systems: Sequence[System], references: list[str]) -> list[DifferingSentence]:
    from sacrebleu.metrics import CHRF

    metric, sentences = CHRF(), []
    for index, reference in enumerate(references):
        hypotheses = [system.hypotheses[index] for system in systems]
        if len(set(hypotheses[:2])) > 1:
            scores = [float(metric.sentence_score(hypothesis, [reference]).score) for hypothesis in hypotheses]
            if scores[0] != scores[1]:
                sentences.append(DifferingSentence(index + 1, reference, hypotheses, scores))
    sentences.sort(key=lambda row: (-abs(row.chrf[1] - row.chrf[0]), row.line))
    return sentences[:_NUM_SENTENCES]


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """The mean of the scores of some runs and their sample standard deviation, which is 0 for one run."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
