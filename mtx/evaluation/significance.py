"""Scores of systems with significance tests: sacreBLEU's paired tests, and a test over seeds for groups of runs.

Flow: hypotheses of several systems + references -> `significance_tests` -> one `MetricComparison` for each metric. The
group of the first system is the baseline. sacreBLEU's default seed makes the results reproducible.

With several seeds a score varies because another seed gives another model, and because another test set has other
sentences. `seeds_p_value` accounts for both: runs are nested in their settings, and all translate the same sentences.
This is the design of Obuchowski and Rockette (1995), for readers of two kinds of images, with the degrees of freedom of
Hillis (2007). docs/decisions.md compares its rate of false alarms with other tests.
"""

import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtx.decoding.metrics import METRICS, score

_NUM_SAMPLES, _SEED = 1000, 12345  # of the bootstrap, as in sacreBLEU
_MOST_FREEDOM = 1e4  # degrees of freedom above which Student's distribution is taken to be normal
SIGNIFICANCE_LEVEL = 0.05  # a difference with a smaller p-value is significant


@dataclass(frozen=True)
class System:
    """The hypotheses of one system, one line for each sentence."""

    name: str
    hypotheses: list[str]


@dataclass(frozen=True)
class SystemScore:
    """The score of one system by one metric, with the ends of its 95% confidence interval over sentences."""

    score: float
    interval: tuple[float, float]

    @property
    def interval_text(self) -> str:
        """The interval as text."""
        return "{:.1f} to {:.1f}".format(*self.interval)


@dataclass(frozen=True)
class GroupScore:
    """The score of one group by one metric.

    Attributes:
        mean: over the runs of the group.
        deviation: sample standard deviation over them; None for a single one.
        p_value: of the difference to the first group; None for the first group. It is 1 if two single systems have the
            same score, for which sacreBLEU's test would return 0.0001.
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
        """The number of points by which a group is better than the first one."""
        difference = self.groups[index].mean - self.groups[0].mean
        return -difference if self.is_error else difference

    def is_worse(self, index: int) -> bool:
        """Whether a group is significantly worse than the first one."""
        p_value = self.groups[index].p_value
        return p_value is not None and p_value < SIGNIFICANCE_LEVEL and self.gain(index) < 0


def significance_tests(
    systems: Sequence[System],
    references: list[str],
    metrics: Collection[str],
    tgt: str,
    groups: Sequence[list[int]],
) -> list[MetricComparison]:
    """The scores by each metric of all systems and groups, tested against the first; for the arguments see `compare`.

    Single systems are compared by sacreBLEU's paired bootstrap (Koehn 2004), others by `seeds_p_value`.
    """
    measured = [score(system.hypotheses, references, tgt, measure=_resample, metrics=metrics) for system in systems]
    shared = [name for name in METRICS if all(name in of_system for of_system in measured)]
    return [_compare(METRICS[name], [of_system[name] for of_system in measured], groups) for name in shared]


def _compare(name: str, measured: Sequence[Any], groups: Sequence[list[int]]) -> MetricComparison:
    """One metric of all systems, by `_resample`, and of all groups."""
    scores, metrics, resampled = zip(*measured, strict=True)
    signature = metrics[0].get_signature()
    signature.update("seed", str(_SEED))
    signature.update("bs", _NUM_SAMPLES)
    points, first = [score.score for score in scores], groups[0]
    of_groups = []
    for group in groups:
        p_value = None
        if group is not first and len(group) == len(first) == 1:
            difference = points[group[0]] - points[first[0]]
            p_value = _paired_bootstrap(difference, resampled[group[0]] - resampled[first[0]])
        elif group is not first:
            p_value = seeds_p_value(points, np.stack(resampled), first, group)
        of_group = [points[index] for index in group]
        deviation = statistics.stdev(of_group) if len(of_group) > 1 else None
        of_groups.append(GroupScore(statistics.fmean(of_group), deviation, p_value))
    return MetricComparison(name, str(signature), list(scores), of_groups)


def score_with_interval(metric: Any, hypotheses: Sequence[str], *references: Sequence[str]) -> dict[str, Any]:
    """The score and the signature of `corpus_score`, and the ends of the 95% confidence interval over sentences."""
    found, *_ = _resample(metric, hypotheses, *references)
    return {**asdict(found), "signature": str(metric.get_signature())}


def _resample(
    metric: Any, hypotheses: Sequence[str], *references: Sequence[str]
) -> tuple[SystemScore, Any, NDArray[np.float64]]:
    """The score of a system by a metric, the metric, and the scores on bootstrap samples of the sentences.

    All systems have the same samples. Their scores are computed from sentence statistics, which suffice for the score
    of any set of sentences.
    """
    from sacrebleu.significance import estimate_ci

    of_sentences = np.array(metric._extract_corpus_statistics(hypotheses, references), dtype=np.float64)
    number, rng = len(of_sentences), np.random.default_rng(_SEED)
    sums = [of_sentences.sum(axis=0)]
    for _ in range(_NUM_SAMPLES):
        sums.append(np.bincount(rng.choice(number, number), minlength=number) @ of_sentences)
    whole, *parts = [metric._compute_score_from_stats(row.tolist()).score for row in sums]
    resampled = np.array(parts)
    mean, half = map(float, estimate_ci(resampled))
    return SystemScore(float(whole), (mean - half, mean + half)), metric, resampled


def _paired_bootstrap(difference: float, resampled: NDArray[np.float64]) -> float:
    """sacreBLEU's p-value of the difference between two scores, by the differences on the bootstrap samples."""
    sizes = np.abs(resampled)
    num_larger = int(np.sum(sizes - sizes.mean() > abs(difference)))
    return (num_larger + 1) / (len(sizes) + 1) if difference else 1.0


def seeds_p_value(
    scores: Sequence[float], resampled: NDArray[np.float64], first: list[int], second: list[int]
) -> float:
    """The two-sided p-value of the difference between the mean scores of two groups of runs.

    The variance of this difference is s²/n of each group (the variance over its seeds) plus `_of_sentences`. A group
    of one run is assumed to vary with its seed like the other group.

    Args:
        scores: the score of each run on the test set.
        resampled: scores of each run on the same bootstrap samples of its sentences, float [runs, samples].
        first, second: the runs of the two groups, as indices; at least one group has two.
    """
    groups = [[scores[run] for run in group] for group in (first, second)]
    spreads = [(float(np.var(group, ddof=1)), len(group)) for group in groups if len(group) > 1]
    if len(spreads) == 2:
        parts = [(variance / number, number - 1) for variance, number in spreads]
    else:
        [(variance, number)] = spreads
        parts = [(variance * (1 + 1 / number), number - 1)]
    of_seeds = sum(variance for variance, _ in parts)
    total = of_seeds + _of_sentences(np.cov(resampled), first, second)
    difference = float(np.mean(groups[1]) - np.mean(groups[0]))
    if total == 0 or difference == 0:
        return float(difference == 0)
    freedom = total**2 / sum(variance**2 / number for variance, number in parts) if of_seeds else _MOST_FREEDOM
    return student(difference / math.sqrt(total), freedom)


def _of_sentences(covariance: NDArray[np.float64], first: list[int], second: list[int]) -> float:
    """How much the choice of sentences favours one of two groups, independently of seeds, as a variance of scores.

    The scores of runs of one setting are correlated over the samples of sentences. If this correlation is higher than
    between settings, the sentences contribute to the difference of the settings.
    """

    def mean(rows: list[int], columns: list[int]) -> float:
        return float(np.mean([covariance[i, j] for i in rows for j in columns if i != j]))

    within = [mean(group, group) for group in (first, second) if len(group) > 1]
    return max(0.0, 2 * float(np.mean(within)) - 2 * mean(first, second))


def student(t: float, freedom: float) -> float:
    """The probability that Student's t with `freedom` degrees of freedom is further from 0 than `t`.

    With t = sqrt(freedom) * tan(angle) the density is cos(angle)^(freedom - 1), which is integrated numerically.
    """
    freedom = min(max(freedom, 1.0), _MOST_FREEDOM)
    angles = np.linspace(0, math.pi / 2, 100_001)
    density = np.cos(angles).clip(0) ** (freedom - 1)
    area = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return float(1 - np.interp(math.atan(abs(t) / math.sqrt(freedom)), angles, area / area[-1]))
