"""Significance tests give the numbers of sacreBLEU's command, and the verdicts say in words what they mean."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from mtx.evaluation.comparison import compare
from mtx.evaluation.significance import GroupScore, MetricComparison, System

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
@pytest.mark.parametrize("paired", [pytest.param("ar", marks=pytest.mark.extended), "bs"])
def test_the_numbers_are_those_of_the_sacrebleu_command(
    paired: str, references: list[str], good: list[str], tmp_path: Path
) -> None:
    references, good = references[:300], good[:300]
    systems = [good, with_other_words(references, 0.32, 3), with_broken_words(good, 4)]
    paths = [tmp_path / name for name in ("ref", "a", "b", "c")]
    for path, lines in zip(paths, [references, *systems], strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", *map(str, paths[:1]), "-i", *map(str, paths[1:])]
    command += ["-m", "bleu", "chrf", "ter", f"--paired-{paired}", "--format", "latex", "-w", "4"]
    if paired == "ar":  # sacreBLEU 2.6 cannot print the bootstrap as JSON: it holds float32
        command[command.index("latex")] = "json"
    printed = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    named = [System(str(path), lines) for path, lines in zip(paths[1:], systems, strict=True)]
    comparison = compare(named, references, paired)  # type: ignore[arg-type]
    for metric in comparison.metrics:
        for number, measured in enumerate(metric.systems):
            if paired == "ar":
                row = json.loads(printed)[number][metric.name]
                assert measured.score == pytest.approx(row["score"], abs=5e-5)
                p_value = None if number == 0 else pytest.approx(row["p_value"], abs=5e-5)
                assert metric.groups[number].p_value == p_value
            else:
                assert f"{measured.score:.4f} ({measured.mean:.4f} $\\pm$ {measured.ci:.4f})" in printed or (
                    f"{measured.mean:.4f}" in printed and f"{measured.ci:.4f}" in printed
                )
                assert number == 0 or f"{metric.groups[number].p_value:.4f}" in printed


@pytest.mark.seconds
def test_equal_systems_are_equal_and_broken_words_are_worse(references: list[str], good: list[str]) -> None:
    systems = [System("first", good), System("same", list(good)), System("broken", with_broken_words(good, 5))]
    for paired, metrics in (("bs", ("bleu", "chrf")), ("ar", ("bleu",))):
        comparison = compare(systems, references, paired, metrics)  # type: ignore[arg-type]
        for metric in comparison.metrics:
            assert metric.groups[1].p_value == 1.0 and not metric.is_worse(1)
            assert metric.groups[2].p_value is not None and metric.groups[2].p_value < 0.01 and metric.is_worse(2)
        verdicts = comparison.verdicts()
        assert verdicts[0] == "same and first are equal in BLEU"
        worse = verdicts[len(metrics)]
        assert worse.startswith("broken is worse than first by ") and "BLEU, and not by chance (p " in worse


def test_an_insignificant_difference_is_called_chance(references: list[str]) -> None:
    systems = [System("a", with_other_words(references, 0.3, 6)), System("b", with_other_words(references, 0.3, 7))]
    comparison = compare(systems, references, "bs", ["bleu"])
    assert [metric.name for metric in comparison.metrics] == ["BLEU"]
    assert "which may be chance" in comparison.verdicts()[0]


def test_a_lower_ter_is_better() -> None:
    metric = MetricComparison("TER", "", [], [GroupScore(50, None, None), GroupScore(40, None, 0.01)])
    assert metric.gain(1) == 10 and not metric.is_worse(1)


def test_systems_with_equal_scores_have_p_value_1() -> None:
    references = [f"the cat {n} sat on the mat" for n in range(50)]
    first = [f"a cat {n} sat on the mat" for n in range(50)]
    spaced = [line.replace("a cat", "a  cat", 1) for line in first]
    for paired in ("bs", "ar"):
        comparison = compare([System("a", first), System("b", spaced)], references, paired, ("bleu",))  # type: ignore[arg-type]
        assert comparison.metrics[0].groups[1].p_value == 1 and "are equal" in comparison.verdicts()[0]
    assert comparison.sentences == []
