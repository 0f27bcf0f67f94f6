from mtx.report.scored import Traits, marked


def test_words_that_the_other_text_lacks_at_their_place_are_marked() -> None:
    hyp, ref = marked("a man reads the book", "a woman reads a red book")
    assert hyp == [("a", False), ("man", True), ("reads", False), ("the", True), ("book", False)]
    assert [word for word, is_other in ref if is_other] == ["woman", "a", "red"]


def test_equal_texts_have_no_marks_and_an_empty_one_marks_all_of_the_other() -> None:
    assert all(not is_other for words in marked("a b", "a b") for _, is_other in words)
    assert marked("", "a b") == ([], [("a", True), ("b", True)])


def test_text_without_spaces_is_compared_by_characters() -> None:
    hyp, _ = marked("我看书", "我读书", by_character=True)
    assert hyp == [("我", False), ("看", True), ("书", False)]


def test_how_translations_are() -> None:
    hypotheses = ["a b", "", "so so so", "the man the man the man .", "of the of the"]
    found = Traits.of(hypotheses, ["a b", "a b", "so", "the man .", "of the"])
    assert (found.right, found.empty, found.repeating) == (1, 1, 2)
    assert found.length == sum(map(len, hypotheses)) / (3 + 3 + 2 + 9 + 6)
