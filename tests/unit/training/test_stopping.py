"""The part of a time limit that is kept for the end of a run."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mtx.config.schema import Config
from mtx.training.checkpoint import State
from mtx.training.schedule import Cooldown
from mtx.training.stopping import StoppingCriteria
from mtx.training.validation import Validation


def criteria(**training: object) -> StoppingCriteria:
    store: Any = SimpleNamespace(num_pairs=1000)
    data: Any = SimpleNamespace(valid=store, tests={"test": store})
    config = Config.model_validate({"training": training, "decoding": {"beam_size": 4}})
    return StoppingCriteria(config, data, 0.0, 0.0)


def test_the_reserve_grows_with_the_validation_up_to_half_of_the_limit() -> None:
    stopping = criteria(time_limit="10m")
    three_and_a_search = 3 * 20 + 60
    assert stopping.ends_at(State(validation_s=20.0)) == pytest.approx(600 - (18 + 10 + three_and_a_search))
    assert stopping.ends_at(State(validation_s=200.0)) == 300.0


def validation(length_ratio: float) -> Validation:
    return Validation(nll=3.0, bleu=0.0, chrf=None, seconds=60.0, hypotheses=[], samples=[], length_ratio=length_ratio)


def test_a_validation_with_endless_translations_does_not_tell_what_later_ones_take() -> None:
    assert validation(0.25).later_seconds == 15.0
    assert validation(0.0).later_seconds == 6.0, "translations are not all that takes time"
    assert validation(np.inf).later_seconds == 60.0, "short translations are no reason to expect more"


NO_LIMIT = (10**6, "max_steps")


def test_a_cooldown_begins_early_enough_for_the_last_step() -> None:
    stopping = criteria(max_steps=1000, cooldown=0.3)
    assert stopping.plan_cooldown(State(699), (1000, "max_steps")) is None
    plan = stopping.plan_cooldown(State(700), (1000, "max_steps"))
    assert plan == Cooldown(701, 1000, "max_steps", 1000)
    assert stopping.plan_cooldown(State(800, cooldown=plan), (1000, "max_steps")) == plan
    assert criteria(max_steps=1000).plan_cooldown(State(999), (1000, "max_steps")) is None, "the paper has none"


def test_a_cooldown_follows_when_patience_has_run_out() -> None:
    stopping = criteria(max_steps=10**6, patience=3, cooldown=0.2)
    assert stopping.plan_cooldown(State(400, bad_validations=2), NO_LIMIT) is None
    plan = stopping.plan_cooldown(State(400, bad_validations=3), NO_LIMIT)
    assert plan == Cooldown(401, 500, "patience", 3), "a fifth of all steps"
    assert stopping.reason(State(499, bad_validations=9, cooldown=plan)) is None
    assert stopping.reason(State(500, bad_validations=9, cooldown=plan)) == "patience"
    late = stopping.plan_cooldown(State(10**6 - 50, bad_validations=3), NO_LIMIT)
    assert late is not None and late.last == 10**6


def test_a_cooldown_ends_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 s, of which 40 are kept for the end; the first 100 s of the 672 before the cooldown prepared the data."""
    stopping, clock = criteria(max_steps=10**6, time_limit="1000s", cooldown=0.3), [100.0]
    monkeypatch.setattr("mtx.training.stopping.time.monotonic", lambda: clock[0])
    assert stopping.plan_cooldown(State(1), NO_LIMIT) is None
    clock[0] = 671.0
    assert stopping.plan_cooldown(State(572), NO_LIMIT) is None
    clock[0] = 673.0
    plan = stopping.plan_cooldown(State(574), NO_LIMIT)
    assert plan == Cooldown(575, 574 + int(0.97 * (960 - 673)), "time_limit", 1000), "a step takes a second"
    assert stopping.reason(State(575, cooldown=plan)) is None
    clock[0] = 961.0
    assert stopping.reason(State(600, cooldown=plan)) == "time_limit", "steps became slower"


def test_the_end_by_a_time_limit_is_known_after_a_few_steps_of_this_start() -> None:
    stopping = criteria(time_limit="20m")
    ends = []
    for step, elapsed_s in ((0, 60.0), (1, 100.0), (3, 126.0), (4, 139.0)):
        stopping.agreed_s = elapsed_s
        ends.append(stopping.end_by_time_limit(State(step)))
    assert ends[:3] == [None, None, None], "the first step of a start shows nothing, and two more are too few"
    assert ends[3] == 4 + int(0.97 * (1200 - 46 - 139) / 13), "46 seconds are for the end, and a step takes 13"
    assert criteria(max_steps=9).end_by_time_limit(State(8)) is None
