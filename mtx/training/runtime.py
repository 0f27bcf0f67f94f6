"""What `auto` means for a run: decided at its first start, recorded in chosen.json, and reused by later starts.

The micro-batch is the largest that fits the device, which is tried out. It decides how a step is divided, never what
a step learns from, so the steps of a run may be divided in any way.
"""

import contextlib
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor

from mtx import machine
from mtx.config.schema import Config
from mtx.data.augmentation import epoch_text
from mtx.data.batches import PackedBatch, Shape, load_steps, micro_batch_shape, pack, to_device
from mtx.data.glossary import Glossary
from mtx.data.sampler import BatchSampler, SamplerState, steps
from mtx.data.token_store import PreparedData, Side, TokenStore
from mtx.data.tokenizer import Tokenizer
from mtx.decoding.options import EXTRA_LENGTH
from mtx.decoding.scoring import BATCH_TOKENS, batch_nll
from mtx.errors import DamagedFileError, MtxError, UsageError, first_line, is_out_of_memory
from mtx.formatting import format_size
from mtx.model import architectures
from mtx.model.attention import Kernel
from mtx.model.device import (
    attention_kernel,
    fast_precision,
    free_unused_memory,
    num_threads,
    use_device,
)
from mtx.model.transformer import training_flops
from mtx.model.translation_model import TranslationModel
from mtx.report.checks import steps_per_epoch
from mtx.storage import durable
from mtx.storage.run_files import RunLayout
from mtx.training.micro_step import MicroStep, StepResult, take_step
from mtx.training.planned_end import planned_end
from mtx.training.ranks import Ranks
from mtx.training.sharding import is_sharded

logger = logging.getLogger(__name__)

_CPU_MICRO_BATCH = 4096  # larger ones are not faster on a CPU, and memory use stays small
# How far the first fast step may be from the plain one. On a CPU, correct bf16 was within 0.0002 and 0.016; a sentence
# that begins one token too late put the gradient 0.08 off.
_LOSS_LIMIT, _GRADIENT_LIMIT = 2**-9, 0.04
_FREE_SHARE = 0.08  # share of a GPU's memory that stays free for decoding and for fragmentation over days
# Compiling costs one to two minutes and may save a third of the time; 5e16 FLOP take about four minutes on an H200.
_REPAYS_FLOPS = 5e16
_NOT_CHOSEN = 0  # threads of a run that only ranks have trained which shared a machine


@dataclass(frozen=True)
class RuntimeChoices:
    """How a run uses its device: the content of chosen.json. With the `varlen` kernel its step is recorded once."""

    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d{1,3})?|mps)$")]
    precision: Literal["fp32", "bf16"]
    micro_batch_tokens: Annotated[int, Field(ge=1, lt=1 << 31)]
    kernel: Kernel
    threads: Annotated[int, Field(ge=_NOT_CHOSEN, le=4096)]
    compile: bool


def choose_runtime(
    paths: RunLayout, config: Config, device: torch.device, data: PreparedData, ranks: Ranks | None = None
) -> RuntimeChoices:
    """The runtime choices of a run: those recorded at its first start, or else decided and recorded now.

    A CUDA device becomes that of this thread. The number of threads of a rank that shares its machine with others is
    not recorded: the next start may have another number of ranks.

    Raises:
        UsageError: if the run was started on a kind of device that is not available.
        MtxError: if not even the longest sentence fits the device.
    """
    ranks, training = ranks or Ranks(), config.training
    num_ids, local_size = data.tokenizer.num_ids, ranks.world.local_size
    recorded = read_runtime(paths.chosen) if ranks.run_on_rank_zero(paths.chosen.exists) else None
    is_elsewhere = recorded is not None and torch.device(recorded.device).type != device.type
    if recorded and is_elsewhere and config.device == "auto":
        raise UsageError(
            f"{paths.chosen}: this run was started on {recorded.device}, which is not here",
            f"device={device.type} continues without it, not bit for bit",
        )
    runtime = recorded
    if runtime is None:
        precision = (
            ranks.run_on_rank_zero(lambda: fast_precision(device)) if config.precision == "auto" else config.precision
        )
        compiled = device.type == "cuda" and _repays_compiling(config, data)
        threads = num_threads() if local_size == 1 else _NOT_CHOSEN
        runtime = RuntimeChoices(str(device), precision, 0, "padded", threads, compiled)
    use_device(device)
    is_first, kernel = recorded is None or is_elsewhere, runtime.kernel
    if (is_first or kernel == "varlen") and config.model.architecture == "transformer":
        head_size = config.model.d_model // config.model.num_heads
        kernel = attention_kernel(device, runtime.precision, head_size, training.deterministic)
    compiled = kernel == "varlen" and (runtime.compile if training.compile == "auto" else training.compile)
    is_unchecked = is_first or (compiled and not runtime.compile)
    runtime = replace(runtime, device=str(device), kernel=kernel, compile=compiled)
    if is_unchecked and device.type == "cuda":
        wished = runtime
        checked = ranks.run_on_rank_zero(lambda: check_fast_step(wished, config, data))
        runtime = replace(checked, device=str(device))
    if recorded is None:
        size = training.micro_batch_tokens
        if size == "auto":
            num_shards = ranks.size if is_sharded(config, device, num_ids, ranks) else 1
            sampler = new_sampler(config, training_text(config, data), data.tokenizer, data.terms)
            size = largest_micro_batch(config, runtime, num_ids, sampler, num_shards)
        runtime = replace(runtime, micro_batch_tokens=min(ranks.all_gather_object(size)))  # what fits every device
        if ranks.is_rank_zero:
            write_runtime(paths.chosen, runtime)
    is_chosen = local_size == 1 and runtime.threads != _NOT_CHOSEN
    return runtime if is_chosen else replace(runtime, threads=num_threads(local_size))


def check_fast_step(runtime: RuntimeChoices, config: Config, data: PreparedData) -> RuntimeChoices:
    """The fastest step that computes here what it should, by its loss and its gradient for the first batch.

    They are compared with those of one step in fp32, one operation after the other, both without dropout: the gradients
    by the norm of their difference, relative to that of the plain one. `mtx doctor` compares more. A kernel that
    crashes the process or hangs is not caught. Where memory does not suffice for this, nothing is compared.
    """
    eager = replace(runtime, kernel="padded", compile=False)
    plain = replace(eager, precision="fp32")
    if runtime == plain:
        return runtime
    text = training_text(config, data)
    sampler = new_sampler(config, text, data.tokenizer, data.terms)
    size = max(min(config.training.batch_tokens, _CPU_MICRO_BATCH), config.data.max_tokens)
    num_micro_steps, shape = step_shape(config, replace(runtime, micro_batch_tokens=size), sampler)
    planned = steps(sampler, SamplerState(), 1)
    with contextlib.closing(load_steps(text, planned, num_micro_steps, shape)) as loaded:
        batch = next(loaded).micro_batches[0]
    without_dropout = config.model_copy(update={"model": config.model.model_copy(update={"dropout": 0.0})})

    def take(choices: RuntimeChoices) -> StepResult:
        torch.manual_seed(config.seed)
        model = new_model(without_dropout, choices, data.tokenizer.num_ids).train()
        return take_step(new_micro_step(config, choices, model), [batch], config.seed)

    logger.info("comparing the fast step with the plain one on %s", runtime.device)
    norm, faults = torch.nn.utils.get_total_norm, list[str]()
    try:
        expected = take(plain)
        for choices in dict.fromkeys([runtime, replace(runtime, compile=False), eager, plain]):
            try:
                found = take(choices)
                apart = norm([a - b for a, b in zip(found.gradients, expected.gradients, strict=True)])
                loss, gradient = abs(found.loss / expected.loss - 1), float(apart / norm(expected.gradients))
                if loss <= _LOSS_LIMIT and gradient <= _GRADIENT_LIMIT:
                    break
                faults.append(f"its loss differs by {loss:.2%} and its gradient by {gradient:.1%}")
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                faults.append(f"{type(error).__name__}: {first_line(error)}")
            free_unused_memory(torch.device(runtime.device))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        logger.warning("memory does not suffice to compare the fast step with the plain one; mtx doctor does it")
        return runtime
    if faults:
        path = (
            "without compiling it"
            if choices.kernel == "varlen"
            else f"one operation after the other, in {choices.precision}"
        )
        logger.warning(
            f"the fast step has a fault here ({'; '.join(faults)}); this run takes its steps {path}\n"
            "  help: mtx doctor compares the steps; use another run_dir=DIR to try again"
        )
    return choices


def _repays_compiling(config: Config, data: PreparedData) -> bool:
    """Whether the run is long enough that compiling its step saves time."""
    training, ratio = config.training, data.report["src_tgt_ratio"]
    last, _ = planned_end(training, steps_per_epoch(data.train, training))
    num_tokens = training.num_passes * last * training.batch_tokens
    return num_tokens * training_flops(config.model, data.tokenizer.num_ids, ratio) > _REPAYS_FLOPS


def record_micro_batch(path: Path, size: int) -> None:
    """Record another micro-batch for later starts."""
    write_runtime(path, replace(read_runtime(path), micro_batch_tokens=size))


def write_runtime(path: Path, runtime: RuntimeChoices) -> None:
    """Record choices for later starts."""
    durable.write_json(path, asdict(runtime))


def check_memory(config: Config, device: torch.device, num_ids: int) -> None:
    """Refuse a model that cannot be trained in the free memory of this machine. A GPU reports this itself.

    Only weights, gradients and Adam's two moments count, so no model is refused that could be trained.

    Raises:
        MtxError: naming the memory that is needed and free.
    """
    available = machine.available_bytes()
    if device.type != "cpu" or available is None:
        return
    num_weights = architectures.num_parameters(config.model, num_ids)
    needed = 16 * num_weights
    if needed > available:
        wants, has = format_size(needed), format_size(available)
        raise MtxError(
            f"training {num_weights:,} parameters needs at least {wants} of memory, and {has} are free",
            "a smaller model.preset",
        )


def read_runtime(path: Path) -> RuntimeChoices:
    """Read the choices of an earlier start; raises DamagedFileError if one is missing or impossible."""
    try:
        return TypeAdapter(RuntimeChoices).validate_json(json.dumps(durable.read_json(path)), strict=True)
    except ValidationError as error:
        problem = error.errors()[0]
        raise DamagedFileError(
            f"{path}: {'.'.join(map(str, problem['loc']))}: {problem['msg']}", "use another run_dir=DIR to start again"
        ) from None


def new_model(config: Config, runtime: RuntimeChoices, num_ids: int) -> TranslationModel:
    """A model on the device of `runtime`; its random weights are drawn on the CPU."""
    model = architectures.new_model(config.model, num_ids).to(runtime.device)
    model.kernel = runtime.kernel
    model.source_loss = config.training.source_loss
    model.prepare_positions(config.data.max_tokens + EXTRA_LENGTH)  # of the translations in a report too
    return model


def new_micro_step(config: Config, runtime: RuntimeChoices, model: TranslationModel, root: Any = None) -> MicroStep:
    """The micro-step of a run with this model; for `root` see `MicroStep`."""
    training = config.training
    return MicroStep(
        model,
        training.label_smoothing,
        runtime.precision,
        runtime.compile and root is None,
        root=root,
        rdrop_alpha=training.rdrop_alpha,
    )


def new_optimizer(parameters: Sequence[Tensor]) -> torch.optim.Adam:
    """Adam (5.3 of the paper) with a learning rate of 0 until a step sets it.

    Torch would make the moments in the first step, and running out of memory there would leave only some of them.
    """
    optimizer = torch.optim.Adam(parameters, lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True)
    for parameter in parameters:
        optimizer.state[parameter] = {
            "step": torch.zeros((), device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


def training_text(config: Config, data: PreparedData) -> TokenStore:
    """What a run learns from: the training pairs, perhaps with copies of their targets."""
    ratio = config.training.copied_target_ratio
    return data.train.with_copies(ratio) if ratio else data.train


def new_sampler(config: Config, text: TokenStore, tokenizer: Tokenizer, terms: Glossary | None = None) -> BatchSampler:
    """The sampler of a run, which decides what its steps learn from.

    Args:
        text: its `training_text`.
        terms: those of its data.
    """
    training, encode = config.training, epoch_text(config, text, tokenizer, terms)
    weights = text.weights[text.corpus] if (text.weights != 1).any() else None
    src, tgt = text.src.lengths, text.tgt.lengths
    longest = config.data.max_tokens if encode else None
    return BatchSampler(src, tgt, weights, config.seed, training.batch_tokens, encode, longest)


def step_shape(config: Config, runtime: RuntimeChoices, sampler: BatchSampler, num_ranks: int = 1) -> tuple[int, Shape]:
    """The number of micro-batches of a step, a multiple of `num_ranks`, and their shape.

    Only the `varlen` kernel does work for sentences that are not there; the others have room for any step.
    """
    tokens_per_sentence = sampler.tokens_per_sentence if runtime.kernel == "varlen" else None
    size, longest = runtime.micro_batch_tokens, config.data.max_tokens
    return micro_batch_shape(config.training.batch_tokens, size, sampler.ratio, longest, tokens_per_sentence, num_ranks)


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
        return max(min(tokens, _CPU_MICRO_BATCH), longest)
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
    _, shape = micro_batch_shape(max(BATCH_TOKENS, longest), max(BATCH_TOKENS, longest), 1.0, longest, None)
    batch_nll(model.eval(), to_device(longest_sentences(shape, num_ids), torch.device(runtime.device)))
    torch.cuda.synchronize(runtime.device)
    del reserved


def longest_sentences(shape: Shape, pad_id: int) -> PackedBatch:
    """A batch of as many of the longest sentences as `shape` holds, in host memory."""
    length, room = shape.max_tokens, min(shape.num_src, shape.num_tgt) - shape.spare
    count = max(1, room // length)
    side = Side(np.zeros(length, np.uint16), np.zeros(count, np.int64), np.full(count, length, np.int32))
    return pack(side, side, np.arange(count), shape, pad_id)
