from mtx.report.word_diff import joined, word_diff


def test_words_that_the_other_text_lacks_at_their_place_are_word_diff() -> None:
    hyp, ref = word_diff("a man  reads the book", "a woman reads a red book.")
    assert "".join(part for part, _ in hyp) == "a man  reads the book"
    assert [part for part, differs in hyp if differs] == ["man", "the"]
    assert [part for part, differs in ref if differs] == ["woman", "a", "red", "."]


def test_punctuation_after_a_word_does_not_make_it_another_word() -> None:
    hyp, ref = word_diff("Ein Kran.", "Ein Kran, ein Haus.")
    assert not any(differs for _, differs in hyp)
    assert [part for part, differs in ref if differs] == [",", "ein", "Haus"]


def test_equal_texts_do_not_differ_and_all_words_differ_from_an_empty_text() -> None:
    assert all(not differs for words in word_diff("a b", "a b") for _, differs in words)
    assert word_diff("", "a b") == ([], [("a", True), (" ", False), ("b", True)])


def test_text_without_spaces_is_compared_by_characters() -> None:
    hyp, _ = word_diff("我看书", "我读书", by_character=True)
    assert hyp == [("我", False), ("看", True), ("书", False)]


def test_words_are_joined_to_phrases_and_the_text_stays_the_same() -> None:
    hyp, _ = word_diff("a red big  house, here", "a blue house, now")
    parts = joined(hyp)
    assert parts == [("a ", False), ("red big", True), ("  house, ", False), ("here", True)]
    assert joined([]) == []
