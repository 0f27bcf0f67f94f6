"""What `auto` means for a run: decided at its first start, recorded in chosen.json, and reused by later starts.

The micro-batch is the largest that fits the device, which is tried out. It decides how a step is divided, never what
a step learns from, so the steps of a run may be divided in any way.
"""

import gc
import hashlib
import json
import logging
import math
import re
import reprlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from mtx.checks import steps_per_epoch
from mtx.config.schema import Config
from mtx.data.packing import PackedBatch, Shape, micro_batch_shape, pack
from mtx.data.preprocess import PreparedData
from mtx.data.token_store import Side
from mtx.decoding.batches import to_tensors
from mtx.errors import DamagedFileError, MtxError, UsageError
from mtx.files import durable
from mtx.files.sizes import readable
from mtx.model.architecture import parameters
from mtx.model.attention import Kernel
from mtx.model.device import attention_kernel, available_bytes, fast_precision, num_threads, repays_compiling
from mtx.model.transformer import Transformer, training_flops
from mtx.run.layout import RunLayout
from mtx.run.planned_end import planned_end
from mtx.training.micro_step import MicroStep
from mtx.training.ranks import Ranks
from mtx.training.sharding import is_sharded

logger = logging.getLogger(__name__)

_CPU_MICRO_BATCH = 4096  # larger ones are not faster on a CPU, and memory use stays small
_FREE_SHARE = 0.08  # share of a GPU's memory that stays free for decoding and for fragmentation over days


_SEAL = "sha256"  # the key of the seal in chosen.json
_MAX_THREADS = 4096
_NOT_CHOSEN = 0  # threads of a run that only ranks have trained which shared a machine
_POSSIBLE: dict[str, Callable[[Any], bool]] = {  # what each value of chosen.json can be
    "device": lambda value: isinstance(value, str) and re.fullmatch(r"cpu|cuda(:\d{1,3})?|mps", value) is not None,
    "precision": lambda value: value in ("fp32", "bf16"),
    "micro_batch_tokens": lambda value: type(value) is int and 1 <= value < 1 << 31,
    "kernel": lambda value: value in get_args(Kernel),
    "threads": lambda value: type(value) is int and _NOT_CHOSEN <= value <= _MAX_THREADS,
    "compile": lambda value: type(value) is bool,
}


@dataclass(frozen=True)
class RuntimeChoices:
    """How a run uses its device: the content of chosen.json."""

    device: str
    precision: str
    micro_batch_tokens: int
    kernel: Kernel
    threads: int
    compile: bool


def choose_runtime(
    paths: RunLayout, config: Config, device: torch.device, data: PreparedData, ranks: Ranks | None = None
) -> RuntimeChoices:
    """The runtime choices of a run: those recorded at its first start, or else decided and recorded now.

    The number of threads of a rank that shares its machine with others is not recorded: the next start may have another
    number of ranks.

    Raises:
        UsageError: if the run was started on a kind of device that is not available.
        MtxError: if not even the longest sentence fits the device.
    """
    head_size, is_deterministic = config.model.d_model // config.model.num_heads, config.training.deterministic
    ranks = ranks or Ranks()
    if ranks.share("looks for chosen.json", paths.chosen.exists):
        runtime = read_runtime(paths.chosen)
        if config.device == "auto" and torch.device(runtime.device).type != device.type:
            raise UsageError(
                f"{paths.chosen}: this run was started on {runtime.device}, which is not here",
                f"device={device.type} goes on without it, not bit for bit",
            )
        kernel = attention_kernel(device, runtime.precision, head_size, is_deterministic)
        return _with_threads(replace(runtime, device=str(device), kernel=kernel), ranks)
    precision = ranks.share("chooses the precision", lambda: _precision(config, device))
    kernel = attention_kernel(device, precision, head_size, is_deterministic)
    num_ids, ratio = data.tokenizer.num_ids, data.report["src_tgt_ratio"]
    compiled = kernel == "varlen" and _repays_compiling(config, data)
    threads = num_threads() if ranks.world.local_size == 1 else _NOT_CHOSEN
    runtime = RuntimeChoices(str(device), precision, 0, kernel, threads, compiled)
    size = config.training.micro_batch_tokens
    num_shards = ranks.size if is_sharded(config, device, num_ids, ranks) else 1
    size = largest_micro_batch(config, runtime, num_ids, ratio, num_shards) if size == "auto" else size
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


def _repays_compiling(config: Config, data: PreparedData) -> bool:
    """Whether the run is long enough that compiling its step saves time."""
    training, (num_ids, ratio) = config.training, (data.tokenizer.num_ids, data.report["src_tgt_ratio"])
    last, _ = planned_end(training, steps_per_epoch(data.train, training.batch_tokens))
    return repays_compiling(last * training.batch_tokens * training_flops(config.model, num_ids, ratio))


def record_micro_batch(path: Path, size: int) -> None:
    """Record another micro-batch for later starts."""
    write_runtime(path, replace(read_runtime(path), micro_batch_tokens=size))


def write_runtime(path: Path, runtime: RuntimeChoices) -> None:
    """Record choices for later starts, with a hash of them as a seal."""
    durable.write_json(path, {**asdict(runtime), _SEAL: _seal(asdict(runtime))})


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
    """Read the choices of an earlier start.

    Raises:
        DamagedFileError: if one is missing or impossible, or if they were changed after mtx wrote them.
    """
    stored, help = durable.read_json(path), "put back what mtx wrote; another run_dir=DIR starts anew"
    values: dict[str, Any] = {field.name: stored.get(field.name) for field in fields(RuntimeChoices)}
    for name, is_possible in _POSSIBLE.items():
        if not is_possible(values[name]):
            text = f"lacks {name}" if name not in stored else f"{name} cannot be {reprlib.repr(values[name])}"
            raise DamagedFileError(f"{path}: {text}", help)
    if stored.get(_SEAL, _seal(values)) != _seal(values):  # earlier versions wrote no seal
        raise DamagedFileError(f"{path}: was changed after mtx wrote it", help)
    return RuntimeChoices(**values)


def _seal(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def new_model(config: Config, runtime: RuntimeChoices, num_ids: int) -> Transformer:
    """A model on the device of `runtime`; its random weights are drawn on the CPU."""
    model = Transformer(config.model, num_ids).to(runtime.device)
    model.kernel = runtime.kernel
    model.prepare_positions(config.data.max_tokens)
    return model


def largest_micro_batch(
    config: Config, runtime: RuntimeChoices, num_ids: int, ratio: float, num_shards: int = 1
) -> int:
    """The target tokens of the largest micro-batch that fits: a whole step, halved until it does.

    Args:
        runtime: its `micro_batch_tokens` is not used.
        ratio: source tokens per target token in the training data.
        num_shards: of Adam's state, if ranks divide it. The weights and gradients are tried whole, so that no rank
            waits for another one that has too little memory.

    Raises:
        MtxError: if not even the longest sentence fits.
    """
    tokens, longest = config.training.batch_tokens, config.data.max_tokens
    if torch.device(runtime.device).type != "cuda":
        return _default_micro_batch(config)
    size = max(tokens, longest)
    while not _fits(config, replace(runtime, micro_batch_tokens=size), num_ids, ratio, num_shards):
        if size == longest:
            raise MtxError(
                f"{runtime.device}: a micro-batch of {longest} target tokens does not fit its memory",
                "a smaller model.preset, or device=cpu",
            )
        size = max(-(-size // 2), longest)
    logger.info("micro-batches of %s target tokens fit %s", f"{size:,}", runtime.device)
    return size


def _fits(config: Config, runtime: RuntimeChoices, num_ids: int, ratio: float, num_shards: int = 1) -> bool:
    """Whether training with these micro-batches, of the longest sentences, leaves `_FREE_SHARE` of the memory free."""
    try:
        _run_micro_step(config, runtime, num_ids, ratio, num_shards)
        free, total = torch.cuda.mem_get_info(runtime.device)
        return free > _FREE_SHARE * total
    except torch.OutOfMemoryError:
        return False
    finally:
        gc.collect()  # frees the tensors that the error's traceback held
        torch.cuda.empty_cache()


def _run_micro_step(config: Config, runtime: RuntimeChoices, num_ids: int, ratio: float, num_shards: int) -> None:
    longest = config.data.max_tokens
    _, shape = micro_batch_shape(config.training.batch_tokens, runtime.micro_batch_tokens, ratio, longest)
    model = new_model(config, runtime, num_ids).train()
    parts = [-(-parameter.numel() // num_shards) for parameter in model.parameters()]
    device = torch.device(runtime.device)
    reserved = [torch.zeros(part, device=device) for part in parts for _ in range(4)]  # Adam's, a checkpoint's copies
    micro_step = MicroStep(model, config.training.label_smoothing, runtime.precision)
    micro_step.start_step()
    micro_step(longest_sentences(shape, num_ids), 1.0)
    torch.cuda.synchronize(runtime.device)
    del reserved


def longest_sentences(shape: Shape, pad_id: int) -> PackedBatch:
    """A batch of as many of the longest sentences as `shape` holds, in host memory."""
    length, room = shape.max_tokens, min(shape.num_src, shape.num_tgt) - shape.spare
    count = max(1, room // length)
    side = Side(np.zeros(length, np.uint16), np.zeros(count, np.int64), np.full(count, length, np.int32))
    return to_tensors(pack(side, side, np.arange(count), shape, pad_id))
