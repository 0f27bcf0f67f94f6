import math

import pytest

from mtx.config.schema import Config
from mtx.data.token_store import Side
from mtx.report.advice import are_alike, ramp_steps, remedy, unigram_nll


def _config(**training: object) -> Config:
    return Config.model_validate({"model": {"d_model": 128}, "training": training})


def test_translations_are_alike_only_if_their_references_are_not() -> None:
    lines = [f"line {number}" for number in range(100)]
    assert are_alike(["a line"] * 82 + lines[82:], lines)
    assert not are_alike(["a line"] * 81 + lines[81:], lines)
    assert not are_alike(["yes"] * 100, ["yes", "no"] * 50)
    assert not are_alike([], [])


def test_a_unigram_model_has_the_entropy_of_the_tokens() -> None:
    tgt = Side.of([[7, 7, 2], [9, 2]], "uint16")
    assert unigram_nll(tgt) == pytest.approx(-0.8 * math.log(0.4) - 0.2 * math.log(0.2))


def test_the_tokens_of_all_the_text_count() -> None:
    tgt = Side.of([[7]] * 20_000 + [[8]] * 20_000, "uint16")
    assert unigram_nll(tgt) == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    ("training", "steps"),
    [
        ({"warmup_steps": 400}, 400),
        ({"warmup_steps": 400, "learning_rate": 0.00884}, 100),
        ({"warmup_steps": 400, "learning_rate": 3.0}, 0),
        ({"warmup_steps": 74, "learning_rate": 0.00442}, 400),
        ({"warmup_steps": 400, "learning_rate": 0.00221}, 1600),
    ],
)
def test_the_ramp_is_longer_for_a_lower_learning_rate(training: dict[str, object], steps: int) -> None:
    assert ramp_steps(_config(**training)) == steps


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"warmup_steps": 400, "learning_rate": 3}, "learning_rate=0.0044 (the paper's for this warmup), not 3"),
        ({"warmup_steps": 74, "learning_rate": 0.00442}, "learning_rate=0.0022 or training.warmup_steps=400"),
        ({"warmup_steps": 400, "learning_rate": 0.00442}, "learning_rate=0.0022 or training.warmup_steps=800"),
        ({"warmup_steps": 400}, "learning_rate=0.0022 or training.warmup_steps=800"),
        ({"warmup_steps": 100, "learning_rate": 0.0002}, "learning_rate=0.0001 or training.warmup_steps=4000"),
    ],
)
def test_the_remedy_names_the_setting_that_is_too_high_or_too_short(training: dict[str, object], words: str) -> None:
    assert remedy(_config(**training)) == f"in another run_dir, set training.{words}"
