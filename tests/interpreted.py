"""Triton's kernels without a GPU: its interpreter runs them on a CPU, and its compiler makes machine code of them.

The interpreter is chosen when triton is imported, so a process of its own runs the tests that are marked `interpreted`.
"""

import importlib.util
import os
import subprocess
import sys
from typing import Any

import pytest

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton, without a GPU")
interpreted = pytest.mark.skipif(not IS_INTERPRETED, reason="another process runs this")
not_interpreted = pytest.mark.skipif(IS_INTERPRETED, reason="the interpreter compiles nothing, and is what runs this")


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


def run_interpreted(file: str) -> None:
    """Runs the tests of a file in the interpreter, and none of them is left for another process."""
    command = [sys.executable, "-m", "pytest", "-rfs", file]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-3000:]
    assert "another process runs this" not in done.stdout


def compile_kernel(kernel: Any, types: dict[str, str], constants: dict[str, int], capability: int) -> Any:
    """Compiles a kernel for a compute capability, such as 90.

    Args:
        types: of its arguments that are no constants, such as `*bf16`.
        constants: also `num_warps` and `num_stages`.
    """
    from triton import compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    source = ASTSource(
        fn=kernel, signature={name: types.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items() if name in names},
    )  # fmt: skip
    options = {name: value for name, value in constants.items() if name not in names}
    return compile(source, target=GPUTarget("cuda", capability, 32), options=options)
