"""A term counts as used if its translation stands in the output of its line, and the scores say what that costs."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from mtx.config.schema import DataConfig
from mtx.data.glossary import Glossary
from mtx.errors import DamagedFileError
from mtx.evaluation.test_set_scores import (
    Change,
    Gain,
    count_used,
    measure_gains,
    score_file,
    score_lines,
    score_translations,
    score_with_glossary,
    stored_gains,
    translate,
)
from mtx.report.advice import advise_on_gains
from mtx.scoring.metrics import TestSet
from mtx.storage import durable
from mtx.storage.run_files import RunLayout
from tests.unit.decoding.test_tag_placement import Fixed

GLOSSARY = Glossary({"house": "Haus", "river": "der Fluss", "old house": "Altbau"})


@pytest.mark.parametrize(
    ("source", "translation", "expected"),
    [
        ("a house", "ein Haus", (1, 1)),
        ("a house", "ein Hausboot", (1, 0)),
        ("a house", "ein haus", (1, 0)),
        ("house and house", "Haus und Boot", (2, 1)),
        ("a house", "Haus, Haus", (1, 1)),
        ("river", "Der Fluss", (1, 1)),
        ("an old house", "ein Haus", (1, 0)),
        ("a tree", "ein Haus", (0, 0)),
    ],
)
def test_terms_are_counted(source: str, translation: str, expected: tuple[int, int]) -> None:
    assert tuple(count_used(GLOSSARY, [source], [translation]).values()) == expected


def test_a_line_about_the_terms_follows_the_scores() -> None:
    bleu = {"score": 30.0, "signature": "signature"}

    def line(**terms: int) -> str:
        return score_lines("t", {"bleu": bleu, "chrf": bleu, "terms": terms})[-1]

    assert line(num_terms=10, used=9, used_without=5) == "t: 90.0% of 10 terms used, 50.0% without the glossary"
    assert line(num_terms=0, used=0, used_without=0) == "t: the glossary terms do not occur"


class Fake:
    """Writes Haus for house only with a glossary."""

    tokenizer: Any = type("T", (), {"normalization": "nfc"})
    directions: Any = ()
    glossary: Glossary | None = None

    def use_glossary(self, glossary: Glossary | None) -> None:
        self.glossary = glossary

    def translate(self, lines: Sequence[str]) -> list[str]:
        word = "Haus" if self.glossary else "Heim"
        return [line.replace("house", word) for line in lines]


def test_both_translations_are_scored() -> None:
    fake: Any = Fake()
    sources = [f"this is the {word} of {number} men" for number in range(20) for word in ("house", "tree")]
    references = [line.replace("house", "Haus") for line in sources]
    fake.use_glossary(GLOSSARY)
    test_set = TestSet("t", "de", sources, references)
    plain, guided = score_with_glossary(fake, test_set)
    assert guided["bleu"]["score"] == pytest.approx(100) and plain["bleu"]["score"] < 90
    assert guided["terms"] == {"num_terms": 20, "used": 20, "used_without": 0}
    assert score_lines("t", guided)[-1].startswith("t: 100.0% of 20 terms")
    assert score_with_glossary(fake, test_set) == (plain, guided), "the translator is as it was"


def test_placeholders_are_treated_as_in_translations() -> None:
    sources = ["a red dog %s {{ name }}", "42"] * 9
    lines = Fixed().translate(sources)
    scores = score_translations(translate(Fixed(), TestSet("t", "fr", sources, lines)))
    assert scores["bleu"]["score"] == pytest.approx(100) and "{{ name }}" in lines[0] and lines[1] == "42"


def test_references_with_few_words_are_told(caplog: pytest.LogCaptureFixture) -> None:
    sources, references = ["We are in our house today"] * 20, ["Bugün biz kendi evimizdeyiz"] * 20
    for test_set in (TestSet("t", "tr", sources, references, src="en"), TestSet("t", "tr", [], references)):
        score_translations(test_set.translated(references, "nfc"))
    told = [message for message in caplog.messages if "chrF2" in message]
    assert told == ["t: the references have 0.67 words for each word of the source; use chrF2 instead"]


@pytest.mark.parametrize(
    "hypothesis, form",
    [
        ("▁Ein ▁Hund ▁lä uft.", "split into subwords"),
        ("Ein Hu@@ nd läuft.", "split into subwords"), ("Ein Hund läuft .", "tokenised"),
        ("Ein Hund la\u0308uft.", "not in NFC"), ("Ein Hund läuft.", ""), ("Kein Hund, der läuft", ""),
    ],
)  # fmt: skip
def test_hypotheses_in_another_form_are_told(
    hypothesis: str, form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "hyp").write_text(f"{hypothesis}\n" * 20, encoding="utf-8")
    score_file(tmp_path / "hyp", TestSet("t", "de", [], ["Ein Hund läuft."] * 20))
    told = [message for message in caplog.messages if "scores are valid only" in message]
    assert len(told) == bool(form) and all(f"hyp: 100% of its lines are {form}" in message for message in told)


REFERENCES = [f"Der Mann {n} liest heute ein Buch über {n} alte Bäume ." for n in range(30)]
WORSE = [line.replace("ein Buch", "ein Heft").replace("heute", "gern") for line in REFERENCES]
DATA = DataConfig(src="en", tgt="de")
OWN, CONFIGURED = {"held_out": True}, {"held_out": False}


def write(directory: Path, hypotheses: list[str], references: list[str]) -> None:
    with durable.new_directory(directory) as new:
        for name, lines in (("hyp.txt", hypotheses), ("ref.txt", references)):
            durable.write_text(new / name, "".join(f"{line}\n" for line in lines))


def run_with(root: Path, name: str, before: list[str], after: list[str], references: list[str] = REFERENCES) -> None:
    write(root / "before" / name, before, references)
    write(root / "evaluation" / name, after, references)


def gain(test: str, points: float, p_value: float = 0.001, is_own: bool = False) -> Gain:
    return Gain(test, is_own, [Change("BLEU", 30.0, 30.0 + points, p_value), Change("chrF2", 50.0, 10.0, 0.001)])


def test_a_better_and_an_equal_test_set(tmp_path: Path) -> None:
    run_with(tmp_path, "heldout", WORSE, REFERENCES)
    run_with(tmp_path, "general", WORSE, WORSE)
    own, general = measure_gains(RunLayout(tmp_path), {"heldout": OWN, "general": CONFIGURED}, DATA)
    assert (own.test, own.is_own, general.test, general.is_own) == ("heldout", True, "general", False)
    bleu, chrf = own.changes
    assert (bleu.metric, chrf.metric) == ("BLEU", "chrF2") and bleu.after == pytest.approx(100.0)
    assert 0 < bleu.before < 60 and bleu.p_value < 0.01 and bleu.points == bleu.after - bleu.before
    assert [(change.points, change.p_value) for change in general.changes] == [(0.0, 1.0), (0.0, 1.0)]


def test_without_a_held_out_set_the_first_is_own(tmp_path: Path) -> None:
    for name in ("a", "b"):
        run_with(tmp_path, name, WORSE, REFERENCES)
    gains = measure_gains(RunLayout(tmp_path), {"b": CONFIGURED, "a": CONFIGURED}, DATA)
    assert [(each.test, each.is_own) for each in gains] == [("b", True), ("a", False)]


def test_each_direction_of_the_first_set_is_own_and_scored_in_its_language(tmp_path: Path) -> None:
    """In Japanese, BLEU counts characters, so it says something about two words."""
    names = ["a.en-de", "a.en-ja", "b.en-ja"]
    for name in names:
        run_with(tmp_path, name, ["gut"] * 20, ["sehr gut"] * 20, ["sehr gut"] * 20)
    data = DataConfig(directions=("en-de", "en-ja"))
    gains = measure_gains(RunLayout(tmp_path), dict.fromkeys(names, CONFIGURED), data)
    assert [(each.test, each.is_own) for each in gains] == [(names[0], True), (names[1], True), (names[2], False)]
    assert [each.changes[0].metric for each in gains] == ["chrF2", "BLEU", "BLEU"]


def test_chrf_decides_where_bleu_says_nothing(tmp_path: Path) -> None:
    run_with(tmp_path, "short", ["gut"] * 20, ["sehr gut"] * 20, ["sehr gut"] * 20)
    [short] = measure_gains(RunLayout(tmp_path), {"short": OWN}, DATA)
    assert [change.metric for change in short.changes] == ["chrF2", "BLEU"]


def test_what_was_not_scored_before_or_is_damaged_has_no_gain(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("whole", "damaged", "alone"):
        run_with(tmp_path, name, WORSE, REFERENCES)
    (tmp_path / "before" / "alone").rename(tmp_path / "elsewhere")
    (tmp_path / "before" / "damaged" / "hyp.txt").write_text("other\n")
    tests = dict.fromkeys(("damaged", "whole", "alone"), CONFIGURED)
    assert [each.test for each in measure_gains(RunLayout(tmp_path), tests, DATA)] == ["whole"]
    assert "hyp.txt" in caplog.text and "alone" in caplog.text


def test_the_line() -> None:
    changes = [Change("BLEU", 22.4, 28.1, 0.000999), Change("chrF2", 45.0, 44.0, 0.2)]
    assert Gain("sport-test", True, changes).line() == (
        "sport-test BLEU 22.4 before, 28.1 after: +5.7 (p = 0.0010); chrF2 45.0 before, 44.0 after: -1.0 (p = 0.2000)"
    )


@pytest.mark.parametrize(
    ("gains", "texts", "word"),
    [
        ([gain("own", 5.0, is_own=True), gain("general", -1.0)], [], ""),
        ([gain("own", 5.0, is_own=True), gain("general", -1.5)], ["general falls by 1.5 BLEU"], "general text"),
        ([gain("own", 5.0, 0.2, is_own=True), gain("general", 0.0, 1.0)], ["own does not improve"], "more epochs"),
        ([gain("own", -0.5, 0.01, is_own=True)], ["own does not improve significantly"], "more epochs"),
        ([gain("own", -2.0, is_own=True)], ["own falls by 2.0 BLEU"], "a third of training.learning_rate"),
    ],
)
def test_advice(gains: list[Gain], texts: list[str], word: str) -> None:
    problems = advise_on_gains(gains)
    assert len(problems) == len(texts)
    for problem, text in zip(problems, texts, strict=True):
        assert problem.text.startswith(text) and word in problem.hint


def test_own_text_that_falls_is_not_to_be_mixed() -> None:
    assert "general text" not in advise_on_gains([gain("own", -2.0, is_own=True)])[0].hint


def test_the_page_about_adaptation_gives_the_same_advice() -> None:
    page = (Path(__file__).parents[3] / "docs/howto/adapt.md").read_text(encoding="utf-8").replace("`", "")
    rows = [("Your own text gains nothing", gain("own", 0.0, 1.0, is_own=True))]
    rows += [("Your own text falls", gain("own", -2.0, is_own=True)), ("General text falls", gain("general", -2.0))]
    for start, change in rows:
        [row] = [line for line in page.splitlines() if line.startswith(f"| {start}")]
        assert advise_on_gains([change])[0].hint.partition(", ")[2] in row


def test_stored_and_read_again() -> None:
    gains = [gain("own", 5.0, is_own=True), gain("general", -2.0)]
    stored = json.loads(json.dumps({"gains": [asdict(each) for each in gains]}))
    assert stored_gains(stored, Path("scores.json")) == gains
    assert stored_gains({}, Path("scores.json")) == []


@pytest.mark.parametrize(
    "gains",
    [
        7,
        ["x"],
        [{"test": "a", "is_own": True, "changes": []}],
        [{"test": "a", "is_own": True, "changes": [{"metric": "BLEU", "before": "x", "after": 1, "p_value": 1}]}],
    ],
)
def test_what_is_no_gain_is_refused(gains: object) -> None:
    with pytest.raises(DamagedFileError, match="scores.json: run.gains"):
        stored_gains({"gains": gains}, Path("scores.json"))
