"""Batches prepared ahead of the device: a thread assembles the micro-batches of the steps to come.

Flow: store + sampler -> `load_steps` -> the trainer.
"""

import queue
import threading
from collections.abc import Generator
from dataclasses import dataclass

from mtx.data.packing import PackedBatch, Shape, assign, pack
from mtx.data.sampler import BatchSampler, SamplerState, steps
from mtx.data.token_store import TokenStore
from mtx.decoding.batches import to_tensors

_AHEAD = 4  # steps that are ready before they are needed


@dataclass(frozen=True)
class LoadedStep:
    """The micro-batches of one optimizer update, in host memory."""

    micro_batches: list[PackedBatch]
    num_src_tokens: int
    num_tgt_tokens: int
    after: SamplerState


def load_steps(
    store: TokenStore,
    sampler: BatchSampler,
    position: SamplerState,
    num_steps: int,
    k: int,
    shape: Shape,
    pin: bool = False,
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
            for step in steps(sampler, position, num_steps):
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
