"""Finds out, once at the first start, how large a micro-batch fits the device. Flow: configuration -> tokens.

It decides how a step is cut, never what a step learns from (DESIGN 3), so a run may be cut in any way.
"""

import gc
import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mtx.config import Config
from mtx.data.loader import to_tensors
from mtx.data.packing import PackedBatch, Shape, micro_batch_shape, pack
from mtx.errors import MtxError
from mtx.model.attention import Kernel
from mtx.model.transformer import Transformer
from mtx.training.micro_step import MicroStep

logger = logging.getLogger(__name__)

_CPU_MICRO_BATCH = 4096  # larger ones are not faster there, and memory stays small
_FREE_SHARE = 0.08  # of a GPU's memory stays free: decoding and the fragments of days need some


def micro_batch_tokens(
    config: Config, num_ids: int, ratio: float, device: torch.device, precision: str, kernel: Kernel
) -> int:
    """The target tokens of the largest micro-batch that fits: a step whole, or halved as often as it takes.

    Args:
        ratio: source tokens for one target token in the training data.

    Raises:
        MtxError: where not even the longest sentence fits.
    """
    tokens, longest = config.training.batch_tokens, config.data.max_tokens
    if device.type != "cuda":
        return max(min(tokens, _CPU_MICRO_BATCH), longest)
    size = max(tokens, longest)
    while not _fits(config, num_ids, ratio, size, device, precision, kernel):
        if size == longest:
            raise MtxError(
                f"{device}: a micro-batch of {longest} target tokens does not fit its memory",
                "a smaller model.preset, or device=cpu",
            )
        size = max(-(-size // 2), longest)
    logger.info("micro-batches of %s target tokens fit %s", f"{size:,}", device)
    return size


def _fits(
    config: Config, num_ids: int, ratio: float, size: int, device: torch.device, precision: str, kernel: Kernel
) -> bool:
    """Whether training with micro-batches of `size` leaves some memory free: tried with the longest sentences."""
    try:
        _try(config, num_ids, ratio, size, device, precision, kernel)
        free, total = torch.cuda.mem_get_info(device)
        return free > _FREE_SHARE * total
    except torch.OutOfMemoryError:
        return False
    finally:
        gc.collect()  # what an error's traceback held
        torch.cuda.empty_cache()


def _try(
    config: Config, num_ids: int, ratio: float, size: int, device: torch.device, precision: str, kernel: Kernel
) -> None:
    _, shape = micro_batch_shape(config.training.batch_tokens, size, ratio, config.data.max_tokens)
    model = Transformer(config.model, num_ids).to(device).train()
    model.kernel = kernel
    model.prepare_positions(config.data.max_tokens)
    kept = [torch.zeros_like(p) for p in model.parameters() for _ in range(4)]  # Adam's, and a checkpoint's copies
    micro_step = MicroStep(model, config.training.label_smoothing, precision)
    micro_step.start_step()
    micro_step(longest_sentences(shape, num_ids), 1.0)
    torch.cuda.synchronize(device)
    del kept


def longest_sentences(shape: Shape, pad_id: int) -> PackedBatch:
    """A batch of as many of the longest sentences as `shape` holds, in host memory."""
    room = min(shape.num_src, shape.num_tgt) - shape.spare
    num_sentences = max(1, room // shape.max_tokens)
    side = _Side(shape.max_tokens, num_sentences)
    return to_tensors(pack(side, side, np.arange(num_sentences), shape, pad_id))


@dataclass
class _Side:
    """One sentence, many times, as `pack` reads a store."""

    length: int
    number: int

    def __post_init__(self) -> None:
        self.tokens: Any = np.zeros(self.length, dtype=np.uint16)
        self.starts: Any = np.zeros(self.number, dtype=np.int64)
        self.lengths: Any = np.full(self.number, self.length, dtype=np.int32)
