"""The test over seeds and sentences: by hand, by tables, and its rate of false alarms."""

import math

import numpy as np
import pytest

from mtx.evaluation.seed_variance import p_value, student


@pytest.mark.parametrize(
    ("t", "freedom", "expected"),
    [(12.706, 1, 0.05), (4.303, 2, 0.05), (2.776, 4, 0.05), (8.610, 4, 0.001), (1.960, 10_000, 0.05), (0, 3, 1)],
)
def test_students_distribution_is_that_of_the_tables(t: float, freedom: float, expected: float) -> None:
    assert student(t, freedom) == pytest.approx(expected, rel=1e-3) == student(-t, freedom)


def test_without_a_part_of_the_sentences_it_is_welchs_test_by_hand() -> None:
    """Variances 1 and 4 of 3 runs each: t = 4 / sqrt(5/3), with (5/3)² / ((1/3)²/2 + (4/3)²/2) = 50/17 degrees."""
    scores, unrelated = [29.0, 30.0, 31.0, 32.0, 34.0, 36.0], np.eye(6)
    assert p_value(scores, unrelated, [0, 1, 2], [3, 4, 5]) == pytest.approx(student(4 / math.sqrt(5 / 3), 50 / 17))


def test_a_single_run_is_taken_to_vary_as_the_others() -> None:
    """Variance 1 of 3 runs: t = 4 / sqrt(1 + 1/3) with 2 degrees of freedom."""
    assert p_value([29.0, 30.0, 31.0, 34.0], np.eye(4), [0, 1, 2], [3]) == pytest.approx(
        student(4 / math.sqrt(4 / 3), 2)
    )


def test_sentences_that_favour_a_setting_count() -> None:
    """Runs of a setting that rise and fall together: covariance 3 within, 0 between, so 2 * 3 more variance."""
    scores = [29.0, 30.0, 31.0, 32.0, 34.0, 36.0]
    first, second = math.sqrt(3 / 2) * np.array([[1.0, -1.0, 0, 0], [0, 0, 1.0, -1.0]]) * math.sqrt(3 / 2)
    resampled = np.array([*[first] * 3, *[second] * 3])
    assert np.cov(resampled)[0, 1] == pytest.approx(1.5) and np.cov(resampled)[0, 4] == 0
    total = 5 / 3 + 2 * 1.5
    freedom = total**2 / ((1 / 3) ** 2 / 2 + (4 / 3) ** 2 / 2)
    assert p_value(scores, resampled, [0, 1, 2], [3, 4, 5]) == pytest.approx(student(4 / math.sqrt(total), freedom))


def test_runs_that_are_all_equal() -> None:
    assert p_value([30.0] * 4, np.ones((4, 9)), [0, 1], [2, 3]) == 1
    assert p_value([30.0, 30.0, 31.0, 31.0], np.ones((4, 9)), [0, 1], [2, 3]) == 0


@pytest.mark.parametrize("of_setting", [0.0, 0.5])
def test_equal_settings_differ_significantly_in_one_comparison_of_twenty(of_setting: float) -> None:
    """Three seeds each, on 400 sentences, some of which may suit one of the settings by chance."""
    rng, num_runs, num_sentences, trials = np.random.default_rng(1), 6, 400, 300
    counts = rng.multinomial(num_sentences, np.full(num_sentences, 1 / num_sentences), 100) / num_sentences
    num_rejected = 0
    for _ in range(trials):
        suits = np.repeat(rng.normal(0, of_setting, (2, num_sentences)), 3, axis=0)
        of_seed = rng.normal(0, 0.025, (num_runs, 1)) + rng.normal(0, 0.5, (num_runs, num_sentences))
        of_sentence = rng.normal(0, 1, num_sentences) + suits + of_seed
        num_rejected += p_value(of_sentence.mean(1).tolist(), of_sentence @ counts.T, [0, 1, 2], [3, 4, 5]) < 0.05
    assert 0.01 * trials < num_rejected < 0.09 * trials
