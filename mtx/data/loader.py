"""Batches prepared ahead of the device: a thread assembles the micro-batches of the steps to come.

Flow: store + planner -> `load_steps` -> the trainer. Only this room turns numpy arrays into tensors.
"""

import queue
import threading
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import torch

from mtx.data.packing import SLICES, PackedBatch, Position, Shape, StepPlanner, assign, pack, slices, steps
from mtx.data.store import TokenStore

_AHEAD = 4  # steps that are ready before they are needed


@dataclass(frozen=True)
class LoadedStep:
    """The micro-batches of one optimizer update, in host memory."""

    micro_batches: list[PackedBatch]
    num_src_tokens: int
    num_tgt_tokens: int
    after: Position


def to_tensors(batch: PackedBatch, pin: bool = False) -> PackedBatch:
    """The same batch with tensors in place of its arrays, in page-locked memory where `pin`."""
    if pin:
        return _with_buffer(batch, torch.from_numpy(batch.buffer).pin_memory())
    tensors: dict[str, Any] = {name: torch.from_numpy(getattr(batch, name)) for name in (*SLICES, "buffer")}
    return replace(batch, **tensors)


def to_device(batch: PackedBatch, device: torch.device) -> PackedBatch:
    """The same batch on `device`, by one copy; except on CUDA, offsets stay in host memory, where attention reads them.

    A copy to CUDA may still be under way on return. The batch in host memory may be dropped all the same: torch hands
    out page-locked memory again only when the copies from it are done, and copies from other memory wait.
    """
    if device.type == "cpu":
        return batch
    if device.type == "cuda":
        return _with_buffer(batch, batch.buffer.to(device, non_blocking=True))
    # it waits: the source could be freed before it is read (pytorch issue 189690)
    moved = _with_buffer(batch, batch.buffer.to(device))
    return replace(moved, src_offsets=batch.src_offsets, tgt_offsets=batch.tgt_offsets)


def _with_buffer(batch: PackedBatch, buffer: torch.Tensor) -> PackedBatch:
    sizes = len(batch.src_ids), len(batch.tgt_out_ids), len(batch.src_offsets)
    return replace(batch, **slices(buffer, *sizes, torch.int32), buffer=buffer)


def load_steps(
    store: TokenStore, planner: StepPlanner, position: Position, num_steps: int, k: int, shape: Shape, pin: bool = False
) -> Generator[LoadedStep, None, None]:
    """The next `num_steps` steps from `position` on, each as k (rarely more) micro-batches of one shape."""
    pad_id = store.num_ids
    ready: queue.Queue[LoadedStep | BaseException | None] = queue.Queue(_AHEAD)
    closed = threading.Event()

    def put(item: LoadedStep | BaseException | None) -> bool:
        while not closed.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for step in steps(planner, position, num_steps):
                groups = assign(store.src.lengths[step.pairs], store.tgt.lengths[step.pairs], k, shape)
                packed = [to_tensors(pack(store.src, store.tgt, step.pairs[g], shape, pad_id), pin) for g in groups]
                if not put(LoadedStep(packed, step.num_src_tokens, step.num_tgt_tokens, step.after)):
                    return
            put(None)
        except BaseException as error:  # it is raised again by the thread that consumes
            put(error)

    thread = threading.Thread(target=work, name="mtx-loader", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        closed.set()
        thread.join()
