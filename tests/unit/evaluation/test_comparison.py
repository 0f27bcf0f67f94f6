"""Comparisons break scores down by sentence length and show the sentences on which two systems differ."""

import pytest

from mtx.errors import DataError
from mtx.evaluation.comparison import Comparison, compare, mean_and_deviation
from mtx.evaluation.significance import System


def compare_texts(references: list[str], *hypotheses: list[str]) -> Comparison:
    return compare([System(str(i), lines) for i, lines in enumerate(hypotheses)], references, "bs", ["bleu"])


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
    comparison = compare([System("a", references), System("b", references)], references, "bs", ["bleu"], tgt)
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


def test_mean_and_deviation() -> None:
    assert mean_and_deviation([36.0, 38.0, 40.0]) == (38.0, 2.0)
    assert mean_and_deviation([36.0]) == (36.0, 0.0)
