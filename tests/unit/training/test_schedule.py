"""Eq. 3 of the paper by hand, the cooldown, and the reasons and the time to stop."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mtx.config.schema import Config, TrainingConfig
from mtx.training.checkpoint import Cooldown, State
from mtx.training.events import Validation
from mtx.training.schedule import Schedule, highest_rate, learning_rate, planned_end

# d_model 512, warmup 4000: 512^-0.5 = 0.0441942, 4000^-0.5 = 0.0158114, 4000^-1.5 = 3.95285e-6, 16000^-0.5 = 0.00790569


@pytest.mark.parametrize(
    "step, expected",
    [
        (1, 0.0441942 * 3.95285e-6),
        (2000, 0.0441942 * 0.0158114 / 2),
        (4000, 0.0441942 * 0.0158114),
        (16_000, 0.0441942 * 0.00790569),
    ],
)
def test_equation_3(step: int, expected: float) -> None:
    assert learning_rate(step, 4000, highest_rate(512, 4000)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("step, expected", [(1, 0.005 / 2000), (1000, 0.0025), (2000, 0.005), (8000, 0.0025)])
def test_a_given_peak_stands_at_the_end_of_the_warmup(step: int, expected: float) -> None:
    assert learning_rate(step, 2000, peak=0.005) == pytest.approx(expected)


def test_one_step_of_warmup() -> None:
    assert [learning_rate(step, 1, highest_rate(4, 1)) for step in (1, 4)] == [0.5, 0.25]


def test_a_cooldown_is_a_line_to_zero_under_the_usual_rate() -> None:
    cooldown = Cooldown(first=61, last=100, reason="max_steps", limit=100)
    shares = [learning_rate(s, 4, 1.0, cooldown) / learning_rate(s, 4, 1.0) for s in (1, 60, 61, 80, 100, 101, 500)]
    assert shares == pytest.approx([1, 1, 40 / 41, 21 / 41, 1 / 41, 0, 0])


@pytest.mark.parametrize(
    ("values", "step", "epochs", "expected"),
    [
        ({"max_steps": 100}, 0, 0.0, (100, "max_steps")),
        ({"max_epochs": 3}, 0, 0.0, (30, "max_epochs")),  # 10 steps each, as estimated
        ({"max_epochs": 3}, 12, 1.0, (36, "max_epochs")),  # 12 steps each, as measured
        ({"max_epochs": 3}, 37, 3.01, (37, "max_epochs")),
        ({"max_epochs": 3, "max_steps": 20}, 0, 0.0, (20, "max_steps")),
        ({"max_epochs": 3, "max_steps": 50}, 0, 0.0, (30, "max_epochs")),
    ],
)
def test_training_ends_at_whichever_comes_first(
    values: dict[str, int], step: int, epochs: float, expected: tuple[int, str]
) -> None:
    assert planned_end(TrainingConfig.model_validate(values), 10.0, step, epochs) == expected


def schedule_of(num_lines: int = 1000, **training: object) -> Schedule:
    store: Any = SimpleNamespace(num_pairs=num_lines)
    tgt = SimpleNamespace(block_tokens=np.ones(1))
    train: Any = SimpleNamespace(weights=np.ones(1), corpora=np.zeros(1, int), tgt=tgt)
    data: Any = SimpleNamespace(train=train, valid=store, tests={"test": store})
    sampler: Any = SimpleNamespace(epochs=lambda position: 0.0)
    config = Config.model_validate({"training": training, "decoding": {"beam_size": 4}})
    return Schedule(config, data, sampler)


def test_the_reserve_grows_with_the_validation_up_to_half_of_the_limit() -> None:
    schedule = schedule_of(time_limit="10m")
    three_and_a_search = 3 * 20 + 60
    quality = 0.04 * 600
    assert schedule.usable_s(State(validation_s=20.0)) == pytest.approx(600 - (18 + 10 + three_and_a_search + quality))
    assert schedule.usable_s(State(validation_s=2.0)) == pytest.approx(600 - (18 + 10 + 12 + 6))
    few = schedule_of(num_lines=99, time_limit="10m")
    assert few.usable_s(State(validation_s=20.0)) == pytest.approx(600 - (18 + 10 + three_and_a_search)), "no quality"
    assert schedule.usable_s(State(validation_s=200.0)) == 300.0


def validation(length_ratio: float) -> Validation:
    return Validation(nll=3.0, bleu=0.0, chrf=None, seconds=60.0, hypotheses=[], samples=[], length_ratio=length_ratio)


def test_translations_of_other_lengths_do_not_tell_what_later_ones_take() -> None:
    assert validation(0.25).later_seconds(0.0) == 15.0
    assert validation(0.0).later_seconds(0.0) == 6.0, "translations are not all that takes time"
    assert validation(np.inf).later_seconds(0.0) == 120.0, "empty ones become longer"


def test_the_less_time_is_left_the_more_a_validation_tells_what_scoring_takes() -> None:
    assert [validation(0.0).later_seconds(share) for share in (0.0, 0.5, 1.0)] == [6.0, 33.0, 60.0]
    assert validation(np.inf).later_seconds(1.0) == 60.0


@pytest.mark.parametrize("validation_s", [1.0, 20.0, 200.0, 5000.0])
@pytest.mark.parametrize("begun_s", [0.0, 30.0, 300.0, 3000.0])
@pytest.mark.parametrize("minutes", [1, 4, 30])
def test_the_least_limit_can_be_kept(validation_s: float, begun_s: float, minutes: int) -> None:
    state = State(validation_s=validation_s)
    schedule = schedule_of(time_limit=f"{minutes}m")
    least_s = schedule.least_limit_s(state, begun_s)
    is_kept = begun_s < schedule.usable_s(state) and schedule.scoring_s(state) <= 0.5 * 60 * minutes
    assert (least_s is None) == is_kept
    if least_s:
        assert least_s % 60 == 0 and least_s > 60 * minutes
        longer = schedule_of(time_limit=f"{least_s:.0f}s")
        assert longer.least_limit_s(state, begun_s) is None
        assert longer.usable_s(state) - begun_s > 0.05 * least_s, "some of it is for training"


def test_without_a_limit_none_is_too_short() -> None:
    assert schedule_of().least_limit_s(State(validation_s=5000.0), 5000.0) is None


def test_a_cooldown_begins_early_enough_for_the_last_step() -> None:
    schedule = schedule_of(max_steps=1000, cooldown=0.3)
    assert schedule.plan_cooldown(State(699), 0.0) is None
    plan = schedule.plan_cooldown(State(700), 0.0)
    assert plan == Cooldown(701, 1000, "max_steps", 1000)
    assert schedule.plan_cooldown(State(800, cooldown=plan), 0.0) is None, "its last step stays"
    assert schedule_of(max_steps=1000).plan_cooldown(State(999), 0.0) is None, "the paper has none"


def test_a_cooldown_follows_when_patience_has_run_out() -> None:
    schedule = schedule_of(max_steps=10**6, patience=3, cooldown=0.2)
    assert schedule.plan_cooldown(State(400, bad_validations=2), 0.0) is None
    plan = schedule.plan_cooldown(State(400, bad_validations=3), 0.0)
    assert plan == Cooldown(401, 500, "patience", 3), "a fifth of all steps"
    assert schedule.reason_to_stop(State(499, bad_validations=9, cooldown=plan), 0.0) is None
    assert schedule.reason_to_stop(State(500, bad_validations=9, cooldown=plan), 0.0) == "patience"
    late = schedule.plan_cooldown(State(10**6 - 50, bad_validations=3), 0.0)
    assert late is not None and late.last == 10**6


def test_a_cooldown_ends_with_the_time(caplog: pytest.LogCaptureFixture) -> None:
    """1,000 s, of which 40 are kept for the end and 100 prepared the data; a step takes a second."""
    schedule = schedule_of(max_steps=10**6, time_limit="1000s", cooldown=0.3)
    plan, step = None, 0
    while plan is None:
        step += 1
        now_s = 99.0 + step
        plan = schedule.plan_cooldown(State(step), now_s)
    last = step + int(0.97 * (960 - now_s))
    assert plan == Cooldown(step + 1, last, "time_limit", 1000) and 850 < last <= 861
    assert schedule_of(max_steps=last, cooldown=0.3).plan_cooldown(State(step), 0.0) == replace(
        plan, reason="max_steps", limit=last
    ), "as with so many steps"
    assert schedule_of(max_steps=last, cooldown=0.3).plan_cooldown(State(step - 1), 0.0) is None
    assert schedule.reason_to_stop(State(step + 1, cooldown=plan), now_s) is None and not caplog.text
    assert schedule.reason_to_stop(State(last - 9, cooldown=plan), 961.0) == "time_limit", "steps became slower"
    assert "training slowed down: the time limit ends it 9 steps early" in caplog.text
    longer = State(800, cooldown=Cooldown(598, 853, "time_limit", 1000.0), validation_s=30.0)
    assert schedule.reason_to_stop(longer, 800.0) is None, "a validation of 30 s leaves 780 s, and 870 in a cooldown"
    assert schedule.reason_to_stop(longer, 871.0) == "time_limit"


def test_a_cooldown_after_a_validation_uses_the_margin() -> None:
    """A validation takes 20 s, after which the end seems 38 steps nearer than before it."""
    schedule = schedule_of(max_steps=10**6, time_limit="1000s", cooldown=0.5)
    for step, now_s in ((1, 10.0), (465, 474.0)):
        assert schedule.plan_cooldown(State(step), now_s) is None
    assert schedule.plan_cooldown(State(466), 495.0) == Cooldown(467, 911, "time_limit", 1000), "in 464 of 465 seconds"
    assert schedule.end(State(466)) == (466 + int(0.97 * 465 * 465 / 485), "time_limit") == (898, "time_limit")


def test_the_end_by_a_time_limit_is_known_after_a_few_steps_of_this_start() -> None:
    schedule = schedule_of(time_limit="20m", max_steps=10**5)
    ends = []
    for step, elapsed_s in ((0, 60.0), (1, 100.0), (3, 126.0), (4, 139.0)):
        schedule.plan_cooldown(State(step), elapsed_s)
        ends.append(schedule.end(State(step))[0])
    assert ends[:3] == [10**5] * 3, "the first step of a start shows nothing, and two more are too few"
    assert ends[3] == 4 + int(0.97 * (1200 - 46 - 139) / 13), "46 seconds are for the end, and a step takes 13"
    assert schedule_of(max_steps=9).end(State(8)) == (9, "max_steps")


def test_a_total_is_known_when_steps_and_a_validation_have_shown_how_long_they_take() -> None:
    """Of 1,000 s, 40 are kept, and 90 more after a validation of 10 s: 3 validations, 2 searches; a step takes 1 s."""
    schedule = schedule_of(time_limit="1000s", max_steps=10**5)
    known = []
    for state in (State(0), State(1), State(11), State(11, validation_s=10.0)):
        schedule.plan_cooldown(state, 99.0 + state.step)
        known.append(schedule.known_end(state))
    assert known == [None, None, None, 11 + int(0.97 * (1000 - 40 - 90 - 110) / 1.01)], "1,000 steps, a validation"
    schedule.plan_cooldown(State(800, validation_s=10.0), 901.0)
    assert schedule.known_end(State(800, validation_s=10.0)) == 800, "its time is over"
    assert schedule_of(max_steps=9).known_end(State(0)) == 9


def test_the_total_stays_from_the_first_validation_on() -> None:
    """A step takes 1 s, and a validation 20 s after each 50 steps."""
    schedule = schedule_of(time_limit="2000s", max_steps=10**5, validate_every=50)
    now_s, state, totals = 30.0, State(1), []
    while schedule.reason_to_stop(state, now_s) is None:
        schedule.plan_cooldown(state, now_s)
        if state.step % 50 == 0:
            schedule.skip_validation(20.0)
            now_s += 20
            state = replace(state, validation_s=20.0)
            schedule.plan_cooldown(state, now_s)
        if (total := schedule.known_end(state)) is not None and state.step % 50 == 10:
            totals.append(total)
        state = replace(state, step=state.step + 1)
        now_s += 1
    assert max(totals) - min(totals) <= 0.03 * state.step, "0.97 of the time that is left is planned with"
    assert totals[-1] <= state.step <= totals[-1] + 20


def test_the_end_is_planned_alike_whoever_asks_for_it_on_the_way() -> None:
    """Rank 0 shows the end, which the other ranks do not: a resumed run would time itself from there."""
    plans = []
    for shows_end in (False, True):
        schedule = schedule_of(time_limit="1000s", max_steps=10**5, cooldown=0.5)
        now_s = 400.0
        if shows_end:
            schedule.end(State(300))
        for step in range(300, 400):
            now_s += 100.0 if step == 300 else 1.0
            plans.append(schedule.plan_cooldown(State(step), now_s))
            if shows_end:
                schedule.end(State(step + 1))
    assert plans[:100] == plans[100:] and any(plans)


def test_no_cooldown_follows_the_last_step() -> None:
    schedule = schedule_of(time_limit="1000s", max_steps=10**5, cooldown=0.5)
    for step, now_s in ((1, 10.0), (400, 409.0), (401, 990.0)):
        assert schedule.plan_cooldown(State(step), now_s) is None
    assert schedule.reason_to_stop(State(401), now_s) == "time_limit"
    assert schedule_of(max_steps=100, cooldown=0.5).plan_cooldown(State(100), 0.0) is None
