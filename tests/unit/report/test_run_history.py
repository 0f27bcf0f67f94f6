import pytest

from mtx.report.run_history import Event, TrainingHistory, improvement, training_history


def _train(step: int, time: float, nll: float = 2.0, **more: object) -> Event:
    return {"event": "train", "step": step, "time": time, "nll": nll, **more}


def _start(step: int, time: float) -> Event:
    return {"event": "start", "step": step, "time": time}


def test_steps_that_a_resumed_run_repeated_and_the_pause_before_it_do_not_count() -> None:
    saved = {"event": "checkpoint", "step": 2, "time": 7200.0}
    first = [_start(0, 0.0), _train(1, 3600.0, 5.0), _train(2, 7200.0, 4.0), saved, _train(3, 10800.0, 9.0)]
    second = [_start(2, 99_000.0), _train(3, 102_600.0, 3.0)]
    history = training_history([*first, *second])
    curve = history.curve("train", "nll")
    assert (curve.steps, curve.values, curve.hours) == ([1, 2, 3], [5, 4, 3], [1, 2, 3])
    assert len(history.events_of("start")) == 2 and history.last_value("hours") == 3


def test_damaged_events_are_skipped() -> None:
    damaged = [_train(1, 1.0), {"event": "train"}, _train(2, 2.0, float("nan")), _train(3, 3.0) | {"nll": "x"}]
    assert training_history([{"event": "odd", "time": "?", "step": 1}, *damaged]).curve("train", "nll").steps == [1]
    history = training_history([_train(1, 1.8e9), _train(2, 1.8e9 + 3600)])
    assert history.last_value("hours") == 1, "although the event of the start is lost"
    assert training_history([]).last_value("hours") == 0 and training_history([]).curve("train", "nll").steps == []


def test_a_long_curve_is_averaged_over_intervals() -> None:
    events = (_train(n, n, 1000.0 if n == 777 else 1.0) for n in range(1, 100_001))
    history = training_history([_start(0, 0.0), *events])
    curve = history.curve("train", "nll")
    assert len(curve.steps) == 400 and curve.steps[0] == 125.5 and max(curve.values) == 1 + 999 / 250
    assert [event["step"] for event in history.events] == [0, 100_000], "the last of several steps in a row"


def _bleu(*values: float) -> TrainingHistory:
    events = [{"event": "validation", "step": 100 * n, "time": n, "bleu": v} for n, v in enumerate(values, 1)]
    return training_history(events)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((1.0, 10.0, 20.0, 30.0), "Yes: validation BLEU rose by 20.0"),
        (
            (1.0, 10.0, 20.0, 30.0, 29.0),
            "Perhaps: validation BLEU rose by 10.0 in the last third",
        ),
        ((10.0, 30.0, 31.0, 31.0, 31.2), "Hardly: validation BLEU rose by 0.2"),
        (
            (10.0, 31.0, 30.0, 30.0, 30.0, 30.0),
            "No: validation BLEU rose by 0.0 in the last third of the steps; the best is 31.00, at step 200",
        ),
        (
            (0.0, 0.0, 0.0),
            "in the last third of the steps; the best is 0.00, at step 100.",
        ),
    ],
)
def test_whether_it_still_gets_better_in_words(values: tuple[float, ...], words: str) -> None:
    development = improvement(_bleu(*values))
    assert development is not None and words in development.text


def test_one_validation_does_not_show_whether_it_gets_better() -> None:
    assert improvement(_bleu(20.0)) is None
