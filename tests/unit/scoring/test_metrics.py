"""BLEU and chrF are those of sacreBLEU."""

import pytest

from mtx.errors import DataError
from mtx.scoring import metrics
from mtx.scoring.metrics import bleu

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
    with pytest.raises(DataError, match="expected 1 hypotheses, one for each reference, got 2"):
        metrics.score(hypotheses, REFERENCES, more_references=[others[:1]])


@pytest.mark.parametrize("hypotheses, references", [(["a"], ["a", "b"]), (["a", "b"], ["a"]), ([], [])])
def test_lists_of_different_length_or_none_are_refused(hypotheses: list[str], references: list[str]) -> None:
    with pytest.raises(DataError):
        metrics.score(hypotheses, references)


def test_scores_as_a_line() -> None:
    values = {"bleu": 39.406, "chrf": 61.249, "ter": 44.02}
    scores = {name: {"score": value, "signature": "nrefs:1|sig"} for name, value in values.items()}
    assert metrics.score_line("flickr", scores) == "flickr BLEU 39.41  chrF2 61.2  TER 44.0  nrefs:1|sig"
    scores["bleu"]["interval"] = (38.04, 40.76)
    assert metrics.score_line("t", scores) == "t BLEU 39.41 [38.0, 40.8]  chrF2 61.2  TER 44.0  nrefs:1|sig"


@pytest.mark.seconds
def test_ter_is_left_out_where_it_could_take_an_hour() -> None:
    """A line of 1,000 words that has nothing in common with its reference takes TER two minutes."""
    hypotheses = [" ".join(f"{word}{line}" for word in range(1000)) for line in range(30)]
    references = [" ".join(f"{word}r{line}" for word in range(1000)) for line in range(30)]
    scores = metrics.score(hypotheses, references)
    assert [*scores] == ["bleu", "chrf"] and "TER" not in metrics.score_line("test", scores)
    assert "ter" not in metrics.score(hypotheses, hypotheses), "the lengths decide, so that two systems agree"
    texts = ["ein Satz mit zwanzig Wörtern " * 4] * 3000, ["noch ein Satz " * 8] * 3000
    assert not metrics.ter_takes_too_long(*texts, metrics.LONGEST_TER_S)
    assert metrics.ter_takes_too_long(*texts, longest_s=5), "a short time limit has no time for it"


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
        assert metrics.score(references, references, metrics=["chrf"])["chrf"]["score"] == pytest.approx(100)


def test_the_mean_of_the_directions_decides_whether_the_references_have_few_words() -> None:
    english, turkish = ["We are in our house today , friends"] * 9, ["Bugün biz evimizdeyiz , dostlar"] * 9
    there, back = (english, turkish, "en", "tr"), (turkish, english, "tr", "en")
    reason = "the references have 0.62 words for each word of the source"
    assert metrics.why_chrf([there]) == metrics.why_chrf([there, there]) == (reason, True)
    assert metrics.why_chrf([there, back]) is None is metrics.why_chrf([([], [], "en", "tr")])
    assert metrics.why_chrf([there, (english, ["红色的书放在桌子上"] * 9, "en", "zh")]) is None
    short = "half of the references have fewer than four words or characters, so BLEU is nearly always 0"
    assert metrics.why_chrf([there, (["Save the new file"], ["Speichern"], "en", "de")]) == (short, False)


def test_the_parts_of_a_test_set_have_the_tokenizer_of_the_whole() -> None:
    assert metrics.bleu(["今天天气很好"], ["今天天气很坏"], "tgt", tokenizer="13a") == 0
    assert metrics.bleu(["今天天气很好"], ["今天天气很坏"], "tgt") > 50


def test_normalized_text_is_nfc_and_one_line() -> None:
    assert metrics.normalize_lines(["e\u0301\u2028x ", "a\rb"], "nfc") == ["é x", "a b"]
    assert metrics.normalize_lines(["e\u0301"], "none") == ["e\u0301"]
    assert metrics.normalize_lines(["e\u0301"], "nmt_nfkc") == ["é"]
    test_set = metrics.TestSet("t", "de", ["e\u0301 "], ["e\u0301 "], [["a\r", "e\u0301"]]).translated(
        ["\u2028e\u0301"], "nfc"
    )
    assert test_set == metrics.TestSet("t", "de", ["e\u0301 "], ["é"], [["a", "é"]], translations=["é"])


def test_the_mean_of_a_test_set_is_over_its_directions() -> None:
    """A score that one of them lacks has no mean; a set in one direction has none, whatever its name."""
    values = {"news.1.en-de": (10.0, 30.0), "ted.en-de": (5.0, 6.0), "news.1.de-en": (20.0, 50.0), "plain": (7.0, 8.0)}
    scores = {name: {"bleu": {"score": bleu}, "chrf": {"score": chrf}} for name, (bleu, chrf) in values.items()}
    scores["news.1.en-de"]["ter"] = {"score": 60.0}
    pairs = [("en", "de"), ("de", "en")]
    means = metrics.mean_scores(scores, pairs)
    assert {name: [value["score"] for value in mean.values()] for name, mean in means.items()} == {"news.1": [15, 40]}
    parts = {"news.1": ["news.1.en-de", "news.1.de-en"], "ted.en-de": ["ted.en-de"], "plain": ["plain"]}
    assert metrics.parts_of(scores, pairs) == metrics.parts_of(scores | means, pairs) == parts


def test_metrics_of_programs_have_a_mean_and_published_protocols_have_none() -> None:
    part = {
        "bleu": {"score": 1.0},
        "aiayn": {"score": 2.0},
        "mine": {"score": 0.25, "command": "x", "interval": [0, 1]},
    }
    scores = {"t.en-de": part, "t.de-en": {**part, "mine": {"score": 0.75, "command": "x", "interval": [0, 1]}}}
    means = metrics.mean_scores(scores, [("en", "de"), ("de", "en")])["t"]
    assert {name: value["score"] for name, value in means.items()} == {"bleu": 1, "mine": 0.5}
    assert metrics.metric_line("t", "mine", means["mine"]) == "t mine 0.5000  mean of 2 language pairs"
    del scores["t.de-en"]["mine"]
    assert [*metrics.mean_scores(scores, [("en", "de"), ("de", "en")])["t"]] == ["bleu"]


def test_names_that_look_like_directions_are_none_in_a_run_of_one() -> None:
    names = ["dev.2019-01", "dev.2020-01", "news.in-domain"]
    assert metrics.parts_of(names, [("en", "de")]) == {name: [name] for name in names}
