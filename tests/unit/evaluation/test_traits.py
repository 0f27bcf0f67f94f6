from mtx.evaluation.traits import Traits


def test_traits_by_hand() -> None:
    hypotheses = ["a b", "", "so so so", "the man the man the man .", "of the of the", "x y", "Berlin", "no no no"]
    references = ["a b", "a b", "so", "the man .", "of the", "a b", "Berlino", "no no no"]
    sources = ["A B", "A B", "ja", "der Mann .", "von", "x y", "Berlin", "no no no"]
    traits = Traits.of(sources, hypotheses, references, "en")
    assert (traits.lines, traits.exact, traits.empty, traits.repeating, traits.copied) == (8, 2, 1, 2, 1)
    assert traits.faulty == 4 and traits.distinct == 8
    assert traits.length_ratio == sum(map(len, hypotheses)) / sum(map(len, references))


def test_a_line_with_two_faults_counts_once_and_what_the_reference_has_is_no_fault() -> None:
    assert Traits.of(["a a a b"], ["a a a b"], ["c"], "en").faulty == 1
    assert Traits.of(["a a a b", ""], ["a a a b", ""], ["a a a b", ""], "en").faulty == 0


def test_letters_that_repeat_within_a_word_are_a_repetition() -> None:
    hypotheses = ["Ein Tänzerzerzerzerzer .", "Ein Barbar .", "5.000.000.000", "-----", "Ssssssst !"]
    assert Traits.of([], hypotheses, ["Ein Tänzer .", "Ein Barbar .", "1", "-", "Ssssssst !"], "de").repeating == 1


def test_repetitions_in_languages_without_spaces_are_found_by_characters() -> None:
    hypotheses = ["我看书看书看书", "ไปไหนไปไหนไปไหน", "ໄປໃສໄປໃສໄປໃສ", "共1000人……好好好", "ฮ่าๆ 555", "我 看 书"]
    references = ["我看书", "ไปไหน", "ໄປໃສ", "共1000人", "ฮ่าๆ", "我看书"]
    for tgt in ("zh", "th", "lo-LA"):
        assert Traits.of([], hypotheses, references, tgt).repeating == 3
    assert Traits.of([], hypotheses, ["a b c"] * 6, "en").repeating == 0
    assert Traits.of([], hypotheses, references, "tgt").repeating == 3, "the references decide"
