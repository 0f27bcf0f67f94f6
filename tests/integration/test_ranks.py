"""A run learns the same on one, two, three and four ranks, and goes on with any number of them."""

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.integration.commands import TINY, write_tsv
from tests.ranks import Team, start_ranks

STEPS = 100
K = 12  # micro-batches of a step
SETTINGS = [
    *TINY, "data.max_tokens=16", "precision=fp32", f"training.batch_tokens={K * 32}", "training.micro_batch_tokens=32",
    f"training.max_steps={STEPS}", "training.checkpoint_every=50", "training.validate_every=100",
    "training.learning_rate=0.002",
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


def train(size: int, run: Path, *settings: str) -> Team:
    return start_ranks(
        size, *SETTINGS, *settings, f"run_dir={run}",
        first=lambda rank: partial(log_figures, run.parent / f"{run.name}-{rank}.jsonl"),
    )  # fmt: skip


def figures(run: Path, rank: int = 0) -> list[list[float]]:
    return [json.loads(line) for line in (run.parent / f"{run.name}-{rank}.jsonl").read_text().splitlines()]


def close(run: Path, other: Path) -> None:
    """The loss of each step and the weights at the end differ by at most 1e-5."""
    for (step, loss, *_), (step_there, loss_there, *_) in zip(figures(run), figures(other), strict=True):
        assert step == step_there and abs(loss - loss_there) <= 1e-5, step
    weights, there = load_file(run / WEIGHTS), load_file(other / WEIGHTS)
    for name, tensor in weights.items():
        torch.testing.assert_close(tensor, there[name], rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"data.train={write_tsv(tmp_path_factory.mktemp('text') / 'digits.tsv', range(1000, 1400))}"


@pytest.fixture(scope="module", params=["0", "0.1"])
def alone(request: pytest.FixtureRequest, text: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A run of one process without and with dropout, and its settings."""
    settings = [text, f"model.dropout={request.param}"]
    run = tmp_path_factory.mktemp("alone") / "run"
    team = train(1, run, *settings)
    assert team.wait() == [0], team.err()
    return run, settings


@pytest.mark.parametrize("size", [2, 3, 4])
def test_any_number_of_ranks_learns_what_one_process_does(
    size: int, alone: tuple[Path, list[str]], tmp_path: Path
) -> None:
    run, settings = alone
    teams = [train(size, tmp_path / name, *settings) for name in ("a", "b")]
    for team in teams:
        assert team.wait() == [0] * size, team.err()
    close(tmp_path / "a", run)
    for rank in range(size):  # all ranks do the same, and a second start does it again
        assert figures(tmp_path / "b", rank) == figures(tmp_path / "a")
    assert (tmp_path / "b" / WEIGHTS).read_bytes() == (tmp_path / "a" / WEIGHTS).read_bytes()
    assert all(start.err() == "" for start in teams[0].starts[1:])
