from mtx.evaluation import test_sets
from mtx.report.test_set_results import _sentences

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
