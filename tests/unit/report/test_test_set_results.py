from mtx.report.test_set_results import Traits


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
