"""BLEU and chrF are those of sacreBLEU; repetitions and copies are noted, and ordinary text is not."""

import pytest

from mtx.decoding import metrics
from mtx.decoding.metrics import suspicion


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


@pytest.mark.parametrize(
    "src, translation, noted",
    [
        ("a dog runs", "ein Hund Hund Hund läuft", "repetition"),
        ("no", "ich weiß nicht, ich weiß nicht, ich weiß nicht.", "repetition"),
        ("no", "und und", None),
        ("no", "auf einem Trampolin auf einem Trampolin", "repetition"),
        ("no", "Hand in Hand in Hand", None),
        ("no", "a b c a b c", None),
        ("no", "200 mm x 200 mm x 200 mm", None),
        ("ha ha ha ha ha", "Hahahahahaha", None),
        ("a", "ọ́jọ́ kan ni ọ́jọ́ kan ni", "repetition"),
        ("in a row in a row", "in einer Reihe in einer Reihe", None),
        ("no no no", "nein nein nein", None),
        ("no no no", "nein nein nein nein", "repetition"),
        ("a", "狗很大狗很大狗很大", "repetition"),
        ("ha", "哈哈哈哈", None),
        ("ha", "哈哈哈哈哈", "repetition"),
        ("a", "Schifffahrt, www, 1,000,000,000 und 7 7 7 ...", None),
        ("York", "Yorkorkorkorkork", "repetition"),
        ("Brrrrrr", "Brrrrrrr", None),
        ("a", "Blablabla", None),
        ("a", "ó kọ́kọ́ kọ kọ́", None),
        ("the big  dog", "the big dog", "copy"),
        ("the big dog", "The big dog", None),
        ("New York 7", "New York 7", None),
        ("", "", None),
    ],
)
def test_suspicion(src: str, translation: str, noted: str | None) -> None:
    assert suspicion(src, translation) == noted
