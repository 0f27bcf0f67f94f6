"""On CUDA the varlen kernel and the blocks give the results of the padded kernel, forward and backward.

Tolerances: bf16 keeps 8 bits, so a result of size 1 is within 2^-8 = 0.004 of the exact one. Both kernels are compared
with fp32 of the same rounded inputs, at four times that, relative to the largest element for gradients.
"""

from typing import Any, cast

import pytest
import torch
from torch import Tensor

from mtx.data.packing import PackedBatch, to_device
from mtx.model.attention import BlockLayout, Kernel, make_layout
from mtx.model.transformer import Transformer
from mtx.training.loss import smoothed_loss
from tests.models import random_batch, tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]

HEADS, SIZE, TAIL, MAX_TOKENS = 4, 64, 40, 64
SRC = [17, 1, 40, 23, 64, 3, 3, 12, 30, 9]
TGT = [15, 2, 33, 30, 50, 1, 6, 14, 28, 11]
CASES = {"self": (SRC, SRC, False), "causal": (TGT, TGT, True), "cross": (TGT, SRC, False)}
TOLERANCE = 4 * 2**-8


def offsets_of(lengths: list[int]) -> Tensor:
    """Two dummies in the tail; unused entries equal N."""
    return torch.tensor([0, *lengths, TAIL // 2, TAIL // 2, 0, 0, 0]).cumsum(0).int()


def rows_of(lengths: list[int], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sum(lengths) + TAIL, HEADS, SIZE, generator=generator).bfloat16().cuda()


def run(kernel: str, case: str, dtype: torch.dtype) -> list[Tensor]:
    """Output and the gradients of q, k and v, of the real positions, in fp32. Dummies get no gradient from above."""
    queries, keys, causal = CASES[case]
    inputs = [rows_of(lengths, seed).to(dtype).requires_grad_() for seed, lengths in enumerate((queries, keys, keys))]
    device = torch.device("cuda")
    offsets = offsets_of(queries), offsets_of(keys)
    if kernel == "blocks":
        on_device = (tensor.to(device) for tensor in offsets)
        blocks = BlockLayout.of(*on_device, *(len(rows) for rows in inputs[:2]), causal)
        out = blocks.attend_joint(inputs[0][:, None], torch.stack(inputs[1:], 1))
    else:
        layout = make_layout(*offsets, len(queries), MAX_TOKENS, HEADS, causal, cast(Kernel, kernel), device)
        out = layout.attend(*inputs)
    direction = rows_of(queries, 9).to(dtype)
    direction[sum(queries) :] = 0
    grads = torch.autograd.grad((out * direction).sum(), inputs)
    assert all(x.isfinite().all() for x in (out, *grads)), "dummies too"
    assert all((grad[-TAIL:] == 0).all() for grad in grads)
    return [x[:-TAIL].float().detach() for x in (out, *grads)]


@pytest.mark.parametrize("kernel", ["blocks", "varlen", "padded"])
@pytest.mark.parametrize("case", CASES)
def test_bf16_attention_is_close_to_fp32_attention(case: str, kernel: str) -> None:
    got, expected = run(kernel, case, torch.bfloat16), run("padded", case, torch.float32)
    for name, a, b in zip(("out", "dq", "dk", "dv"), got, expected, strict=True):
        limit = TOLERANCE * max(1.0, float(b.abs().max()))
        assert float((a - b).abs().max()) <= limit, name


@pytest.mark.parametrize("case", CASES)
def test_the_padded_kernel_gives_the_same_on_cuda_and_cpu(case: str) -> None:
    queries, keys, causal = CASES[case]
    inputs = [rows_of(lengths, seed).float() for seed, lengths in enumerate((queries, keys, keys))]
    outputs = []
    for device in ("cuda", "cpu"):
        offsets = offsets_of(queries), offsets_of(keys)
        layout = make_layout(*offsets, len(queries), MAX_TOKENS, HEADS, causal, "padded", torch.device(device))
        outputs.append(layout.attend(*(x.double().to(device) for x in inputs)).cpu())
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-12)


def loss_and_gradients(model: Transformer, batch: PackedBatch, kernel: Kernel, bf16: bool) -> dict[str, Tensor]:
    model.kernel = kernel
    model.zero_grad()
    with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
        hidden = model.decode(batch, model.encode(batch))
        sums = smoothed_loss(hidden, model.output_weight, None, batch.tgt_out_ids, 0.1, 1 / batch.num_tgt_tokens)
    sums.loss.backward()  # type: ignore[no-untyped-call]
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": sums.loss.detach(), **gradients}


@pytest.mark.parametrize("changes", [{}, {"norm": "pre"}])
def test_the_whole_model_is_close_between_kernels(changes: dict[str, Any]) -> None:
    model = tiny_model(100, dtype=torch.float32, d_model=128, d_ff=256, num_heads=4, **changes).cuda().train()
    model.prepare_positions(MAX_TOKENS)
    batch = to_device(random_batch(SRC, TGT, num_ids=100, tail=TAIL), torch.device("cuda"))
    exact = loss_and_gradients(model, batch, "padded", bf16=False)
    for kernel in ("varlen", "padded"):
        got = loss_and_gradients(model, batch, kernel, bf16=True)  # type: ignore[arg-type]
        assert got.keys() == exact.keys()
        assert float(got["loss"]) == pytest.approx(float(exact["loss"]), rel=0.01)
        for name, gradient in got.items():
            assert gradient.isfinite().all(), name
        flat = [torch.cat([g.flatten() for n, g in values.items() if n != "loss"]) for values in (got, exact)]
        distance = (flat[0] - flat[1]).norm() / flat[1].norm()
        assert float(distance) < 0.05, kernel
