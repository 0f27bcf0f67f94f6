"""Which system is better: sacreBLEU's paired tests on the same sentences, and what is behind the numbers.

Flow: systems (hypotheses) + references -> `compare` -> `Comparison`. The first system is what the others are compared
with. Nothing here translates or reads runs.
"""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from mtx.errors import DataError
from mtx.evaluation.metrics import tokenizer_of, words, writes_spaces
from mtx.evaluation.protocols import Protocol

Paired = Literal["bs", "ar"]
METRICS = ("bleu", "chrf", "ter")
SIGNIFICANT = 0.05  # p-values below it are no accident
_NUM_BINS, _BIN_WORDS, _BIN_CHARACTERS = 5, 10, 20  # of reference lengths; the last bin has no end
_NUM_SENTENCES = 5


@dataclass(frozen=True)
class System:
    """What one system put out, a line for each sentence."""

    name: str
    hypotheses: list[str]


@dataclass(frozen=True)
class Measured:
    """One metric of one system.

    Attributes:
        ci: half of the 95% confidence interval around `mean`, by bootstrap resampling; None with --paired ar.
        p_value: of the difference to the first system; None for that one. 1 where a system puts out the same as the
            first, of which sacreBLEU's tests say 0.0001.
    """

    score: float
    mean: float | None
    ci: float | None
    p_value: float | None


@dataclass(frozen=True)
class Metric:
    """One metric of all systems, in their order; `signature` is sacreBLEU's, with seed and samples."""

    name: str
    signature: str
    systems: list[Measured]

    @property
    def is_error(self) -> bool:
        """Whether less is better."""
        return self.name == "TER"

    def gain(self, number: int) -> float:
        """How much better a system is than the first, in points."""
        difference = self.systems[number].score - self.systems[0].score
        return -difference if self.is_error else difference

    def is_worse(self, number: int) -> bool:
        """Whether a system is worse than the first, and not by accident."""
        p_value = self.systems[number].p_value
        return p_value is not None and p_value < SIGNIFICANT and self.gain(number) < 0


@dataclass(frozen=True)
class Bin:
    """Sentences whose references have `shortest` to `longest` words or characters, and each system's BLEU on them."""

    shortest: int
    longest: int | None
    count: int
    bleu: list[float]

    @property
    def length(self) -> str:
        """How long the references are."""
        return f"{self.shortest} to {self.longest}" if self.longest else f"{self.shortest} and more"


@dataclass(frozen=True)
class Differing:
    """One sentence on which a system and the first differ much; `chrf` of each."""

    line: int
    reference: str
    hypotheses: list[str]
    chrf: list[float]


@dataclass(frozen=True)
class Comparison:
    """All that `compare` finds out.

    Attributes:
        length_unit: words, or characters where the target language writes no spaces.
        sentences: those on which the second system differs most from the first, the largest difference first.
    """

    names: list[str]
    num_lines: int
    paired: Paired
    metrics: list[Metric]
    length_unit: str
    lengths: list[Bin]
    sentences: list[Differing]

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "verdicts": self.verdicts()}

    def verdicts(self) -> list[str]:
        """A sentence for each system but the first and each metric."""
        return [self._verdict(metric, number) for number in range(1, len(self.names)) for metric in self.metrics]

    def _verdict(self, metric: Metric, number: int) -> str:
        first, other = self.names[0], self.names[number]
        p_value, gain = metric.systems[number].p_value, metric.gain(number)
        assert p_value is not None
        better = "better" if gain > 0 else "worse"
        test = f"p = {p_value:.4f}, {'paired bootstrap' if self.paired == 'bs' else 'approximate randomisation'}"
        if gain == 0:
            return f"{other} and {first} are equal in {metric.name}"
        if p_value >= SIGNIFICANT:
            return f"{other} is {better} than {first} by {abs(gain):.2f} {metric.name}, which may be chance ({test})"
        return f"{other} is {better} than {first} by {abs(gain):.2f} {metric.name}, and not by chance ({test})"


def compare(
    systems: Sequence[System], references: list[str], paired: Paired = "bs", metrics: Sequence[str] = METRICS,
    tgt: str = "", protocol: Protocol | None = None,
) -> Comparison:  # fmt: skip
    """Compare systems by sacreBLEU's paired bootstrap (`bs`) or approximate randomisation (`ar`), with its own seed.

    Args:
        metrics: of bleu, chrf, ter.
        tgt: target language, for BLEU's tokenizer.
        protocol: for a BLEU score beside the metrics, with the same tests.

    Raises:
        DataError: where a system has more or fewer lines than there are references, or there are none.
    """
    for system in systems:
        if len(system.hypotheses) != len(references):
            raise DataError(f"{system.name} has {len(system.hypotheses)} lines, the references have {len(references)}")
    if not references:
        raise DataError("nothing to compare: no lines")
    names = [system.name for system in systems]
    tested = _tested(systems, references, paired, metrics, tgt)
    if protocol is not None:
        tested.append(_by_protocol(systems, references, paired, protocol))
    unit = "words" if writes_spaces(tgt) else "characters"
    lengths, sentences = _by_length(systems, references, tgt), _differing(systems, references)
    return Comparison(names, len(references), paired, tested, unit, lengths, sentences)


def _tested(
    systems: Sequence[System], references: list[str], paired: Paired, metrics: Sequence[str], tgt: str
) -> list[Metric]:
    from sacrebleu.metrics import BLEU, CHRF, TER

    makers = {"bleu": lambda: BLEU(tokenize=tokenizer_of(tgt)), "chrf": CHRF, "ter": TER}
    return _paired(systems, references, paired, {name: makers[name]() for name in METRICS if name in metrics})


def _by_protocol(systems: Sequence[System], references: list[str], paired: Paired, protocol: Protocol) -> Metric:
    text = protocol.tokenized(references, [system.hypotheses for system in systems])
    tokenized = [System(system.name, lines) for system, lines in zip(systems, text.systems, strict=True)]
    [metric] = _paired(tokenized, text.references, paired, {"bleu": protocol.metric()})
    return replace(metric, name=f"{protocol.name} {metric.name}", signature=text.signature(metric.signature))


def _paired(systems: Sequence[System], references: list[str], paired: Paired, metrics: dict[str, Any]) -> list[Metric]:
    from sacrebleu.significance import PairedTest

    named = [(system.name, system.hypotheses) for system in systems]
    signatures, results = PairedTest(named, metrics, [references], test_type=paired)()
    same = [system.hypotheses == systems[0].hypotheses for system in systems]
    found = []
    for name in results.keys() - {"System"}:
        measured = [
            Measured(float(r.score), _float(r.mean), _float(r.ci), _p_value(r, results[name][0], is_same, number))
            for number, (r, is_same) in enumerate(zip(results[name], same, strict=True))
        ]
        found.append(Metric(name, str(signatures[name]), measured))
    return sorted(found, key=lambda metric: list(results).index(metric.name))


def _p_value(result: Any, first: Any, is_same: bool, number: int) -> float | None:
    """Of the first system none; 1 where a metric cannot tell two systems apart, of which sacreBLEU says 0.0001."""
    return 1.0 if number and (is_same or result.score == first.score) else _float(result.p_value)


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def _by_length(systems: Sequence[System], references: list[str], tgt: str) -> list[Bin]:
    from sacrebleu.metrics import BLEU

    size = _BIN_WORDS if writes_spaces(tgt) else _BIN_CHARACTERS
    lengths = [len(words(reference, tgt)) for reference in references]
    found = []
    for number in range(_NUM_BINS):
        rows = [i for i, n in enumerate(lengths) if min(max(n - 1, 0) // size, _NUM_BINS - 1) == number]
        if rows:
            chosen = [references[i] for i in rows]
            scores = [
                BLEU(tokenize=tokenizer_of(tgt)).corpus_score([s.hypotheses[i] for i in rows], [chosen]).score
                for s in systems
            ]
            longest = (number + 1) * size if number < _NUM_BINS - 1 else None
            found.append(Bin(number * size + 1, longest, len(rows), [float(score) for score in scores]))
    return found


def _differing(systems: Sequence[System], references: list[str]) -> list[Differing]:
    from sacrebleu.metrics import CHRF

    metric = CHRF()
    rows = []
    for number, reference in enumerate(references):
        hypotheses = [system.hypotheses[number] for system in systems]
        if len(set(hypotheses[:2])) > 1:
            scores = [float(metric.sentence_score(hypothesis, [reference]).score) for hypothesis in hypotheses]
            if scores[0] != scores[1]:
                rows.append(Differing(number + 1, reference, hypotheses, scores))
    rows.sort(key=lambda row: (-abs(row.chrf[1] - row.chrf[0]), row.line))
    return rows[:_NUM_SENTENCES]


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """The mean of some runs' scores and their sample standard deviation; 0 for one run."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0
