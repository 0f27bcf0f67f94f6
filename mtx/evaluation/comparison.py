"""Comparison of systems on one test set: significance tests, BLEU by sentence length, and the sentences that differ.

Flow: systems (hypotheses) + references -> `compare` -> `Comparison`. The first system is the baseline. This module
translates nothing and reads no runs; `evaluate.system_outputs` provides the hypotheses.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mtx.data.languages import counts_words, tokenizer_of
from mtx.decoding.metrics import bleu, too_short_for_bleu, words
from mtx.errors import DataError
from mtx.evaluation.differing_settings import Group
from mtx.evaluation.protocols import Protocol
from mtx.evaluation.significance import (
    METRICS,
    SIGNIFICANCE_LEVEL,
    MetricComparison,
    System,
    significance_tests,
)

_NUM_BINS = 5  # of reference lengths; the last bin has no end
_BIN_WORDS, _BIN_CHARACTERS = 10, 20
_NUM_SENTENCES = 5
_FEW_SEEDS = 3
_LEAST_P = 0.0001


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
        groups: the systems as they are compared: runs that differ only in their seeds are one group.
        decided_by: the name of the metric that the headline goes by: BLEU, or chrF2 where BLEU says nothing.
        length_unit: words, or characters if the target language writes no spaces.
        other: the system whose sentences are shown with those of the first: of another group if there is one.
        sentences: those on which it differs most from the first, the largest difference first.
    """

    names: list[str]
    num_lines: int
    groups: list[Group]
    metrics: list[MetricComparison]
    decided_by: str
    length_unit: str
    lengths: list[LengthBin]
    other: int
    sentences: list[DifferingSentence]

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "test": self.test(), "headline": self.headline(), "verdicts": self.verdicts()}

    def has_seeds(self) -> bool:
        """Whether a group has several runs."""
        return len(self.groups) < len(self.names)

    def has_few_seeds(self) -> bool:
        """Whether runs are compared over seeds, but of a setting there are too few to notice a small difference."""
        smallest = min(len(group.members) for group in self.groups)
        return self.has_seeds() and len(self.groups) > 1 and smallest < _FEW_SEEDS

    def test(self) -> str:
        """Which test the p-values are of, and against what, as a sentence; empty where nothing is tested."""
        if len(self.groups) < 2:
            return ""
        first, *others = (len(group.members) == 1 for group in self.groups)
        kind, test = "system", "sacreBLEU's paired bootstrap, which counts the sentences only"
        if self.has_seeds():
            singles = f", or for two single systems by {test}" if first and any(others) else ""
            kind = "group"
            test = f"a test that counts other seeds and other sentences (Obuchowski and Rockette 1995){singles}"
        return f"p is that of the difference to the first {kind}, {self.groups[0].label}, by {test}"

    def headline(self) -> list[str]:
        """The verdicts by the metric that decides: a sentence for each group except the first."""
        return self._verdicts([metric for metric in self.metrics if metric.name == self.decided_by])

    def verdicts(self) -> list[str]:
        """For each group except the first, and for each metric, a sentence; runs of one group are never told apart."""
        return self._verdicts(self.metrics)

    def _verdicts(self, metrics: list[MetricComparison]) -> list[str]:
        if len(self.groups) > 1:
            return [self._verdict(metric, index) for index in range(1, len(self.groups)) for metric in metrics]
        if len(self.names) == 1:
            return []
        means = (f"{metric.name} {metric.groups[0].mean:.2f} ± {metric.groups[0].deviation:.2f}" for metric in metrics)
        return [f"the {len(self.names)} runs differ only in their seeds: {', '.join(means)}"]

    def _verdict(self, metric: MetricComparison, index: int) -> str:
        (baseline, group), score = (self.groups[0], self.groups[index]), metric.groups[index]
        gain = metric.gain(index)
        assert score.p_value is not None
        if gain == 0:
            return f"{group.label} and {baseline.label} are equal in {metric.name}"
        difference = f"{'better' if gain > 0 else 'worse'} than {baseline.label} by {abs(gain):.2f} {metric.name}"
        significance = "which may be chance" if score.p_value >= SIGNIFICANCE_LEVEL else "and not by chance"
        test = "paired bootstrap"
        numbers = len(group.members), len(baseline.members)
        if max(numbers) > 1:
            if min(numbers) == 1 and score.p_value < SIGNIFICANCE_LEVEL:  # the test takes its spread from the other
                one, several = (group, baseline) if numbers[0] == 1 else (baseline, group)
                significance += f" if other seeds of {one.label} would vary as those of {several.label}"
            test = f"{numbers[0]} run{'s' * (numbers[0] > 1)} against {numbers[1]}, over seeds and sentences"
        return f"{group.label} is {difference}, {significance} ({p_text(score.p_value, 'p = ', 'p < ')}, {test})"


def p_text(p_value: float, equal: str = "", less: str = "<") -> str:
    """A p-value with four digits after the point, after a sign of relation."""
    return f"{equal}{p_value:.4f}" if p_value >= _LEAST_P else f"{less}{_LEAST_P}"


def compare(
    systems: Sequence[System],
    references: list[str],
    metrics: Sequence[str] = METRICS,
    tgt: str = "",
    protocol: Protocol | None = None,
    groups: Sequence[Group] = (),
) -> Comparison:
    """Compare systems, or groups of them, with the first, the baseline.

    Args:
        metrics: some of bleu, chrf and ter.
        tgt: target language, which decides BLEU's tokenizer and the unit of lengths.
        protocol: adds BLEU by this published protocol, with the same significance test.
        groups: from `groups_of`; by default each system is compared by itself.

    Raises:
        DataError: if a system has more or fewer lines than there are references, or there are none.
    """
    for system in systems:
        if len(system.hypotheses) != len(references):
            raise DataError(f"{system.name} has {len(system.hypotheses)} lines, the references have {len(references)}")
    if not references:
        raise DataError("nothing to compare: no lines")
    tokenizer = tokenizer_of(tgt, references)
    groups = list(groups) or [Group(system.name, [index]) for index, system in enumerate(systems)]
    measured = significance_tests(systems, references, metrics, tgt, protocol, [group.members for group in groups])
    names = [metric.name for metric in measured]
    main = "chrF2" if "chrF2" in names and too_short_for_bleu(references, tgt) else next(iter(names), "")
    other = groups[1].members[0] if len(groups) > 1 else 1
    return Comparison(
        names=[system.name for system in systems],
        num_lines=len(references),
        groups=groups,
        metrics=measured,
        decided_by=main,
        length_unit="words" if counts_words(tokenizer) else "characters",
        lengths=_by_length(systems, references, tokenizer),
        other=other,
        sentences=_differing_sentences(systems, references, other),
    )


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


def _differing_sentences(systems: Sequence[System], references: list[str], other: int) -> list[DifferingSentence]:
    from sacrebleu.metrics import CHRF

    metric, sentences = CHRF(), []
    for index, reference in enumerate(references if len(systems) > 1 else []):
        hypotheses = [system.hypotheses[index] for system in systems]
        if hypotheses[0] != hypotheses[other]:
            scores = [float(metric.sentence_score(hypothesis, [reference]).score) for hypothesis in hypotheses]
            if scores[0] != scores[other]:
                sentences.append(DifferingSentence(index + 1, reference, hypotheses, scores))
    sentences.sort(key=lambda row: (-abs(row.chrf[other] - row.chrf[0]), row.line))
    return sentences[:_NUM_SENTENCES]
