"""The candidates of first light in the compiled step, traced: it stays one graph, and what they replace is gone."""

import pytest
import torch

from tests.traced import require_cuda_build

pytestmark = pytest.mark.extended

require_cuda_build()

from scripts.first_light.candidates.step import replaced  # noqa: E402
from tests.traced.test_training_step import TINY, TWO_LAYERS, trace_two_updates  # noqa: E402

NUM_SUBLAYERS = 2 * 2 + 2 * 3
D_MODEL = 512


def test_a_replaced_step_is_one_graph_without_what_the_candidates_replace() -> None:
    torch._dynamo.utils.counters.clear()
    with replaced(["norm", "loss"]):
        trace = trace_two_updates("base", True, TWO_LAYERS)
    counters = torch._dynamo.utils.counters
    assert not counters["graph_break"] and counters["stats"]["unique_graphs"] == 1
    assert (trace.num_recorded, trace.num_replayed, trace.num_reads) == (2, 3, 0)
    forward, backward = trace.graphs
    nodes = [node for graph in trace.graphs for node in graph.graph.nodes]
    called = [str(node.target) for node in nodes]
    assert called.count("candidates.draw_words.default") == 1
    for name in ("add_norm", "add_norm_backward"):
        assert called.count(f"candidates.{name}.default") == NUM_SUBLAYERS
    assert "candidates.loss_chunk.default" in called and "mtx.loss_chunk.default" not in called
    assert not [kernel.name for kernel in trace.recorded if "native_layer_norm" in kernel.name]
    saved = [node.meta["val"] for node in forward.graph.find_nodes(op="output")[0].args[0] if hasattr(node, "meta")]
    masks = [value for value in saved if isinstance(value, torch.Tensor) and value.dtype == torch.bool]
    assert saved and all(mask.numel() < 1 << 20 for mask in masks)
    sums = backward.graph.find_nodes(op="call_function", target=torch.ops.aten.sum.dim_IntList)
    shapes = [node.args[0].meta["val"].shape for node in sums if node.args[1] == [0]]
    of_hidden = [shape for shape in shapes if shape[1] == D_MODEL and shape[0] < 30_000]
    assert len(of_hidden) == 2, "the biases of the queries of cross-attention"


def test_a_compiled_step_of_another_model_is_refused() -> None:
    with (
        pytest.raises(Exception, match="the candidate norm needs architecture=transformer, norm=post"),
        replaced(["norm"]),
    ):
        trace_two_updates("base", True, [*TINY, "model.norm=pre"])
