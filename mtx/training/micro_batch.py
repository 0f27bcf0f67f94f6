"""The micro-batch: how a step is divided, the largest size that fits the device, and half of it when memory is short.

It decides how a step is divided, never what a step learns from, so the steps of a run may be divided in any way.
"""

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from mtx import machine
from mtx.config.schema import Config
from mtx.data.batches import PackedBatch, Shape, micro_batch_shape, pack, to_device
from mtx.data.sampler import BatchSampler
from mtx.data.token_store import Side
from mtx.decoding.scoring import BATCH_TOKENS, batch_nll
from mtx.errors import MtxError, is_out_of_memory
from mtx.formatting import format_size
from mtx.model.architectures import num_parameters
from mtx.model.device import free_unused_memory
from mtx.model.translation_model import TranslationModel
from mtx.training.micro_step import MicroStep
from mtx.training.runtime import RuntimeChoices, new_model, write_runtime

if TYPE_CHECKING:
    from mtx.training.trainer import Trainer

logger = logging.getLogger(__name__)

CPU_MICRO_BATCH = 4096  # larger ones are not faster on a CPU, and memory use stays small
_FREE_SHARE = 0.08  # share of a GPU's memory that stays free for decoding and for fragmentation over days


def step_shape(config: Config, runtime: RuntimeChoices, sampler: BatchSampler, num_ranks: int = 1) -> tuple[int, Shape]:
    """The number of micro-batches of a step, a multiple of `num_ranks`, and their shape.

    Only the `varlen` kernel does work for sentences that are not there; the others have room for any step.
    """
    tokens_per_sentence = sampler.tokens_per_sentence if runtime.kernel == "varlen" else None
    size, longest = runtime.micro_batch_tokens, config.data.max_tokens
    return micro_batch_shape(config.training.batch_tokens, size, sampler.ratio, longest, tokens_per_sentence, num_ranks)


def new_micro_step(config: Config, runtime: RuntimeChoices, model: TranslationModel, root: object = None) -> MicroStep:
    """The micro-step of a run with this model; for `root` see `Strategy`."""
    return MicroStep(
        model,
        config.training.label_smoothing,
        runtime.precision,
        runtime.compile and root is None,
        root=root,
        rdrop_alpha=config.training.rdrop_alpha,
    )


def halve(trainer: "Trainer", shortage: str) -> None:
    """Continue with half the micro-batch; the step keeps its sentences and its normalisation.

    Raises:
        MtxError: the second time, and on one of several ranks, which then all end: the next start takes the half.
    """
    step, size, longest = trainer.state.step + 1, trainer.runtime.micro_batch_tokens, trainer.config.data.max_tokens
    half = replace(trainer.runtime, micro_batch_tokens=max(longest, -(-size // 2)))
    text = f"step {step}: out of memory with micro-batches of {size} target tokens: {shortage}"
    if trainer.has_halved or size <= longest:
        help = f"training.micro_batch_tokens={half.micro_batch_tokens} in a new run_dir, or a smaller model.preset"
        raise MtxError(text, help)
    write_runtime(trainer.paths.chosen, half)
    if trainer.ranks.size > 1:
        raise MtxError(text, f"the same command resumes with micro-batches of {half.micro_batch_tokens}")
    logger.warning("step %d: out of memory; micro-batches are halved from now on (%s)", step, shortage)
    trainer.optimizer.zero_grad()
    del trainer.micro_step  # a recorded graph holds memory
    free_unused_memory(trainer.device)
    trainer.has_halved = True
    trainer.runtime = half
    trainer.divide_steps()


def largest_micro_batch(
    config: Config, runtime: RuntimeChoices, num_ids: int, sampler: BatchSampler, num_shards: int = 1
) -> int:
    """The target tokens of the largest micro-batch that fits: a whole step, halved until it does.

    Args:
        runtime: its `micro_batch_tokens` is not used.
        num_shards: of Adam's state, if ranks divide it. The weights and gradients are tried whole, so that no rank
            waits for another one that has too little memory.

    Raises:
        MtxError: if not even the longest sentence fits.
    """
    tokens, longest = config.training.batch_tokens, config.data.max_tokens
    if torch.device(runtime.device).type != "cuda":
        return max(min(tokens, CPU_MICRO_BATCH), longest)
    size = max(tokens, longest)
    while not _fits(config, replace(runtime, micro_batch_tokens=size), num_ids, sampler, num_shards):
        if size == longest:
            raise MtxError(
                f"{runtime.device}: a micro-batch of {longest} target tokens does not fit its memory",
                "a smaller model.preset, or device=cpu",
            )
        size = max(-(-size // 2), longest)
    logger.info("micro-batches of %s target tokens fit %s", f"{size:,}", runtime.device)
    return size


def _fits(config: Config, runtime: RuntimeChoices, num_ids: int, sampler: BatchSampler, num_shards: int = 1) -> bool:
    """Whether training with these micro-batches, of the longest sentences, leaves `_FREE_SHARE` of the memory free."""
    try:
        _run_micro_step(config, runtime, num_ids, sampler, num_shards)
        free, total = torch.cuda.mem_get_info(runtime.device)
        return free > _FREE_SHARE * total
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        free_unused_memory(torch.device(runtime.device))  # also the tensors that the error's traceback held


def _run_micro_step(
    config: Config, runtime: RuntimeChoices, num_ids: int, sampler: BatchSampler, num_shards: int
) -> None:
    """Take a step and part of a validation, next to all that is in memory while a checkpoint is written."""
    _, shape = step_shape(config, runtime, sampler)
    model, device = new_model(config, runtime, num_ids).train(), torch.device(runtime.device)
    # Adam's two moments, and a checkpoint's copies of these and of the weights.
    parts = [-(-parameter.numel() // num_shards) for parameter in model.parameters()]
    reserved = [torch.zeros(part, device=device) for part in parts for _ in range(5)]
    micro_step = new_micro_step(config, replace(runtime, compile=False), model)
    micro_step.start_step()
    micro_step(longest_sentences(shape, num_ids), 1.0)
    longest = config.data.max_tokens
    size = max(BATCH_TOKENS, longest)
    _, shape = micro_batch_shape(size, size, 1.0, longest, None)
    batch_nll(model.eval(), to_device(longest_sentences(shape, num_ids), device))
    torch.cuda.synchronize(device)
    del reserved


def longest_sentences(shape: Shape, pad_id: int) -> PackedBatch:
    """A batch of as many of the longest sentences as `shape` holds, in host memory."""
    length, room = shape.max_tokens, min(shape.num_src, shape.num_tgt) - shape.spare
    count = max(1, room // length)
    side = Side(np.zeros(length, np.uint16), np.zeros(count, np.int64), np.full(count, length, np.int32))
    return pack(side, side, np.arange(count), shape, pad_id)


def check_memory(config: Config, device: torch.device, num_ids: int) -> None:
    """Refuse a model whose weights, gradients and moments do not fit the free memory of this machine.

    A GPU reports this itself.
    """
    available = machine.available_bytes()
    num_weights = num_parameters(config.model, num_ids)
    needed = 16 * num_weights
    if device.type == "cpu" and available is not None and needed > available:
        wants, has = format_size(needed), format_size(available)
        raise MtxError(
            f"training {num_weights:,} parameters needs at least {wants} of memory, and {has} are free",
            "a smaller model.preset",
        )
