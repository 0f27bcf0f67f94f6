"""A run whose ranks are killed at random steps goes on with another number of them, and stays the same run."""

import os
import random
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.ranks import Team, start_ranks
from tests.reliability import tiny
from tests.reliability.conftest import size
from tests.rig import Rig

pytestmark = [pytest.mark.extended, pytest.mark.skipif(not hasattr(os, "fork"), reason="ranks are forked")]
# Twelve micro-batches a step, which one to four ranks share equally: dropout is drawn for each micro-batch
SETTINGS = ["training.batch_tokens=480", "training.micro_batch_tokens=40", "training.learning_rate=0.0005"]
WEIGHTS = Path("checkpoints", f"step-{tiny.MAX_STEPS:08d}", "model.safetensors")
ENDED_S = 200.0  # until all ranks have ended after one was killed


@pytest.fixture(scope="module")
def undisturbed(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A run of one process, and its settings."""
    directory = tmp_path_factory.mktemp("undisturbed")
    settings = [*tiny.write_text(directory), *SETTINGS]
    started = rig.run("train", *settings, f"run_dir={directory / 'run'}")
    assert started.code == 0, started.err()
    return directory / "run", settings


def train(run: Path, start: int, ranks: int, settings: list[str]) -> Team:
    log = run.parent / "logs" / f"{start}"
    return start_ranks(
        ranks, *settings, f"run_dir={run}",
        first=lambda rank: partial(tiny.log_steps, log.with_name(f"{start}-{rank}"), True),
    )  # fmt: skip


def moved(run: Path, settings: list[str], ranks: tuple[int, ...], draw: random.Random) -> None:
    """Train with these numbers of ranks in turn; but in the last start, a rank is killed at a random step."""
    (run.parent / "logs").mkdir(parents=True)
    steps = sorted(draw.sample(range(1, tiny.MAX_STEPS - 15), len(ranks) - 1))
    for start, (number, step) in enumerate(zip(ranks, steps, strict=False)):
        team = train(run, start, number, settings)
        log = run.parent / "logs" / f"{start}-0"
        assert team.wait_until(lambda log=log, step=step: log.exists() and tiny.count_steps(log) >= step), team.err()
        time.sleep(draw.uniform(0, 0.02))
        victim = draw.choice(team.starts)
        victim.send(signal.SIGKILL)
        codes = team.wait(ENDED_S)
        assert victim.code == -signal.SIGKILL and all(codes), (codes, team.err())
    team = train(run, len(ranks) - 1, ranks[-1], settings)
    assert team.wait() == [0] * ranks[-1], team.err()


def taken(run: Path, ranks: tuple[int, ...]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Each step that all ranks of a start began, with the sentences that all of them had of it."""
    for start, number in enumerate(ranks):
        by_rank = [
            {done.step: done.sentences for done in tiny.steps_done(run.parent / "logs" / f"{start}-{rank}")}
            for rank in range(number)
        ]
        for step in set.intersection(*(set(done) for done in by_rank)):
            yield step, tuple(sorted(pair for done in by_rank for pair in done[step]))


def check_same_run(run: Path, ranks: tuple[int, ...], undisturbed: Path) -> None:
    """Each sentence once an epoch, and the weights; the biases of keys are rounding errors, see test_ranks.py."""
    tiny.check_steps(taken(run, ranks), run)
    expected = load_file(undisturbed / WEIGHTS)
    for name, tensor in load_file(run / WEIGHTS).items():
        if not name.endswith("key.bias"):
            torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-4)


def test_killed_at_random_steps_a_run_goes_on_with_other_numbers_of_ranks(
    undisturbed: tuple[Path, list[str]], tmp_path: Path, tally: Any
) -> None:
    whole, settings = undisturbed
    num_schedules = size(push=1, nightly=20)
    for seed in range(num_schedules):
        draw = random.Random(seed)
        run, ranks = tmp_path / str(seed) / "run", (2, 1, 3, 1) if seed == 0 else tuple(draw.choices(range(1, 5), k=4))
        moved(run, settings, ranks, draw)
        check_same_run(run, ranks, whole)
    tally("one to four ranks, killed at random steps", num_schedules, num_schedules)


def test_killed_at_random_steps_ranks_that_divide_the_model_go_on(
    undisturbed: tuple[Path, list[str]], tmp_path: Path, tally: Any
) -> None:
    whole, settings = undisturbed
    num_schedules = size(push=1, nightly=5)
    for seed in range(num_schedules):
        run, ranks = tmp_path / str(seed) / "run", (2, 2)
        moved(run, [*settings, "training.shard=true"], ranks, random.Random(seed))
        check_same_run(run, ranks, whole)
    tally("two ranks that divide the model, killed at random steps", num_schedules, num_schedules)
