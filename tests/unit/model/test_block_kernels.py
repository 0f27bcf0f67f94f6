"""The kernels of attention in blocks: their numbers in triton's interpreter, and that they compile, both without a GPU.

The interpreter is chosen when triton is imported, so a process of its own runs the tests of numbers.
"""

import importlib.util
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from mtx.model.attention import BlockLayout, reference_attention

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton, without a GPU")
interpreted = pytest.mark.skipif(not IS_INTERPRETED, reason="another process runs this")

SRC = [7, 1, 12, 3, 70, 1, 2, 9, 20, 4, 2, 130]  # within a block, over the border of two, and longer than two
TGT = [5, 2, 3, 14, 1, 65, 6, 2, 17, 8, 100, 2]
ONES = [1] * 66
CASES = {
    "self": (SRC, SRC, False), "causal": (TGT, TGT, True), "cross": (TGT, SRC, False), "ones": (ONES, ONES, True),
}  # fmt: skip


@pytest.fixture(autouse=True)
def scalars_of_new_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy from 2.4 on makes no int of an array with one element, which triton 3.6 and 3.7 ask for."""
    if not IS_INTERPRETED:
        return
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_index_too(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch_index_too)


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


@pytest.mark.skipif(IS_INTERPRETED, reason="is what runs this")
@pytest.mark.seconds
def test_the_numbers_in_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-rf", __file__, "-k", "reference"]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert f"{2 * len(CASES)} passed" in done.stdout


_TYPES = {"log_sums": "*fp32", "deltas": "*fp32", "ranges": "*i32", "scale": "fp32", "d_scale": "fp32"}
_SHARED_BYTES = {80: 163 << 10, 86: 99 << 10, 90: 227 << 10}  # that a block may have, by compute capability


@pytest.mark.skipif(IS_INTERPRETED, reason="the interpreter compiles nothing")
@pytest.mark.parametrize(("size", "capability"), [(64, 80), (64, 90), (40, 86), (256, 86)])
@pytest.mark.parametrize("name", ["_forward", "_backward_of_queries", "_backward_of_keys"])
def test_the_kernels_compile_and_fit_the_shared_memory(name: str, size: int, capability: int) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from mtx.model import block_kernels

    kernel, constants = getattr(block_kernels, name), block_kernels._constants(size)
    options = {option: constants.pop(option) for option in ("num_warps", "num_stages")}
    names = kernel.arg_names
    types = {n: _TYPES.get(n, "i32" if n.startswith("num") or n.endswith("stride") else "*bf16") for n in names}
    source = ASTSource(
        fn=kernel, signature={n: "constexpr" if n in constants else types[n] for n in names},
        constexprs={(names.index(n),): value for n, value in constants.items()},
    )  # fmt: skip
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert compiled.asm["cubin"]
    assert compiled.metadata.shared <= _SHARED_BYTES[capability]
