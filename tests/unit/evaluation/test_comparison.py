"""Comparisons say what sacreBLEU's command says, and in words what that means."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from mtx.errors import DataError
from mtx.evaluation import comparison
from mtx.evaluation.comparison import Comparison, System, compare, mean_and_deviation

WORDS = [f"wort{number}" for number in range(22)]


def text(num_lines: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(3, 25))) for _ in range(num_lines)]


def changed(lines: list[str], share: float, seed: int) -> list[str]:
    """The same lines with a share of the words replaced by others."""
    rng = random.Random(seed)
    return [" ".join(rng.choice(WORDS) if rng.random() < share else w for w in line.split()) for line in lines]


def broken(lines: list[str], seed: int) -> list[str]:
    """The same lines with 5% of the words no words any more."""
    rng = random.Random(seed)
    return [" ".join(w[::-1] + "x" if rng.random() < 0.05 else w for w in line.split()) for line in lines]


@pytest.fixture(scope="module")
def references() -> list[str]:
    return text(1000, 1)


@pytest.fixture(scope="module")
def good(references: list[str]) -> list[str]:
    return changed(references, 0.3, 2)


@pytest.mark.seconds
@pytest.mark.parametrize("paired", ["ar", "bs"])
def test_the_numbers_are_those_of_the_sacrebleu_command(
    paired: str, references: list[str], good: list[str], tmp_path: Path
) -> None:
    references, systems = references[:300], [good[:300], changed(references[:300], 0.32, 3), broken(good[:300], 4)]
    paths = [tmp_path / name for name in ("ref", "a", "b", "c")]
    for path, lines in zip(paths, [references, *systems], strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", *map(str, paths[:1]), "-i", *map(str, paths[1:])]
    command += ["-m", "bleu", "chrf", "ter", f"--paired-{paired}", "--format", "latex", "-w", "4"]
    if paired == "ar":  # of the other sacreBLEU 2.6 prints no JSON: it holds float32
        command[command.index("latex")] = "json"
    printed = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    found = compare([System(str(p), lines) for p, lines in zip(paths[1:], systems, strict=True)], references, paired)  # type: ignore[arg-type]
    for metric in found.metrics:
        for number, measured in enumerate(metric.systems):
            if paired == "ar":
                row = json.loads(printed)[number][metric.name]
                assert measured.score == pytest.approx(row["score"], abs=5e-5)
                assert measured.p_value == (None if number == 0 else pytest.approx(row["p_value"], abs=5e-5))
            else:
                assert f"{measured.score:.4f} ({measured.mean:.4f} $\\pm$ {measured.ci:.4f})" in printed or (
                    f"{measured.mean:.4f}" in printed and f"{measured.ci:.4f}" in printed
                )
                assert number == 0 or f"{measured.p_value:.4f}" in printed


@pytest.mark.seconds
def test_equal_systems_do_not_differ_and_broken_words_do(references: list[str], good: list[str]) -> None:
    systems = [System("first", good), System("same", list(good)), System("broken", broken(good, 5))]
    for paired, metrics in (("bs", ("bleu", "chrf")), ("ar", ("bleu",))):
        found = compare(systems, references, paired, metrics)  # type: ignore[arg-type]
        for metric in found.metrics:
            assert metric.systems[1].p_value == 1.0 and not metric.is_worse(1)
            assert metric.systems[2].p_value is not None and metric.systems[2].p_value < 0.01 and metric.is_worse(2)
        words = found.verdicts()
        assert words[0] == "same and first are equal in BLEU"
        worse = words[len(metrics)]
        assert worse.startswith("broken is worse than first by ") and "BLEU, and not by chance (p = 0.0" in worse


@pytest.mark.seconds
def test_chance_is_called_chance(references: list[str]) -> None:
    systems = [System("a", changed(references, 0.3, 6)), System("b", changed(references, 0.3, 7))]
    found = compare(systems, references, "bs", ["bleu"])
    assert [metric.name for metric in found.metrics] == ["BLEU"]
    assert "which may be chance" in found.verdicts()[0]


def of(references: list[str], *hypotheses: list[str]) -> Comparison:
    return compare([System(str(i), lines) for i, lines in enumerate(hypotheses)], references, "bs", ["bleu"])


def test_lengths_and_the_sentences_that_differ_most() -> None:
    references = ["a b c d e f g h i j", "a b c d e f g h i j k", " ".join("abcdefghij" * 5), "one two three four"]
    first = list(references)
    second = [references[0], "a b c d e f g h i j x", references[2], "five"]
    found = of(references, first, second)
    assert [(b.shortest, b.longest, b.count) for b in found.lengths] == [(1, 10, 2), (11, 20, 1), (41, None, 1)]
    assert found.lengths[2].bleu == pytest.approx([100.0, 100.0])
    assert [row.line for row in found.sentences] == [4, 2], "the largest difference first, and none where there is none"
    assert found.sentences[0].hypotheses == ["one two three four", "five"]


@pytest.mark.parametrize("tgt, character", [("zh", "我"), ("ja", "の"), ("th", "ก")])
def test_lengths_are_in_characters_where_the_language_writes_no_spaces(tgt: str, character: str) -> None:
    references = [character * number for number in (5, 20, 21, 80, 81)]
    found = compare([System("a", references), System("b", references)], references, "bs", ["bleu"], tgt)
    assert found.length_unit == "characters"
    assert [(each.length, each.count) for each in found.lengths] == [
        ("1 to 20", 2), ("21 to 40", 1), ("61 to 80", 1), ("81 and more", 1),
    ]  # fmt: skip
    assert of(["a b"], ["a b"], ["a b"]).length_unit == "words"


def test_unequal_numbers_of_lines_are_refused() -> None:
    with pytest.raises(DataError, match="^1 has 1 lines, the references have 2$"):
        of(["a", "b"], ["a", "b"], ["a"])
    with pytest.raises(DataError, match="nothing to compare"):
        of([], [], [])


def test_mean_and_deviation() -> None:
    assert mean_and_deviation([36.0, 38.0, 40.0]) == (38.0, 2.0)
    assert mean_and_deviation([36.0]) == (36.0, 0.0)


def test_less_ter_is_better() -> None:
    metric = comparison.Metric(
        "TER", "", [comparison.Measured(50, None, None, None), comparison.Measured(40, None, None, 0.01)]
    )
    assert metric.gain(1) == 10 and not metric.is_worse(1)


def test_systems_that_a_metric_cannot_tell_apart_are_equal() -> None:
    references = [f"the cat {n} sat on the mat" for n in range(50)]
    first = [f"a cat {n} sat on the mat" for n in range(50)]
    spaced = [line.replace("a cat", "a  cat", 1) for line in first]
    for paired in ("bs", "ar"):
        found = compare([System("a", first), System("b", spaced)], references, paired, ("bleu",))  # type: ignore[arg-type]
        assert found.metrics[0].systems[1].p_value == 1 and "are equal" in found.verdicts()[0]
    assert found.sentences == []
