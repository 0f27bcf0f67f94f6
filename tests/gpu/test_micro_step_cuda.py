"""On CUDA the recorded and the compiled training step give what the operations give one by one.

Tolerance: the operations are the same, in bf16; compiled ones are fused and round less often, each time by up to 2^-8.
Single elements are sums that nearly cancel, so they may differ by more, and the norms of all gradients are compared.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from mtx.data.packing import PackedBatch
from mtx.decoding.beam_search import Request, RequestQueue, Slots, search
from mtx.decoding.options import SearchOptions
from mtx.model.architectures import new_search_model
from mtx.model.transformer import Transformer
from mtx.training.micro_batch import MicroStep, RecordedStep
from mtx.training.strategy import WeightUpdate, new_optimizer
from tests.models import random_batch, tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]

LENGTHS = [([17, 1, 40, 23], [15, 2, 33, 30]), ([20, 21, 20, 20], [30, 30, 10, 10]), ([1, 40, 1, 39], [40, 1, 38, 1])]


def model_of(dropout: float) -> Transformer:
    changes = {"d_model": 128, "d_ff": 256, "num_heads": 4, "dropout": dropout}
    model = tiny_model(100, dtype=torch.float32, **changes).cuda().train()  # type: ignore[arg-type]
    model.kernel = "varlen"
    model.prepare_positions(64)
    return model


def batches() -> list[PackedBatch]:
    return [random_batch(src, tgt, 100, seed=i, tail=40) for i, (src, tgt) in enumerate(LENGTHS)]


def one_step(micro_step: MicroStep, parts: list[PackedBatch], seed: int) -> list[Tensor]:
    """Sums and gradients of a step of several micro-batches."""
    for number, batch in enumerate(parts):
        torch.manual_seed(seed + number)
        micro_step(batch, 0.01, number == 0)
    return [micro_step.sums.clone(), *(p.grad.clone() for p in micro_step.model.parameters() if p.grad is not None)]


def difference_of(got: list[Tensor], expected: list[Tensor]) -> list[Tensor]:
    """The differences of the gradients."""
    return [a - b for a, b in zip(got[1:], expected[1:], strict=True)]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("rdrop_alpha", [0.0, 5.0])
def test_the_graph_gives_what_the_operations_give(compiled: bool, rdrop_alpha: float) -> None:
    recorded = RecordedStep(model_of(0.0), 0.1, "bf16", compiled, rdrop_alpha=rdrop_alpha)
    plain = MicroStep(model_of(0.0), 0.1, "bf16", rdrop_alpha=rdrop_alpha)
    for _ in range(2):  # the second time nothing is recorded
        got = one_step(recorded, batches(), 1)
        expected = one_step(plain, batches(), 1)
        torch.testing.assert_close(got[0], expected[0], rtol=2**-8, atol=0)
        difference, size = (
            torch.cat([x.flatten() for x in parts]).norm() for parts in (difference_of(got, expected), expected[1:])
        )
        assert float(difference / size) <= 2**-6


def test_a_step_is_recorded_after_a_search() -> None:
    """Whose graph is recorded first, in inference mode (pytorch#166792)."""
    model = model_of(0.3)
    requests = [Request(number, [5, 6, 7, 0], 30, []) for number in range(4)]
    kept = dict[Any, Slots]()
    search([new_search_model(model, torch.bfloat16)], RequestQueue(requests, 4), SearchOptions(4, 0.6), kept)
    assert kept
    sums = one_step(RecordedStep(model, 0.1, "bf16"), batches(), 1)[0]
    assert sums.isfinite().all()


@pytest.mark.parametrize("rdrop_alpha", [0.0, 5.0])
def test_the_seed_decides_the_masks_of_a_replay(rdrop_alpha: float) -> None:
    micro_step = RecordedStep(model_of(0.3), 0.1, "bf16", rdrop_alpha=rdrop_alpha)
    first, again, other = (one_step(micro_step, batches(), seed)[0] for seed in (1, 1, 2))
    torch.testing.assert_close(first, again, rtol=1e-5, atol=0)
    assert not torch.allclose(first, other, rtol=1e-4)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_two_passes_of_a_replay_have_masks_of_their_own(compiled: bool) -> None:
    weak, strong = (RecordedStep(model_of(0.3), 0.1, "bf16", compiled, rdrop_alpha=c) for c in (1e-9, 5.0))
    assert float(one_step(strong, batches(), 1)[0][0]) > 1.01 * float(one_step(weak, batches(), 1)[0][0])


@pytest.mark.parametrize("num_batches", [1, 3])
def test_a_recorded_update_is_the_eager_one(num_batches: int) -> None:
    weights = []
    for is_recorded in (False, True):
        micro_step = (RecordedStep if is_recorded else MicroStep)(model_of(0.0), 0.1, "bf16")
        parameters = list(micro_step.model.parameters())

        def norm(parameters: list[Any] = parameters) -> Tensor:
            return torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])

        optimizer = new_optimizer(parameters)
        update = WeightUpdate(optimizer, micro_step.sums, norm, 1.0, is_recorded)
        for number in range(5):
            one_step(micro_step, batches()[:num_batches], number)
            figures = update(1e-3).tolist()
        assert all(state["step"] == 5 for state in optimizer.state.values()) and figures[2] > 0
        weights.append(torch.cat([p.detach().flatten() for p in parameters]))
    moved = weights[0] - torch.cat([p.detach().flatten() for p in model_of(0.0).parameters()])
    assert float((weights[1] - weights[0]).norm() / moved.norm()) < 0.02


def test_recording_leaves_gradients_and_sums_at_zero() -> None:
    micro_step = RecordedStep(model_of(0.0), 0.1, "bf16")
    alone = one_step(micro_step, batches()[:1], 1)
    fresh = RecordedStep(micro_step.model, 0.1, "bf16")
    for a, b in zip(one_step(fresh, batches()[:1], 1), alone, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2**-6 * max(1e-3, float(b.abs().max())))
