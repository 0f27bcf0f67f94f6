"""Triton's interpreter, which runs kernels on a CPU.

It is chosen when triton is imported, so a process of its own runs the tests that are marked `interpreted`.
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
