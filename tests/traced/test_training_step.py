"""On CUDA an update is one recorded graph: it never waits for the device, and it is compiled in one piece.

The presets have two layers here instead of six on each side. Layers are alike, so their kernels are the same.
"""

from collections import Counter
from typing import Any

import pytest
import torch

from mtx.formatting import round_up
from mtx.model import attention
from mtx.model.attention import BlockLayout
from mtx.model.transformer import Transformer
from mtx.training import micro_batch
from tests.traced import require_cuda_build

pytestmark = pytest.mark.extended

require_cuda_build()

from scripts.traced.traced_step import NUM_IDS, RefusedError, Trace, TrainingStep, traced  # noqa: E402

TWO_LAYERS = ["model.num_encoder_layers=2", "model.num_decoder_layers=2"]
TINY = ["model.num_encoder_layers=1", "model.num_decoder_layers=1", "model.d_model=64", "model.num_heads=4"]
NUM_NORMS = 2 * 2 + 2 * 3
NUM_ATTENTIONS = 2 + 2 * 2  # of the encoder, and of the decoder twice


def trace_two_updates(preset: str, compiled: bool, changes: list[str]) -> Trace:
    """Traces two updates; `kernels` are those that the host starts in the second."""
    with traced() as trace:
        step = TrainingStep(preset, compiled, changes=changes)
        step.update()
        gradients = [id(parameter.grad) for parameter in step.trainer.model.parameters()]
        trace.kernels.clear()
        step.update()
        assert gradients == [id(parameter.grad) for parameter in step.trainer.model.parameters()]
    return trace


@pytest.mark.parametrize("preset", ["base", "big"])
def test_an_update_replays_one_graph_and_never_waits(preset: str) -> None:
    trace = trace_two_updates(preset, False, TWO_LAYERS)
    assert (trace.num_recorded, trace.num_replayed, trace.num_reads) == (2, 3, 0), "the gradients, and an update"
    names = Counter(kernel.name for kernel in trace.recorded if kernel.kind == "attention")
    assert names == {f"torch_attn::_varlen_attn{part}": NUM_ATTENTIONS for part in ("", "_backward")}
    recorded = Counter(kernel.name for kernel in trace.recorded)
    assert recorded["_fused_adam_"] == 1 and recorded["_foreach_norm"] == 1
    on_host = Counter(kernel.name for kernel in trace.kernels)
    assert on_host == {"copy_": 1, "fill_": 2}, "a batch, the number of its tokens and the learning rate"


@pytest.mark.parametrize("preset", ["base", "big"])
def test_the_compiled_step_is_one_graph_in_machine_code(preset: str) -> None:
    torch._dynamo.utils.counters.clear()
    trace = trace_two_updates(preset, True, TWO_LAYERS)
    counters = torch._dynamo.utils.counters
    assert not counters["graph_break"] and counters["stats"]["unique_graphs"] == 1
    assert len(trace.graphs) == 2, "forward and backward"
    major, minor = torch.cuda.get_device_capability()
    assert {binary.capability for binary in trace.binaries} == {10 * major + minor}
    assert len(trace.binaries) >= 20 and min(binary.num_bytes for binary in trace.binaries) > 1000
    assert (trace.num_recorded, trace.num_replayed, trace.num_reads) == (2, 3, 0)
    sums = [kernel for kernel in trace.recorded if kernel.name == "sum of partial sums"]
    assert len(sums) == 2 * NUM_NORMS, "of the gradients of weights and biases"
    operations = [kernel for kernel in trace.recorded if kernel.kind == "operation"]
    indexed = [kernel.num_bytes for kernel in operations if kernel.name in ("index", "index_put_")]
    assert len(indexed) == 2 and max(indexed) < 1 << 20, "one logit of each position"
    assert sum(kernel.launches for kernel in operations) <= 60
    assert [kernel.name for kernel in operations].count("_softmax") == 1, "the loss takes one chunk"
    weights = [kernel for kernel in trace.recorded if "constant_pad_nd" in kernel.name]
    d_model = 512 if preset == "base" else 1024
    assert [kernel.num_bytes for kernel in weights] == [d_model * (4 * (NUM_IDS + 1) + 2 * round_up(NUM_IDS, 64))], (
        "one copy"
    )
    for part in "", "_backward":
        name = f"mtx.packed_attention{part}.default"
        nodes = [node for graph in trace.graphs for node in graph.graph.nodes if str(node.target) == name]
        assert len(nodes) == NUM_ATTENTIONS


@pytest.mark.parametrize("compiled", [False, True])
def test_two_passes_are_one_graph_too(compiled: bool) -> None:
    trace = trace_two_updates("base", compiled, [*TINY, "training.rdrop_alpha=5"])
    assert (trace.num_recorded, trace.num_replayed, trace.num_reads) == (2, 3, 0)


def read_a_number(x: torch.Tensor) -> torch.Tensor:
    return x.new_zeros(int(x.sum())).sum()  # a number that nothing needs would be dropped by the compiler


def branch_on_a_number(x: torch.Tensor) -> None:
    if x.sum() > 0:
        x.add(1)


def find_places(x: torch.Tensor) -> None:
    (x > 0).nonzero()


def choose_by_a_mask(x: torch.Tensor) -> None:
    x[x > 0].sum()


def copy_to_the_host(x: torch.Tensor) -> None:
    x.sum().cpu()


def copy_from_the_host(x: torch.Tensor) -> None:
    x.add(torch.zeros(x.shape[-1]).to(x.device))


def wait_for_the_device(x: torch.Tensor) -> None:
    torch.cuda.synchronize()


def break_the_graph(x: torch.Tensor) -> None:
    torch._dynamo.graph_break()


FAULTS = [read_a_number, branch_on_a_number, find_places, choose_by_a_mask, copy_to_the_host, copy_from_the_host]


def put_into_the_step(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_fault(compute: Any) -> Any:
        def run(*arguments: Any) -> torch.Tensor:
            hidden = compute(*arguments)
            out = fault(hidden.detach())
            return hidden if out is None else hidden + out

        return run

    monkeypatch.setattr(Transformer, "decode", with_fault(Transformer.decode))
    monkeypatch.setattr(micro_batch, "hidden_states", with_fault(micro_batch.hidden_states))


@pytest.mark.parametrize("fault", [*FAULTS, wait_for_the_device])
def test_a_step_that_waits_is_refused(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put_into_the_step(fault, monkeypatch)
    with pytest.raises((RefusedError, RuntimeError), match=r"waits for numbers|copies .* to|driver version"):
        trace_two_updates("base", False, TINY)


@pytest.mark.parametrize("fault", [read_a_number, branch_on_a_number, find_places, break_the_graph])
def test_a_compiled_step_that_breaks_is_refused(fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put_into_the_step(fault, monkeypatch)
    with pytest.raises((RefusedError, torch._dynamo.exc.TorchDynamoException)):
        trace_two_updates("base", True, TINY)


@pytest.mark.parametrize("fault", ["offsets of 64 bits", "queries in fp32", "offsets on the host", "head size of 12"])
def test_a_wrong_call_of_the_attention_kernel_is_refused(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.nn.attention import varlen

    kernel = varlen.varlen_attn

    def called_wrongly(q: Any, k: Any, v: Any, q_offsets: Any, k_offsets: Any, *lengths: Any, **options: Any) -> Any:
        match fault:
            case "offsets of 64 bits":
                k_offsets = k_offsets.long()
            case "queries in fp32":
                q = q.float()
            case "offsets on the host":
                q_offsets = torch.zeros(q_offsets.shape, dtype=torch.int32)
            case "head size of 12":
                q, k, v = (x[..., :12] for x in (q, k, v))
        return kernel(q, k, v, q_offsets, k_offsets, *lengths, **options)

    monkeypatch.setattr(varlen, "varlen_attn", called_wrongly)
    with pytest.raises(RefusedError, match="the kernel does not take"):
        trace_two_updates("base", False, TINY)


@pytest.mark.parametrize("fault", ["ranges of 64 bits", "queries in fp32", "heads apart", "ranges of other rows"])
def test_a_wrong_call_of_the_block_kernels_is_refused(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of = BlockLayout.of
    parts = attention.split_parts

    def parts_called_wrongly(*tensors: Any) -> Any:
        q, k, v = parts(*tensors)
        match fault:
            case "queries in fp32":
                q = q.float()
            case "heads apart":
                q = q.transpose(0, 1).contiguous().transpose(0, 1)
        return q, k, v

    def layout(*arguments: Any, **options: Any) -> BlockLayout:
        right = of(*arguments, **options)
        match fault:
            case "ranges of 64 bits":
                return BlockLayout(right.key_ranges.long(), right.query_ranges)
            case "ranges of other rows":
                return BlockLayout(right.key_ranges[:, 1:].contiguous(), right.query_ranges)
        return right

    monkeypatch.setattr(attention, "split_parts", parts_called_wrongly)
    monkeypatch.setattr(BlockLayout, "of", layout)
    with pytest.raises(RuntimeError, match="the kernel does not take"):
        trace_two_updates("base", True, TINY)


def test_a_wrong_call_of_fused_adam_is_refused() -> None:
    with traced():
        step = TrainingStep("base", False, changes=TINY)
        state = next(iter(step.trainer.optimizer.state.values()))
        state["exp_avg"] = state["exp_avg"][:1]
        with pytest.raises(RefusedError, match="exp_avgs: the kernel does not take"):
            step.update()
