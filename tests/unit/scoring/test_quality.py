"""The estimate of a translation's quality: its features, its map, and the file in a model directory."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mtx.decoding.options import Sampling
from mtx.decoding.translator import Translator
from mtx.errors import DamagedFileError
from mtx.interop.export import export
from mtx.scoring.quality import FEATURES, QualityMap, features, load, score_by_advice
from mtx.storage import durable
from tests.unit.decoding.test_translator_directions import LINES, multilingual

VALUES: dict[str, Any] = {
    "beam_size": 4,
    "length_penalty": 0.6,
    "bias": 0.0,
    "weights": [1.0, *[0.0] * (len(FEATURES) - 1)],
    "knots": [-2.0, 0.0],
    "values": [20.0, 80.0],
    "redo_below": 40.0,
    "look_below": 60.0,
    "region": {"means": [0.0] * len(FEATURES), "deviations": [1.0] * len(FEATURES), "max_distance": 99.0},
}


def model_with_map(directory: Path, **changes: object) -> Path:
    """A model of several directions, of which en-de has a map, with these changes; ... takes a value out."""
    multilingual(directory, "target")
    values = {name: value for name, value in {**VALUES, **changes}.items() if value is not ...}
    durable.replace_files(directory, {"quality.json": durable.json_bytes({"en-de": values})})
    return directory


def test_features_are_of_one_search() -> None:
    log_prob, length, ratio, distance, fertility, letters, variety = features("ab cd", 4, ["▁x", "y", "y", "</s>"], -2)
    assert (log_prob, ratio, distance, fertility, letters, variety) == (-0.5, 0, 0, 2, 0.5, 0.75)
    assert length == pytest.approx(1.386, abs=0.001)
    assert features("", 2, ["</s>"], -1)[2:4] == pytest.approx([-0.693, 0.693], abs=0.001)


def test_a_line_has_the_mean_of_its_parts_and_the_advice_of_the_worst() -> None:
    quality_map = QualityMap(**VALUES)
    rest = [0.0] * (len(FEATURES) - 1)
    assert quality_map.estimate([(3, [0.0, *rest]), (1, [-2.0, *rest])]) == (65, "redo")
    assert quality_map.estimate([(1, [-1.0, *rest])]) == (50, "look")
    assert quality_map.estimate([(1, [9.0, *rest])]) == (80, "use")
    strict = quality_map.with_look_below(30)
    assert strict.estimate([(1, [-1.0, *rest])]) == (50, "use")
    assert strict.estimate([(1, [-1.5, *rest])]) == (35, "use")
    assert strict.estimate([(1, [-2.0, *rest])]) == (20, "redo")
    assert quality_map.with_look_below(90).estimate([(1, [9.0, *rest])]) == (80, "look")


def test_below_its_knots_the_estimate_falls_with_the_linear_model() -> None:
    quality_map = QualityMap(**{**VALUES, "knots": [50.0, 90.0], "values": [50.0, 90.0]})
    rest = [0.0] * (len(FEATURES) - 1)
    by_prediction = {95.0: 90, 70.0: 70, 50.0: 50, 49.0: 49, 20.0: 20, -30.0: 0}
    for prediction, quality in by_prediction.items():
        assert quality_map.model_copy(update={"region": None}).estimate([(1, [prediction, *rest])])[0] == quality


def test_text_unlike_the_validation_text_has_no_estimate() -> None:
    region = {"means": [-1.0, *[0.0] * 6], "deviations": [0.5, 0.1, *[1.0] * 5], "max_distance": 2.0}
    quality_map = QualityMap(**{**VALUES, "region": region})
    rest = [0.0] * (len(FEATURES) - 1)
    assert quality_map.estimate([(1, [-0.1, *rest])]) == (77, "use")
    assert quality_map.estimate([(1, [-0.1, 0.21, *rest[1:]])]) == (None, "look"), "another feature is far away"
    assert quality_map.estimate([(1, [0.1, *rest])]) == (None, "look"), "it is too sure"
    assert quality_map.estimate([(1, [-2.1, *rest])]) == (None, "redo")
    assert quality_map.estimate([(3, [-1.0, *rest]), (1, [-2.1, *rest])]) == (41.8, "redo"), "of the whole line"
    strict = quality_map.with_look_below(10)
    assert strict.estimate([(1, [0.1, *rest])]) == (None, "look")


def test_a_map_of_1_0_is_read_and_says_how_to_fit_it_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = model_with_map(tmp_path / "m", region=...)
    translator = Translator.load(model, to="de", src="en", engine="torch")
    assert all(line[0].quality is not None for line in translator.hypotheses(LINES))
    assert [message for message in caplog.messages if "mtx evaluate MODEL" in message] == [
        "the estimate of quality is too high for text unlike the validation text, as an earlier mtx fitted it; "
        "fit it again: mtx evaluate MODEL --src FILE --ref FILE --fit-quality"
    ]


def test_both_engines_estimate_alike_in_the_direction_of_the_map(tmp_path: Path) -> None:
    model = model_with_map(tmp_path / "m", weights=[1.0, 0.1, *[0.0] * (len(FEATURES) - 2)], knots=[-5.0, 0.0])
    by_engine = []
    for engine in ("torch", "ctranslate2"):
        found = Translator.load(model, to="de", src="en", engine=engine).hypotheses([*LINES, "", "7"], n_best=1)
        by_engine.append([line[0].quality for line in found])
        assert [line[0].advice is None for line in found] == [line[0].quality is None for line in found]
    torch, other = by_engine
    assert torch[-2:] == other[-2:] == [None, None]
    assert len({*torch}) > 3
    assert torch[:-2] == pytest.approx(other[:-2], abs=0.01)
    assert Translator.load(model, to="fr", src="en").hypotheses(LINES)[0][0].quality is None


def test_a_map_that_the_manifest_does_not_list_is_none(tmp_path: Path) -> None:
    """An earlier mtx left one where it was killed."""
    model = model_with_map(tmp_path / "m")
    assert [*load(model)] == ["en-de"]
    entries = durable.read_manifest(model)
    del entries["quality.json"]
    durable.write_json(model / "manifest.json", {"files": entries})
    assert load(model) == {}
    assert Translator.load(model, to="de", src="en", engine="torch").hypotheses(LINES)[0][0].quality is None


def test_other_search_settings_have_no_quality(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    translator = Translator.load(model_with_map(tmp_path / "m"), to="de", src="en", engine="torch")
    assert translator.hypotheses(LINES)[0][0].quality is not None
    assert not translator.hypotheses(LINES, ["a"] * len(LINES))[0][0].quality
    assert not caplog.messages
    for change in ({"beam_size": 1}, {"length_penalty": 1.0}, {"sampling": Sampling()}):
        other = translator.to("de", "en")
        other.options = replace(translator.options, **change)
        assert not other.hypotheses(LINES)[0][0].quality
        other.options = translator.options
    reason = "no quality: it is known for beam size 4, length penalty 0.6, without sampling and glossary"
    assert caplog.messages.count(reason) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"bias": float("nan")},
        {"weights": [1.0]},
        {"knots": [0.0, 0.0]},
        {"knots": [0.0, -2.0]},
        {"values": [80.0, 20.0]},
        {"values": [20.0, 120.0]},
        {"values": [20.0]},
        {"knots": [float(n) for n in range(999)], "values": [1.0] * 999},
        {"code": "import os"},
        {"redo_below": "40"},
        {"region": {}},
        {"region": {**VALUES["region"], "means": [0.0]}},
        {"region": {**VALUES["region"], "deviations": [0.0] * len(FEATURES)}},
        {"region": {**VALUES["region"], "max_distance": -1.0}},
    ],
)
def test_a_strange_map_is_a_damaged_file(tmp_path: Path, change: dict[str, object]) -> None:
    model = model_with_map(tmp_path / "m", **change)
    with pytest.raises(DamagedFileError, match="quality.json"):
        load(model)


def test_a_changed_or_huge_file_is_damaged(tmp_path: Path) -> None:
    model = model_with_map(tmp_path / "m")
    assert load(model) == {"en-de": QualityMap(**VALUES)}
    path = model / "quality.json"
    text = path.read_text()
    path.write_text(text.replace("40.0", "41.0"))
    with pytest.raises(DamagedFileError, match="quality.json"):
        load(model)
    path.write_text(json.dumps({"x" * 70_000_000: 1}))
    with pytest.raises(DamagedFileError, match="quality.json"):
        load(model)
    path.unlink()
    assert load(model) == {}


def test_an_export_has_the_estimate_of_its_model(tmp_path: Path) -> None:
    model = model_with_map(tmp_path / "m")
    export(model, "ctranslate2", tmp_path / "export")
    assert load(tmp_path / "export") == load(model)
    exported, own = (Translator.load(path, to="de", src="en") for path in (tmp_path / "export", model))
    assert [h[0].quality for h in exported.hypotheses(LINES)] == [h[0].quality for h in own.hypotheses(LINES)]


def test_scores_by_advice_are_of_its_lines() -> None:
    texts, references = ["a dog", "a cat", "a bird", "7"], ["a dog", "a cow", "a bird", "7"]
    entries = score_by_advice(texts, references, ["use", "redo", "use", None])["advice"]
    assert [(kind, entry["lines"]) for kind, entry in entries.items()] == [("use", 2), ("redo", 1)]
    assert entries["use"]["score"] == 100 > entries["redo"]["score"]
    assert score_by_advice(texts, references, [None] * 4) == {}
