"""Models of other architectures learn and search on CUDA as on the CPU."""

from typing import Any

import pytest
import torch

from mtx.decoding.beam_search import Request, RequestQueue, search
from mtx.decoding.options import SearchOptions
from mtx.model.architectures import new_search_model
from mtx.training.micro_batch import MicroStep
from tests.models import OTHERS, random_batch, random_ids, tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]
NUM_IDS = 300


@pytest.fixture(autouse=True)
def exact_recurrences(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default cuDNN rounds the products of a recurrence in fp32 to TF32."""
    monkeypatch.setattr(torch.backends.cudnn.rnn, "fp32_precision", "ieee")


# Rounding these products to TF32 on a CPU moved gradients by 1.8e-4 of the norm of all, at most.
@pytest.mark.parametrize("precision, products, tolerance", [
    ("fp32", "ieee", 1e-4), ("fp32", "tf32", 1e-3), ("bf16", "tf32", 0.05),
])  # fmt: skip
@pytest.mark.parametrize("changes", OTHERS)
def test_a_step_has_the_gradients_of_the_cpu(
    changes: dict[str, Any], precision: str, products: str, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn.rnn, "fp32_precision", products)
    batch, gradients = random_batch([9, 30, 17, 2, 25], [12, 28, 9, 3, 31], NUM_IDS, tail=20), []
    for device in ("cuda", "cpu"):
        model = tiny_model(NUM_IDS, dtype=torch.float32, d_model=64, **changes).to(device).train()
        model.prepare_positions(64)  # on this device
        step = MicroStep(model, 0.1, precision if device == "cuda" else "fp32")
        step(batch, 1 / 25_000, is_first=True)  # as in a large step: gradients that fp16 would not hold
        gradients.append({name: p.grad.float().cpu() for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    norm = sum(float(gradient.square().sum()) for gradient in gradients[1].values()) ** 0.5
    for name, expected in gradients[1].items():
        assert float((gradients[0][name] - expected).norm()) < tolerance * norm, name


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("changes", OTHERS)
def test_search_finds_what_the_cpu_finds(changes: dict[str, Any], beam_size: int) -> None:
    results = []
    sources = sorted(random_ids([2 + 7 * n % 39 for n in range(120)], NUM_IDS, 1), key=len, reverse=True)
    for device in ("cuda", "cpu"):
        model = tiny_model(NUM_IDS, seed=4, dtype=torch.float32, output_bias=True, d_model=64, **changes)
        with torch.no_grad():
            model.output_bias[0] += 1.0  # sentences end
            model.output_weight.mul_(3)  # and are sure of what they say
        requests = [Request(n, source, len(source) + 20, []) for n, source in enumerate(sources)]
        queue = RequestQueue(requests, 16)
        engine = new_search_model(model.to(device), torch.float32)
        results.append(search([engine], queue, SearchOptions(beam_size, 0.6)))
    same = sum(results[0][n][0].ids == results[1][n][0].ids for n in range(len(sources)))
    assert same >= 0.98 * len(sources)
    assert len({len(results[1][n][0].ids) for n in range(len(sources))}) > 5, "they end at different times"
