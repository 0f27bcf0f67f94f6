"""Work on a CUDA device that is recorded once and replayed, and copies to the host that do not wait for the device."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class CudaGraph:
    """Work that is recorded as a graph; it must read and write the same memory each time.

    Args:
        stream: where the work is warmed up and recorded, on its device; no other thread uses it.
        pool: the memory that it shares with other graphs, of `torch.cuda.graph_pool_handle`; by default its own.
    """

    def __init__(self, work: Callable[[], object], stream: torch.cuda.Stream, pool: Any = None):
        self._work, self._stream, self._pool = work, stream, pool
        self._graph: torch.cuda.CUDAGraph | None = None

    def warm_up(self) -> None:
        """Do the work without a graph, on the stream that records it: libraries allocate their buffers by stream."""
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            self._work()
        current.wait_stream(self._stream)

    def record(self) -> None:
        """Record the work, which does not do it."""
        self._graph = torch.cuda.CUDAGraph()
        # Other threads may allocate page-locked memory meanwhile, which would end a capture in the default mode.
        with torch.cuda.graph(self._graph, self._pool, self._stream, capture_error_mode="thread_local"):
            self._work()

    def replay(self) -> None:
        """Do the work as it was recorded; the first time records it."""
        if self._graph is None:
            self.record()
        assert self._graph is not None
        self._graph.replay()


class HostCopy:
    """A copy of a small tensor in host memory; one from CUDA arrives later. A tensor of the host is not copied."""

    def __init__(self, tensor: Tensor):
        self._tensor, self._event = tensor, None
        if tensor.is_cuda:
            copied = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._tensor = copied.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.current_stream(tensor.device).record_event()

    def is_ready(self) -> bool:
        """Whether the copy has arrived."""
        return self._event is None or self._event.query()

    def tensor(self) -> Tensor:
        """The copy; this waits for it."""
        if self._event is not None:
            self._event.synchronize()
        return self._tensor
