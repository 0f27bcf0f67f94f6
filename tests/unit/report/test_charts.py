from pathlib import Path
from typing import Any

import pytest

from mtx.config.schema import Config
from mtx.report.charts import WIDTH, learning_curves
from mtx.report.run_history import RunSummary, training_history
from mtx.storage.run_files import RunLayout


def _run(*events: dict[str, Any]) -> RunSummary:
    timed = [{"time": 60.0 * number, **event} for number, event in enumerate(events)]
    return RunSummary(
        RunLayout(Path("run")), Config.model_validate({}), training_history(timed), {}, {}, [], False, "running"
    )


def _train(step: int, nll: float, **more: float) -> dict[str, Any]:
    return {"event": "train", "step": step, "nll": nll, **more}


def _validation(step: int, nll: float) -> dict[str, Any]:
    return {"event": "validation", "step": step, "nll": nll, "bleu": 1.0}


def test_training_and_validation_of_one_run_share_a_chart_and_have_colours_of_their_own() -> None:
    loss, bleu = learning_curves([_run(_train(1, 5.0), _train(2, 3.0), _validation(2, 4.0))], ["run"])
    assert [(line["name"], line["kind"], line["colour"]) for line in loss["lines"]] == [
        ("training", "train", 1),
        ("validation", "validation", 2),
    ]
    assert bleu["title"] == "Validation BLEU" and [line["colour"] for line in bleu["lines"]] == [2]
    assert loss["data"]["lines"][1]["values"] == [4.0]


def test_several_runs_have_a_colour_each() -> None:
    runs = [_run(_train(1, 5.0), _validation(1, 4.0)), _run(_train(1, 5.0)), _run()]
    (loss, *_) = learning_curves(runs, ["a", "b", "c"])
    assert [(line["name"], line["colour"]) for line in loss["lines"]] == [
        ("a, training", 1),
        ("b, training", 2),
        ("a, validation", 1),
    ]


def test_a_value_is_drawn_at_the_place_that_the_chart_tells() -> None:
    (loss,) = learning_curves([_run(_train(25, 2.0), _train(100, 1.0))], ["run"])
    data, (x, last), (y, bottom) = loss["data"], map(loss["x"][0], (25, 100)), map(loss["y"][0], (2.0, 1.0))
    start, end = WIDTH * data["start"], WIDTH * data["end"]
    assert (data["last"], last) == (100, end) and x == pytest.approx(start + (end - start) / 4, abs=0.01)
    assert loss["x"][1][-1] == (last, "100")
    ticks = {label: place for place, label in loss["y"][1]}
    assert (ticks["1"], ticks["2"]) == (bottom, y) and bottom > y


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ((0.0, 0.002), ["0", "0.0005", "0.001", "0.0015", "0.002"]),
        ((0.0, 20_000.0), ["0", "5,000", "10,000", "15,000", "20,000"]),
        ((3.0, 3.0), ["3", "3.2", "3.4", "3.6", "3.8", "4"]),
        (
            (-1e14, 9e14),
            ["0", "2e+14", "4e+14", "6e+14", "8e+14"],
        ),
    ],
)
def test_ticks_are_round_values_in_the_range(values: tuple[float, float], labels: list[str]) -> None:
    charts = learning_curves([_run(*(_train(step, value) for step, value in enumerate(values, 1)))], ["run"])
    assert [label for _, label in next(charts)["y"][1]] == labels


def test_the_template_draws_on_the_same_area() -> None:
    macro = (Path(__file__).parents[3] / "mtx" / "report" / "report_macros.html").read_text()
    assert f'viewBox="0 0 {WIDTH} 180"' in macro and "22V150" in macro and 'd="M43 {{ y }}H272"' in macro
