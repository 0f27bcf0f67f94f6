from mtx.decoding.metrics import suspicion
from mtx.evaluation.traits import Traits


def test_traits_by_hand() -> None:
    hypotheses = ["a b", "", "so so so", "the man the man the man .", "of the of the", "x y", "Berlin", "no no no"]
    references = ["a b", "a b", "so", "the man .", "of the", "a b", "Berlino", "no no no"]
    sources = ["A B", "A B", "ja", "der Mann .", "von", "x y", "Berlin", "no no no"]
    traits = Traits.of(sources, hypotheses, references)
    assert (traits.lines, traits.exact, traits.empty, traits.repeating, traits.copied) == (8, 2, 1, 2, 1)
    assert traits.faulty == 3 and traits.distinct == 8, "what is equal to the reference is no fault"
    assert traits.length_ratio == sum(map(len, hypotheses)) / sum(map(len, references))
    noted = [suspicion(*pair) for pair in zip(sources, hypotheses, strict=True)]
    assert (traits.repeating, traits.copied) == (noted.count("repetition"), noted.count("copy")), (
        "as mtx translate says"
    )


def test_without_sources_nothing_is_copied() -> None:
    traits = Traits.of([], ["one two three", "so so so"], ["one two three", "so"])
    assert (traits.copied, traits.repeating, traits.faulty) == (0, 1, 1)


def test_repetitions_in_languages_without_spaces_are_found_by_characters() -> None:
    hypotheses = ["我看书看书看书", "ไปไหนไปไหนไปไหน", "ໄປໃສໄປໃສໄປໃສ", "共1000人……好好好", "ฮ่าๆ 555", "我 看 书"]
    references = ["我看书", "ไปไหน", "ໄປໃສ", "共1000人", "ฮ่าๆ", "我看书"]
    assert Traits.of([], hypotheses, references).repeating == 3
