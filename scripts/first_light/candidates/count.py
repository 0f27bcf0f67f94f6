"""Counts what a call of each candidate costs, without a GPU: bytes, registers, spills, instructions and barriers.

    python -m scripts.traced.no_gpu -m scripts.first_light.candidates.count

The kernels are compiled for compute capability 9.0 and disassembled, and so are those that torch's compiler generates
today for residual sum, dropout and LayerNorm.
"""

import re
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from scripts.first_light.candidates import loss, norm
from scripts.first_light.candidates.cases import EPS, PROBABILITY, cases
from scripts.traced import machine_code
from scripts.traced.machine_code import Code

NUM_ROWS = 25_088
NUM_IDS = 37_000
_TYPES = {  # of arguments; the others are bf16
    "*fp32": "y_bias weight bias means rstds sums", "*i32": "words threshold", "*i64": "seed targets",
    "i32": "num_rows num_words num_outputs num_columns num_targets", "fp32": "eps keep",
}  # fmt: skip
_KINDS = {name: kind for kind, names in _TYPES.items() for name in names.split()}


def kernels(width: int) -> dict[str, tuple[Any, dict[str, int], int]]:
    """Returns the kernels by the names of their cases, with their constants and the elements that a pass handles."""
    sizes = norm.constants(width)
    softmax = {"BLOCK": loss.BLOCK, "num_warps": loss.NUM_WARPS}
    return {
        "dropout": (norm.draw, {"WORDS": norm.WORDS_AT_ONCE, "num_warps": 4}, 32 * norm.WORDS_AT_ONCE),
        "norm forward": (norm.forward, sizes, width),
        "norm backward": (norm.backward, sizes, width),
        "softmax": (loss.softmax_minus_target, softmax, loss.BLOCK),
    }


def compile_kernel(kernel: Any, constants: dict[str, int], capability: int = 90) -> Any:
    """Compiles a kernel of the candidates."""
    types = {name: _KINDS.get(name, "*bf16") for name in kernel.arg_names if name not in constants}
    return machine_code.compile_kernel(kernel, types, constants, capability)


def generated(width: int) -> Iterator[tuple[str, int, Code, int]]:
    """Yields the kernels that torch's compiler makes for the same job: name, bytes, code, elements of a pass."""
    from scripts.traced.traced_step import traced  # imported here: it needs a GPU, or one that is pretended

    def add_norm(x: Tensor, y: Tensor, y_bias: Tensor, weight: Tensor, bias: Tensor, probability: Tensor) -> Tensor:
        y = y + y_bias.bfloat16()
        dropped = torch.where(torch.rand(y.shape, device=y.device) < probability, 0, y / (1 - probability))
        return F.layer_norm((x + dropped).float(), (width,), weight, bias, EPS).bfloat16()

    compiled = []
    original = triton.compile

    def compile_and_keep(source: Any, *arguments: Any, **options: Any) -> Any:
        compiled.append((source, original(source, *arguments, **options)))
        return compiled[-1][1]

    with traced() as trace, torch.device("cuda"), mock.patch.object(triton, "compile", compile_and_keep):
        x, y = (torch.randn(NUM_ROWS, width, dtype=torch.bfloat16).requires_grad_() for _ in range(2))
        vectors = (torch.randn(width).requires_grad_() for _ in range(3))
        out = torch.compile(add_norm, fullgraph=True, dynamic=False)(x, y, *vectors, torch.tensor(PROBABILITY))
        out.backward(torch.randn_like(out))
    counted = {kernel.name: kernel for kernel in trace.kernels if kernel.kind == "generated"}
    for source, kernel in compiled:
        name = re.sub(r"triton_[a-z]+_fused_|_[0-9]+$", "", source.fn.__name__)
        if "layer_norm" in name:
            rows = source.constants[(source.fn.arg_names.index("XBLOCK"),)]
            yield f"generated, {counted[name].part}", counted[name].num_bytes, Code.of(kernel), rows * width


def main() -> None:
    columns = "kernel", "d_model", "MB a call", "registers", "spilled bytes", "shared bytes", "instructions", "barriers"
    print(f"| {' | '.join(columns)} |")
    print("|---" * len(columns) + "|")
    for width in (512, 1024):
        sizes = {case.name: case.num_bytes for case in cases(torch.device("meta"), NUM_ROWS, width, NUM_IDS)}
        rows = [
            (name, sizes[f"{name}, candidate"], Code.of(compile_kernel(kernel, constants)), elements)
            for name, (kernel, constants, elements) in kernels(width).items()
        ]
        if torch.cuda.is_available():
            rows += generated(width)
        for name, num_bytes, code, elements in rows:
            figures = f"{num_bytes / 1e6:,.1f} | {code.registers} | {code.spilled} | {code.shared:,}"
            print(f"| {name} | {width:,} | {figures} | {code.instructions / elements:.1f} | {code.barriers} |")


if __name__ == "__main__":
    main()
