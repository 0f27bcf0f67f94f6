"""Comparisons break scores down by sentence length and show the sentences on which two systems differ."""

import pytest

from mtx.errors import DataError
from mtx.evaluation.comparison import Comparison, compare
from mtx.evaluation.differing_settings import Group
from mtx.evaluation.significance import System


def compare_texts(references: list[str], *hypotheses: list[str]) -> Comparison:
    return compare([System(str(i), lines) for i, lines in enumerate(hypotheses)], references, ["bleu"])


def test_lengths_and_the_sentences_that_differ_most() -> None:
    references = ["a b c d e f g h i j", "a b c d e f g h i j k", " ".join("abcdefghij" * 5), "one two three four"]
    first = list(references)
    second = [references[0], "a b c d e f g h i j x", references[2], "five"]
    comparison = compare_texts(references, first, second)
    assert [(b.shortest, b.longest, b.count) for b in comparison.lengths] == [(1, 10, 2), (11, 20, 1), (41, None, 1)]
    assert comparison.lengths[2].bleu == pytest.approx([100.0, 100.0])
    assert [row.line for row in comparison.sentences] == [4, 2], "largest difference first, no equal ones"
    assert comparison.sentences[0].hypotheses == ["one two three four", "five"]


@pytest.mark.parametrize("tgt, character", [("zh", "我"), ("ja", "の"), ("th", "ก")])
def test_lengths_are_in_characters_where_the_language_writes_no_spaces(tgt: str, character: str) -> None:
    references = [character * number for number in (5, 20, 21, 80, 81)]
    comparison = compare([System("a", references), System("b", references)], references, ["bleu"], tgt)
    assert comparison.length_unit == "characters"
    assert [(length_bin.length, length_bin.count) for length_bin in comparison.lengths] == [
        ("1 to 20", 2), ("21 to 40", 1), ("61 to 80", 1), ("81 and more", 1),
    ]  # fmt: skip
    assert compare_texts(["a b"], ["a b"], ["a b"]).length_unit == "words"


def test_unequal_numbers_of_lines_are_refused() -> None:
    with pytest.raises(DataError, match="^1 has 1 lines, the references have 2$"):
        compare_texts(["a", "b"], ["a", "b"], ["a"])
    with pytest.raises(DataError, match="nothing to compare"):
        compare_texts([], [], [])


def test_runs_of_one_group_are_not_told_apart_and_groups_have_mean_and_deviation() -> None:
    references = [f"one two three four five {word} seven" for word in "abcdefghij"]
    right, half = references, [line.replace("seven", "x") for line in references[:5]] + references[5:]
    systems = [System(name, lines) for name, lines in (("a", right), ("b", half), ("c", ["x"] * 10), ("d", right))]
    groups = [Group("good", [0, 1]), Group("bad", [2]), Group("other", [3])]
    comparison = compare(systems, references, ["bleu"], groups=groups)
    good, bad, other = comparison.metrics[0].groups
    a, b, c, d = (measured.score for measured in comparison.metrics[0].systems)
    assert a == d == pytest.approx(100) and c < b < a
    assert (good.mean, good.deviation) == (pytest.approx((a + b) / 2), pytest.approx((a - b) / 2**0.5))
    assert good.p_value is None and (bad.mean, bad.deviation, other.deviation) == (c, None, None)
    verdicts = comparison.verdicts()
    assert [verdict.split(" by ")[0] for verdict in verdicts] == ["bad is worse than good", "other is better than good"]
    assert "1 run against 2, over seeds and sentences" in verdicts[0]
    twins = compare(systems[:2], references, ["bleu"], groups=groups[:1])
    assert twins.verdicts() == [f"the 2 runs differ only in their seeds: BLEU {good.mean:.2f} ± {good.deviation:.2f}"]


def test_single_systems_are_compared_in_pairs_beside_groups() -> None:
    references = [f"one two three four five {word} seven" for word in "abcdefghij"]
    worse = [line.replace("five", "x") for line in references]
    systems = [System(name, lines) for name, lines in (("a", references), ("b", worse), ("c", worse), ("d", worse))]
    groups = [Group("a", [0]), Group("b and c", [1, 2]), Group("d", [3])]
    metric = compare(systems, references, ["bleu"], groups=groups).metrics[0]
    alone = compare([systems[0], systems[3]], references, ["bleu"]).metrics[0]
    assert metric.groups[2].p_value == alone.groups[1].p_value
    assert metric.systems[::3] == alone.systems, "intervals of the same samples"
    assert metric.groups[1].p_value == pytest.approx(0, abs=1e-6)
    assert metric.signature == alone.signature


def test_chrf_decides_where_bleu_says_nothing() -> None:
    references = ["one", "two", "three"]
    assert compare([System("a", references), System("b", references)], references).decided_by == "chrF2"
    assert compare_texts(["a b c d e"], ["a b c d e"], ["a"]).decided_by == "BLEU"
