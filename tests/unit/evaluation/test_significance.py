"""Significance tests give the numbers of sacreBLEU's command, and the verdicts say in words what they mean."""

import math
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mtx.errors import DataError
from mtx.evaluation.comparison import compare
from mtx.evaluation.significance import (
    GroupScore,
    MetricComparison,
    SentenceMean,
    System,
    difference_p_value,
    significance_tests,
    student,
)

WORDS = [f"wort{number}" for number in range(22)]


def text(num_lines: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(3, 25))) for _ in range(num_lines)]


def with_other_words(lines: list[str], share: float, seed: int) -> list[str]:
    """The same lines with a share of the words replaced by others."""
    rng = random.Random(seed)
    return [" ".join(rng.choice(WORDS) if rng.random() < share else w for w in line.split()) for line in lines]


def with_broken_words(lines: list[str], seed: int) -> list[str]:
    """The same lines with 5% of the words replaced by words that do not exist."""
    rng = random.Random(seed)
    return [" ".join(w[::-1] + "x" if rng.random() < 0.05 else w for w in line.split()) for line in lines]


@pytest.fixture(scope="module")
def references() -> list[str]:
    return text(1000, 1)


@pytest.fixture(scope="module")
def good(references: list[str]) -> list[str]:
    return with_other_words(references, 0.3, 2)


@pytest.mark.seconds
def test_the_numbers_are_those_of_the_sacrebleu_command(references: list[str], good: list[str], tmp_path: Path) -> None:
    references, good = references[:300], good[:300]
    systems = [good, with_other_words(references, 0.32, 3), with_broken_words(good, 4)]
    paths = [tmp_path / name for name in ("ref", "a", "b", "c")]
    for path, lines in zip(paths, [references, *systems], strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", *map(str, paths[:1]), "-i", *map(str, paths[1:])]
    command += ["-m", "bleu", "chrf", "ter", "--paired-bs", "--format", "latex", "-w", "4"]
    printed = subprocess.run(command, capture_output=True, check=True).stdout.decode()  # its JSON fails on float32
    named = [System(str(path), lines) for path, lines in zip(paths[1:], systems, strict=True)]
    for metric in compare(named, references).metrics:
        for number, measured in enumerate(metric.systems):
            low, high = measured.interval
            assert f"{measured.score:.4f}" in printed
            assert f"{(low + high) / 2:.4f}" in printed and f"{(high - low) / 2:.4f}" in printed
            assert number == 0 or f"{metric.groups[number].p_value:.4f}" in printed


@pytest.mark.seconds
def test_equal_systems_are_equal_and_broken_words_are_worse(references: list[str], good: list[str]) -> None:
    systems = [System("first", good), System("same", list(good)), System("broken", with_broken_words(good, 5))]
    comparison = compare(systems, references, ("bleu", "chrf"))
    for metric in comparison.metrics:
        assert metric.groups[1].p_value == 1.0 and not metric.is_worse(1)
        assert metric.groups[2].p_value is not None and metric.groups[2].p_value < 0.01 and metric.is_worse(2)
    verdicts = comparison.verdicts()
    assert verdicts[0] == "same and first are equal in BLEU"
    assert (
        verdicts[2].startswith("broken is worse than first by ")
        and "BLEU, a statistically significant difference (p " in verdicts[2]
    )


def test_an_insignificant_difference_is_called_chance(references: list[str]) -> None:
    systems = [System("a", with_other_words(references, 0.3, 6)), System("b", with_other_words(references, 0.3, 7))]
    comparison = compare(systems, references, ["bleu"])
    assert [metric.name for metric in comparison.metrics] == ["BLEU"]
    assert "which may be due to chance" in comparison.verdicts()[0]


def test_a_lower_ter_is_better() -> None:
    metric = MetricComparison("TER", "", [], [GroupScore(50, None, None), GroupScore(40, None, 0.01)])
    assert metric.gain(1) == 10 and not metric.is_worse(1)


def test_systems_with_equal_scores_have_p_value_1() -> None:
    references = [f"the cat {n} sat on the mat" for n in range(50)]
    first = [f"a cat {n} sat on the mat" for n in range(50)]
    spaced = [line.replace("a cat", "a  cat", 1) for line in first]
    comparison = compare([System("a", first), System("b", spaced)], references, ("bleu",))
    assert comparison.metrics[0].groups[1].p_value == 1 and "are equal" in comparison.verdicts()[0]


@pytest.mark.parametrize(
    ("t", "freedom", "expected"),
    [(12.706, 1, 0.05), (4.303, 2, 0.05), (2.776, 4, 0.05), (8.610, 4, 0.001), (1.960, 10_000, 0.05), (0, 3, 1)],
)
def test_students_distribution_is_that_of_the_tables(t: float, freedom: float, expected: float) -> None:
    assert student(t, freedom) == pytest.approx(expected, rel=1e-3) == student(-t, freedom)


def test_without_a_part_of_the_sentences_it_is_welchs_test_by_hand() -> None:
    """Variances 1 and 4 of 3 runs each: t = 4 / sqrt(5/3), with (5/3)² / ((1/3)²/2 + (4/3)²/2) = 50/17 degrees."""
    scores, unrelated = [29.0, 30.0, 31.0, 32.0, 34.0, 36.0], np.eye(6)
    assert difference_p_value(scores, unrelated, [0, 1, 2], [3, 4, 5]) == pytest.approx(
        student(4 / math.sqrt(5 / 3), 50 / 17)
    )


def test_a_single_run_is_taken_to_vary_as_the_others() -> None:
    """Variance 1 of 3 runs: t = 4 / sqrt(1 + 1/3) with 2 degrees of freedom."""
    assert difference_p_value([29.0, 30.0, 31.0, 34.0], np.eye(4), [0, 1, 2], [3]) == pytest.approx(
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
    assert difference_p_value(scores, resampled, [0, 1, 2], [3, 4, 5]) == pytest.approx(
        student(4 / math.sqrt(total), freedom)
    )


def test_runs_that_are_all_equal() -> None:
    assert difference_p_value([30.0] * 4, np.ones((4, 9)), [0, 1], [2, 3]) == 1
    assert difference_p_value([30.0, 30.0, 31.0, 31.0], np.ones((4, 9)), [0, 1], [2, 3]) == 0


def made_comparison(shift: float, seed: int) -> MetricComparison:
    """Two systems with made numbers of 500 sentences: the second is better by `shift`."""
    rng = np.random.default_rng(seed)
    of_sentence = rng.normal(0.7, 0.2, 500)
    systems = []
    for name, gain in (("a", 0.0), ("b", shift)):
        numbers = of_sentence + gain + rng.normal(0, 0.1, 500)
        systems.append(System(name, ["x"] * 500, {"command": SentenceMean(numbers.tolist(), "made|v:1")}))
    [comparison] = significance_tests(systems, ["x"] * 500, (), "", [[0], [1]])
    assert (comparison.name, comparison.signature) == ("made", "made|v:1")
    assert comparison.systems[0].score == pytest.approx(of_sentence.mean(), abs=0.02)
    return comparison


@pytest.mark.seconds
def test_equal_systems_by_numbers_of_sentences_rarely_differ_and_better_ones_do() -> None:
    p_values = [made_comparison(0, seed).groups[1].p_value or 0 for seed in range(100)]
    assert 1 <= sum(1 for p_value in p_values if p_value < 0.05) <= 8
    better = [made_comparison(0.03, seed) for seed in range(20)]
    assert all((each.groups[1].p_value or 0) < 0.05 and each.gain(1) > 0 for each in better)


def test_different_signatures_are_not_compared() -> None:
    systems = [System(name, ["x"], {"command": SentenceMean([0.5], f"made|v:{name}")}) for name in "ab"]
    with pytest.raises(DataError, match=r"^command: the systems have different signatures: made\|v:a, made\|v:b$"):
        significance_tests(systems, ["x"], (), "", [[0], [1]])


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
        num_rejected += (
            difference_p_value(of_sentence.mean(1).tolist(), of_sentence @ counts.T, [0, 1, 2], [3, 4, 5]) < 0.05
        )
    assert 0.01 * trials < num_rejected < 0.09 * trials
