"""Scores of systems with significance tests: sacreBLEU's paired tests, and a test over seeds for groups of runs.

Flow: hypotheses of several systems + references -> `significance_tests` -> one `MetricComparison` for each metric. The
group of the first system is the baseline. sacreBLEU's default seed makes the results reproducible.

With several seeds a score varies because another seed gives another model, and because another test set has other
sentences. `difference_p_value` accounts for both: runs are nested in their settings, and all translate the same
sentences. This is the design of Obuchowski and Rockette (1995), for readers of two kinds of images, with the degrees of
freedom of Hillis (2007). docs/archive/decisions-2026.md (2026-11-22) compares its rate of false alarms with other
tests.
"""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtx.errors import DataError
from mtx.scoring.metrics import METRICS, Scores, digits_of, score

_NUM_SAMPLES = 1000  # of the bootstrap, as in sacreBLEU
_SEED = 12345  # likewise
_MOST_FREEDOM = 1e4  # degrees of freedom above which Student's distribution is taken to be normal
_LEAST_P = 0.0001  # that is shown as a number
SIGNIFICANCE_LEVEL = 0.05  # a difference with a smaller p-value is significant


class SentenceMean:
    """A metric whose score is the mean of a number for each sentence, with the methods of sacreBLEU's metrics."""

    def __init__(self, sentences: Sequence[float], signature: str):
        self.name = signature.partition("|")[0].strip()[:200]
        self._sentences = sentences
        self._signature = signature

    def get_signature(self) -> str:
        return self._signature

    def _extract_corpus_statistics(self, hypotheses: Any, references: Any) -> list[list[float]]:
        return [[number, 1.0] for number in self._sentences]

    def _compute_score_from_stats(self, sums: list[float]) -> SimpleNamespace:
        total, num_sentences = sums
        return SimpleNamespace(score=total / num_sentences)


@dataclass(frozen=True)
class System:
    """The hypotheses of one system, one line for each sentence.

    Attributes:
        measured: scores by metrics of commands, see `metric_process.py`.
    """

    name: str
    hypotheses: list[str]
    measured: Mapping[str, SentenceMean] = field(default_factory=dict)


@dataclass(frozen=True)
class SystemScore:
    """The score of one system by one metric, with the ends of its 95% confidence interval over sentences."""

    score: float
    interval: tuple[float, float]

    def cells(self, digits: int = 2) -> tuple[str, str]:
        """The score with so many digits after the point, and the interval with one fewer."""
        low, high = (f"{end:.{digits - 1}f}" for end in self.interval)
        return f"{self.score:.{digits}f}", f"{low} to {high}"


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

    def cells(self, digits: int = 2) -> tuple[str, str]:
        """The mean with its sample standard deviation, and the p-value, as text; empty where there is none."""
        deviation = "" if self.deviation is None else f" ± {self.deviation:.{digits}f}"
        p_value = "" if self.p_value is None else p_text(self.p_value).removeprefix("= ")
        return f"{self.mean:.{digits}f}{deviation}", p_value


def p_text(p_value: float) -> str:
    """A p-value with four digits after the point, after a sign of relation."""
    return f"= {p_value:.4f}" if p_value >= _LEAST_P else f"< {_LEAST_P}"


@dataclass(frozen=True)
class MetricComparison:
    """One metric of all systems and of all groups, in their order.

    `signature` is the metric's; that of sacreBLEU's metrics has the seed and the number of samples.
    """

    name: str
    signature: str
    systems: list[SystemScore]
    groups: list[GroupScore]

    @property
    def digits(self) -> int:
        """See `digits_of`."""
        return digits_of(self.name)

    def gain(self, index: int) -> float:
        """The number of points by which a group is better than the first one; TER counts errors."""
        difference = self.groups[index].mean - self.groups[0].mean
        return -difference if self.name == "TER" else difference

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

    Single systems are compared by sacreBLEU's paired bootstrap (Koehn 2004), others by `difference_p_value`.
    """
    scores_by_system: list[Scores] = [
        score(system.hypotheses, references, tgt, measure=_resample, metrics=metrics)
        | {command: _resample(mean, ()) for command, mean in system.measured.items()}
        for system in systems
    ]
    comparisons = list[MetricComparison]()
    baseline = groups[0]
    for key in scores_by_system[0]:
        if not all(key in scores for scores in scores_by_system):
            continue
        system_scores, signatures, resampled = zip(*(scores[key] for scores in scores_by_system), strict=True)
        if len({*map(str, signatures)}) > 1:
            raise DataError(
                f"{key}: the systems have different signatures: {', '.join(map(str, signatures))}",
                "score the runs again by the same metric: mtx evaluate RUN -m ...",
            )
        signature = signatures[0]
        if key in METRICS:
            signature.update("seed", str(_SEED))
            signature.update("bs", _NUM_SAMPLES)
        name = METRICS.get(key) or systems[0].measured[key].name
        points = [system.score for system in system_scores]
        group_scores = list[GroupScore]()
        for group in groups:
            p_value = None
            if group is not baseline:
                p_value = difference_p_value(points, np.stack(resampled), baseline, group, key in METRICS)
            runs = [points[index] for index in group]
            deviation = statistics.stdev(runs) if len(runs) > 1 else None
            group_scores.append(GroupScore(statistics.fmean(runs), deviation, p_value))
        comparisons.append(MetricComparison(name, str(signature), [*system_scores], group_scores))
    return comparisons


def score_with_interval(metric: Any, hypotheses: Sequence[str], *references: Sequence[str]) -> dict[str, Any]:
    """The score and the signature of `corpus_score`, and the ends of the 95% confidence interval over sentences."""
    system_score, signature, _ = _resample(metric, hypotheses, *references)
    return {**vars(system_score), "signature": str(signature)}


def _resample(
    metric: Any, hypotheses: Sequence[str], *references: Sequence[str]
) -> tuple[SystemScore, Any, NDArray[np.float64]]:
    """The score of a system by a metric, its signature, and the scores on bootstrap samples of the sentences.

    All systems have the same samples. Their scores are computed from sentence statistics, which suffice for the score
    of any set of sentences.
    """
    from sacrebleu.significance import estimate_ci

    sentences = np.array(metric._extract_corpus_statistics(hypotheses, references), dtype=np.float64)
    num_sentences = len(sentences)
    rng = np.random.default_rng(_SEED)
    counts = (
        np.bincount(rng.choice(num_sentences, num_sentences), minlength=num_sentences) for _ in range(_NUM_SAMPLES)
    )
    sums = (sentences.sum(axis=0), *(count @ sentences for count in counts))
    corpus_score, *sample_scores = [metric._compute_score_from_stats(row.tolist()).score for row in sums]
    mean, half_width = map(float, estimate_ci(np.array(sample_scores)))
    return (
        SystemScore(float(corpus_score), (mean - half_width, mean + half_width)),
        metric.get_signature(),
        np.array(sample_scores),
    )


def difference_p_value(
    scores: Sequence[float],
    resampled: NDArray[np.float64],
    first: list[int],
    second: list[int],
    is_one_sided: bool = True,
) -> float:
    """The two-sided p-value of the difference between the mean scores of two groups of runs.

    Of two single runs it is that of sacreBLEU's paired bootstrap. Otherwise the variance of the difference is s²/n of
    each group (the variance over its seeds) plus that of the choice of sentences. A group of one run is assumed to vary
    with its seed like the other group.

    Args:
        scores: the score of each run on the test set.
        resampled: scores of each run on the same bootstrap samples of its sentences, float [runs, samples].
        first, second: the runs of the two groups, as indices.
        is_one_sided: whether the bootstrap of two single runs counts one end only, as sacreBLEU does.
    """
    groups = [np.take(scores, runs) for runs in (first, second)]
    difference = abs(float(groups[1].mean() - groups[0].mean()))
    if not difference:
        return 1.0
    spreads = [(float(group.var(ddof=1)), len(group)) for group in groups if len(group) > 1]
    if not spreads:
        gaps = resampled[second[0]] - resampled[first[0]]
        if is_one_sided:  # it counts one side only, so one pair of equal systems in ten differs
            gaps = np.abs(gaps)
            deviations = gaps - gaps.mean()
        else:
            deviations = np.abs(gaps - gaps.mean())
        return float(np.count_nonzero(deviations > difference) + 1) / (len(gaps) + 1)
    is_single = len(spreads) == 1
    parts = list[tuple[float, int]]()  # of the variance: s²/n of each group, with its degrees of freedom
    for variance, number in spreads:
        weight = 1 / number
        if is_single:  # the group of one run varies as much: s²/1
            weight += 1
        parts.append((variance * weight, number - 1))
    seed_variance = sum(variance for variance, _ in parts)
    # The scores of runs of one setting are correlated over the samples of sentences. If this correlation is higher than
    # between settings, the sentences contribute to the difference of the settings, independently of seeds.
    covariance = np.cov(resampled)
    np.fill_diagonal(covariance, np.nan)
    covariances_within = [np.nanmean(covariance[np.ix_(group, group)]) for group in (first, second) if len(group) > 1]
    excess = float(np.mean(covariances_within) - np.mean(covariance[np.ix_(first, second)]))
    total = seed_variance + max(0.0, 2 * excess)
    if not total:
        return 0.0
    freedom = total**2 / sum(variance**2 / number for variance, number in parts) if seed_variance else _MOST_FREEDOM
    return student(difference / math.sqrt(total), freedom)


def student(t: float, freedom: float) -> float:
    """The probability that Student's t with `freedom` degrees of freedom is further from 0 than `t`.

    With t = sqrt(freedom) * tan(angle) the density is cos(angle)^(freedom - 1), which is integrated numerically.
    """
    freedom = min(freedom, _MOST_FREEDOM)
    angles = np.linspace([math.atan(abs(t) / math.sqrt(freedom)), 0], math.pi / 2, 100_001)
    densities = np.cos(angles).clip(0) ** (freedom - 1)
    beyond_t, beyond_0 = np.asarray(np.trapezoid(densities, angles, axis=0))
    return float(beyond_t / beyond_0)
