"""The kernels of attention in blocks: their numbers in triton's interpreter, and that they compile, without a GPU."""

import pytest
import torch
from torch import Tensor

from mtx.model.attention import BlockLayout, reference_attention
from tests.interpreted import (
    interpreted,
    needs_triton,
    not_interpreted,
    run_interpreted,
    scalars_of_new_numpy,  # noqa: F401
)

pytestmark = needs_triton

SRC = [7, 1, 12, 3, 70, 1, 2, 9, 20, 4, 2, 130]  # within a block, over the border of two, and longer than two
TGT = [5, 2, 3, 14, 1, 65, 6, 2, 17, 8, 100, 2]
ONES = [1] * 66
CASES = {
    "self": (SRC, SRC, False), "causal": (TGT, TGT, True), "cross": (TGT, SRC, False), "ones": (ONES, ONES, True),
}  # fmt: skip


def rows(lengths: list[int], parts: int, size: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sum(lengths), parts, 2, size, generator=generator).requires_grad_()


@interpreted
@pytest.mark.parametrize("size", [8, 40])  # narrower than the hardware's products, and no power of two
@pytest.mark.parametrize("case", CASES)
def test_blocks_give_the_reference_forward_and_backward(case: str, size: int) -> None:
    queries, keys, causal = CASES[case]
    offsets = [torch.tensor([0, *lengths, 0]).cumsum(0).int() for lengths in (queries, keys)]
    layout = BlockLayout.of(*offsets, sum(queries), sum(keys), causal)
    if case == "cross":
        tensors = [rows(queries, 1, size, 1), rows(keys, 2, size, 2)]
        out = layout.attend_joint(*tensors)
        q, k, v = (x.detach().double().requires_grad_() for x in (tensors[0][:, 0], *tensors[1].unbind(1)))
    else:
        tensors = [rows(queries, 3, size, 1)]
        out = layout.attend_joint(tensors[0], None)
        q, k, v = (x.detach().double().requires_grad_() for x in tensors[0].unbind(1))
    sentences = zip(*(x.split(n) for x, n in ((q, queries), (k, keys), (v, keys))), strict=True)
    expected = torch.cat([reference_attention(*sentence, causal) for sentence in sentences])
    direction = rows(queries, 1, size, 3)[:, 0].detach()
    got = [out, *(g for grad in torch.autograd.grad((out * direction).sum(), tensors) for g in grad.unbind(1))]
    reference = [expected, *torch.autograd.grad((expected * direction).sum(), (q, k, v))]
    for a, b in zip(got, reference, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=0, atol=2e-5)
    q, k, v = (x.detach().float() for x in (q, k, v))
    separate = layout.attend_joint(q[:, None], torch.stack([k, v], 1))
    torch.testing.assert_close(separate, out.detach(), rtol=0, atol=0)


@not_interpreted
@pytest.mark.seconds
def test_the_numbers_in_the_interpreter() -> None:
    run_interpreted(__file__)


_TYPES = {"log_sums": "*fp32", "deltas": "*fp32", "ranges": "*i32", "scale": "fp32", "d_scale": "fp32"}
_SHARED_BYTES = {80: 163 << 10, 86: 99 << 10, 90: 227 << 10}  # that a block may have, by compute capability


@not_interpreted
@pytest.mark.parametrize(("size", "capability"), [(64, 80), (64, 90), (40, 86), (256, 86)])
@pytest.mark.parametrize("name", ["_forward", "_backward_of_queries", "_backward_of_keys"])
def test_the_kernels_compile_and_fit_the_shared_memory(name: str, size: int, capability: int) -> None:
    from mtx.model import block_kernels
    from scripts.traced.machine_code import compile_kernel

    kernel, constants = getattr(block_kernels, name), block_kernels._constants(size)
    names = [n for n in kernel.arg_names if n not in constants]
    types = {n: _TYPES.get(n, "i32" if n.startswith("num") or n.endswith("stride") else "*bf16") for n in names}
    compiled = compile_kernel(kernel, types, constants, capability)
    assert compiled.asm["cubin"]
    assert compiled.metadata.shared <= _SHARED_BYTES[capability]
