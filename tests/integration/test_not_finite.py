"""A loss or gradient that is not finite stops a run before it changes a weight."""

import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mtx.config import settings as configuration
from mtx.data.packing import load_steps
from mtx.data.sampler import SamplerState, steps
from mtx.data.token_store import load_prepared
from mtx.errors import MtxError
from mtx.storage.run_files import RunLayout
from mtx.training.build import build
from mtx.training.micro_batch import RuntimeChoices
from mtx.training.trainer import Trainer, Update


def test_a_run_that_overflows_names_the_step_and_its_lines(
    settings: list[str], tmp_path: Path, refused: Callable[..., None]
) -> None:
    run = tmp_path / "run"
    words = ["step ", "nothing was updated", "lines "]
    refused(1, words, "train", *settings, "training.learning_rate=1e35", "training.warmup_steps=1", f"run_dir={run}")
    for path in run.rglob("model.safetensors"):
        assert np.isfinite(np.frombuffer(path.read_bytes()[-400:], np.float32)).all()


@pytest.fixture
def trainer(trained: Path, tmp_path: Path) -> Trainer:
    chosen = RuntimeChoices("cpu", "fp32", 4096, "padded", 1, False)
    config = configuration.load(RunLayout(trained).config)
    return build(config, chosen, load_prepared(RunLayout(trained).data), RunLayout(tmp_path))


def test_a_checkpoint_is_called_intact_if_there_is_one(trainer: Trainer) -> None:
    figures: Any = None
    update = Update(2, SamplerState(), 0.001, 10, figures, 1.0)
    for intact in (False, True):
        if intact:
            trainer.paths.checkpoint(1).mkdir(parents=True)
        error = trainer._refuse(update, [math.nan, 1.0, 1.0])
        assert str(error).startswith("step 2: loss nan")
        assert ("the last checkpoint is intact" in str(error.help)) == intact


def test_no_weight_changes_from_then_on_and_the_right_step_is_named(trainer: Trainer) -> None:
    planned = steps(trainer.sampler, SamplerState(), 4)
    loaded = load_steps(trainer.data.train, planned, trainer.num_micro_steps, trainer.shape)
    trainer.progress.restart()
    with contextlib.closing(loaded):
        trainer._step(next(loaded))
        one = trainer.model.encoder[0].inner.weight  # type: ignore[union-attr]
        good = one.detach().clone()  # type: ignore[union-attr,operator]
        with torch.no_grad():
            one[0, 0] = torch.inf  # type: ignore[index,operator]
        spoilt = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
        trainer.update(next(loaded), 2, 0.001)
        with torch.no_grad():
            one.copy_(good)  # type: ignore[union-attr,operator]
        trainer.update(next(loaded), 3, 0.001)  # finite again, but the host has not yet said what to do
        for name, parameter in trainer.model.named_parameters():
            expected = good if parameter is one else spoilt[name]
            assert torch.equal(parameter, expected), name
        with torch.no_grad():
            one[0, 0] = torch.nan  # type: ignore[index,operator]
        with pytest.raises(MtxError, match=r"^step 2: loss nan"):
            trainer._step(next(loaded))
