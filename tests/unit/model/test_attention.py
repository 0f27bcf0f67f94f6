"""Attention over a packed batch equals the reference for each sentence, forward and backward."""

import math

import pytest
import torch
from torch import Tensor, nn

from mtx.config.schema import ModelConfig
from mtx.model.attention import Layout, TileLayout, make_layout, reference_attention
from mtx.model.device import attention_kernel
from mtx.model.transformer import MultiHeadAttention

HEADS, SIZE = 3, 5
SRC = [7, 1, 12, 3, 3, 1, 2, 9, 20, 4, 2, 1, 1, 2, 1, 1, 3]  # short and long: several tiles
TGT = [5, 2, 3, 14, 1, 1, 6, 2, 17, 8, 1, 2, 1, 3, 1, 2, 1]
CASES = {"self": (SRC, SRC, False), "causal": (TGT, TGT, True), "cross": (TGT, SRC, False)}


def offsets_of(lengths: list[int], tail: int) -> Tensor:
    """Offsets as `pack` makes them, the tail in two dummies; unused entries equal N."""
    sizes = [*lengths, *([tail // 2, tail - tail // 2] if tail else []), 0, 0]
    return torch.tensor([0, *sizes]).cumsum(0).int()


def layout_of(queries: list[int], keys: list[int], causal: bool, tail: int = 0, heads: int = HEADS) -> Layout:
    offsets = offsets_of(queries, tail), offsets_of(keys, tail)
    return make_layout(*offsets, len(queries), 32, heads, causal, "padded", torch.device("cpu"))


def random_rows(lengths: list[int], tail: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(sum(lengths) + tail, HEADS, SIZE, generator=generator, dtype=torch.float64)
    return rows.requires_grad_()


def sentence_by_sentence(q: Tensor, k: Tensor, v: Tensor, queries: list[int], keys: list[int], causal: bool) -> Tensor:
    """The reference in a loop over sentences; the rows of dummies are zero."""
    outputs = [
        reference_attention(*parts, causal)
        for parts in zip(*(x[: sum(n)].split(n) for x, n in ((q, queries), (k, keys), (v, keys))), strict=True)
    ]
    return torch.cat([*outputs, torch.zeros_like(q[sum(queries) :])])


@pytest.mark.parametrize("causal", [False, True])
def test_the_reference_is_the_attention_of_torch(causal: bool) -> None:
    q, k, v = (random_rows([6], 0, seed) for seed in (1, 2, 3))
    by_head = (x.transpose(0, 1) for x in (q, k, v))
    expected = nn.functional.scaled_dot_product_attention(*by_head, is_causal=causal).transpose(0, 1)
    torch.testing.assert_close(reference_attention(q, k, v, causal), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("tail", [0, 7])
@pytest.mark.parametrize("case", CASES)
def test_packed_attention_is_the_reference_forward_and_backward(case: str, tail: int) -> None:
    queries, keys, causal = CASES[case]
    inputs = random_rows(queries, tail, 1), random_rows(keys, tail, 2), random_rows(keys, tail, 3)
    layout = layout_of(queries, keys, causal, tail)
    assert isinstance(layout, TileLayout) and sum(len(tiles.mask) for tiles in layout.tiles) > 1
    got, expected = layout.attend(*inputs), sentence_by_sentence(*inputs, queries, keys, causal)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    direction = torch.randn(got.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    got_grads = torch.autograd.grad((got * direction).sum(), inputs)
    expected_grads = torch.autograd.grad((expected * direction).sum(), inputs)
    for got_grad, expected_grad in zip(got_grads, expected_grads, strict=True):
        torch.testing.assert_close(got_grad, expected_grad, rtol=0, atol=1e-12)


def test_rows_of_dummies_are_zero_and_get_no_gradient() -> None:
    queries, keys, _ = CASES["cross"]
    inputs = random_rows(queries, 7, 1), random_rows(keys, 7, 2), random_rows(keys, 7, 3)
    with torch.no_grad():
        for rows in inputs:
            rows[-7:] = math.nan  # NaN spreads, so it shows if anything of a dummy reaches a sentence
    out = layout_of(queries, keys, False, 7).attend(*inputs)
    assert (out[-7:] == 0).all()
    assert out.isfinite().all()
    for grad in torch.autograd.grad(out.sum(), inputs):
        assert (grad[-7:] == 0).all()
        assert grad.isfinite().all()


def test_a_micro_batch_without_sentences_attends_to_nothing() -> None:
    rows = random_rows([], 6, 1)
    out = layout_of([], [], True, 6).attend(rows, rows, rows)
    assert (out == 0).all()
    (grad,) = torch.autograd.grad(out.sum(), rows)
    assert (grad == 0).all()


@pytest.mark.parametrize("case", CASES)
def test_the_written_out_gradient_passes_gradcheck(case: str) -> None:
    _, _, causal = CASES[case]
    queries, keys = ([2, 3, 1], [2, 3, 1]) if case != "cross" else ([2, 3, 1], [4, 1, 2])
    inputs = random_rows(queries, 2, 1), random_rows(keys, 2, 2), random_rows(keys, 2, 3)
    layout = layout_of(queries, keys, causal, 2)
    assert torch.autograd.gradcheck(layout.attend, inputs, fast_mode=True)


def test_multi_head_attention_equals_that_of_torch_with_copied_weights() -> None:
    torch.manual_seed(1)
    ours = MultiHeadAttention(d_model=12, num_heads=3).double()
    theirs = nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64)
    projections = (ours.query, ours.key, ours.value)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([p.weight for p in projections]))
        theirs.in_proj_bias.copy_(torch.cat([p.bias for p in projections]))
        theirs.out_proj.weight.copy_(ours.output.weight)
        theirs.out_proj.bias.copy_(ours.output.bias)
    queries, keys = [3, 1, 6], [2, 5, 4]
    x, memory = (torch.randn(sum(lengths), 12, dtype=torch.float64) for lengths in (queries, keys))
    got = ours(x, memory, layout_of(queries, keys, False)).split(queries)
    for sentence, q, m in zip(got, x.split(queries), memory.split(keys), strict=True):
        expected, _ = theirs(q[None], m[None], m[None], need_weights=False)
        torch.testing.assert_close(sentence, expected[0], rtol=0, atol=1e-12)


def test_bf16_equals_fp64_within_its_precision_forward_and_backward() -> None:
    queries, keys, _ = CASES["cross"]
    exact = [random_rows(lengths, 7, seed) for seed, lengths in enumerate((queries, keys, keys))]
    layout = layout_of(queries, keys, False, 7)
    rounded = [rows.detach().bfloat16().requires_grad_() for rows in exact]
    with torch.autocast("cpu", torch.bfloat16):
        got = layout.attend(*rounded)
    got.sum().backward()
    expected = layout.attend(*exact)
    expected.sum().backward()
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=0.05)
    for a, b in zip(rounded, exact, strict=True):
        assert a.grad is not None and b.grad is not None
        torch.testing.assert_close(a.grad.double(), b.grad, rtol=0, atol=0.05 * float(b.grad.abs().max()))


def test_deterministic_runs_use_the_padded_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    cuda = torch.device("cuda")
    assert attention_kernel(ModelConfig.model_validate({"preset": "base"}), cuda, "bf16") == "varlen"
