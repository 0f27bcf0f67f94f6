"""Eq. 3 of the paper by hand."""

import pytest

from mtx.training.schedule import Cooldown, learning_rate

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
    assert learning_rate(step, 4000, 512) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("step, expected", [(1, 0.005 / 2000), (1000, 0.0025), (2000, 0.005), (8000, 0.0025)])
def test_a_given_peak_stands_at_the_end_of_the_warmup(step: int, expected: float) -> None:
    assert learning_rate(step, 2000, 128, peak=0.005) == pytest.approx(expected)
    assert learning_rate(step, 2000, 512, peak=0.005) == pytest.approx(expected), "whatever the width"


def test_one_step_of_warmup() -> None:
    assert [learning_rate(step, 1, 4) for step in (1, 4)] == [0.5, 0.25]


def test_a_cooldown_is_a_line_to_zero_under_the_usual_rate() -> None:
    cooldown = Cooldown(first=61, last=100, reason="max_steps", limit=100)
    shares = [
        learning_rate(s, 4, 512, 1.0, cooldown) / learning_rate(s, 4, 512, 1.0) for s in (1, 60, 61, 80, 100, 101, 500)
    ]
    assert shares == pytest.approx([1, 1, 40 / 41, 21 / 41, 1 / 41, 0, 0])
