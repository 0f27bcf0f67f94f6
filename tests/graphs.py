"""A stand-in for CUDA's graphs on a CPU: it records the operations that torch carries out, and replays them.

They keep the tensors that they read and write. What Python decided in between is lost, as on a GPU: a number of the
host, a new tensor, a branch.
"""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Recorder(TorchDispatchMode):
    """Carries out operations, and keeps each with its arguments and what it returned."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.namespace != "profiler":
            self.done.append((func, args, kwargs or {}, out))
        return out


class StandIn:
    """`torch.cuda.CUDAGraph` on a CPU. Recording carries out the work, so the first replay does nothing."""

    replays = 0
    modes: list[bool] = []  # whether inference mode was on when a capture began

    def __init__(self) -> None:
        self.done: list[tuple[Any, Any, Any, Any]] = []
        self._is_done = True

    def replay(self) -> None:
        if self._is_done:
            self._is_done = False
            return
        StandIn.replays += 1
        with torch._C._AutoDispatchBelowAutograd():
            for func, args, kwargs, before in self.done:
                after = func(*args, **kwargs)
                for old, new in zip(tree_leaves(before), tree_leaves(after), strict=True):
                    if not isinstance(old, Tensor):
                        assert old == new, f"{func} gave the host another number"
                    elif old.data_ptr() != new.data_ptr():
                        old.copy_(new)


@contextlib.contextmanager
def _capture(graph: StandIn, *_: Any, capture_error_mode: str) -> Iterator[None]:
    StandIn.modes.append(torch.is_inference_mode_enabled())
    with Recorder() as recorder:
        yield
    graph.done = recorder.done


def new_stream(device: Any = None) -> Any:
    return SimpleNamespace(device=device, wait_stream=lambda stream: None)


def record_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a CPU record and replay; `StandIn` counts."""
    stand_ins = {
        "CUDAGraph": StandIn, "graph": _capture, "Stream": new_stream, "current_stream": new_stream,
        "stream": lambda stream: contextlib.nullcontext(), "graph_pool_handle": lambda: None,
        "mem_get_info": lambda: (1 << 34, 1 << 34), "memory_allocated": lambda: 0,
        "get_rng_state": lambda device: torch.get_rng_state(),
        "set_rng_state": lambda state, device: torch.set_rng_state(state),
    }  # fmt: skip
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    StandIn.replays = 0
    StandIn.modes = []
