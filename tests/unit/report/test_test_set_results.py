from mtx.evaluation import test_sets
from mtx.report.test_set_results import Traits, _sentences


def test_traits_by_hand() -> None:
    hypotheses = ["a b", "", "so so so", "the man the man the man .", "of the of the"]
    traits = Traits.of(hypotheses, ["a b", "a b", "so", "the man .", "of the"], "en")
    assert (traits.exact, traits.empty, traits.repeating) == (1, 1, 2)
    assert traits.length_ratio == sum(map(len, hypotheses)) / (3 + 3 + 2 + 9 + 6)


def test_repetitions_in_languages_without_spaces_are_found_by_characters() -> None:
    hypotheses = ["我看书看书看书", "ไปไหนไปไหนไปไหน", "ໄປໃສໄປໃສໄປໃສ", "共1000人……好好好", "ฮ่าๆ 555", "我 看 书"]
    for tgt in ("zh", "th", "lo-LA"):
        assert Traits.of(hypotheses, hypotheses, tgt).repeating == 3
    assert Traits.of(hypotheses, ["a b c"] * 6, "en").repeating == 0
    assert Traits.of(hypotheses, hypotheses, "tgt").repeating == 3, "the references decide"


REFERENCES = ["the red house", "a man", "two dogs run", "a cat sleeps"]
TEST_SET = test_sets.TestSet("t", "en", [f"source {n}" for n in range(4)], REFERENCES)


def test_of_one_run_the_worst_sentence_comes_first() -> None:
    sentences = _sentences(TEST_SET, [["the red house", "a dog", "two dogs ran", "x"]], REFERENCES, 10**6)
    assert [sentence.line for sentence in sentences] == [4, 2, 3, 1]
    assert sentences[1].ref == [("a ", False), ("man", True)] and sentences[1].length == 2
    assert sentences[1].translations[0].hyp == [("a ", False), ("dog", True)]


def test_of_several_runs_the_sentence_on_which_they_differ_most_comes_first() -> None:
    systems = [["the red house", "a dog", "y", "x"], ["the green house", "a dog", "two dogs run", "x"]]
    sentences = _sentences(TEST_SET, systems, REFERENCES, 10**6)
    assert [sentence.line for sentence in sentences] == [3, 1, 4, 2]
    assert sentences[0].ref == [("two dogs run", False)], "one of the translations has all its words"


def test_a_long_test_set_is_shown_in_part_the_worst_and_some_of_the_others() -> None:
    references = [f"word{n} and some more" for n in range(300)]
    hypotheses = ["x" if n % 100 == 0 else reference for n, reference in enumerate(references)]
    test_set = test_sets.TestSet("t", "en", references, references)
    sentences = _sentences(test_set, [hypotheses], references, 20_000)
    lines = [sentence.line for sentence in sentences]
    assert lines[:3] == [1, 101, 201] and 20 < len(lines) < 40 and max(lines) > 201
