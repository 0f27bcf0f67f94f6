"""Changed sentences are still pairs, and the changes are those that people make."""

import random

import pytest

from mtx.data.text_changes import CHANGES, typing_errors
from mtx.evaluation.test_sets import TestSet, changed_copies


@pytest.mark.parametrize(
    "name, src, tgt",
    [
        ("upper_case", "IT'S A DOG.", "EIN STRASSENHUND! (JA.)"),
        ("title_case", "It's A Dog.", "Ein Straßenhund! (ja.)"),
        ("no_end_punctuation", "It's a dog", "Ein Straßenhund! (ja.)"),
    ],
)
def test_changes_of_both_sides(name: str, src: str, tgt: str) -> None:
    changed = CHANGES[name]("It's a dog.", "Ein Straßenhund! (ja.)", random.Random(1))
    assert changed == (src, tgt)


@pytest.mark.parametrize(
    "text, without",
    [("a dog!?…", "a dog"), ("一只狗。", "一只狗"), ("...", "..."), ("a dog . ", "a dog"), ("2.5", "2.5")],
)
def test_end_punctuation(text: str, without: str) -> None:
    assert CHANGES["no_end_punctuation"](text, text, random.Random(1)) == (without, without)


def test_typing_errors_are_in_a_tenth_of_the_longer_words_of_the_source() -> None:
    rng, src = random.Random(1), " ".join(["abcdef"] * 5000)
    words = typing_errors(src, src, rng)[0].split()
    wrong = [word for word in words if word != "abcdef"]
    assert 400 < len(wrong) < 600 and typing_errors("dog a2b4", src, rng) == ("dog a2b4", src)
    assert {word for word in wrong if len(word) == 5} == {"acdef", "abdef", "abcef", "abcdf"}
    assert {word for word in wrong if len(word) == 7} == {"abbcdef", "abccdef", "abcddef", "abcdeef"}
    assert {word for word in wrong if len(word) == 6} == {"acbdef", "abdcef", "abcedf", "abcdfe"}


def test_copies_of_a_test_set_are_the_same_at_every_call() -> None:
    test_set = TestSet("set", "de", ["a nicely written sentence."] * 9, ["ein Satz."] * 9, [["Ein Satz!"] * 9])
    copies = changed_copies(test_set)
    assert copies == changed_copies(test_set)
    assert [copy.name for copy in copies] == [f"set, {name.replace('_', ' ')}" for name in CHANGES]
    assert copies[0].more_references == [["EIN SATZ!"] * 9] and copies[0].references == ["EIN SATZ."] * 9
    assert len(set(copies[3].sources)) > 1 and copies[3].references == test_set.references
