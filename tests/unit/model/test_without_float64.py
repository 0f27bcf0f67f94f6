"""Training, search, sampling and scoring need no float64 on the device: MPS has none.

The device is `meta`, whose tensors have no numbers: what an operation makes there must not be float64. What is copied
to the CPU is zero.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mtx.decoding.beam_search import Request, RequestQueue, Slots, _Search
from mtx.decoding.options import Sampling, SearchOptions
from mtx.decoding.torch_engine import score_pairs
from mtx.model.inference import IncrementalModel
from mtx.training.micro_batch import MicroStep
from mtx.training.strategy import new_optimizer
from tests.models import random_batch, random_ids, tiny_model

NUM_IDS = 64


class Float64Error(Exception):
    pass


class WithoutFloat64(TorchDispatchMode):
    """Refuses float64 on `meta`; a copy from there to the CPU is zero."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_copy = func.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.to)
        if is_copy and args[0].is_meta and kwargs.get("device") == torch.device("cpu"):
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        out = func(*args, **kwargs)
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor) and tensor.is_meta and tensor.dtype == torch.float64:
                raise Float64Error(f"{func} makes float64")
        return out


@pytest.fixture(autouse=True)
def without_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """`meta` has no autocast."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _: False)


@pytest.fixture
def model() -> Iterator[Any]:
    made = tiny_model(NUM_IDS, dtype=torch.float32, dropout=0.1, output_bias=True).to("meta")
    with WithoutFloat64():
        made.prepare_positions(64)
        yield made


def train(model: Any) -> None:
    micro_step, optimizer = MicroStep(model.train(), 0.1, "fp32"), new_optimizer(list(model.parameters()))
    micro_step(random_batch([5, 3, 8], [4, 6, 2], NUM_IDS, tail=4), 0.1, is_first=True)
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm)
    assert norm.dtype == torch.float32 and all(len(values) == 3 for values in optimizer.state.values())


def search(options: SearchOptions) -> Callable[[Any], None]:
    def run(model: Any) -> None:
        sources = random_ids([9, 5, 2], NUM_IDS, 1)
        requests = [Request(n, ids, 20, [7] if n == 1 else [], n) for n, ids in enumerate(sources)]
        slots = Slots([IncrementalModel(model.eval())], 3, options.num_beams, 20, options.alpha, options.sampling)
        steps = _Search(slots, RequestQueue(requests, 3))
        assert steps._fill()
        for _ in range(3):
            slots.step()

    return run


def score(model: Any) -> None:
    src, tgt = (random_ids([9, 5, 2], NUM_IDS, seed) for seed in (1, 2))
    assert [s.log_prob for s in score_pairs(model.eval(), src, tgt, 0.6)] == [0, 0, 0]


WORK: dict[str, Callable[[Any], None]] = {
    "training": train, "scoring": score, "beam": search(SearchOptions(4, 0.6)), "greedy": search(SearchOptions(1, 0.6)),
    "samples": search(SearchOptions(1, 0.0, sampling=Sampling())),
    "nucleus": search(SearchOptions(1, 0.0, sampling=Sampling(top_k=8, top_p=0.9))),
    "epsilon": search(SearchOptions(1, 0.0, sampling=Sampling(epsilon=0.02))),
}  # fmt: skip


@pytest.mark.parametrize("name", WORK)
def test_nothing_on_the_device_is_float64(model: Any, name: str) -> None:
    WORK[name](model)


def test_float64_would_be_seen(model: Any) -> None:
    with pytest.raises(Float64Error, match="makes float64"):
        model.embedding.double()
