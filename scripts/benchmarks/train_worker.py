"""The work of one process of `train.py`: it trains one system and measures it.

A system is a source of steps and an update. For mtx these are its own loader and trainer. For the other implementations
the source is padded batches, which are made before training starts, and the update is a plain loop.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from mtx.config import settings
from mtx.config.schema import Config, ModelConfig
from mtx.data.packing import LoadedStep, load_steps
from mtx.data.sampler import BatchSampler, SamplerState, steps
from mtx.data.token_store import PreparedData, Side, TokenStore, load_prepared
from mtx.model.device import fast_precision, find_device, use_device
from mtx.model.transformer import Transformer
from mtx.storage.run_files import RunLayout
from mtx.training.build import build, choose_runtime
from mtx.training.micro_batch import RuntimeChoices
from mtx.training.schedule import highest_rate, learning_rate
from scripts.benchmarks.baselines import MarianBaseline, PaddedBatch, TorchBaseline, bucketed, padded_batch
from scripts.benchmarks.machine import machine, peak_host_memory
from scripts.benchmarks.train_job import Job

NUM_SHAPES = {"cpu": 24, "cuda": 64}  # padded batches of a baseline, and warm-up steps of every system
NUM_WINDOWS = 10
MEASURED_RATE = 1e-4  # learning rate during the measurement
MAX_RECOMPILES = 64


@dataclass(frozen=True)
class Work:
    """The data of one step."""

    payload: Any
    num_src_tokens: int
    num_tgt_tokens: int
    num_positions: int


@dataclass(frozen=True)
class System:
    """`source` yields endless steps; `update` trains one at a learning rate and returns the loss per target token."""

    source: Iterator[Work]
    update: Callable[[Work, float], Any]


def work(job: Job, started: float) -> dict[str, Any]:
    """Does a job and returns its figures.

    Args:
        started: when the process started, on the performance counter.
    """
    torch.set_num_threads(job.threads)
    device = find_device(job.device)
    use_device(device)
    if job.system == "machine":
        return describe_machine(device, job.precision)
    config = settings.resolve(None, job.settings()).config
    data = load_prepared(Path(job.data)) if job.data else drawn_data(config, job.num_ids, 8 * job.batch_tokens)
    if job.system == "mtx":
        system = mtx_system(config, data, device)
    elif job.loss_steps:
        system = same_steps_system(config, data.train, device, job.system)
    else:
        system = baseline_system(config, data.train, device, job.system)
    if job.loss_steps:
        return {"losses": losses(system, job, config.model.d_model)}
    first_step_s = warm_up(system, device, started, NUM_SHAPES[device.type])
    return measure(system, job.seconds, device) | {
        "first_step_s": first_step_s,
        "model_flops_per_tgt_token": flops_per_tgt_token(config.model, data.train),
    }


# Token ids


def drawn_data(config: Config, num_ids: int, num_pairs: int) -> PreparedData:
    """Draws random ids with lengths like those of WMT: about 27 target tokens per sentence, and a similar source."""
    rng = np.random.default_rng(0)
    longest = config.data.max_tokens
    tgt = np.exp(rng.normal(3.12, 0.6, num_pairs))
    src = tgt * np.exp(rng.normal(-0.05, 0.2, num_pairs))
    sides = [_drawn_side(np.clip(np.rint(x), 2, longest).astype(np.int32), num_ids, rng) for x in (src, tgt)]
    store = TokenStore(num_ids, np.ones(1), num_pairs, np.zeros(1, np.uint16), *sides, read_block=None)
    tokenizer: Any = SimpleNamespace(num_ids=num_ids)
    return PreparedData(store, store, {}, tokenizer, {"src_tgt_ratio": float(src.sum() / tgt.sum())}, sha256="")


def _drawn_side(lengths: Any, num_ids: int, rng: np.random.Generator) -> Side:
    stops = lengths.cumsum(dtype=np.int64)
    tokens = rng.integers(2, num_ids, stops[-1]).astype(np.uint16 if num_ids <= 65_536 else np.uint32)
    tokens[stops - 1] = 0  # </s>
    return Side.cut(tokens, lengths)


# The systems


def mtx_system(
    config: Config,
    data: PreparedData,
    device: torch.device,
    runtime: RuntimeChoices | None = None,
) -> System:
    """Returns mtx's own trainer and loader, with what `mtx train` would choose if `runtime` is None."""
    paths = RunLayout(Path(config.run_dir))
    runtime = runtime or choose_runtime(paths, config, device, data)
    trainer = build(config, runtime, data, paths)
    k = trainer.num_micro_steps
    shape = trainer.shape
    planned = steps(trainer.sampler, SamplerState(), 1 << 40)
    loaded = load_steps(data.train, planned, k, shape, device.type == "cuda")
    number = itertools.count(1)

    def source() -> Iterator[Work]:
        for step in loaded:
            positions = (shape.num_src + shape.num_tgt) * len(step.micro_batches)
            yield Work(step, step.num_src_tokens, step.num_tgt_tokens, positions)

    def update(step: Work, rate: float) -> Any:
        payload: LoadedStep = step.payload
        figures = trainer.update(payload, next(number), rate)
        return figures[0]

    return System(source(), update)


def baseline_system(config: Config, store: TokenStore, device: torch.device, name: str) -> System:
    """Returns a baseline with its own batches: sentences of similar length, batches in random order.

    It trains only on `NUM_SHAPES` batches, taken evenly from the shortest to the longest. All their shapes occur during
    the warm-up, so that the measurement is like a late part of a long run.
    """
    batches = bucketed(store, config.training.batch_tokens)
    number = min(len(batches), NUM_SHAPES[device.type])
    padded = [padded_batch(store, batches[(2 * i + 1) * len(batches) // (2 * number)]) for i in range(number)]
    padded = [batch.pinned() for batch in padded] if device.type == "cuda" else padded
    ready = [Work([b], b.num_src_tokens, b.num_tgt_tokens, b.num_positions) for b in padded]
    rng = np.random.default_rng(config.seed)
    source = (ready[i] for _ in itertools.count() for i in rng.permutation(number))
    return System(source, plain_update(config, store.num_ids, device, name))


def same_steps_system(config: Config, store: TokenStore, device: torch.device, name: str) -> System:
    """Returns a baseline with mtx's own steps, each cut into four padded batches of similar length."""
    sampler = BatchSampler(store.epoch_order(config.seed), config.training.batch_tokens, config.data.max_tokens)

    def source() -> Iterator[Work]:
        for step in steps(sampler, SamplerState(), 1 << 40):
            order = np.lexsort((store.src.lengths[step.pairs], store.tgt.lengths[step.pairs]))
            batches = [padded_batch(store, pairs) for pairs in np.array_split(step.pairs[order], 4)]
            positions = sum(batch.num_positions for batch in batches)
            yield Work(batches, int(step.src_lengths.sum()), int(step.tgt_lengths.sum()), positions)

    return System(source(), plain_update(config, store.num_ids, device, name))


def plain_update(config: Config, num_ids: int, device: torch.device, name: str) -> Callable[[Work, float], Any]:
    """Returns one iteration of a plain training loop around a model."""
    torch.manual_seed(config.seed)
    is_torch = name.startswith("nn-transformer")
    longest = config.data.max_tokens
    model: Any
    if is_torch:
        model = TorchBaseline(config.model, num_ids, longest)
    else:
        attention = "eager" if "bf16" in name and device.type == "cpu" else "sdpa"  # the faster one on each device
        model = MarianBaseline(Transformer(config.model, num_ids), longest, attention)
    model = model.to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True)
    forward = compiled_program(model, name.endswith("tuned")) if "compiled" in name else model
    in_bf16 = "bf16" in name or (is_torch and device.type == "cuda" and config.precision != "fp32")

    def update(step: Work, rate: float) -> Any:
        loss = torch.zeros((), device=device)
        batches = step.payload
        batch: PaddedBatch
        for batch in batches:
            with torch.autocast(device.type, torch.bfloat16, enabled=in_bf16):
                part = forward(*batch.to(device)) / step.num_tgt_tokens
            part.backward()
            loss += part.detach()
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return update


def compiled_program(model: torch.nn.Module, is_tuned: bool) -> Any:
    """Compiles one program for all shapes.

    On a CPU, compiled code is slow at drawing dropout and at writing masks (ReLU's mask alone took a tenth of a step).
    The tuned program leaves dropout to torch's kernels and computes masks again in the backward pass.
    """
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor

    inductor.fallback_random = functorch.aggressive_recomputation = is_tuned
    torch._dynamo.config.recompile_limit = MAX_RECOMPILES
    return torch.compile(model, dynamic=True)


# Measuring


def warm_up(system: System, device: torch.device, started: float, num_steps: int) -> float:
    """Trains one step and `num_steps` more; returns the seconds from `started` to the end of the first one."""
    system.update(next(system.source), MEASURED_RATE)
    synchronize(device)
    first_step_s = time.perf_counter() - started
    for _ in range(num_steps):
        loss = system.update(next(system.source), MEASURED_RATE)
    if not np.isfinite(float(loss)):
        raise ArithmeticError(f"the loss is {float(loss)}")
    return first_step_s


def measure(system: System, seconds: float, device: torch.device) -> dict[str, Any]:
    """Trains for `seconds` in windows and returns the columns of a row."""
    num_programs = _num_programs()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)  # leaves out what mtx tried while it chose its micro-batches
    windows = [_window(system, seconds / NUM_WINDOWS, device) for _ in range(NUM_WINDOWS)]
    rates = [w.num_tgt_tokens / w.seconds for w in windows]
    total = _Window(*(sum(getattr(w, name) for w in windows) for name in _Window.__dataclass_fields__))
    return {
        "tgt_tokens_per_s": float(np.median(rates)),
        "slowest_window": min(rates),
        "fastest_window": max(rates),
        "mean_tgt_tokens_per_s": total.num_tgt_tokens / total.seconds,
        "tgt_tokens_per_step": total.num_tgt_tokens / total.num_steps,
        "num_steps": total.num_steps,
        "peak_memory_bytes": _peak_memory(device),
        "data_wait_share": total.waited_s / total.seconds,
        "real_position_share": (total.num_src_tokens + total.num_tgt_tokens) / total.num_positions,
        "programs_compiled_while_measuring": _num_programs() - num_programs,
    }


@dataclass
class _Window:
    seconds: float = 0.0
    waited_s: float = 0.0
    num_steps: int = 0
    num_src_tokens: int = 0
    num_tgt_tokens: int = 0
    num_positions: int = 0


def _window(system: System, seconds: float, device: torch.device) -> _Window:
    """Trains a whole number of steps, for at least `seconds`."""
    window = _Window()
    begun = time.perf_counter()
    while window.seconds < seconds:
        wait_began = time.perf_counter()
        step = next(system.source)
        window.waited_s += time.perf_counter() - wait_began
        system.update(step, MEASURED_RATE)
        window.num_steps += 1
        window.num_src_tokens += step.num_src_tokens
        window.num_tgt_tokens += step.num_tgt_tokens
        window.num_positions += step.num_positions
        window.seconds = time.perf_counter() - begun
    synchronize(device)
    window.seconds = time.perf_counter() - begun
    return window


def losses(system: System, job: Job, d_model: int) -> list[float]:
    """Returns the label-smoothed loss per target token of each of the first steps."""
    warmup = max(1, job.loss_steps // 4)
    peak = job.learning_rate or highest_rate(d_model, warmup)
    rates = [learning_rate(step, warmup, peak) for step in range(1, job.loss_steps + 1)]
    tensors = [system.update(next(system.source), rate) for rate in rates]
    return [float(loss) for loss in tensors]


def flops_per_tgt_token(config: ModelConfig, store: TokenStore) -> float:
    """Returns the operations of the model's matrix products, forward and backward, per target token of this corpus.

    A product of n numbers counts as 2n operations, and a training step as three forward passes. The count includes the
    projections of attention, its scores and weighted sums over each sentence's own tokens (causal attention: over the
    tokens up to the query), the feed-forward layers and the output layer.
    """
    d = config.d_model
    ff = config.d_ff
    src = store.src.lengths.astype(np.float64)
    tgt = store.tgt.lengths.astype(np.float64)
    encoder = src * (4 * d * d + 2 * d * ff) + 2 * d * src * src
    decoder = tgt * (6 * d * d + 2 * d * ff) + src * 2 * d * d + 2 * d * (tgt * (tgt + 1) / 2 + tgt * src)
    per_pair = config.num_encoder_layers * encoder + config.num_decoder_layers * decoder + tgt * d * store.num_ids
    return float(3 * 2 * per_pair.sum() / tgt.sum())


def describe_machine(device: torch.device, precision: str) -> dict[str, Any]:
    """Returns the device, its name, what `auto` means as precision, and its rate for a large matrix product in that."""
    precision = fast_precision(device) if precision == "auto" else precision
    size = 8192 if device.type == "cuda" else 2048
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    seconds = []
    for _ in range(12):
        synchronize(device)
        begun = time.perf_counter()
        a @ b
        synchronize(device)
        seconds.append(time.perf_counter() - begun)
    about = machine(device)
    return {
        **about, "name": f"{about['name']}, {torch.get_num_threads()} threads",
        "precision": precision, "product_flops_per_s": 2 * size**3 / float(np.median(seconds[2:])),
    }  # fmt: skip


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _num_programs() -> int:
    """Returns how many graphs torch has compiled so far."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def _peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return peak_host_memory()
