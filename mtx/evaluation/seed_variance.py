"""A test of whether two settings differ, from runs with several seeds that translated the same sentences.

A score varies because another seed gives another model, and because another test set has other sentences. The test
counts both: runs are nested in their settings, and all translate the same sentences. This is the design of Obuchowski
and Rockette (1995), for readers of two kinds of images, with the degrees of freedom of Hillis (2007).
docs/decisions.md has its rate of false alarms beside those of other tests.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_MOST_FREEDOM = 1e4  # degrees of freedom from which on Student's distribution is taken for the normal one


def p_value(scores: Sequence[float], resampled: NDArray[np.float64], first: list[int], second: list[int]) -> float:
    """The two-sided p-value of the difference between the mean scores of two groups of runs.

    The variance of this difference is s²/n of each group, which is that of its seeds, plus `_of_sentences`. A group of
    one run is taken to vary with its seed as the other one does.

    Args:
        scores: of each run on the test set.
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
    """By how much the choice of sentences favours one of two groups, whatever the seeds, as a variance of the scores.

    Runs of one setting rise and fall together over the samples of sentences. If they do so more than runs of different
    settings, the sentences have a part in the difference of the settings.
    """

    def mean(rows: list[int], columns: list[int]) -> float:
        return float(np.mean([covariance[i, j] for i in rows for j in columns if i != j]))

    within = [mean(group, group) for group in (first, second) if len(group) > 1]
    return max(0.0, 2 * float(np.mean(within)) - 2 * mean(first, second))


def student(t: float, freedom: float) -> float:
    """The probability that Student's t with `freedom` degrees of freedom is farther from 0 than `t`.

    With t = sqrt(freedom) * tan(angle) the density is cos(angle)^(freedom - 1), which is integrated numerically.
    """
    freedom = min(max(freedom, 1.0), _MOST_FREEDOM)
    angles = np.linspace(0, math.pi / 2, 100_001)
    density = np.cos(angles).clip(0) ** (freedom - 1)
    area = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return float(1 - np.interp(math.atan(abs(t) / math.sqrt(freedom)), angles, area / area[-1]))
