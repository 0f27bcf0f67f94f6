"""The mean of checkpoints (6.1), and which of them may become the final model."""

from pathlib import Path

import pytest
import torch

from mtx.data.sampler import SamplerState
from mtx.decoding import model_directory
from mtx.errors import DamagedFileError
from mtx.storage import durable
from mtx.storage.run_files import WEIGHTS, RunLayout
from mtx.training import checkpoint
from mtx.training.averaging import _candidates, average
from mtx.training.checkpoint import State
from tests.models import adam, averaging_of, tiny_model
from tests.unit.training.test_checkpoint import NUM_IDS, flip


@pytest.fixture
def paths(tmp_path: Path) -> RunLayout:
    return RunLayout(tmp_path / "run")


def save(paths: RunLayout, *steps: int) -> None:
    model = tiny_model(NUM_IDS, dtype=torch.float32)
    optimizer = adam(model)
    for step in steps:
        checkpoint.save(paths, checkpoint.snapshot(model, optimizer), State(step))


def state(best: int, validated: int) -> State:
    return State(100, SamplerState(0, 0), 20.5, best, validated, 0, 1.0)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_the_average_of_equal_checkpoints_is_the_checkpoint(paths: RunLayout, count: int) -> None:
    save(paths, *range(1, count + 1))
    mean = average(paths, list(range(1, count + 1)))
    saved = model_directory.load_tensors(paths.checkpoint(1) / WEIGHTS)
    assert mean.keys() == saved.keys()
    for name, tensor in mean.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, saved[name]), name


def test_an_average_by_hand(paths: RunLayout) -> None:
    for step, values in ((1, [1.0, 2.0, -1e8]), (2, [2.0, 2.0, 1.0]), (3, [6.0, 2.0, 1e8])):
        with durable.new_directory(paths.checkpoint(step)) as new:
            model_directory.save_tensors(new / WEIGHTS, {"x": torch.tensor(values)})
    assert average(paths, [1, 2, 3])["x"].tolist() == [3.0, 2.0, torch.tensor(1 / 3).item()]
    assert average(paths, [1, 2])["x"].tolist()[:2] == [1.5, 2.0]


def test_means_the_last_and_the_best_are_compared(paths: RunLayout) -> None:
    save(paths, 50, 80, 85, 90, 100)
    means: dict[tuple[int, ...], float | None] = {(80, 85, 90, 100): None, (90, 100): None}
    assert _candidates(paths, state(100, 100), averaging_of(5, 4)) == means | {(100,): 20.5}
    # the last one was validated and is worse than the best
    assert _candidates(paths, state(50, 100), averaging_of(5, 4)) == means | {(50,): 20.5}
    # the best one is no longer there, or no validation was better than the model of training.init_from
    for best, validated in ((40, 40), (0, 100)):
        assert _candidates(paths, state(best, validated), averaging_of(5, 4)) == means | {(100,): None}


def test_damaged_weights_are_no_candidate(paths: RunLayout) -> None:
    save(paths, 50, 90, 100)
    for step in (50, 100):
        flip(paths.checkpoint(step) / WEIGHTS, -2)
    assert _candidates(paths, state(50, 50), averaging_of(5, 4)) == {(90,): None}


def test_damaged_weights_have_no_mean(paths: RunLayout) -> None:
    save(paths, 10, 20)
    flip(paths.checkpoint(20) / WEIGHTS, -2)
    with pytest.raises(DamagedFileError, match="step-00000020/model.safetensors"):
        average(paths, [10, 20])
    with pytest.raises(
        DamagedFileError, match="step-00000020/model.safetensors.*all checkpoints to average are damaged"
    ):
        flip(paths.checkpoint(10) / WEIGHTS, -2)
        _candidates(paths, state(20, 20), averaging_of(5, 4))
