"""Prepares batches ahead of the device: a thread assembles the micro-batches of the next steps.

Flow: store + sampler -> `load_steps` -> the trainer.
"""

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from mtx.data.packing import PackedBatch, Shape, assign, pack
from mtx.data.sampler import BatchSampler, SamplerState, steps
from mtx.data.token_store import TokenStore
from mtx.decoding.batches import to_tensors

_NUM_AHEAD = 5  # steps that are prepared before they are needed


@dataclass(frozen=True)
class LoadedStep:
    """The micro-batches of one optimizer update, in host memory.

    Attributes:
        micro_batches: those of this rank: with R ranks, rank r has the micro-batches r, r + R, r + 2R and so on.
        num_src_tokens, num_tgt_tokens: of the whole step, on all ranks.
        after: the data position of the next step.
    """

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
    rank: int = 0,
    num_ranks: int = 1,
) -> Generator[LoadedStep, None, None]:
    """The next `num_steps` steps from `position` on, each as k (rarely more) micro-batches of one shape.

    All ranks have as many; where sentences need more than k, empty micro-batches fill up.
    """
    planned = steps(sampler, position, num_steps)

    def prepare() -> LoadedStep:
        step = next(planned)
        groups = assign(step.src_lengths, step.tgt_lengths, k, shape)
        groups += [np.empty(0, np.int64)] * (-len(groups) % num_ranks)
        text, own = step.encoded or store, groups[rank::num_ranks]
        if step.encoded is None:
            own = [step.pairs[group] for group in own]
        packed = [to_tensors(pack(text.src, text.tgt, pairs, shape, store.num_ids), pin) for pairs in own]
        return LoadedStep(packed, step.num_src_tokens, step.num_tgt_tokens, step.after)

    # Page-locked memory belongs to the thread's device.
    on_device = (torch.cuda.set_device, (torch.cuda.current_device(),)) if pin else (None, ())
    pool = ThreadPoolExecutor(1, "mtx-loader", *on_device)
    ahead: deque[Future[LoadedStep]] = deque()
    try:
        for _ in range(num_steps):
            ahead.append(pool.submit(prepare))
            if len(ahead) > _NUM_AHEAD:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
