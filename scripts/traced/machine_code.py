"""Compiles a Triton kernel to machine code without a GPU, and counts what that needs."""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

_BINARIES = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def compile_kernel(kernel: Any, types: dict[str, str], constants: dict[str, int], capability: int) -> Any:
    """Compiles a kernel for addresses, and for numbers of columns, that are multiples of 16.

    Args:
        types: of its arguments that are no constants, such as `*bf16`.
        constants: also `num_warps` and `num_stages`.
        capability: the compute capability, such as 90.
    """
    names = kernel.arg_names
    aligned = [name for name, kind in types.items() if kind.startswith("*") or name == "num_columns"]
    source = ASTSource(
        fn=kernel, signature={name: types.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items() if name in names},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )  # fmt: skip
    options = {name: value for name, value in constants.items() if name not in names}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


@dataclass(frozen=True)
class Code:
    """What a compiled kernel needs: registers of a thread, bytes that it spills to the stack, shared bytes of a block.

    Attributes:
        instructions: of all threads in a pass of each loop, or in the whole kernel if it has none.
        barriers: within the same code.
    """

    registers: int
    spilled: int
    shared: int
    instructions: int
    barriers: int

    @classmethod
    def of(cls, compiled: Any) -> "Code":
        """Disassembles a kernel."""
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(compiled.asm["cubin"])
            file.flush()
            usage, code = (
                subprocess.run([_BINARIES / program, option, file.name], capture_output=True, text=True, check=True)
                for program, option in (("cuobjdump", "-res-usage"), ("nvdisasm", "-c"))
            )
        used = {name: int(value) for name, value in re.findall(r"(REG|STACK):(\d+)", usage.stdout)}
        looped = _in_loops(code.stdout)
        instructions = 32 * compiled.metadata.num_warps * len(looped)
        barriers = sum("BAR." in line for line in looped)
        return cls(used["REG"], used["STACK"], compiled.metadata.shared, instructions, barriers)


def _in_loops(code: str) -> list[str]:
    """Returns the instructions of the loops of disassembled code, or all of them if it has no loop."""
    places = dict[str, int]()
    lines = list[str]()
    for line in code.splitlines():
        if label := re.match(r"(\.L_\w+):", line):
            places[label[1]] = len(lines)
        elif instruction := re.match(r"\s+/\*[0-9a-f]{4,8}\*/\s+(.*);", line):
            lines.append(instruction[1])
    looped = set[int]()
    for end, line in enumerate(lines):
        jump = re.search(r"BRA.*`\((\.L_\w+)\)", line)
        if jump and places[jump[1]] < end:  # the last instruction of a kernel jumps to itself
            looped.update(range(places[jump[1]], end + 1))
    return [lines[place] for place in sorted(looped)] or lines
