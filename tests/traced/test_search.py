"""On CUDA a step of the search is one recorded graph, and the host waits for the device only where it makes room."""

from typing import Any

import pytest
import torch

from mtx.config import settings
from mtx.decoding import beam_search
from mtx.decoding.beam_search import Request, RequestQueue, Slots, search
from mtx.decoding.options import SearchOptions
from mtx.formatting import round_up
from mtx.model.inference import IncrementalModel
from mtx.model.transformer import Transformer
from tests.traced import require_cuda_build

pytestmark = pytest.mark.extended

require_cuda_build()

from mtx.decoding.search_kernels import reduce_logits  # noqa: E402
from scripts.traced.traced_step import NUM_IDS, RefusedError, Trace, traced  # noqa: E402

NUM_OUTPUTS = round_up(NUM_IDS, 64)
NUM_SLOTS, BEAM_SIZE, NUM_STEPS = 8, 4, 8


def trace_search(
    preset: str, monkeypatch: pytest.MonkeyPatch, num_steps: int = NUM_STEPS, num_searches: int = 1
) -> tuple[Trace, list[int]]:
    """Traces searches that end after some steps, when the host is told that all sentences are done.

    Returns:
        What was traced, and the number of steps that each search has recorded.
    """
    polls = iter(range(0))

    class Arrived:
        """Stands for `HostCopy`."""

        def __init__(self, tensor: Any):
            assert tensor.is_cuda
            is_done = tensor.dtype == torch.bool and next(polls) >= num_steps
            with torch.utils._python_dispatch._disable_current_modes():
                self.found = torch.full(tensor.shape, is_done, dtype=tensor.dtype)

        def is_ready(self) -> bool:
            return True

        def tensor(self) -> torch.Tensor:
            return self.found

    monkeypatch.setattr(beam_search, "HostCopy", Arrived)
    monkeypatch.setattr(beam_search, "find_reduction", lambda device: reduce_logits)  # it would need numbers
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 36, 1 << 37))
    config = settings.resolve(
        None, [f"model.preset={preset}", "model.num_encoder_layers=2", "model.num_decoder_layers=2"]
    ).config.model
    with traced(number=0) as trace, torch.inference_mode():
        with torch.device("cuda"):
            model = Transformer(config, NUM_IDS).eval()
        engine = IncrementalModel(model, torch.bfloat16)
        kept = dict[Any, Slots]()
        num_recorded = []
        for _ in range(num_searches):
            polls = iter(range(1 << 20))
            requests = [Request(number, [5] * (20 - number), 120, []) for number in range(NUM_SLOTS)]
            before = trace.num_recorded
            found = search([engine], RequestQueue(requests, NUM_SLOTS), SearchOptions(BEAM_SIZE, 0.6), kept)
            assert len(found) == NUM_SLOTS
            num_recorded.append(trace.num_recorded - before)
    return trace, num_recorded


@pytest.mark.parametrize("preset", ["base", "big"])
def test_steps_replay_one_graph_and_never_wait(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, _ = trace_search(preset, monkeypatch)
    assert trace.num_recorded == 1 and trace.num_replayed >= NUM_STEPS - 2
    assert trace.num_reads <= 1, "the cache makes room once, before the first step"
    products = [kernel for kernel in trace.recorded if kernel.kind == "product"]
    assert len(products) == 2 * 10 + 1, "six of each layer with weights, four of attention, and the output layer"
    of_logits = [kernel.name for kernel in trace.recorded if (NUM_SLOTS, BEAM_SIZE, NUM_OUTPUTS) in kernel.shapes]
    assert of_logits == ["mtx::reduce_logits"], "one pass; the best groups and required tokens are gathered"


def test_the_third_search_records_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """So first light reports its rate. The second one does, since a reused cache is read as far as it is filled."""
    _, num_recorded = trace_search("base", monkeypatch, num_steps=100, num_searches=4)
    assert num_recorded == [1, 3, 0, 0]


@pytest.mark.parametrize("preset", ["base", "big"])
def test_the_step_compiles_as_one_graph(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step = torch.compile(beam_search.Slots._extend, fullgraph=True, dynamic=False)
    monkeypatch.setattr(beam_search.Slots, "_extend", step)
    torch._dynamo.utils.counters.clear()
    trace, _ = trace_search(preset, monkeypatch)
    assert not torch._dynamo.utils.counters["graph_break"] and trace.graphs
    major, minor = torch.cuda.get_device_capability()
    assert {binary.capability for binary in trace.binaries} == {10 * major + minor}


@pytest.mark.parametrize("fault", ["number", "places", "copy"])
def test_a_step_that_waits_is_refused(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model_step = IncrementalModel.step

    def step(self: Any, *arguments: Any) -> torch.Tensor:
        logits = model_step(self, *arguments)
        match fault:
            case "number":
                float(logits.sum())
            case "places":
                logits.nonzero()
            case "copy":
                logits.cpu()
        return logits

    monkeypatch.setattr(IncrementalModel, "step", step)
    with pytest.raises(RefusedError, match=r"waits for numbers|copies"):
        trace_search("base", monkeypatch)
