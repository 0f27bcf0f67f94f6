"""On CUDA a step of the search is one recorded graph, and the host waits for the device only where it makes room."""

from typing import Any

import pytest
import torch

from mtx.config import settings
from mtx.decoding import beam_search
from mtx.decoding.beam_search import Request, RequestQueue, search
from mtx.decoding.options import SearchOptions
from mtx.model.inference import IncrementalModel
from mtx.model.transformer import Transformer
from tests.traced import require_cuda_build

pytestmark = pytest.mark.extended

require_cuda_build()

from scripts.traced.traced_step import NUM_IDS, RefusedError, Trace, traced  # noqa: E402

NUM_SLOTS, BEAM_SIZE, NUM_STEPS = 8, 4, 8


def end_after(num_steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the next search end after some steps, when the host is told that all sentences are done."""
    polls = iter(range(1 << 20))

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


def small_config(preset: str) -> Any:
    changes = ["model.num_encoder_layers=2", "model.num_decoder_layers=2"]
    return settings.resolve(None, [f"model.preset={preset}", *changes]).config.model


def trace_search(preset: str, monkeypatch: pytest.MonkeyPatch) -> Trace:
    """Traces a search."""
    end_after(NUM_STEPS, monkeypatch)
    config = small_config(preset)
    with traced(number=0) as trace, torch.inference_mode():
        with torch.device("cuda"):
            model = Transformer(config, NUM_IDS).eval()
        engine = IncrementalModel(model, torch.bfloat16)
        requests = [Request(number, [5] * (20 - number), 60, []) for number in range(NUM_SLOTS)]
        found = search([engine], RequestQueue(requests, NUM_SLOTS), SearchOptions(BEAM_SIZE, 0.6))
        assert len(found) == NUM_SLOTS
    return trace


@pytest.mark.parametrize("preset", ["base", "big"])
def test_steps_replay_one_graph_and_never_wait(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = trace_search(preset, monkeypatch)
    assert trace.num_recorded == 1 and trace.num_replayed >= NUM_STEPS - 2
    assert trace.num_reads <= 1, "the cache makes room once, before the first step"
    products = [kernel for kernel in trace.recorded if kernel.kind == "product"]
    assert len(products) == 2 * 10 + 1, "six of each layer with weights, four of attention, and the output layer"


def test_the_third_search_of_a_shape_records_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """So first light reports the rate of the third one."""
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1, 1))
    kept = dict[Any, beam_search.Slots]()
    recorded = [0]
    with traced(number=0) as trace, torch.inference_mode():
        with torch.device("cuda"):
            engine = IncrementalModel(Transformer(small_config("base"), NUM_IDS).eval(), torch.bfloat16)
        for _ in range(3):
            end_after(100, monkeypatch)
            requests = RequestQueue([Request(number, [5] * 20, 120, []) for number in range(64)], 64)
            search([engine], requests, SearchOptions(BEAM_SIZE, 0.6), kept)
            recorded.append(trace.num_recorded)
    assert recorded[1] > 0 and recorded[2] == recorded[3]


@pytest.mark.parametrize("preset", ["base", "big"])
def test_the_step_compiles_as_one_graph(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step = torch.compile(beam_search.Slots._extend, fullgraph=True, dynamic=False)
    monkeypatch.setattr(beam_search.Slots, "_extend", step)
    torch._dynamo.utils.counters.clear()
    trace = trace_search(preset, monkeypatch)
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
