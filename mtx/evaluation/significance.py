"""Scores of systems with significance tests: sacreBLEU's paired ones, and `seed_variance` for runs with several seeds.

Flow: hypotheses of several systems + references -> `significance_tests` -> one `MetricComparison` for each metric. The
group of the first system is the baseline. sacreBLEU's own seed makes the results reproducible.
"""

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mtx.data.writing_systems import tokenizer_of
from mtx.errors import UsageError
from mtx.evaluation import seed_variance
from mtx.evaluation.protocols import Protocol
from mtx.evaluation.scores import ter_takes_too_long

TestType = Literal["bs", "ar"]  # bootstrap resampling (Koehn 2004), approximate randomisation (Riezler & Maxwell 2005)
METRICS = ("bleu", "chrf", "ter")
_NUM_SAMPLES = 1000  # of the bootstrap, as in sacreBLEU
SIGNIFICANCE_LEVEL = 0.05  # a difference with a smaller p-value is significant


@dataclass(frozen=True)
class System:
    """The hypotheses of one system, one line for each sentence."""

    name: str
    hypotheses: list[str]


@dataclass(frozen=True)
class SystemScore:
    """The score of one system by one metric.

    Attributes:
        mean: mean over the bootstrap samples; None with approximate randomisation.
        ci: half of the 95% confidence interval around `mean`; None with approximate randomisation.
    """

    score: float
    mean: float | None
    ci: float | None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The ends of the 95% confidence interval over sentences; None with approximate randomisation."""
        return None if self.mean is None or self.ci is None else (self.mean - self.ci, self.mean + self.ci)

    @property
    def interval_text(self) -> str:
        """The interval as it is shown; empty if there is none."""
        return "" if self.interval is None else "{:.1f} to {:.1f}".format(*self.interval)


@dataclass(frozen=True)
class GroupScore:
    """The score of one group by one metric.

    Attributes:
        mean: over the runs of the group.
        deviation: sample standard deviation over them; None for a single one.
        p_value: of the difference to the first group; None for this one. It is 1 if two single systems have the same
            score, for which sacreBLEU's tests would give 0.0001.
    """

    mean: float
    deviation: float | None
    p_value: float | None


@dataclass(frozen=True)
class MetricComparison:
    """One metric of all systems and of all groups, in their order.

    `signature` is sacreBLEU's, with seed and number of samples.
    """

    name: str
    signature: str
    systems: list[SystemScore]
    groups: list[GroupScore]

    @property
    def is_error(self) -> bool:
        """Whether a lower score is better."""
        return self.name == "TER"

    def gain(self, index: int) -> float:
        """How many points a group is better than the first one."""
        difference = self.groups[index].mean - self.groups[0].mean
        return -difference if self.is_error else difference

    def is_worse(self, index: int) -> bool:
        """Whether a group is significantly worse than the first one."""
        p_value = self.groups[index].p_value
        return p_value is not None and p_value < SIGNIFICANCE_LEVEL and self.gain(index) < 0


def significance_tests(
    systems: Sequence[System],
    references: list[str],
    paired: TestType,
    metrics: Sequence[str],
    tgt: str,
    protocol: Protocol | None,
    groups: Sequence[list[int]],
) -> list[MetricComparison]:
    """The scores by each metric of all systems and groups, tested against the first; for the arguments see `compare`.

    Single systems are compared by sacreBLEU's paired tests, groups of which at least one has several runs by
    `seed_variance`.
    """
    from sacrebleu.metrics import BLEU, CHRF, TER

    factories = {"bleu": lambda: BLEU(tokenize=tokenizer_of(tgt, references)), "chrf": CHRF, "ter": TER}
    if "ter" in metrics and any(ter_takes_too_long(system.hypotheses, references) for system in systems):
        del factories["ter"]
    chosen = [factory() for name, factory in factories.items() if name in metrics]
    comparisons = [_compare(systems, references, paired, metric, groups) for metric in chosen]
    if protocol is not None:
        text = protocol.tokenized(references, [system.hypotheses for system in systems])
        tokenized = [System(system.name, lines) for system, lines in zip(systems, text.systems, strict=True)]
        bleu = _compare(tokenized, text.references, paired, protocol.metric(), groups)
        name, signature = f"{protocol.name} {bleu.name}", text.signature(bleu.signature)
        comparisons.append(replace(bleu, name=name, signature=signature))
    return comparisons


def _compare(
    systems: Sequence[System], references: list[str], paired: TestType, metric: Any, groups: Sequence[list[int]]
) -> MetricComparison:
    """One metric of all systems and groups."""
    singles = [group[0] for group in groups if len(group) == 1]
    if len(singles) == len(groups):
        measured, p_values = _paired_test(systems, references, paired, metric)
    else:
        measured, resampled = _bootstrap(systems, references, metric)
        if singles[:1] == [0] and len(singles) > 1:  # these are compared as if there were no groups
            _, p_values = _paired_test([systems[index] for index in singles], references, paired, metric)
    points = [score.score for score in measured.systems]
    of_groups = []
    for group in groups:
        of_group, p_value = [points[index] for index in group], None
        if group is not groups[0] and len(group) == len(groups[0]) == 1:
            p_value = p_values[singles.index(group[0])]
        elif group is not groups[0]:
            p_value = seed_variance.p_value(points, resampled, groups[0], group)
        deviation = statistics.stdev(of_group) if len(of_group) > 1 else None
        of_groups.append(GroupScore(statistics.fmean(of_group), deviation, p_value))
    return replace(measured, groups=of_groups)


def _seed() -> int | None:
    """The seed of the samples, which the user may set as for sacreBLEU."""
    seed = os.environ.get("SACREBLEU_SEED", "12345")
    if not (seed.lower() == "none" or (seed.isascii() and seed.isdecimal() and int(seed) < 1 << 32)):
        raise UsageError(f"SACREBLEU_SEED={seed}: expected a whole number below 2^32, or none")
    return None if seed.lower() == "none" else int(seed)


def _paired_test(
    systems: Sequence[System], references: list[str], paired: TestType, metric: Any
) -> tuple[MetricComparison, list[float | None]]:
    """A metric of all systems, without groups, and sacreBLEU's p-value of each against the first."""
    from sacrebleu.significance import PairedTest

    _seed()  # sacreBLEU reads it too
    named = [(system.name, system.hypotheses) for system in systems]
    signatures, results = PairedTest(named, {"": metric}, [references], test_type=paired)()
    [(name, signature)] = signatures.items()
    scores, p_values = list[SystemScore](), list[float | None]()
    for system, result in zip(systems, results[name], strict=True):
        figures = [None if value is None else float(value) for value in (result.mean, result.ci, result.p_value)]
        scores.append(SystemScore(float(result.score), *figures[:2]))
        is_equal = scores[-1].score == scores[0].score or system.hypotheses == systems[0].hypotheses
        p_values.append(1.0 if is_equal else figures[2])
    return MetricComparison(name, str(signature), scores, []), [None, *p_values[1:]]


def _bootstrap(
    systems: Sequence[System], references: list[str], metric: Any
) -> tuple[MetricComparison, NDArray[np.float64]]:
    """A metric of all systems, without groups, and the scores of each on each of sacreBLEU's bootstrap samples.

    They are computed from the statistics of each sentence, which are enough for the score of any set of sentences.
    """
    from sacrebleu.significance import estimate_ci

    seed, number = _seed(), len(references)
    samples = np.random.default_rng(seed).choice(number, size=(_NUM_SAMPLES, number), replace=True)
    counts = np.stack([np.bincount(sample, minlength=number) for sample in samples])
    resampled, scores = [], list[SystemScore]()
    for system in systems:
        of_sentences = np.array(metric._extract_corpus_statistics(system.hypotheses, [references]), dtype=np.float64)
        whole, *parts = np.concatenate([of_sentences.sum(0, keepdims=True), counts @ of_sentences])
        resampled.append(np.array([metric._compute_score_from_stats(part.tolist()).score for part in parts]))
        result = metric._compute_score_from_stats(whole.tolist())
        scores.append(SystemScore(float(result.score), *map(float, estimate_ci(resampled[-1]))))
    signature = metric.get_signature()
    signature.update("seed", str(seed).lower())
    signature.update("bs", _NUM_SAMPLES)
    return MetricComparison(str(result.name), str(signature), scores, []), np.stack(resampled)
