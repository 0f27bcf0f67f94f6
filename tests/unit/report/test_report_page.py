from mtx.report.report_page import telling_sentences, word_diff
from mtx.scoring.metrics import TestSet

REFERENCES = ["the red house", "a man", "two dogs run", "a cat sleeps"]
TEST_SET = TestSet("t", "en", [f"source {n}" for n in range(4)], REFERENCES)


def test_of_one_run_the_worst_sentence_comes_first() -> None:
    sentences = telling_sentences(TEST_SET, [["the red house", "a dog", "two dogs ran", "x"]], REFERENCES)
    assert [sentence.line for sentence in sentences] == [4, 2, 3, 1]
    assert sentences[1].ref == "a man" and sentences[1].length == 2
    assert sentences[1].translations[0][1] == "a dog"
    assert word_diff("a dog", "a man") == ([("a ", False), ("dog", True)], [("a ", False), ("man", True)])


def test_of_several_runs_the_sentence_on_which_they_differ_most_comes_first() -> None:
    systems = [["the red house", "a dog", "y", "x"], ["the green house", "a dog", "two dogs run", "x"]]
    sentences = telling_sentences(TEST_SET, systems, REFERENCES)
    assert [sentence.line for sentence in sentences] == [3, 1, 4, 2]


def test_words_that_the_other_text_lacks_at_their_place_are_word_diff() -> None:
    hyp, ref = word_diff("a man  reads the book", "a woman reads a red book.")
    assert "".join(part for part, _ in hyp) == "a man  reads the book"
    assert [part for part, differs in hyp if differs] == ["man  ", "the "]
    assert [part for part, differs in ref if differs] == ["woman ", "a red ", "."]


def test_punctuation_after_a_word_does_not_make_it_another_word() -> None:
    hyp, ref = word_diff("Ein Kran.", "Ein Kran, ein Haus.")
    assert not any(differs for _, differs in hyp)
    assert [part for part, differs in ref if differs] == [", ein Haus"]


def test_equal_texts_do_not_differ_and_all_words_differ_from_an_empty_text() -> None:
    assert all(not differs for words in word_diff("a b", "a b") for _, differs in words)
    assert word_diff("", "a b") == ([], [("a b", True)])


def test_text_without_spaces_is_compared_by_characters() -> None:
    hyp, _ = word_diff("我看书", "我读书", by_character=True)
    assert hyp == [("我", False), ("看", True), ("书", False)]
