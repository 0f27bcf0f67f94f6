"""What is read from a run's events, also from lines that mtx did not write."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from mtx.report.run_history import improvement, training_history
from mtx.storage.run_status import quality, read_events, recorded_metric

VALIDATION = {"event": "validation", "step": 5, "bleu": 20.0, "nll": 2.0}


@pytest.mark.parametrize(
    "event, metric",
    [
        ({}, "bleu"),
        ({"chrf": 40.0, "decides": "bleu"}, "bleu"),
        ({"decides": "nll"}, "nll"),
        ({"decides": []}, "bleu"),
        ({"decides": "loss"}, "bleu"),
    ],
)
def test_the_last_validation_says_what_decides(event: dict[str, Any], metric: str) -> None:
    assert recorded_metric([{**VALIDATION, "decides": "nll"}, {**VALIDATION, **event}]) == metric


def test_a_better_validation_has_a_larger_quality() -> None:
    assert quality({"nll": 1.5}, "nll") > quality({"nll": 2.0}, "nll") > quality({"nll": None}, "nll") == -math.inf
    assert quality({"bleu": 2.0}, "bleu") > quality({"bleu": 1.0}, "bleu") > quality({}, "bleu")


def test_events_that_lack_their_numbers_are_left_out(tmp_path: Path) -> None:
    plans = [{"event": "cooldown"}, {"event": "cooldown", "first": "x", "last": 9}]
    good = {"event": "cooldown", "first": 6, "last": 9}
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in [VALIDATION, *plans, good]))
    assert read_events(path) == [VALIDATION, good]
    assert improvement(training_history(read_events(path)), before_cooldown=True) is None
