"""What a run trains: the row that fits its text, the speed of the machine and the time."""

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mtx.config import settings
from mtx.data.model_sizes import row_values, smaller_rows
from mtx.training import build, plan
from mtx.training.micro_batch import RuntimeChoices
from mtx.training.plan import choose, needed_tokens
from mtx.training.ranks import Ranks

MINUTES = 60.0


@pytest.mark.parametrize(
    ("speeds", "limit_s", "row"),
    [  # target tokens a second, by row, that of the text first
        ({160_000: 3_000}, float("inf"), 160_000),
        ({160_000: 3_000, 29_000: 2_400}, 600 * MINUTES, 160_000),
        ({160_000: 3_000, 29_000: 2_400}, 20 * MINUTES, 29_000),
        ({160_000: 700, 29_000: 1_400}, 20 * MINUTES, 29_000),
        ({160_000: 1e6, 29_000: 1e6}, 2 * MINUTES, 160_000),  # a GPU
        ({29_000: 2_400, 10_000: 2_600, 5_000: 2_600}, 2 * MINUTES, 29_000),  # none is a third better off
        ({160_000: 700, 29_000: 1_400, 10_000: 2_000}, 17 * MINUTES, 29_000),  # 10,000 is 15% better off than it
        ({1_000_000: 400, 160_000: 3_000, 29_000: 2_400}, 30 * MINUTES, 29_000),
        ({1_000_000: 400, 160_000: 3_000}, 30 * 60 * MINUTES, 160_000),
        ({5_000: 2_600}, 10.0, 5_000),
    ],
)
def test_a_smaller_row_is_chosen_where_the_time_has_no_room(speeds: dict[int, float], limit_s: float, row: int) -> None:
    plan = choose({row: 1 / rate for row, rate in speeds.items()}, limit_s, 1.0)
    assert plan.row == row
    expected = {key: value for key, value in row_values(row).items() if key != "training.batch_tokens"}
    assert {key: value for key, value in plan.values.items() if key != "training.batch_tokens"} == expected
    of_text = next(iter(speeds))
    assert (f"what the sizes for {of_text:,} pairs need" in plan.reason) == (row != of_text)


def test_a_noisy_second_changes_nothing_but_near_a_boundary() -> None:
    """Over limits from a minute to a day; each speed may be measured 15% too high or too low."""
    speeds = {1_000_000: 1 / 4_000, 160_000: 1 / 3_000, 29_000: 1 / 2_400}
    limits = [60 * 1.05**n for n in range(150)]
    rows = [choose(speeds, limit, 1.0).row for limit in limits]
    assert rows == sorted(rows) and len(set(rows)) == 3
    boundaries = [limits[n] for n, (a, b) in enumerate(itertools.pairwise(rows)) if a != b]
    for factors in itertools.product((1 / 1.15, 1.15), repeat=3):
        noisy = {row: speed * factor for (row, speed), factor in zip(speeds.items(), factors, strict=True)}
        for limit, row in zip(limits, rows, strict=True):
            if all(not 1 / 1.22 < limit / boundary < 1.22 for boundary in boundaries):
                assert choose(noisy, limit, 1.0).row == row, limit


@pytest.mark.parametrize(
    ("limit_s", "min_tokens", "expected"),
    [(600.0, 256, 1024), (250.0, 256, 512), (1.0, 256, 256), (1.0, 300, 512), (1.0, 2000, 2000)],
)
def test_a_step_has_fewer_tokens_where_there_would_be_few_updates(
    limit_s: float, min_tokens: int, expected: int
) -> None:
    assert choose({29_000: 1 / 2_000}, limit_s, 1.0, min_tokens).values["training.batch_tokens"] == expected


def test_r_drop_needs_many_epochs() -> None:
    """Without R-Drop the time has room for 10 or 20 epochs; R-Drop takes twice as long."""
    for limit_s, row, alpha in ((1_000.0, 29_000, 0), (2_000.0, 29_000, 2), (2_000.0, 160_000, 0)):
        assert choose({row: 1 / 1_000}, limit_s, 100_000).values["training.rdrop_alpha"] == alpha


def test_each_smaller_row_needs_no_more() -> None:
    rows = [5_000_000, *smaller_rows(5_000_000)]
    assert rows == sorted(rows, reverse=True) and smaller_rows(5_000) == []
    needs = [needed_tokens(row) for row in rows]
    assert needs == sorted(needs, reverse=True)


def test_the_first_step_of_a_gpu_which_records_it_is_no_measure_of_its_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, seconds = 0.0, iter([3.0, 0.02, 0.01])

    def take() -> None:
        nonlocal clock
        clock += next(seconds)

    choices = RuntimeChoices("cuda", "bf16", 0, "varlen", 1, compile=False)
    monkeypatch.setattr(plan, "first_choices", lambda *_: choices)
    monkeypatch.setattr(plan, "first_step", lambda config, *_: (take, config.training.batch_tokens))
    monkeypatch.setattr("mtx.training.plan.time.monotonic", lambda: clock)
    config = settings.resolve(None, ["data.src=en", "data.tgt=de", "training.batch_tokens=4096"]).config
    data: Any = None
    assert plan.measure(29_000, config, data, torch.device("cuda"), most_s=0.3) == pytest.approx(0.02 / 4096)


@pytest.mark.parametrize(
    "setting, compiles",
    [
        ("training.max_steps=100000", True),
        ("training.time_limit=1m", False),
        ("training.time_limit=10m", True),
        ("training.max_steps=1000", False),  # 70 s
    ],
)
def test_a_step_is_compiled_where_that_repays(setting: str, compiles: bool) -> None:
    tgt = SimpleNamespace(block_tokens=np.array([27_000_000]))
    train = SimpleNamespace(weights=np.ones(1), corpora=np.zeros(1, int), tgt=tgt)
    data: Any = SimpleNamespace(train=train, tokenizer=SimpleNamespace(num_ids=37_000))
    config = settings.resolve(None, ["data.src=en", "data.tgt=de", "training.batch_tokens=25000", setting]).config
    assert build.first_choices(config, torch.device("cpu"), data, Ranks()).compile == compiles
