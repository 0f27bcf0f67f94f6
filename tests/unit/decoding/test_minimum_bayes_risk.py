"""The sample with the highest mean chrF against all samples is the translation."""

import random
import sys
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.metrics import CHRF

from mtx.data.glossary import Glossary
from mtx.decoding import translator as module
from mtx.decoding.options import Sampling, SearchOptions
from mtx.decoding.translator import Translator, mean_chrf
from mtx.errors import MtxError
from mtx.formatting import install_command
from tests.exports import lively_bundle, small_tokenizer
from tests.unit.decoding.test_terms_used import Fixed, tokenizer

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
    function = module.pairwise_chrf()

    def counted(*arguments: Any) -> Any:
        compared.append(arguments)
        return function(*arguments)

    monkeypatch.setattr(module, "pairwise_chrf", lambda: counted)
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


@pytest.mark.seconds
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
    ((hypothesis,),) = fixed(tokenizer, texts).hypotheses(["one§two"])
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
