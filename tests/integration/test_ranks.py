"""A run learns the same on one, two, three and four ranks, and goes on with any number of them."""

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.integration.commands import TINY, events, hold_at_step, write_tsv
from tests.ranks import Team, start_ranks

STEPS = 60
K = 12  # micro-batches of a step
SETTINGS = [
    *TINY, "data.max_tokens=16", "precision=fp32", f"training.batch_tokens={K * 32}", "training.micro_batch_tokens=32",
    f"training.max_steps={STEPS}", "training.checkpoint_every=30", f"training.validate_every={STEPS}",
    "training.learning_rate=0.0005",
]  # fmt: skip
WEIGHTS = Path("checkpoints", f"step-{STEPS:08d}", "model.safetensors")

pytestmark = [
    pytest.mark.seconds, pytest.mark.skipif(not hasattr(os, "fork"), reason="ranks are forked")
]  # fmt: skip


def log_figures(log: Path) -> None:
    """In a new process: append the loss and the gradient norm of each update to a file."""
    from mtx.training.trainer import Trainer

    original = Trainer.update

    def update(self: Any, loaded: Any, step: int, rate: float) -> Any:
        figures = original(self, loaded, step, rate)
        if figures is not None:
            os.write(fd, f"{json.dumps([step, *figures.tolist()])}\n".encode())
        return figures

    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    Trainer.update = update  # type: ignore[method-assign]


def prepare(log: Path, last_step: int) -> None:
    """In a new process: log the figures of each update, and wait for a signal after this step."""
    log_figures(log)
    hold_at_step(last_step, log.with_name("never"))


def train(size: int, run: Path, *settings: str, last_step: int = STEPS) -> Team:
    return start_ranks(
        size, *SETTINGS, *settings, f"run_dir={run}",
        first=lambda rank: partial(prepare, run.parent / f"{run.name}-{rank}.jsonl", last_step),
    )  # fmt: skip


def figures(run: Path, rank: int = 0) -> list[list[float]]:
    return [json.loads(line) for line in (run.parent / f"{run.name}-{rank}.jsonl").read_text().splitlines()]


def close(run: Path, other: Path) -> None:
    """The loss of each step and the weights at the end differ by at most 1e-5."""
    close_figures(run, other)
    close_weights(run, other)


def close_figures(run: Path, other: Path) -> None:
    """Each step has the same loss, within 1e-5, and gradient norm; a step that was lost in `run` is done again."""
    last, there = ({step: values for step, *values in figures(path)} for path in (run, other))
    assert last.keys() == there.keys() == set(range(1, STEPS + 1))
    for step, (loss, _, norm) in last.items():
        assert abs(loss - there[step][0]) <= 1e-5 and abs(norm / there[step][2] - 1) <= 1e-4, step


def close_weights(run: Path, other: Path) -> None:
    """The weights at the end differ by at most 1e-5.

    But for the biases of keys: softmax ignores them, so their gradients are rounding errors, which Adam enlarges.
    """
    weights, there = load_file(run / WEIGHTS), load_file(other / WEIGHTS)
    for name, tensor in weights.items():
        if not name.endswith("key.bias"):
            torch.testing.assert_close(tensor, there[name], rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"data.train={write_tsv(tmp_path_factory.mktemp('text') / 'digits.tsv', range(1000, 1400))}"


@pytest.fixture(scope="module")
def alone(text: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A run of one process with dropout, and its settings."""
    settings = [text, "model.dropout=0.1"]
    run = tmp_path_factory.mktemp("alone") / "run"
    team = train(1, run, *settings)
    assert team.wait() == [0], team.err()
    return run, settings


@pytest.mark.parametrize("size", [2, *(pytest.param(size, marks=pytest.mark.extended) for size in (3, 4))])
def test_any_number_of_ranks_learns_what_one_process_does(
    size: int, alone: tuple[Path, list[str]], tmp_path: Path
) -> None:
    run, settings = alone
    team = train(size, tmp_path / "run", *settings)
    assert team.wait() == [0] * size, team.err()
    close(tmp_path / "run", run)
    assert all(figures(tmp_path / "run", rank) == figures(tmp_path / "run") for rank in range(1, size))
    assert all(start.err() == start.out() == "" for start in team.starts[1:])


@pytest.mark.extended
def test_the_same_number_of_ranks_gives_the_same_bits(text: str, tmp_path: Path) -> None:
    runs = [tmp_path / name for name in ("a", "b")]
    for run in runs:
        team = train(3, run, text, "model.dropout=0.1")
        assert team.wait() == [0] * 3, team.err()
    assert figures(runs[0]) == figures(runs[1])
    assert (runs[0] / WEIGHTS).read_bytes() == (runs[1] / WEIGHTS).read_bytes()


@pytest.mark.extended
def test_a_run_moves_between_numbers_of_ranks(alone: tuple[Path, list[str]], tmp_path: Path) -> None:
    """1 -> 2 -> 4 -> 1 ranks, each killed after a checkpoint."""
    whole, settings = alone
    run = tmp_path / "run"
    for size, step in ((1, 20), (2, 30), (4, 40)):
        team = train(size, run, *settings, "training.checkpoint_every=10", last_step=step)
        assert team.wait_until((run / "checkpoints" / f"step-{step:08d}").is_dir), team.err()
        for start in team.starts:
            start.send(signal.SIGKILL)
        assert team.wait() == [-signal.SIGKILL] * size
    team = train(1, run, *settings, "training.checkpoint_every=10")
    assert team.wait() == [0], team.err()
    close(run, whole)
    starts = [event["ranks"] for event in events(run) if event["event"] == "start"]
    assert starts == [1, 2, 4, 1]


@pytest.mark.extended
def test_ranks_that_divide_the_model_learn_what_one_process_does(alone: tuple[Path, list[str]], tmp_path: Path) -> None:
    """Two ranks with a part of each weight, killed and gone on with by one process, and then by three."""
    whole, settings = alone
    run, settings = tmp_path / "run", [*settings, "training.checkpoint_every=10", "training.validate_every=30"]
    for size, step, shard in ((2, 20, "true"), (1, 30, "true"), (3, 40, "true"), (2, 50, "false")):
        team = train(size, run, *settings, f"training.shard={shard}", last_step=step)
        assert team.wait_until((run / "checkpoints" / f"step-{step:08d}").is_dir), team.err()
        for start in team.starts:
            start.send(signal.SIGKILL)
        assert team.wait() == [-signal.SIGKILL] * size
    team = train(2, run, *settings, "training.shard=true")
    assert team.wait() == [0, 0], team.err()
    close(run, whole)
