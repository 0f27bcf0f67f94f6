from mtx.report.scored import Traits, marked


def test_words_that_the_other_text_lacks_at_their_place_are_marked() -> None:
    hyp, ref = marked("a man  reads the book", "a woman reads a red book.")
    assert "".join(part for part, _ in hyp) == "a man  reads the book"
    assert [part for part, is_other in hyp if is_other] == ["man", "the"]
    assert [part for part, is_other in ref if is_other] == ["woman", "a", "red", "."]


def test_a_mark_at_a_word_does_not_make_it_another_word() -> None:
    hyp, ref = marked("Ein Kran.", "Ein Kran, ein Haus.")
    assert not any(is_other for _, is_other in hyp)
    assert [part for part, is_other in ref if is_other] == [",", "ein", "Haus"]


def test_equal_texts_have_no_marks_and_an_empty_one_marks_all_of_the_other() -> None:
    assert all(not is_other for words in marked("a b", "a b") for _, is_other in words)
    assert marked("", "a b") == ([], [("a", True), (" ", False), ("b", True)])


def test_text_without_spaces_is_compared_by_characters() -> None:
    hyp, _ = marked("我看书", "我读书", by_character=True)
    assert hyp == [("我", False), ("看", True), ("书", False)]


def test_how_translations_are() -> None:
    hypotheses = ["a b", "", "so so so", "the man the man the man .", "of the of the"]
    found = Traits.of(hypotheses, ["a b", "a b", "so", "the man .", "of the"], "en")
    assert (found.right, found.empty, found.repeating) == (1, 1, 2)
    assert found.length == sum(map(len, hypotheses)) / (3 + 3 + 2 + 9 + 6)


def test_repetitions_in_languages_without_spaces_are_told_by_characters() -> None:
    hypotheses = ["我看书看书看书", "ไปไหนไปไหนไปไหน", "ໄປໃສໄປໃສໄປໃສ", "共1000人……好好好", "ฮ่าๆ 555", "我 看 书"]
    for tgt in ("zh", "th", "lo-LA"):
        assert Traits.of(hypotheses, hypotheses, tgt).repeating == 3
    assert Traits.of(hypotheses, hypotheses, "en").repeating == 0
