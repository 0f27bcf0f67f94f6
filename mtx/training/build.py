"""Makes everything that a start of a run needs before its first step, complete: model, optimizer, sampler, state.

What `auto` means is decided at the first start, recorded in chosen.json, and reused by later starts. Flow:
configuration, device, prepared data -> `choose_runtime` -> `build` -> `Trainer`, which has the weights of the newest
checkpoint, or of `training.init_from`, or the random ones of the seed.
"""

import contextlib
import logging
import math
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mtx import machine
from mtx.config import settings
from mtx.config.schema import Config
from mtx.data.augmentation import epoch_text
from mtx.data.packing import PackedBatch, Shape, load_steps, pack
from mtx.data.sampler import BatchSampler, SamplerState, steps
from mtx.data.token_store import PreparedData, Side, TokenStore
from mtx.decoding.model_directory import LoadedModel
from mtx.decoding.options import EXTRA_LENGTH
from mtx.decoding.torch_engine import SCORED_TOKENS, score_pairs
from mtx.errors import DamagedFileError, DeferredErrors, MtxError, UsageError, first_line, is_out_of_memory
from mtx.formatting import divide_up, format_size
from mtx.model import architectures
from mtx.model.architectures import num_parameters
from mtx.model.device import (
    attention_kernel,
    fast_precision,
    free_unused_memory,
    num_threads,
    prepare_device,
)
from mtx.model.translation_model import TranslationModel
from mtx.runs.run_directory import read_events
from mtx.storage import durable
from mtx.storage.run_files import RunLayout, full_checkpoint_steps
from mtx.training.checkpoint import AsyncCheckpointer, State, load_newest, read_as
from mtx.training.micro_batch import (
    NOT_CHOSEN,
    RuntimeChoices,
    StepResult,
    new_micro_step,
    step_shape,
    take_step,
)
from mtx.training.ranks import Ranks
from mtx.training.schedule import Schedule, drop_outdated_cooldown, planned_end, steps_per_epoch
from mtx.training.strategy import Sharded, Strategy
from mtx.training.trainer import Trainer
from mtx.training.validation import validate_part, validation_of

logger = logging.getLogger(__name__)

# How far the first fast step may be from the plain one. On a CPU, correct bf16 was within 0.0002 and 0.016; a sentence
# that begins one token too late put the gradient 0.08 off. All queries and keys have 3% of its norm, so each parameter
# is compared too: with 600 tokens, correct bf16 was within 0.03, and within 0.07 in the recurrent model.
_LOSS_LIMIT = 2**-9
_GRADIENT_LIMIT = 0.04
_PARAMETER_LIMIT = 0.1
_LEAST_SHARE = 1e-3  # the least share of the norm that a difference is relative to: biases of keys have only rounding
# Compiling took 45 seconds on an H100 and halved the time of a step. Shorter trainings may not repay it, since a short
# step of a small model also waits for the host.
_LEAST_COMPILED_S = 180
_STEP_S = 0.003  # of a recorded step, not compiled, and a second more for each 1.4e14 FLOP
_FLOPS = 1.4e14
_CPU_TOKENS = 4096  # of a micro-batch on a CPU: larger ones are not faster, and take more memory
_FREE_SHARE = 0.08  # share of a GPU's memory that stays free for decoding and for fragmentation over days


def read_runtime(path: Path) -> RuntimeChoices | None:
    """The choices of an earlier start, if there was one; raises DamagedFileError if one is missing or impossible."""
    return read_as(RuntimeChoices, path) if path.exists() else None


def choose_runtime(
    paths: RunLayout,
    config: Config,
    device: torch.device,
    data: PreparedData,
    ranks: Ranks | None = None,
    plan: durable.Json | None = None,
) -> RuntimeChoices:
    """The runtime choices of a run: those recorded at its first start, or else decided and recorded now.

    The device is set up for them. The number of threads of a rank that shares its machine with others is not recorded:
    the next start may have another number of ranks.

    Raises:
        UsageError: if the run was started on a kind of device that is not available.
        MtxError: if not even the longest sentence fits the device.
    """
    ranks = ranks or Ranks()
    training = config.training
    check_memory(config, device, data.tokenizer.num_ids)
    recorded = ranks.run_on_rank_zero(read_runtime, paths.chosen)
    is_new = not recorded or torch.device(recorded.device).type != device.type
    if recorded and is_new and config.device == "auto":
        raise UsageError(
            f"{paths.chosen}: this run was started on {recorded.device}, which is not available",
            f"use device={device.type} to resume without it (not bit for bit)",
        )
    prepare_device(device, training.deterministic)
    runtime = recorded or first_choices(config, device, data, ranks)
    kernel = runtime.kernel  # of an earlier start on this kind of device, where the fast one may be wrong
    if is_new or kernel == "varlen":
        kernel = attention_kernel(config.model, device, runtime.precision)
    compiles = runtime.compile if training.compile == "auto" else training.compile
    compiles = compiles and kernel == "varlen" and not training.deterministic
    is_checked = compiles and runtime.compile and not is_new  # by an earlier start
    runtime = replace(runtime, device=str(device), kernel=kernel, compile=is_checked)

    def check(choices: RuntimeChoices) -> RuntimeChoices:
        checked = ranks.run_on_rank_zero(check_fast_step, choices, config, data)
        free_unused_memory(device)
        return replace(checked, device=str(device))

    if is_new and device.type == "cuda":
        runtime = check(runtime)
    if not recorded:
        fits_all = min(ranks.gather(micro_batch_tokens, config, runtime, data))  # devices
        runtime = replace(runtime, micro_batch_tokens=fits_all, plan=plan)
    if compiles and not is_checked and runtime.kernel == "varlen":  # a compiled step has one shape: that of the run
        runtime = check(replace(runtime, compile=True))
    if not recorded and ranks.is_rank_zero:
        durable.write_json(paths.chosen, asdict(runtime))
    if ranks.local_size > 1 or runtime.threads == NOT_CHOSEN:
        runtime = replace(runtime, threads=num_threads(ranks.local_size))
    torch.set_num_threads(runtime.threads)
    return runtime


def check_memory(config: Config, device: torch.device, num_ids: int) -> None:
    """Refuse a model that does not fit the free memory of this machine: weights, their copy that searches, gradients,
    and moments.

    A GPU reports this itself.
    """
    available = machine.available_bytes()
    num_weights = num_parameters(config.model, num_ids)
    needed = 20 * num_weights
    if device.type == "cpu" and available is not None and needed > available:
        raise MtxError(
            f"training {num_weights:,} parameters needs at least {format_size(needed)} of memory, but "
            f"{format_size(available)} are free",
            "a smaller model.preset; mtx import --keep-pieces-of FILE makes a published model smaller",
        )


def first_choices(config: Config, device: torch.device, data: PreparedData, ranks: Ranks) -> RuntimeChoices:
    """What `auto` means at the first start, before it is known how large a micro-batch may be."""
    training = config.training
    precision = ranks.run_on_rank_zero(fast_precision, device) if config.precision == "auto" else config.precision
    last_step, _ = planned_end(training, steps_per_epoch(data.train, training))
    flops = 6 * num_parameters(config.model, data.tokenizer.num_ids) * training.batch_tokens
    seconds = min(last_step * (_STEP_S + flops / _FLOPS), training.time_limit or math.inf)
    threads = num_threads() if ranks.local_size == 1 else NOT_CHOSEN
    kernel = attention_kernel(config.model, device, precision)
    return RuntimeChoices(str(device), precision, 0, kernel, threads, seconds > _LEAST_COMPILED_S)


def cpu_micro_batch(config: Config) -> int:
    """The target tokens of a micro-batch on a CPU."""
    return max(min(config.training.batch_tokens, _CPU_TOKENS), config.data.max_tokens)


def micro_batch_tokens(config: Config, runtime: RuntimeChoices, data: PreparedData) -> int:
    """What `training.micro_batch_tokens` means on this device; on a GPU a whole step, halved until it fits.

    Args:
        runtime: one that is not compiled; its `micro_batch_tokens` is not used.

    Raises:
        MtxError: if not even the longest sentence fits.
    """
    if config.training.micro_batch_tokens != "auto":
        return config.training.micro_batch_tokens
    if not runtime.device.startswith("cuda"):
        return cpu_micro_batch(config)
    longest = config.data.max_tokens
    size = max(config.training.batch_tokens, longest)
    while not _fits(config, replace(runtime, micro_batch_tokens=size), data):
        if size == longest:
            raise MtxError(
                f"{runtime.device}: not enough memory for a micro-batch of {longest} target tokens",
                "use a smaller model.preset, or device=cpu",
            )
        size = max(divide_up(size, 2), longest)
    logger.info(f"using micro-batches of {size:,} target tokens, which fit {runtime.device}")
    return size


def _fits(config: Config, runtime: RuntimeChoices, data: PreparedData) -> bool:
    """Whether training with these micro-batches leaves `_FREE_SHARE` of the memory free."""
    try:
        _try_step(config, runtime, data)
        free, total = torch.cuda.mem_get_info(runtime.device)
        return free > _FREE_SHARE * total
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        free_unused_memory(torch.device(runtime.device))  # also the tensors that the error's traceback held


def _try_step(config: Config, runtime: RuntimeChoices, data: PreparedData) -> None:
    """Take a step and part of a validation, next to all that is in memory while a checkpoint is written.

    All sentences are the longest. Ranks that divide a model try its weights and gradients whole, so that none waits for
    another one that has too little memory.
    """
    model = new_model(config, runtime, data)
    longest = config.data.max_tokens
    # Adam's two moments, a checkpoint's copies of these and of the weights, and the copy of the weights that searches.
    num_shards = 2 if config.training.shard else 1  # at least
    sizes = [divide_up(parameter.numel(), num_shards) for parameter in model.parameters()] * 6
    reserved = [torch.zeros(size, device=runtime.device) for size in sizes]
    _, shape = step_shape(config, runtime, text_and_sampler(config, data)[1])
    micro_step = new_micro_step(config.training, runtime, model)  # its graphs hold memory too
    micro_step(longest_sentences(shape, model.pad_id), 1.0, is_first=True)
    sentences = [[0] * longest] * max(1, SCORED_TOKENS // longest)
    score_pairs(model.eval(), sentences, sentences, alpha=0.0)
    del reserved


def longest_sentences(shape: Shape, pad_id: int) -> PackedBatch:
    """A batch of as many of the longest sentences as `shape` holds, in host memory."""
    count = max(1, (min(shape.num_src, shape.num_tgt) - shape.spare) // shape.max_tokens)
    side = Side.of([[0] * shape.max_tokens] * count, np.uint16)
    return pack(side, side, np.arange(count), shape, pad_id)


def check_fast_step(runtime: RuntimeChoices, config: Config, data: PreparedData) -> RuntimeChoices:
    """The fastest step that computes here what it should, by the loss and the gradients of the first step of the run.

    They are compared with those of the step in fp32, one operation after the other, both without dropout. A kernel that
    crashes the process or hangs is not caught. Where memory does not suffice for this, nothing is compared.
    """
    plain = replace(runtime, kernel="padded", compile=False, precision="fp32")
    if runtime == plain:
        return runtime
    config = settings.with_values(config, {"model.dropout": 0.0})

    def take(choices: RuntimeChoices) -> StepResult:  # a compiled step has one shape: that of the run
        free_unused_memory(torch.device(runtime.device))
        size = choices.micro_batch_tokens if choices.compile else cpu_micro_batch(config)
        return first_step(config, replace(choices, micro_batch_tokens=size), data)[0]()

    def find_fault(choices: RuntimeChoices) -> str | None:
        try:
            result = take(choices)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return f"{type(error).__name__}: {first_line(error)}"
        norms = torch.stack([gradient.norm() for gradient in expected.gradients])
        differences = torch.stack([(a - b).norm() for a, b in zip(result.gradients, expected.gradients, strict=True)])
        norm = norms.norm()
        loss = abs(result.loss / expected.loss - 1)
        gradient = float(differences.norm() / norm)
        worst = float((differences / norms.clamp(min=_LEAST_SHARE * norm)).max())  # of a parameter
        is_near = loss <= _LOSS_LIMIT and gradient <= _GRADIENT_LIMIT and worst <= _PARAMETER_LIMIT
        if is_near:
            return None
        return (
            f"its loss differs by {loss:.2%} and its gradient by {gradient:.1%}, that of one parameter by {worst:.1%}"
        )

    logger.info(f"comparing the fast step with the plain one on {runtime.device}")
    faults = list[str]()
    slower = (replace(runtime, compile=False), replace(plain, precision="bf16"), plain)
    try:
        expected = take(plain)
        for choices in dict.fromkeys([runtime, *slower]):
            fault = find_fault(choices)
            if fault is None:
                break
            compiled = ", compiled" if choices.compile else ""
            faults.append(f"{choices.kernel} kernel{compiled}: {fault}")
        else:  # the fast step has left the device unusable for this process
            raise MtxError(
                f"{runtime.device}: unusable after the fast step: {faults[0]}",
                "training.compile=false" if runtime.compile else "precision=fp32",
            )
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        logger.warning("not enough memory to compare the fast step with the plain one")
        return runtime
    if faults:
        is_eager = choices.kernel == "padded"
        mode = f"one operation after the other, in {choices.precision}" if is_eager else "without compiling it"
        logger.warning(
            f"the fast step is wrong on this machine ({'; '.join(faults)}); training {mode}\n"
            "  help: use another run_dir=DIR to try again"
        )
    return choices


def first_step(config: Config, runtime: RuntimeChoices, data: PreparedData) -> tuple[Callable[[], StepResult], int]:
    """What takes the first step of a run again and again, without an update, and the step's target tokens."""
    text, sampler = text_and_sampler(config, data)
    shape = step_shape(config, runtime, sampler)
    with contextlib.closing(load_steps(text, steps(sampler, SamplerState(), 1), *shape)) as loaded:
        step = next(loaded)
    micro_step = new_micro_step(config.training, runtime, new_model(config, runtime, data))
    return partial(take_step, micro_step, step.micro_batches, config.seed), step.num_tgt_tokens


def new_model(config: Config, runtime: RuntimeChoices, data: PreparedData, device: Any = None) -> TranslationModel:
    """A model with the random weights of the seed, which are drawn on the CPU; else on the device of `runtime`."""
    torch.manual_seed(config.seed)
    model = architectures.new_model(config.model, data.tokenizer.num_ids).to(device or runtime.device)
    model.kernel = runtime.kernel
    model.prepare_positions(config.data.max_tokens + EXTRA_LENGTH)  # of the translations in a report too
    return model


def text_and_sampler(config: Config, data: PreparedData) -> tuple[TokenStore, BatchSampler]:
    """What a run learns from, the training pairs and perhaps copies of their targets, and the sampler of its steps."""
    training = config.training
    text = data.train
    if training.copied_target_ratio:
        text = text.with_copies(training.copied_target_ratio)
    encode = epoch_text(config, text, data.tokenizer, data.terms)
    order = text.epoch_order(config.seed)
    return text, BatchSampler(order, training.batch_tokens, config.data.max_tokens, encode)


def build(
    config: Config,
    runtime: RuntimeChoices,
    data: PreparedData,
    paths: RunLayout,
    ranks: Ranks | None = None,
    deferred_errors: DeferredErrors | None = None,
    initial: LoadedModel | None = None,
    started: float | None = None,
) -> Trainer:
    """A trainer that is ready for its next step. All ranks build theirs together.

    Args:
        initial: the model of `training.init_from`, for the first step of a run; rank 0's counts.
        started: when the command was given, on the monotonic clock; a time limit counts from there.

    Raises:
        DamagedFileError: if no checkpoint is intact, or the data is not what the run was trained on.
    """
    ranks = ranks or Ranks()
    deferred_errors = deferred_errors or DeferredErrors()
    text, sampler = text_and_sampler(config, data)
    kind = Sharded if config.training.shard and ranks.size > 1 else Strategy
    strategy = kind(partial(new_model, config, runtime, data), torch.device(runtime.device), ranks)

    def restore(model: TranslationModel, optimizer: torch.optim.Optimizer) -> State:
        """The state to continue from; its weights and moments go into `model` and `optimizer`."""
        if full_checkpoint_steps(paths):
            state = load_newest(paths, model, optimizer)
            if state.data_sha256 != data.sha256:
                raise DamagedFileError(
                    f"{paths.data}: not the data of step {state.step} of this run",
                    "restore the original data, or use another run_dir=DIR",
                )
            logger.info(f"resuming from step {state.step}")
            return drop_outdated_cooldown(state, config.training)
        state = State(data_sha256=data.sha256, settings=settings.fixed_settings(config))
        if not initial:
            return state
        logger.info(f"starting from the weights of {config.training.init_from}")
        model.load_state_dict(initial.model.state_dict())
        return replace(state, validated_step=-1, init_sha256=initial.sha256)  # validate before step 1

    state = strategy.load(restore)
    times = [event.get("elapsed_s") or 0.0 for event in read_events(paths.metrics)]  # also after the last checkpoint
    started = time.monotonic() if started is None else started
    return Trainer(
        config=config,
        runtime=runtime,
        data=data,
        paths=paths,
        ranks=ranks,
        deferred_errors=deferred_errors,
        training_text=text,
        sampler=sampler,
        strategy=strategy,
        state=state,
        schedule=Schedule(config, data, sampler, ranks.size),
        start_s=started - max(state.elapsed_s, *times, 0.0),
        checkpointer=AsyncCheckpointer(paths, config.training, deferred_errors, state),
        validate_part=partial(validate_part, config, data),
        validation_of=partial(validation_of, config, data),
    )
