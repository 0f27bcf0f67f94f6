"""Makes everything that a start of a run needs before its first step, complete: model, optimizer, sampler, state.

What `auto` means is decided at the first start, recorded in chosen.json, and reused by later starts. Flow:
configuration, device, prepared data -> `prepare_device` -> `build` -> `Trainer`, which has the weights of the newest
checkpoint, or of `training.init_from`, or the random ones of the seed.
"""

import contextlib
import functools
import logging
import time
from dataclasses import replace

import torch

from mtx.config.fixed import fixed_settings
from mtx.config.schema import Config, TrainingConfig
from mtx.data.batches import load_steps
from mtx.data.sampler import SamplerState, steps
from mtx.data.token_store import PreparedData
from mtx.decoding.model_directory import LoadedModel
from mtx.errors import DamagedFileError, DeferredErrors, UsageError, first_line, is_out_of_memory
from mtx.model.device import (
    attention_kernel,
    fast_precision,
    free_unused_memory,
    keep_freed_memory,
    make_deterministic,
    num_threads,
    peak_flops,
    use_device,
)
from mtx.model.transformer import training_flops
from mtx.model.translation_model import TranslationModel
from mtx.storage.run_contents import full_checkpoint_steps
from mtx.storage.run_files import RunLayout
from mtx.training import checkpoint
from mtx.training.checkpoint import AsyncCheckpointer, State
from mtx.training.micro_batch import CPU_MICRO_BATCH, check_memory, largest_micro_batch, new_micro_step, step_shape
from mtx.training.micro_step import StepResult, take_step
from mtx.training.plan import Plan, planned_end, steps_per_epoch
from mtx.training.progress import Progress
from mtx.training.ranks import Ranks
from mtx.training.runtime import (
    NOT_CHOSEN,
    RuntimeChoices,
    new_model,
    new_sampler,
    read_runtime,
    training_text,
    write_runtime,
)
from mtx.training.stopping import StoppingCriteria
from mtx.training.strategy import Sharded, Strategy, is_sharded
from mtx.training.trainer import Trainer

logger = logging.getLogger(__name__)

# How far the first fast step may be from the plain one. On a CPU, correct bf16 was within 0.0002 and 0.016; a sentence
# that begins one token too late put the gradient 0.08 off.
_LOSS_LIMIT, _GRADIENT_LIMIT = 2**-9, 0.04
# Compiling costs one to two minutes and may save a third of the time; 5e16 FLOP take about four minutes on an H200.
_REPAYS_FLOPS = 5e16


def prepare_device(
    config: Config, records: RunLayout, device: torch.device, data: PreparedData, ranks: Ranks | None = None
) -> RuntimeChoices:
    """How the run uses the device, which is set up for it.

    Args:
        records: the run whose chosen.json is read or written.
    """
    if device.type == "cuda" and config.training.deterministic:
        make_deterministic()
    check_memory(config, device, data.tokenizer.num_ids)
    runtime = choose_runtime(records, config, device, data, ranks)
    torch.set_num_threads(runtime.threads)
    if device.type == "cpu":
        keep_freed_memory()
    return runtime


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
        threads = num_threads() if local_size == 1 else NOT_CHOSEN
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
    is_chosen = local_size == 1 and runtime.threads != NOT_CHOSEN
    return runtime if is_chosen else replace(runtime, threads=num_threads(local_size))


def check_fast_step(runtime: RuntimeChoices, config: Config, data: PreparedData) -> RuntimeChoices:
    """The fastest step that computes here what it should, by its loss and its gradient for the first batch.

    They are compared with those of one step in fp32, one operation after the other, both without dropout: the gradients
    by the norm of their difference, relative to that of the plain one. A kernel that crashes the process or hangs is
    not caught. Where memory does not suffice for this, nothing is compared.
    """
    eager = replace(runtime, kernel="padded", compile=False)
    plain = replace(eager, precision="fp32")
    if runtime == plain:
        return runtime
    text = training_text(config, data)
    sampler = new_sampler(config, text, data.tokenizer, data.terms)
    size = max(min(config.training.batch_tokens, CPU_MICRO_BATCH), config.data.max_tokens)
    num_micro_steps, shape = step_shape(config, replace(runtime, micro_batch_tokens=size), sampler)
    planned = steps(sampler, SamplerState(), 1)
    with contextlib.closing(load_steps(text, planned, num_micro_steps, shape)) as loaded:
        batch = next(loaded).micro_batches[0]
    without_dropout = config.model_copy(update={"model": config.model.model_copy(update={"dropout": 0.0})})

    def take(choices: RuntimeChoices) -> StepResult:
        model = new_model(without_dropout, choices, data.tokenizer.num_ids).train()
        return take_step(new_micro_step(config, choices, model), [batch], config.seed)

    def find_fault(choices: RuntimeChoices) -> str | None:
        try:
            found = take(choices)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return f"{type(error).__name__}: {first_line(error)}"
        apart = norm([a - b for a, b in zip(found.gradients, expected.gradients, strict=True)])
        loss, gradient = abs(found.loss / expected.loss - 1), float(apart / norm(expected.gradients))
        is_near = loss <= _LOSS_LIMIT and gradient <= _GRADIENT_LIMIT
        return None if is_near else f"its loss differs by {loss:.2%} and its gradient by {gradient:.1%}"

    logger.info("comparing the fast step with the plain one on %s", runtime.device)
    norm, faults = torch.nn.utils.get_total_norm, list[str]()
    try:
        expected = take(plain)
        for choices in dict.fromkeys([runtime, replace(runtime, compile=False), eager, plain]):
            if (fault := find_fault(choices)) is None:
                break
            faults.append(fault)
            free_unused_memory(torch.device(runtime.device))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        logger.warning("memory does not suffice to compare the fast step with the plain one")
        return runtime
    if faults:
        path = (
            "without compiling it"
            if choices.kernel == "varlen"
            else f"one operation after the other, in {choices.precision}"
        )
        logger.warning(
            f"the fast step has a fault here ({'; '.join(faults)}); this run takes its steps {path}\n"
            "  help: another run_dir=DIR tries again"
        )
    return choices


def _repays_compiling(config: Config, data: PreparedData) -> bool:
    """Whether the run is long enough that compiling its step saves time."""
    training, ratio = config.training, data.report["src_tgt_ratio"]
    last, _ = planned_end(training, steps_per_epoch(data.train, training))
    num_tokens = training.num_passes * last * training.batch_tokens
    return num_tokens * training_flops(config.model, data.tokenizer.num_ids, ratio) > _REPAYS_FLOPS


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
    ranks, deferred_errors = ranks or Ranks(), deferred_errors or DeferredErrors()
    device, num_ids = torch.device(runtime.device), data.tokenizer.num_ids
    text = training_text(config, data)
    sampler = new_sampler(config, text, data.tokenizer, data.terms)
    kind = Sharded if is_sharded(config, device, num_ids, ranks) else Strategy
    strategy = kind(functools.partial(new_model, config, runtime, num_ids), device, ranks)
    state = strategy.load(functools.partial(_restore, config, data, paths, initial))
    peak = peak_flops(device, runtime.precision) if config.model.architecture == "transformer" else None
    flops = training_flops(config.model, num_ids, sampler.ratio) * config.training.num_passes
    started = time.monotonic() if started is None else started
    stopping = StoppingCriteria(config, data, started, state.elapsed_s, ranks.size)
    return Trainer(
        config=config,
        runtime=runtime,
        data=data,
        paths=paths,
        ranks=ranks,
        deferred_errors=deferred_errors,
        text=text,
        sampler=sampler,
        strategy=strategy,
        state=state,
        stopping=stopping,
        plan=Plan(config, data.train, sampler, stopping),
        checkpointer=AsyncCheckpointer(paths, config.training, deferred_errors, state),
        progress=Progress(state.step, None if peak is None else flops / (peak * ranks.size)),
    )


def _restore(
    config: Config,
    data: PreparedData,
    paths: RunLayout,
    initial: LoadedModel | None,
    model: TranslationModel,
    optimizer: torch.optim.Optimizer,
) -> State:
    """The state to continue from; puts the weights and moments that belong to it into `model` and `optimizer`."""
    if full_checkpoint_steps(paths):
        state = checkpoint.load_newest(paths, model, optimizer)
        if state.data_sha256 != data.sha256:
            raise DamagedFileError(
                f"{paths.data}: is not the data that step {state.step} of this run was trained on",
                "restore the original data, or use another run_dir=DIR",
            )
        logger.info("resuming from step %d", state.step)
        return drop_outdated_cooldown(state, config.training)
    state = State(data_sha256=data.sha256, settings=fixed_settings(config))
    if initial is None:
        return state
    logger.info("starting from the weights of %s", config.training.init_from)
    model.load_state_dict(initial.model.state_dict())
    return replace(state, validated_step=-1, init_sha256=initial.sha256)  # validate before step 1


def drop_outdated_cooldown(state: State, training: TrainingConfig) -> State:
    """The state, without a cooldown whose limit has changed since it was planned: it will be planned again."""
    cooldown = state.cooldown
    is_outdated = cooldown is not None and getattr(training, cooldown.reason) != cooldown.limit
    return replace(state, cooldown=None) if is_outdated else state
