"""BLEU and chrF are those of sacreBLEU."""

import random
import sys
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.metrics import CHRF

from mtx.data.glossary import Glossary
from mtx.decoding import metrics
from mtx.decoding.metrics import bleu, mean_chrf
from mtx.decoding.options import Sampling, SearchOptions
from mtx.decoding.translator import Translator
from mtx.errors import DataError, MtxError
from mtx.formatting import install_command
from tests.exports import lively_bundle, small_tokenizer
from tests.unit.decoding.test_terms_used import Fixed, tokenizer

REFERENCES = ["the cat sat on the mat", "a dog barked at the moon"]


def test_equal_text_scores_full_marks() -> None:
    scores = metrics.score(REFERENCES, REFERENCES)
    assert (round(scores["bleu"]["score"], 6), round(scores["chrf"]["score"], 6), scores["ter"]["score"]) == (
        100,
        100,
        0,
    )


def test_bleu_and_ter_by_hand() -> None:
    """Of 6 words one differs: precisions 5/6, 3/5, 2/4, 1/3, no brevity penalty; TER is 1 edit of 6 words."""
    scores = metrics.score(["the cat sat on a mat"], ["the cat sat on the mat"])
    assert scores["bleu"]["score"] == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)
    assert scores["ter"]["score"] == pytest.approx(100 / 6)
    assert bleu(["the cat sat on a mat"], ["the cat sat on the mat"]) == scores["bleu"]["score"]


def test_signatures_tell_the_tokenizer_of_the_language() -> None:
    assert "tok:13a" in metrics.score(REFERENCES, REFERENCES, "de")["bleu"]["signature"]
    assert "tok:zh" in metrics.score(["我 们"], ["我 们"], "zh")["bleu"]["signature"]
    assert "tok:zh" in metrics.score(["我们"], ["我们"], "zh-Hans")["bleu"]["signature"]
    assert "tok:char" in metrics.score(["です"], ["です"], "ja")["bleu"]["signature"]
    assert "tok:char" in metrics.score(["ไปไหน"], ["ไปไหน"], "th")["bleu"]["signature"]


def test_each_reference_counts() -> None:
    """The first line is the first reference's, the second the second's."""
    others = ["a cat sat on a mat", "some dog barked at the moon"]
    hypotheses = [REFERENCES[0], others[1]]
    scores = metrics.score(hypotheses, REFERENCES, more_references=[others])
    assert (round(scores["bleu"]["score"], 6), round(scores["chrf"]["score"], 6), scores["ter"]["score"]) == (
        100,
        100,
        0,
    )
    for metric in scores.values():
        assert metric["signature"].startswith("nrefs:2|")
    assert metrics.score(hypotheses, REFERENCES)["bleu"]["score"] < 90
    with pytest.raises(DataError, match="2 hypotheses for 1 references"):
        metrics.score(hypotheses, REFERENCES, more_references=[others[:1]])


@pytest.mark.parametrize("hypotheses, references", [(["a"], ["a", "b"]), (["a", "b"], ["a"]), ([], [])])
def test_lists_of_different_length_or_none_are_refused(hypotheses: list[str], references: list[str]) -> None:
    with pytest.raises(DataError):
        metrics.score(hypotheses, references)


def test_scores_as_a_line() -> None:
    values = {"bleu": 39.406, "chrf": 61.249, "ter": 44.02}
    scores = {name: {"score": value, "signature": "nrefs:1|sig"} for name, value in values.items()}
    assert metrics.score_line("flickr", scores) == "flickr BLEU 39.41  chrF2 61.2  TER 44.0  nrefs:1|sig"


def test_ter_is_left_out_where_it_could_take_an_hour() -> None:
    """A line of 1,000 words that has nothing in common with its reference takes TER two minutes."""
    hypotheses = [" ".join(f"{word}{line}" for word in range(1000)) for line in range(30)]
    references = [" ".join(f"{word}r{line}" for word in range(1000)) for line in range(30)]
    scores = metrics.score(hypotheses, references)
    assert [*scores] == ["bleu", "chrf"] and "TER" not in metrics.score_line("test", scores)
    assert "ter" not in metrics.score(hypotheses, hypotheses), "the lengths decide, so that two systems agree"
    assert not metrics.ter_takes_too_long(["ein Satz mit zwanzig Wörtern " * 4] * 3000, ["noch ein Satz " * 8] * 3000)


def test_bleu_of_a_language_without_spaces_sees_parts_of_a_sentence() -> None:
    """With 13a the sentence would be one word, and a wrong one."""
    assert metrics.bleu(["วันนี้อากาศดีมาก"], ["วันนี้อากาศดี"], "th") > 50


@pytest.mark.parametrize(
    "references, tgt, is_short",
    [
        (["Open", "Save as", "a b c d e"], "en", True),
        (["Open the file", "Open the file.", "Save the file."], "en", False),  # 3, 4 and 4 tokens of 13a
        (["你好吗", "开"], "zh", True),
        (["打开文件", "打开文件"], "zh", False),
        (["打开文件", "打开文件"], "tgt", False),
        ([], "en", False),
    ],
)
def test_references_without_4_grams_are_too_short_for_bleu(references: list[str], tgt: str, is_short: bool) -> None:
    assert metrics.too_short_for_bleu(references, tgt) is is_short
    if is_short:
        assert metrics.bleu(references[:2], references[:2], tgt) == 0
        assert metrics.chrf(references, references) == pytest.approx(100)


def test_the_parts_of_a_test_set_have_the_tokenizer_of_the_whole() -> None:
    assert metrics.bleu(["今天天气很好"], ["今天天气很坏"], "tgt", tokenizer="13a") == 0
    assert metrics.bleu(["今天天气很好"], ["今天天气很坏"], "tgt") > 50


def test_normalized_text_is_nfc_and_one_line() -> None:
    assert metrics.normalize_lines(["e\u0301\u2028x ", "a\rb"], "nfc") == ["é x", "a b"]
    assert metrics.normalize_lines(["e\u0301"], "none") == ["e\u0301"]
    assert metrics.normalize_lines(["e\u0301"], "nmt_nfkc") == ["é"]


__all__ = ["tokenizer"]  # a fixture

LINES = ["ab cde", "fgü a", "cab fad gab", "", "ab cde"]
WORDS = ["ein", "Mann", "Männer", "läuft", "über", "eine", "Straße", "狗", ".", "\u2028"]
METRIC = CHRF()


def by_hand(samples: list[str]) -> list[float]:
    """By sacreBLEU, each sample with each, equal ones too."""
    return [sum(METRIC.sentence_score(a, [b]).score for b in samples) / len(samples) for a in samples]


@pytest.mark.parametrize("seed", range(5))
def test_the_mean_is_that_of_sacrebleu(seed: int) -> None:
    rng = random.Random(seed)
    samples = ["", *(" ".join(rng.choices(WORDS, k=rng.randint(0, 4))) for _ in range(9))]
    samples += rng.choices(samples, k=5)
    assert mean_chrf(samples) == pytest.approx(by_hand(samples), abs=1e-9)


def test_equal_samples_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    function = metrics.pairwise_chrf()

    def counted(*arguments: Any) -> Any:
        compared.append(arguments)
        return function(*arguments)

    monkeypatch.setattr(metrics, "pairwise_chrf", lambda: counted)
    assert mean_chrf(["a b", "c d", "a b", "a b"]) == [75, 25, 75, 75]
    assert compared == [([["a b", "c d"]], [["a b", "c d"]])]


def translator(tmp_path: Path, **options: Any) -> Translator:
    lively_bundle(small_tokenizer(), tmp_path / "model")
    sampling = Sampling(12, temperature=2.0, epsilon=0.02, **options)
    return Translator.load(tmp_path / "model", engine="torch", sampling=sampling, threads=1)


def test_the_translation_is_the_sample_that_the_mean_chooses(tmp_path: Path) -> None:
    samples = [[h.text for h in found] for found in translator(tmp_path).hypotheses(LINES)]
    found = translator(tmp_path, mbr=True).hypotheses(LINES)
    assert [len(hypotheses) for hypotheses in found] == [1] * len(LINES)
    for texts, (hypothesis,) in zip(samples, found, strict=True):
        means = by_hand(texts)
        assert hypothesis.score == pytest.approx(max(means))
        assert hypothesis.text == texts[means.index(max(means))]
    assert any(hypothesis.text != texts[0] for texts, (hypothesis,) in zip(samples, found, strict=True))


def test_it_depends_on_its_line_and_the_seed_alone(tmp_path: Path) -> None:
    together = translator(tmp_path, mbr=True).translate(LINES)
    assert together == translator(tmp_path, mbr=True).translate(LINES[::-1])[::-1]
    assert together == [translator(tmp_path, mbr=True).translate([line])[0] for line in LINES]
    assert together[0] == together[4]
    assert together != translator(tmp_path, mbr=True, seed=2).translate(LINES)


def fixed(tokenizer: Any, texts: list[str], glossary: Glossary | None = None) -> Fixed:
    made = Fixed(tokenizer, texts, SearchOptions(sampling=Sampling(len(texts), mbr=True)))
    made.use_glossary(glossary)
    return made


def test_each_part_of_a_line_has_its_own_and_the_score_is_the_mean(tokenizer: Any) -> None:
    texts = ["ein vier", "ein zwo", "ein zwo fünf"]
    best = max(by_hand(texts))
    ((hypothesis,),) = fixed(tokenizer, texts).hypotheses(["one|two"])
    assert hypothesis.text == "ein zwo fünf ein zwo fünf" and hypothesis.score == pytest.approx(best)
    assert hypothesis.pieces.count("</s>") == 2
    ((capitals,),) = fixed(tokenizer, texts).hypotheses(["ONE TWO"])
    assert capitals.text == "EIN ZWO FÜNF"


def test_more_terms_come_before_the_mean(tokenizer: Any) -> None:
    texts = ["ein vier", "ein vier", "fünf zwo", "ein zwo"]
    assert fixed(tokenizer, texts).translate(["two"]) == ["ein vier"]
    assert fixed(tokenizer, texts, Glossary({"two": "zwo"})).translate(["two"]) == ["ein zwo"]


def test_what_is_missing_is_said_before_anything_is_translated(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastchrf", None)
    with pytest.raises(MtxError, match="^Minimum Bayes risk decoding: fastchrf is not installed$") as caught:
        fixed(tokenizer, ["ein"])
    assert caught.value.help == install_command("fastchrf")
