"""The chunked loss is torch's label-smoothed cross entropy, with its gradients."""

import contextlib
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd  # here: it reads functions of torch that a test replaces
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from mtx.decoding import torch_engine as scoring
from mtx.decoding.torch_engine import target_nll
from mtx.training import loss
from mtx.training.loss import smoothed_loss

N, D, V = 23, 6, 11
PAD = V


def inputs(dtype: torch.dtype, bias: bool) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    torch.manual_seed(1)
    hidden, weight = torch.randn(N, D, dtype=dtype), torch.randn(V, D, dtype=dtype)
    targets = torch.randint(0, V, (N,))
    targets[[3, 4, 20, 21, 22]] = PAD
    row = torch.randn(V, dtype=dtype).requires_grad_() if bias else None
    return hidden.requires_grad_(), weight.requires_grad_(), row, targets


def reference(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float) -> Tensor:
    return F.cross_entropy(
        F.linear(hidden, weight, bias), targets, ignore_index=PAD, label_smoothing=smoothing, reduction="sum"
    )


def gradients(loss: Tensor, *leaves: Tensor | None) -> list[Tensor]:
    return list(torch.autograd.grad(loss, [leaf for leaf in leaves if leaf is not None]))


@pytest.mark.parametrize("rows_a_chunk", [1, 5, 23, 1000])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype, bias", [(torch.float64, True), (torch.float32, False), (torch.float32, True)])
def test_loss_and_gradients_are_those_of_torch(
    monkeypatch: pytest.MonkeyPatch, rows_a_chunk: int, smoothing: float, dtype: torch.dtype, bias: bool
) -> None:
    monkeypatch.setattr(loss, "_CPU_CHUNK", rows_a_chunk)
    *leaves, targets = inputs(dtype, bias)
    got = smoothed_loss(leaves[0], leaves[1], leaves[2], targets, smoothing)  # type: ignore[arg-type]
    expected = reference(leaves[0], leaves[1], leaves[2], targets, smoothing)  # type: ignore[arg-type]
    close: Any = {"rtol": 1e-5, "atol": 1e-5, "check_dtype": False}
    torch.testing.assert_close(got.loss, expected, **close)
    torch.testing.assert_close(got.nll, reference(leaves[0], leaves[1], leaves[2], targets, 0.0), **close)  # type: ignore[arg-type]
    for a, b in zip(gradients(got.loss, *leaves), gradients(expected, *leaves), strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_a_table_by_hand() -> None:
    """V = 4, e = 0.1. Position 1: probabilities 1/2, 1/4, 1/8, 1/8, target 0. Position 2: uniform, target 3. Pad.

    nll 1: ln 2;   mean of -log p: (1 + 2 + 3 + 3) ln 2 / 4 = 2.25 ln 2;   loss: 0.9 ln 2 + 0.1 * 2.25 ln 2 = 1.125 ln 2
    nll 2: ln 4;   mean: ln 4;                                             loss: ln 4 = 2 ln 2
    """
    ln2 = math.log(2)
    weight = torch.tensor([[3.0], [2.0], [1.0], [1.0]]) * ln2
    hidden = torch.tensor([[1.0], [0.0], [7.0]], requires_grad=True)
    sums = smoothed_loss(hidden, weight, None, torch.tensor([0, 3, 4]), 0.1, scale=0.5)
    assert float(sums.nll.detach()) == pytest.approx(3 * ln2)
    assert float(sums.loss.detach()) == pytest.approx(0.5 * 3.125 * ln2)
    sums.loss.backward()  # type: ignore[no-untyped-call]
    # d logits of position 1: p - 0.025 - 0.9 at the target: -0.425, 0.225, 0.1, 0.1; times the weights, times the scale
    first = 0.5 * ln2 * (-0.425 * 3 + 0.225 * 2 + 0.1 + 0.1)
    # of position 2: 0.225, 0.225, 0.225, -0.675
    second = 0.5 * ln2 * (0.225 * (3 + 2 + 1) - 0.675)
    assert hidden.grad is not None
    torch.testing.assert_close(hidden.grad, torch.tensor([[first], [second], [0.0]]))


def test_scaled_micro_batches_add_up_to_the_mean_of_the_step() -> None:
    hidden, weight, _, targets = inputs(torch.float64, bias=False)
    count = int((targets != PAD).sum())
    whole = reference(hidden, weight, None, targets, 0.1) / count
    parts = [
        smoothed_loss(h, weight, None, y, 0.1, 1 / count).loss
        for h, y in zip(hidden.split([9, 14]), targets.split([9, 14]), strict=True)
    ]
    torch.testing.assert_close(parts[0] + parts[1], whole, rtol=1e-6, atol=0, check_dtype=False)
    for a, b in zip(gradients(parts[0] + parts[1], hidden, weight), gradients(whole, hidden, weight), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_the_gradient_follows_what_comes_after_the_loss() -> None:
    hidden, weight, _, targets = inputs(torch.float64, bias=False)
    got = gradients(smoothed_loss(hidden, weight, None, targets, 0.1).loss * 3, hidden)
    torch.testing.assert_close(
        got, gradients(reference(hidden, weight, None, targets, 0.1) * 3, hidden), rtol=1e-5, atol=1e-6
    )


def test_only_pad_is_no_loss_and_no_gradient() -> None:
    hidden, weight, bias, _ = inputs(torch.float32, bias=True)
    sums = smoothed_loss(hidden, weight, bias, torch.full((N,), PAD), 0.1)
    assert (float(sums.loss.detach()), float(sums.nll.detach())) == (0.0, 0.0)
    for grad in gradients(sums.loss, hidden, weight, bias):
        assert (grad == 0).all()


@pytest.mark.parametrize("bias", [True, False])
def test_the_unsmoothed_loss_is_the_nll(monkeypatch: pytest.MonkeyPatch, bias: bool) -> None:
    hidden, weight, row, targets = inputs(torch.float64, bias)
    monkeypatch.setattr(scoring, "_MAX_LOGITS", 5 * len(weight))
    nll = smoothed_loss(hidden, weight, row, targets, 0.1).nll
    torch.testing.assert_close(target_nll(hidden, targets, weight, row).sum(), nll, rtol=1e-6, atol=0)


def test_bf16_keeps_the_loss_in_fp32_and_gradients_in_the_parameters_type() -> None:
    hidden, weight, bias, targets = inputs(torch.float32, bias=True)
    assert bias is not None
    with torch.autocast("cpu", torch.bfloat16):
        sums = smoothed_loss(hidden.bfloat16(), weight, bias, targets, 0.1)
    expected = reference(hidden, weight, bias, targets, 0.1)
    assert sums.loss.dtype == torch.float32
    torch.testing.assert_close(sums.loss, expected, rtol=0.02, atol=0)
    for a, b in zip(gradients(sums.loss, weight, bias), gradients(expected, weight, bias), strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=0, atol=0.03 * float(b.abs().max()))


class LargestTensor(TorchDispatchMode):
    """Notes the size of the largest tensor that an operation makes, in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        made = [
            x for x in (out if isinstance(out, tuple | list) else [out]) if isinstance(x, Tensor) and not x._is_view()
        ]
        self.num_bytes = max([self.num_bytes, *(tensor.nbytes for tensor in made)])
        return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_elsewhere_logits_are_bounded_in_bytes(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen on a card of 6 GB: a validation's logits of a whole batch were 512 MB in fp32."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())  # `meta` has none
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _: False)
    hidden, targets = torch.empty(25_000, 8, dtype=dtype, device="meta"), torch.empty(25_000, device="meta").long()
    weight = torch.empty(37_000, 8, dtype=dtype, device="meta").requires_grad_()
    with LargestTensor() as seen:
        smoothed_loss(hidden, weight, None, targets, 0.1)
    step = 64 * 37_056 * dtype.itemsize  # products of such numbers of rows and outputs are fast
    assert (1 << 28) - step < seen.num_bytes <= 1 << 28 and seen.num_bytes % step == 0
    with torch.no_grad(), LargestTensor() as seen, contextlib.suppress(NotImplementedError):  # `meta` has no numbers
        target_nll(hidden, targets, weight, None)
    assert 4 * (1 << 21) - 200_000 < seen.num_bytes <= 4 * (1 << 21)


@pytest.mark.extended
@pytest.mark.parametrize("bias", [False, True])
def test_a_compiled_loss_holds_the_logits_of_one_chunk_only(monkeypatch: pytest.MonkeyPatch, bias: bool) -> None:
    """The compiler sees no logits, which it would compute for all chunks before it uses any; the numbers are equal."""
    monkeypatch.setattr(loss, "_CPU_CHUNK", 5)
    *leaves, targets = inputs(torch.float32, bias)
    graphs: list[torch.fx.GraphModule] = []

    def compiler(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph

    compiled = torch.compile(smoothed_loss, backend=aot_autograd(fw_compiler=compiler), fullgraph=True)
    results = [function(*leaves, targets, 0.1, torch.tensor(0.5)) for function in (smoothed_loss, compiled)]
    for a, b in zip(*([sums.nll, *gradients(sums.loss, *leaves)] for sums in results), strict=True):
        torch.testing.assert_close(a, b)
    values = [node.meta.get("val") for graph in graphs for node in graph.graph.nodes]
    assert not [x.shape for x in values if isinstance(x, Tensor) and x.dim() == 2 and x.shape[1] == 64]


@pytest.mark.parametrize(
    ("gigabytes", "num_rows", "num_chunks"),
    [(6, 25_216, 8), (24, 25_216, 8), (40, 25_216, 3), (79, 25_216, 1), (79, 2 * 25_216, 2), (6, 100, 1), (6, 0, 0)],
)
def test_on_a_gpu_chunks_are_equal_and_few(
    gigabytes: int, num_rows: int, num_chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = gigabytes << 30
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=memory))
    with FakeTensorMode():
        weight = torch.empty(37_056, 8, dtype=torch.bfloat16, device="cuda")
    rows = loss._rows_at_once(weight, num_rows)
    assert rows % 64 == 0 and rows * 37_056 * 2 <= max(1 << 28, (memory - (16 << 30)) // 32)
    assert len(range(0, num_rows, max(1, rows))) == num_chunks
    assert num_chunks * rows < num_rows + 64 * max(1, num_chunks), "the last chunk is as long as the others"


def two_passes(dtype: torch.dtype, bias: bool) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    hidden, *others = inputs(dtype, bias)
    return (hidden.detach() + 0.3 * torch.randn(2, N, D, dtype=dtype)).requires_grad_(), *others


@pytest.mark.parametrize("rows_a_chunk", [1, 10, 1000])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rdrop_alpha", [0.0, 1e-300, 3.0])
@pytest.mark.parametrize("dtype, bias", [(torch.float64, True), (torch.float32, False)])
def test_two_passes_have_their_mean_loss_and_the_divergence_between_them(
    monkeypatch: pytest.MonkeyPatch, rows_a_chunk: int, smoothing: float, rdrop_alpha: float, dtype: torch.dtype,
    bias: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(loss, "_CPU_CHUNK", rows_a_chunk)
    *leaves, targets = two_passes(dtype, bias)
    hidden, weight, row = leaves
    got = smoothed_loss(hidden, weight, row, targets, smoothing, 0.5, rdrop_alpha)  # type: ignore[arg-type]
    means = [reference(h, weight, row, targets, smoothing) for h in hidden]  # type: ignore[arg-type, union-attr]
    logs = [F.linear(h, weight, row)[targets != PAD].log_softmax(-1) for h in hidden]  # type: ignore[arg-type, union-attr]
    both = sum(F.kl_div(a, b, reduction="sum", log_target=True) for a, b in (logs, logs[::-1]))
    expected = 0.5 * (sum(means) / 2 + rdrop_alpha / 4 * both)
    close: Any = {"rtol": 1e-5, "atol": 1e-5, "check_dtype": False}
    torch.testing.assert_close(got.loss, expected, **close)
    nlls = [reference(h, weight, row, targets, 0.0) for h in hidden]  # type: ignore[arg-type, union-attr]
    torch.testing.assert_close(got.nll, sum(nlls) / 2, **close)
    for a, b in zip(gradients(got.loss, *leaves), gradients(expected, *leaves), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_a_chunk_of_a_large_vocabulary_has_fewer_positions() -> None:
    weight = torch.empty(1 << 17, 1, device="cpu")
    assert loss._rows_at_once(weight, 1000) * len(weight) == 1 << 24 and loss._rows_at_once(weight[:1000], 1000) == 512


def test_two_passes_in_bf16_are_near_those_in_fp32() -> None:
    """2^-8 is the precision of bf16; the largest gradients are sums of few terms."""
    hidden, weight, _, targets = two_passes(torch.float32, False)
    exact = smoothed_loss(hidden, weight, None, targets, 0.1, rdrop_alpha=5.0)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = smoothed_loss(hidden, weight, None, targets, 0.1, rdrop_alpha=5.0)
    assert float(rounded.loss) == pytest.approx(float(exact.loss), rel=0.02)
    for a, b in zip(gradients(rounded.loss, hidden, weight), gradients(exact.loss, hidden, weight), strict=True):
        assert float((a - b).norm() / b.norm()) < 0.03


def test_two_equal_passes_are_one() -> None:
    hidden, weight, bias, targets = inputs(torch.float64, bias=True)
    one = smoothed_loss(hidden, weight, bias, targets, 0.1)
    two = smoothed_loss(torch.stack([hidden, hidden]), weight, bias, targets, 0.1, rdrop_alpha=5.0)
    torch.testing.assert_close(two.loss, one.loss)
    for a, b in zip(gradients(two.loss, hidden, weight), gradients(one.loss, hidden, weight), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
