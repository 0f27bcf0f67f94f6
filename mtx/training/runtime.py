"""What `auto` means for a run: decided at its first start, recorded in chosen.json, and reused by later starts.

The micro-batch is the largest that fits the device, which is tried out. It decides how a step is divided, never what
a step learns from, so the steps of a run may be divided in any way.
"""

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor

from mtx.checks import steps_per_epoch
from mtx.config.schema import Config
from mtx.data.epoch_text import changed_every_epoch
from mtx.data.glossary import Glossary
from mtx.data.packing import PackedBatch, Shape, micro_batch_shape, pack
from mtx.data.preprocess import PreparedData
from mtx.data.sampler import BatchSampler
from mtx.data.token_store import Side, TokenStore
from mtx.data.tokenizer import Tokenizer
from mtx.decoding.batches import to_device, to_tensors
from mtx.decoding.options import EXTRA_LENGTH
from mtx.errors import DamagedFileError, MtxError, UsageError, is_out_of_memory
from mtx.files import durable
from mtx.files.sizes import readable
from mtx.model import architectures
from mtx.model.architecture import parameters
from mtx.model.architectures import training_flops
from mtx.model.attention import Kernel
from mtx.model.device import (
    available_bytes,
    cuda_versions,
    fast_precision,
    free_unused_memory,
    num_threads,
    repays_compiling,
    use_device,
)  # fmt: skip
from mtx.model.translation_model import TranslationModel
from mtx.run.layout import RunLayout
from mtx.run.planned_end import planned_end
from mtx.training.fast_path import PARTS, Parts, Task, find_sound_parts, listed, parts_for
from mtx.training.micro_step import MicroStep
from mtx.training.ranks import Ranks
from mtx.training.sharding import is_sharded
from mtx.training.validation import BATCH_TOKENS, batch_nll

logger = logging.getLogger(__name__)

_CPU_MICRO_BATCH = 4096  # larger ones are not faster on a CPU, and memory use stays small
_NOT_CHOSEN = 0  # threads of a run that only ranks have trained which shared a machine
_FREE_SHARE = 0.08  # share of a GPU's memory that stays free for decoding and for fragmentation over days


@dataclass(frozen=True)
class RuntimeChoices:
    """How a run uses its device: the content of chosen.json.

    Attributes:
        graph: whether a step is recorded once and replayed.
        switched_off: which parts of the fast path failed the check at the start, and why; see `fast_path.PARTS`.
        checked_on: the GPU and the versions with which they were checked; None if nothing had to be.
    """

    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d{1,3})?|mps)$")]
    precision: Literal["fp32", "bf16"]
    micro_batch_tokens: Annotated[int, Field(ge=1, lt=1 << 31)]
    kernel: Kernel
    threads: Annotated[int, Field(ge=_NOT_CHOSEN, le=4096)]
    compile: bool
    graph: bool = False
    switched_off: dict[str, str] = field(default_factory=dict)
    checked_on: dict[str, str] | None = None

    @property
    def parts(self) -> Parts:
        """The parts of the fast path that are used."""
        used = {"compile": self.compile, "graph": self.graph, "varlen": self.kernel == "varlen"}
        return tuple(part for part in PARTS if used.get(part, self.precision == "bf16"))

    def with_parts(self, parts: Parts) -> "RuntimeChoices":
        """The same with these parts of the fast path and no others."""
        return replace(
            self, compile="compile" in parts, graph="graph" in parts,
            kernel="varlen" if "varlen" in parts else "padded", precision="bf16" if "bf16" in parts else "fp32",
        )  # fmt: skip


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
    ranks = ranks or Ranks()
    recorded = read_runtime(paths.chosen) if ranks.share("looks for chosen.json", paths.chosen.exists) else None
    if recorded and config.device == "auto" and torch.device(recorded.device).type != device.type:
        raise UsageError(
            f"{paths.chosen}: this run was started on {recorded.device}, which is not here",
            f"device={device.type} goes on without it, not bit for bit",
        )
    num_ids, runtime = data.tokenizer.num_ids, recorded
    if runtime is None:
        precision = ranks.share("chooses the precision", lambda: _precision(config, device))
        compiled = device.type == "cuda" and _repays_compiling(config, data)
        threads = num_threads() if ranks.world.local_size == 1 else _NOT_CHOSEN
        runtime = RuntimeChoices(str(device), precision, 0, "padded", threads, compiled)
    runtime = _with_sound_parts(runtime, config, device, num_ids, ranks)
    ranks.connect(device)
    use_device(device)
    if recorded is None:
        size = config.training.micro_batch_tokens
        if size == "auto":
            num_shards = ranks.size if is_sharded(config, device, num_ids, ranks) else 1
            sampler = new_sampler(config, training_text(config, data), data.tokenizer, data.terms)
            size = largest_micro_batch(config, runtime, num_ids, sampler, num_shards)
        runtime = replace(runtime, micro_batch_tokens=-int(ranks.agree([-size])[0]))  # what fits every device
        if ranks.is_first:
            write_runtime(paths.chosen, runtime)
    return _with_threads(runtime, ranks)


def _precision(config: Config, device: torch.device) -> str:
    return fast_precision(device) if config.precision == "auto" else config.precision


def _with_threads(runtime: RuntimeChoices, ranks: Ranks) -> RuntimeChoices:
    """The choices with the threads of this rank: those of the run if it has its machine to itself."""
    local_size = ranks.world.local_size
    is_chosen = local_size == 1 and runtime.threads != _NOT_CHOSEN
    return runtime if is_chosen else replace(runtime, threads=num_threads(local_size))


def _with_sound_parts(
    recorded: RuntimeChoices, config: Config, device: torch.device, num_ids: int, ranks: Ranks
) -> RuntimeChoices:
    """The choices for this device, with those parts of the fast path that suit it and have no fault.

    Rank 0 tries the parts for all, unless they were tried before, with its GPU, driver and torch.
    """

    def tried() -> dict[str, Any]:
        choice = _sound_parts(recorded, config, device, num_ids)
        return {"parts": choice.parts, "switched_off": choice.switched_off, "checked_on": choice.checked_on}

    choice = ranks.share("tries the fast path", tried)
    here = replace(recorded, device=str(device), switched_off=choice["switched_off"], checked_on=choice["checked_on"])
    return here.with_parts(tuple(choice["parts"]))


def _sound_parts(recorded: RuntimeChoices, config: Config, device: torch.device, num_ids: int) -> RuntimeChoices:
    here = cuda_versions(device)
    is_known = recorded.checked_on == here
    off = recorded.switched_off if is_known or here is None else {}
    compiled: bool = recorded.compile or "compile" in recorded.switched_off
    if config.training.compile != "auto":
        compiled = config.training.compile
        off = {part: fault for part, fault in off.items() if part != "compile" or not compiled}
    training = config.training
    parts = parts_for(device, recorded.precision, config.model, training.deterministic, compiled)
    wished = tuple(part for part in parts if part not in off and (part == "bf16" or "varlen" not in off))
    runtime = replace(recorded, device=str(device), switched_off=off).with_parts(wished)
    if here is None or {*wished} <= {*(recorded.parts if is_known else ())}:
        return runtime
    logger.info("trying %s on %s beside the plain step", listed(wished), device)
    task = Task(
        config.model, num_ids, config.data.max_tokens, training.label_smoothing, str(device), training.deterministic,
        wished, training.consistency,
    )  # fmt: skip
    finding = find_sound_parts(task)
    if finding.faults:
        reasons = "; ".join(f"{PARTS[part]}: {fault}" for part, fault in finding.faults.items())
        logger.warning(
            "the fast path has a fault here: %s; training goes on without %s\n  help: mtx doctor tries it again; this "
            "run does with another torch, driver or GPU, or with training.compile=true",
            reasons, listed(part for part in wished if part not in finding.parts),
        )  # fmt: skip
    return replace(runtime, switched_off={**off, **finding.faults}, checked_on=here).with_parts(finding.parts)


def record_check(path: Path, runtime: RuntimeChoices) -> None:
    """Record the check of the fast path if this start has made a new one; all else in chosen.json stays."""
    recorded = read_runtime(path)
    if recorded.checked_on == runtime.checked_on and recorded.switched_off == runtime.switched_off:
        return
    compiled = runtime.compile or recorded.compile or "compile" in recorded.switched_off
    kept = replace(
        recorded.with_parts(runtime.parts), compile=compiled and "compile" not in runtime.switched_off,
        switched_off=runtime.switched_off, checked_on=runtime.checked_on,
    )  # fmt: skip
    write_runtime(path, kept)


def _repays_compiling(config: Config, data: PreparedData) -> bool:
    """Whether the run is long enough that compiling its step saves time."""
    training, (num_ids, ratio) = config.training, (data.tokenizer.num_ids, data.report["src_tgt_ratio"])
    last, _ = planned_end(training, steps_per_epoch(data.train, training))
    num_tokens = training.num_passes * last * training.batch_tokens
    return repays_compiling(num_tokens * training_flops(config.model, num_ids, ratio))


def record_micro_batch(path: Path, size: int) -> None:
    """Record another micro-batch for later starts."""
    write_runtime(path, replace(read_runtime(path), micro_batch_tokens=size))


def write_runtime(path: Path, runtime: RuntimeChoices) -> None:
    """Record choices for later starts."""
    durable.write_json(path, asdict(runtime))


def check_memory(config: Config, device: torch.device, num_ids: int) -> None:
    """Refuse a model that cannot be trained in the free memory of this machine. A GPU reports this itself.

    The estimate is too low rather than too high: weights, gradients and Adam's two moments, and the inner states of the
    feed-forward layers of one micro-batch in bf16.

    Raises:
        MtxError: naming the memory that is needed and free.
    """
    available = available_bytes(device)
    if device.type != "cpu" or available is None:
        return
    model, size = config.model, config.training.micro_batch_tokens
    num_weights = sum(math.prod(parameter.shape) for parameter in parameters(model, num_ids))
    micro_batch = _default_micro_batch(config) if size == "auto" else min(size, config.training.batch_tokens)
    states = micro_batch * (model.num_encoder_layers + model.num_decoder_layers) * model.d_ff
    needed = 16 * num_weights + 2 * states
    if needed > available:
        wants, has = readable(needed, available)
        raise MtxError(
            f"training {num_weights:,} parameters with micro-batches of {micro_batch:,} target tokens needs at least "
            f"{wants} of memory, and {has} are free",
            "a smaller model.preset or training.micro_batch_tokens",
        )


def _default_micro_batch(config: Config) -> int:
    return max(min(config.training.batch_tokens, _CPU_MICRO_BATCH), config.data.max_tokens)


def read_runtime(path: Path) -> RuntimeChoices:
    """Read the choices of an earlier start; raises DamagedFileError if one is missing or impossible."""
    try:
        return TypeAdapter(RuntimeChoices).validate_json(json.dumps(durable.read_json(path)), strict=True)
    except ValidationError as error:
        problem = error.errors()[0]
        raise DamagedFileError(
            f"{path}: {'.'.join(map(str, problem['loc']))}: {problem['msg']}", "another run_dir=DIR starts anew"
        ) from None


def new_model(config: Config, runtime: RuntimeChoices, num_ids: int) -> TranslationModel:
    """A model on the device of `runtime`; its random weights are drawn on the CPU."""
    model = architectures.new_model(config.model, num_ids).to(runtime.device)
    model.kernel = runtime.kernel
    model.prepare_positions(config.data.max_tokens + EXTRA_LENGTH)  # of the translations in a report too
    return model


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
    return data.train.with_copies(config.training.copies) if config.training.copies else data.train


def new_sampler(config: Config, text: TokenStore, tokenizer: Tokenizer, terms: Glossary | None = None) -> BatchSampler:
    """The sampler of a run, which decides what its steps learn from.

    Args:
        text: its `training_text`.
        terms: those of its data.
    """
    training, encode = config.training, changed_every_epoch(config, text, tokenizer, terms)
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
        return _default_micro_batch(config)
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
    """Take a step and part of a validation, beside all that is in memory while a checkpoint is written."""
    _, shape = step_shape(config, runtime, sampler)
    model, device = new_model(config, runtime, num_ids).train(), torch.device(runtime.device)
    # Adam's two moments, and a checkpoint's copies of these and of the weights.
    parts = [-(-parameter.numel() // num_shards) for parameter in model.parameters()]
    reserved = [torch.zeros(part, device=device) for part in parts for _ in range(5)]
    training = config.training
    micro_step = MicroStep(
        model, training.label_smoothing, runtime.precision, recorded=runtime.graph, consistency=training.consistency,
        source_loss=training.source_loss,
    )  # fmt: skip
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
    return to_tensors(pack(side, side, np.arange(count), shape, pad_id))
