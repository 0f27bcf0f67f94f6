"""An update that is recorded and replayed has the bits of the eager one: nothing of a step but its inputs changes."""

import functools
import gc
import weakref

import pytest
import torch
from torch import Tensor

from mtx.data.packing import PackedBatch
from mtx.training.micro_batch import MicroStep, RecordedStep, seed_micro_step
from mtx.training.strategy import WeightUpdate, new_optimizer
from tests.graphs import StandIn, record_on_a_cpu
from tests.models import random_batch, tiny_model

NUM_IDS, NUM_STEPS = 30, 50
LENGTHS = [5, 9, 3], [4, 7, 6]  # of every batch: on a CPU, attention reads lengths from the host


@pytest.fixture
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    record_on_a_cpu(monkeypatch)


def norm(model: torch.nn.Module) -> Tensor:
    return torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])


class Training:
    """A tiny model with dropout and its training, in steps of `num_batches` micro-batches."""

    def __init__(self, is_recorded: bool, num_batches: int, rdrop_alpha: float):
        self.model = tiny_model(NUM_IDS, dtype=torch.float32, dropout=0.1).train()
        self.optimizer = new_optimizer(list(self.model.parameters()))
        kind = RecordedStep if is_recorded else MicroStep
        self.micro_step = kind(self.model, 0.1, "fp32", rdrop_alpha=rdrop_alpha)
        self.num_batches = num_batches
        self.update = WeightUpdate(
            self.optimizer, self.micro_step.sums, functools.partial(norm, self.model), 0.5, is_recorded
        )

    def step(self, number: int) -> list[float]:
        for place in range(self.num_batches):
            seed_micro_step(torch.device("cpu"), 1, number, place)
            self.micro_step(self.batch(number, place), 0.02, place == 0)
        figures: list[float] = self.update(2**-10 * (1 + number % 5)).tolist()  # exact in fp32
        return figures

    def batch(self, number: int, place: int) -> PackedBatch:
        return random_batch(*LENGTHS, NUM_IDS, seed=100 * number + place)

    def tensors(self) -> list[Tensor]:
        moments = [value for state in self.optimizer.state.values() for value in state.values()]
        return [each.detach().clone() for each in (*self.model.parameters(), *moments)]


@pytest.mark.seconds
@pytest.mark.usefixtures("on_a_cpu")
@pytest.mark.parametrize(("num_batches", "rdrop_alpha"), [(1, 0.0), (3, 0.0), (1, 5.0)])
def test_a_recorded_update_has_the_bits_of_the_eager_one(num_batches: int, rdrop_alpha: float) -> None:
    eager, recorded = (Training(is_recorded, num_batches, rdrop_alpha) for is_recorded in (False, True))
    for number in range(1, NUM_STEPS + 1):
        assert recorded.step(number) == eager.step(number)
        assert all(map(torch.equal, recorded.tensors(), eager.tensors())), number
    rest = num_batches - 1
    replays = 2 * (NUM_STEPS - 1) - 1  # the first update is a warm-up, without a graph
    assert StandIn.replays == replays + (rest * NUM_STEPS - 1 if rest else 0)


@pytest.mark.usefixtures("on_a_cpu")
def test_a_recorded_update_is_skipped_once_a_gradient_was_not_finite() -> None:
    training = Training(True, 1, 0.0)
    for number in (1, 2):
        training.step(number)
    before, good = training.tensors(), training.model.embedding[3].detach().clone()
    with torch.no_grad():
        training.model.embedding[3].fill_(float("nan"))
    assert not torch.tensor(training.step(3)).isfinite().all()
    with torch.no_grad():
        training.model.embedding[3].copy_(good)
    training.step(4)
    assert all(map(torch.equal, training.tensors(), before))


@pytest.mark.usefixtures("on_a_cpu")
@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_step_is_freed_with_its_last_reference(is_recorded: bool) -> None:
    """A cycle would keep the model, the gradients and a graph's memory on the GPU until a full collection."""
    training = Training(is_recorded, 2, 0.0)
    for number in (1, 2):
        training.step(number)
    gc.collect()
    gc.disable()
    try:
        held = [weakref.ref(each) for each in (training.micro_step, training.update, training.model)]
        del training
        assert [each() for each in held] == [None] * 3
    finally:
        gc.enable()
