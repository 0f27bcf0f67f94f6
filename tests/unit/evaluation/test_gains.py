"""What a training has changed: from the files of a run to words, with values that can be checked by hand."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from mtx.errors import DamagedFileError
from mtx.evaluation.gains import Change, Gain, advice, measure_gains, stored_gains
from mtx.storage import durable
from mtx.storage.run_files import RunLayout

REFERENCES = [f"Der Mann {n} liest heute ein Buch über {n} alte Bäume ." for n in range(30)]
WORSE = [line.replace("ein Buch", "ein Heft").replace("heute", "gern") for line in REFERENCES]
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
    own, general = measure_gains(RunLayout(tmp_path), {"heldout": OWN, "general": CONFIGURED}, "de")
    assert (own.test, own.is_own, general.test, general.is_own) == ("heldout", True, "general", False)
    bleu, chrf = own.changes
    assert (bleu.metric, chrf.metric) == ("BLEU", "chrF2") and bleu.after == pytest.approx(100.0)
    assert 0 < bleu.before < 60 and bleu.p_value < 0.01 and bleu.points == bleu.after - bleu.before
    assert [(change.points, change.p_value) for change in general.changes] == [(0.0, 1.0), (0.0, 1.0)]


def test_without_a_held_out_set_the_first_is_own(tmp_path: Path) -> None:
    for name in ("a", "b"):
        run_with(tmp_path, name, WORSE, REFERENCES)
    gains = measure_gains(RunLayout(tmp_path), {"b": CONFIGURED, "a": CONFIGURED}, "de")
    assert [(each.test, each.is_own) for each in gains] == [("b", True), ("a", False)]


def test_chrf_decides_where_bleu_says_nothing(tmp_path: Path) -> None:
    run_with(tmp_path, "short", ["gut"] * 20, ["sehr gut"] * 20, ["sehr gut"] * 20)
    [short] = measure_gains(RunLayout(tmp_path), {"short": OWN}, "de")
    assert [change.metric for change in short.changes] == ["chrF2", "BLEU"]


def test_what_was_not_scored_before_or_is_damaged_has_no_gain(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("whole", "damaged", "alone"):
        run_with(tmp_path, name, WORSE, REFERENCES)
    (tmp_path / "before" / "alone").rename(tmp_path / "elsewhere")
    (tmp_path / "before" / "damaged" / "hyp.txt").write_text("other\n")
    tests = dict.fromkeys(("damaged", "whole", "alone"), CONFIGURED)
    assert [each.test for each in measure_gains(RunLayout(tmp_path), tests, "de")] == ["whole"]
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
        ([gain("own", 5.0, 0.2, is_own=True), gain("general", 0.0, 1.0)], ["own gains nothing beyond"], "more epochs"),
        ([gain("own", -0.5, 0.01, is_own=True)], ["own gains nothing beyond chance"], "more epochs"),
        ([gain("own", -2.0, is_own=True)], ["own falls by 2.0 BLEU"], "a third of training.learning_rate"),
    ],
)
def test_advice(gains: list[Gain], texts: list[str], word: str) -> None:
    problems = advice(gains)
    assert len(problems) == len(texts)
    for problem, text in zip(problems, texts, strict=True):
        assert problem.text.startswith(text) and word in problem.help


def test_own_text_that_falls_is_not_to_be_mixed() -> None:
    assert "general text" not in advice([gain("own", -2.0, is_own=True)])[0].help


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
