"""Counts what a call of each candidate costs, without a GPU: bytes, registers, spills, instructions and barriers.

    python -m scripts.traced.no_gpu -m scripts.first_light.candidates.count

The kernels are compiled for compute capability 9.0 and disassembled. Those that torch's compiler generates today for
residual sum, dropout and LayerNorm follow, by `scripts/traced/traced_step.py`.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from scripts.first_light.candidates import loss, norm
from scripts.first_light.candidates.cases import EPS, PROBABILITY, cases

CAPABILITY = 90
NUM_ROWS = 25_088
NUM_IDS = 37_000
WIDTHS = (512, 1024)
_BINARIES = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_TYPES = {  # of arguments; the others are bf16
    name: kind
    for kind, names in {
        "*fp32": "y_bias weight bias means rstds sums",
        "*i32": "words threshold",
        "*i64": "seed targets",
        "i32": "num_rows num_words num_outputs num_columns num_targets",
        "fp32": "eps keep",
    }.items()
    for name in names.split()
}
_MULTIPLES_OF_16 = ("num_columns",)  # and all addresses; triton then loads 16 bytes at once


@dataclass(frozen=True)
class Spec:
    """A kernel to compile.

    Attributes:
        case: the name of its call in `cases`.
        elements: how many elements a pass of the kernel's loops handles, or its whole code if it has none.
    """

    case: str
    kernel: Any
    constants: dict[str, int]
    elements: int

    def compile(self, capability: int = CAPABILITY) -> Any:
        """Returns the kernel as triton compiles it."""
        names = self.kernel.arg_names
        options = {"num_warps": self.constants.get("num_warps", 4)}
        constants = {name: value for name, value in self.constants.items() if name in names}
        types = {name: "constexpr" if name in constants else _TYPES.get(name, "*bf16") for name in names}
        aligned = [name for name in names if types[name].startswith("*") or name in _MULTIPLES_OF_16]
        source = ASTSource(
            fn=self.kernel, signature=types,
            constexprs={(names.index(name),): value for name, value in constants.items()},
            attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
        )  # fmt: skip
        return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


WORDS = Spec("dropout words", norm.draw, {"WORDS": norm.WORDS_AT_ONCE}, norm.WORDS_AT_ONCE * norm.BITS.value)
SOFTMAX = Spec(
    "softmax and target", loss.softmax_minus_target, {"BLOCK": loss.BLOCK, "num_warps": loss.NUM_WARPS}, loss.BLOCK
)


def of_norm(width: int) -> list[Spec]:
    """Returns the kernels of LayerNorm for rows of this width."""
    kernels = {"norm forward": norm.forward, "norm backward": norm.backward}
    return [Spec(case, kernel, norm.constants(width), width) for case, kernel in kernels.items()]


@dataclass(frozen=True)
class Code:
    """What machine code needs: registers of a thread, bytes of stack that it spills to, and shared bytes of a block.

    Attributes:
        instructions: of a pass of each loop, for one thread.
        barriers: within the loops.
    """

    registers: int
    stack: int
    shared: int
    instructions: int
    barriers: int

    @classmethod
    def of(cls, compiled: Any) -> "Code":
        """Reads a compiled kernel."""
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(compiled.asm["cubin"])
            file.flush()
            usage = _run("cuobjdump", "-res-usage", file.name)
            code = _run("nvdisasm", "-c", file.name)
        used = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
        looped = list(_in_loops(code))
        barriers = sum("BAR." in line for line in looped)
        spilled = used["STACK"] + used["LOCAL"]
        return cls(used["REG"], spilled, compiled.metadata.shared, len(looped), barriers)


def _run(program: str, *arguments: str) -> str:
    return subprocess.run([_BINARIES / program, *arguments], capture_output=True, text=True, check=True).stdout


def _in_loops(code: str) -> Iterator[str]:
    """Yields the instructions of the loops of disassembled code, or all of them if it has no loop."""
    places = dict[str, int]()
    lines = list[str]()
    for line in code.splitlines():
        if label := re.match(r"(\.L_\w+):", line):
            places[label[1]] = len(lines)
        elif instruction := re.match(r"\s+/\*[0-9a-f]{4,8}\*/\s+(.*);", line):
            lines.append(instruction[1])
    is_looped = [False] * len(lines)
    for end, line in enumerate(lines):
        jump = re.search(r"BRA.*`\((\.L_\w+)\)", line)
        first = places.get(jump[1], end) if jump else end
        for place in range(first, end):  # the last instruction of a kernel jumps to itself
            is_looped[place] = True
    yield from (line for line, looped in zip(lines, is_looped, strict=True) if looped or not any(is_looped))


def generated(width: int) -> Iterator[tuple[str, int, Code, float]]:
    """Yields the kernels that torch's compiler makes for the same job: name, bytes, code, instructions an element."""
    from scripts.traced.traced_step import traced  # imported here: it needs a GPU, or one that is pretended

    def add_norm(x: Tensor, y: Tensor, y_bias: Tensor, weight: Tensor, bias: Tensor, probability: Tensor) -> Tensor:
        y = y + y_bias.bfloat16()
        dropped = torch.where(torch.rand(y.shape, device=y.device) < probability, 0, y / (1 - probability))
        return F.layer_norm((x + dropped).float(), (width,), weight, bias, EPS).bfloat16()

    compile_kernel = triton.compile
    compiled = []

    def compile_and_keep(source: Any, *arguments: Any, **options: Any) -> Any:
        compiled.append((source, compile_kernel(source, *arguments, **options)))
        return compiled[-1][1]

    with traced() as trace, torch.device("cuda"), mock.patch.object(triton, "compile", compile_and_keep):
        x, y = (torch.randn(NUM_ROWS, width, dtype=torch.bfloat16).requires_grad_() for _ in range(2))
        vectors = (torch.randn(width).requires_grad_() for _ in range(3))
        out = torch.compile(add_norm, fullgraph=True, dynamic=False)(x, y, *vectors, torch.tensor(PROBABILITY))
        out.backward(torch.randn_like(out))
    kernels = [kernel for kernel in trace.kernels if kernel.kind == "generated"]
    for source, kernel in compiled:
        counted = next(k for k in kernels if f"fused_{k.name}_" in source.fn.__name__)
        code = Code.of(kernel)
        if "layer_norm" in counted.name and "per_fused" in source.fn.__name__:
            rows = source.constants[(source.fn.arg_names.index("XBLOCK"),)]
            per_element = code.instructions * 32 * kernel.metadata.num_warps / (rows * width)
            yield f"generated, {counted.part}", counted.num_bytes, code, per_element


def main() -> None:
    columns = "kernel", "columns", "MB a call", "registers", "spilled bytes", "shared bytes", "instructions", "barriers"
    print(f"| {' | '.join(columns)} |")
    print("|---" * len(columns) + "|")
    for width in WIDTHS:
        sizes = {case.name: case.num_bytes for case in cases(torch.device("meta"), NUM_ROWS, width, NUM_IDS)}
        of_width = [WORDS, *of_norm(width)]
        if width == WIDTHS[-1]:
            of_width.append(SOFTMAX)
        for spec in of_width:
            compiled = spec.compile()
            code = Code.of(compiled)
            per_element = code.instructions * 32 * compiled.metadata.num_warps / spec.elements
            num_columns = NUM_IDS if spec is SOFTMAX else width
            _print(spec.case, num_columns, sizes[f"{spec.case}, candidate"], code, per_element)
        if torch.cuda.is_available():
            for name, num_bytes, code, per_element in generated(width):
                _print(name, width, num_bytes, code, per_element)


def _print(name: str, columns: int, num_bytes: int, code: Code, per_element: float) -> None:
    print(
        f"| {name} | {columns:,} | {num_bytes / 1e6:,.1f} | {code.registers} | {code.stack} | {code.shared:,} | "
        f"{per_element:.1f} | {code.barriers} |"
    )


if __name__ == "__main__":
    main()
