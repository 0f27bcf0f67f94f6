"""Scores are those of sacreBLEU, and each signature names the tokenizer of the language."""

import pytest

from mtx.data.languages import tokenizer_of
from mtx.decoding import scores as module
from mtx.decoding.metrics import bleu
from mtx.decoding.scores import CorpusScore, Scores
from mtx.errors import DataError

REFERENCES = ["the cat sat on the mat", "a dog barked at the moon"]


def test_equal_text_scores_full_marks() -> None:
    scores = module.score(REFERENCES, REFERENCES)
    assert (round(scores.bleu.score, 6), round(scores.chrf.score, 6), scores.ter.score) == (100, 100, 0)


def test_bleu_and_ter_by_hand() -> None:
    """Of 6 words one differs: precisions 5/6, 3/5, 2/4, 1/3, no brevity penalty; TER is 1 edit of 6 words."""
    scores = module.score(["the cat sat on a mat"], ["the cat sat on the mat"])
    assert scores.bleu.score == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    assert scores.ter.score == pytest.approx(100 / 6)
    assert bleu(["the cat sat on a mat"], ["the cat sat on the mat"]) == scores.bleu.score


def test_signatures_tell_the_tokenizer_of_the_language() -> None:
    assert "tok:13a" in module.score(REFERENCES, REFERENCES, "de").bleu.signature
    assert "tok:zh" in module.score(["我 们"], ["我 们"], "zh").bleu.signature
    assert "tok:zh" in module.score(["我们"], ["我们"], "zh-Hans").bleu.signature
    assert "tok:char" in module.score(["です"], ["です"], "ja").bleu.signature
    assert "tok:char" in module.score(["ไปไหน"], ["ไปไหน"], "th").bleu.signature


@pytest.mark.parametrize(
    "language, text, units",
    [
        ("en", "It is 2.5 km.", ["It", "is", "2.5", "km."]),
        ("bos", "dobar dan", ["dobar", "dan"]),  # Bosnian; bo and bod are Tibetan
        ("", "a b", ["a", "b"]),
        ("zh", "我在 IBM 工作8年", ["我", "在", "IBM", "工", "作", "8", "年"]),
        ("zh-Hant", "我們", ["我", "們"]),
        ("ja_JP", "です", ["で", "す"]),
        ("zho_Hans", "我们", ["我", "们"]),
        ("th", "ไปไหน", ["ไ", "ป", "ไ", "ห", "น"]),
        ("lo", "ໄປໃສ", ["ໄ", "ປ", "ໃ", "ສ"]),
        ("km", "ទៅណា", ["ទ", "ៅ", "ណ", "ា"]),
        ("my", "ဘယ်", ["ဘ", "ယ", "်"]),
        ("bo", "ང་", ["ང", "་"]),
    ],
)
def test_words_are_characters_where_a_language_writes_no_spaces(language: str, text: str, units: list[str]) -> None:
    assert module.words(text, tokenizer_of(language, [])) == units


def test_each_reference_counts() -> None:
    """The first line is the first reference's, the second the second's."""
    others = ["a cat sat on a mat", "some dog barked at the moon"]
    hypotheses = [REFERENCES[0], others[1]]
    scores = module.score(hypotheses, REFERENCES, more_references=[others])
    assert (round(scores.bleu.score, 6), round(scores.chrf.score, 6), scores.ter.score) == (100, 100, 0)
    for metric in (scores.bleu, scores.chrf, scores.ter):
        assert metric.signature.startswith("nrefs:2|")
    assert module.score(hypotheses, REFERENCES).bleu.score < 90
    with pytest.raises(DataError, match="2 hypotheses for 1 references"):
        module.score(hypotheses, REFERENCES, more_references=[others[:1]])


@pytest.mark.parametrize("hypotheses, references", [(["a"], ["a", "b"]), (["a", "b"], ["a"]), ([], [])])
def test_lists_of_different_length_or_none_are_refused(hypotheses: list[str], references: list[str]) -> None:
    with pytest.raises(DataError):
        module.score(hypotheses, references)


def test_scores_as_a_line_and_as_a_dictionary() -> None:
    scores = Scores(CorpusScore(39.406, "nrefs:1|sig"), CorpusScore(61.249, "c"), CorpusScore(44.02, "t"))
    assert scores.lines("flickr") == ["flickr BLEU 39.41  chrF2 61.2  TER 44.0  nrefs:1|sig"]
    assert Scores.from_dict(scores.as_dict()) == scores


def test_ter_is_left_out_where_it_could_take_an_hour() -> None:
    """A line of 1,000 words that has nothing in common with its reference takes TER two minutes."""
    hypotheses = [" ".join(f"{word}{line}" for word in range(1000)) for line in range(30)]
    references = [" ".join(f"{word}r{line}" for word in range(1000)) for line in range(30)]
    scores = module.score(hypotheses, references)
    assert scores.ter is None and "ter" not in scores.as_dict() and "TER" not in scores.lines("test")[0]
    assert module.Scores.from_dict(scores.as_dict()) == scores
    assert module.score(hypotheses, hypotheses).ter is None, "the lengths decide, so that two systems agree"
    assert not module.ter_takes_too_long(["ein Satz mit zwanzig Wörtern " * 4] * 3000, ["noch ein Satz " * 8] * 3000)
