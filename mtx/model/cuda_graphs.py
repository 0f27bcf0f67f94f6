"""Work on a CUDA device that is recorded once and replayed, and copies to the host that do not wait for the device."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(eq=False)
class CudaGraph:
    """Work that is recorded as a graph; it must read and write the same memory each time.

    The work is not kept: what owns a graph would hold itself, and its memory on the device with it.

    Args:
        stream: where the work is warmed up and recorded, on its device; no other thread uses it.
        pool: the memory that it shares with other graphs, of `torch.cuda.graph_pool_handle`; by default its own.
        num_warm_ups: how often the work is done first without a graph, because libraries allocate their buffers then,
            and do so by stream.
    """

    stream: torch.cuda.Stream
    pool: Any = None
    num_warm_ups: int = 1
    _graph: torch.cuda.CUDAGraph | None = None

    def replay(self, work: Callable[[], object]) -> None:
        """Do the work as it was recorded; the first time after the warm-ups records it."""
        if self.num_warm_ups:
            self.num_warm_ups -= 1
            current = torch.cuda.current_stream(self.stream.device)
            self.stream.wait_stream(current)
            with torch.cuda.stream(self.stream):
                work()
            current.wait_stream(self.stream)
            return
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            is_inference = torch.is_inference_mode_enabled()
            # A capture in inference mode may make tensors of torch's own, which one outside of it then cannot change
            # (pytorch#166792). Other threads may allocate page-locked memory, which would end it in the default mode.
            with (
                torch.inference_mode(False),
                torch.cuda.graph(self._graph, self.pool, self.stream, capture_error_mode="thread_local"),
                torch.inference_mode(is_inference),
            ):
                work()
        self._graph.replay()


class HostCopy:
    """A copy of a small tensor in host memory; one from CUDA arrives later. A tensor of the host is not copied."""

    def __init__(self, tensor: Tensor):
        self._tensor = tensor.to("cpu", non_blocking=tensor.is_cuda)  # into page-locked memory
        self._event = torch.cuda.current_stream(tensor.device).record_event() if tensor.is_cuda else None

    def is_ready(self) -> bool:
        """Whether the copy has arrived."""
        return self._event is None or self._event.query()

    def tensor(self) -> Tensor:
        """The copy; this waits for it."""
        if self._event is not None:
            self._event.synchronize()
        return self._tensor
