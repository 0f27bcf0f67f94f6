"""Computes the time of a training step on many H100s from published figures of the hardware. It measures nothing.

    python scripts/simulate_scaling.py [--base-ms 32.4] [--big-ms 73.0]

--base-ms and --big-ms are the time of a step of 25,000 target tokens on one device. docs/scaling.md explains the
arithmetic, and has the source of each number below. What the devices wait for each other is simulated: `assign` cuts
steps of random sentence lengths, and the speeds of the devices differ at random.
"""

import argparse
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch

from mtx.config.schema import ModelConfig
from mtx.data.packing import Shape, assign, micro_batch_shape
from mtx.data.sampler import BatchSampler, Lengths, SamplerState, steps
from mtx.model.transformer import Transformer

TOKENS, MAX_TOKENS, MEAN_TOKENS, NUM_IDS = 25_000, 256, 27, 37_000
MACHINE = 8  # devices
BLOCK = 64  # positions of a block of an attention kernel
VALIDATE_EVERY, CHECKPOINT_EVERY = 1000, 1500  # the defaults of mtx
FIXED_COUNTS, PER_DEVICE_COUNTS = (1, 2, 4, 8, 16, 32, 64, 512), (1, 8, 64, 512)


@dataclass(frozen=True)
class Model:
    """What one device takes for a step.

    Attributes:
        step_ms: for 25,000 target tokens. fixed_ms: the part that does not depend on their number.
        attention_ms: the part that grows with the number of attention blocks.
        decoded_per_s: target tokens a second in a validation.
    """

    name: str
    step_ms: float
    fixed_ms: float
    attention_ms: float
    decoded_per_s: float

    @property
    def num_parameters(self) -> int:
        """Of the preset with this name, with NUM_IDS ids."""
        return count_parameters(self.name)


@dataclass(frozen=True)
class Cluster:
    """Published, measured and assumed figures; docs/scaling.md says which is which.

    Attributes:
        nvlink_gb_s, network_gb_s: bus bandwidth of a large all-reduce in one machine and over several, GB/s a device.
        nvlink_ms, network_ms, doubling_ms: its constant part in one machine, in two, and for each doubling beyond.
        hop_us: a message of gloo from one process to the next.
        plan_ns: what each rank takes to plan a step, for each pair. pack_ns: to pack a micro-batch, for each token.
        launch_ms: what a host takes to give a device the work of a step.
        least_ms: a recorded step of hardly any tokens, since each kernel takes some time.
        spread: standard deviation of the speed of devices.
        copy_gb_s: from a device to its host.
        report_s: to renew the report of a run after a validation. valid_tokens: target tokens of a validation set.
    """

    nvlink_gb_s: float = 476.0
    network_gb_s: float = 331.0
    nvlink_ms: float = 0.05
    network_ms: float = 0.21
    doubling_ms: float = 0.02
    hop_us: float = 50.0
    plan_ns: float = 95.0
    pack_ns: float = 21.0
    launch_ms: float = 2.0
    least_ms: float = 2.0
    spread: float = 0.01
    copy_gb_s: float = 46.8
    report_s: float = 1.9
    valid_tokens: int = 81_000


@dataclass(frozen=True)
class StepTime:
    """The parts of a step in ms: the slowest device, the sum of gradients, the hosts, the loader, and rank 0's work."""

    device_ms: float
    all_reduce_ms: float
    host_ms: float
    loader_ms: float
    alone_ms: float

    @property
    def total_ms(self) -> float:
        """Devices, hosts and loaders work at the same time; to the longest comes what rank 0 does alone."""
        return max(self.device_ms + self.all_reduce_ms, self.host_ms, self.loader_ms) + self.alone_ms

    @property
    def limit(self) -> str:
        """Which of the three takes longest."""
        parts = {"devices": self.device_ms + self.all_reduce_ms, "hosts": self.host_ms, "loader": self.loader_ms}
        return max(parts, key=parts.__getitem__)


@cache
def count_parameters(preset: str) -> int:
    """The weights of a preset with NUM_IDS ids."""
    config = ModelConfig.model_validate({"preset": preset})
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Transformer(config, NUM_IDS).parameters())


def all_reduce_ms(num_bytes: int, devices: int, cluster: Cluster) -> float:
    """A sum over all devices. The bus bandwidth is that of nccl-tests: 2 (n - 1) / n times the bytes over the time."""
    if devices == 1:
        return 0.0
    if devices <= MACHINE:
        constant_ms, gb_s = cluster.nvlink_ms, cluster.nvlink_gb_s
    else:
        constant_ms = cluster.network_ms + cluster.doubling_ms * np.log2(devices / (2 * MACHINE))
        gb_s = cluster.network_gb_s
    return float(constant_ms + 2 * (devices - 1) / devices * num_bytes / gb_s / 1e6)


def agreement_ms(devices: int, cluster: Cluster) -> float:
    """The exchange of a few numbers by gloo, in rounds of doubling distance."""
    return (devices - 1).bit_length() * cluster.hop_us / 1e3


def compute_ms(model: Model, micro_steps: int, positions: int, cluster: Cluster) -> float:
    """Micro-batches of so many target positions, and one optimizer update."""
    return model.fixed_ms + micro_steps * max((model.step_ms - model.fixed_ms) * positions / TOKENS, cluster.least_ms)


def drawn_lengths(num_pairs: int) -> tuple[Lengths, Lengths]:
    """Source and target lengths: log-normal, correlated, a mean of 27 tokens."""
    rng = np.random.default_rng(1)
    shared = rng.normal(0, 0.4, num_pairs)
    drawn = (MEAN_TOKENS * np.exp(shared + rng.normal(0, 0.2, num_pairs) - 0.1) for _ in range(2))
    src, tgt = (np.clip(side.round(), 2, MAX_TOKENS).astype(np.int32) for side in drawn)
    return src, tgt


def num_blocks(src_lengths: Lengths, tgt_lengths: Lengths) -> int:
    """Blocks of the attention of these sentences: of the source, of the target, and of one with the other."""
    src, tgt = -(-src_lengths // BLOCK), -(-tgt_lengths // BLOCK)
    return int((src * src + tgt * tgt + src * tgt).sum())


def waiting(
    model: Model, src: Lengths, tgt: Lengths, batch_tokens: int, devices: int, cluster: Cluster, num_steps: int = 5
) -> float:
    """How many times as long as an average device the slowest one takes, by simulation of some steps."""
    if devices == 1:
        return 1.0
    rng = np.random.default_rng(devices)
    speeds = np.exp(rng.normal(0, cluster.spread, devices))
    plan = BatchSampler(src, tgt, None, 1, batch_tokens)
    k, shape = step_shape(batch_tokens, devices)
    ratios = []
    for step in steps(plan, SamplerState(), num_steps):
        groups = assign(step.src_lengths, step.tgt_lengths, k, shape)[:k]
        blocks = np.array([num_blocks(step.src_lengths[g], step.tgt_lengths[g]) for g in groups])
        attention = (blocks / max(1.0, blocks.mean())).reshape(-1, devices).mean(axis=0)
        share = model.attention_ms / model.step_ms
        times = speeds * (1 - share + share * attention)
        ratios.append(times.max() / times.mean())
    return float(np.mean(ratios))


def step_shape(batch_tokens: int, devices: int) -> tuple[int, Shape]:
    """The micro-batches of a step as `mtx train` makes them, of at most 25,000 target tokens each."""
    return micro_batch_shape(batch_tokens, TOKENS, 1.0, MAX_TOKENS, MEAN_TOKENS, devices)


def step_time(model: Model, batch_tokens: int, devices: int, cluster: Cluster, wait: float = 1.0) -> StepTime:
    """The time of a step of `batch_tokens` target tokens.

    Args:
        wait: see `waiting`.
    """
    k, shape = step_shape(batch_tokens, devices)
    micro_steps = k // devices
    validation_s = cluster.valid_tokens / model.decoded_per_s + cluster.report_s
    save_s = 12 * model.num_parameters / cluster.copy_gb_s / 1e9  # weights and both moments of Adam, 4 bytes each
    return StepTime(
        device_ms=wait * compute_ms(model, micro_steps, shape.num_tgt, cluster),
        all_reduce_ms=all_reduce_ms(4 * model.num_parameters, devices, cluster),
        host_ms=agreement_ms(devices, cluster) + cluster.launch_ms,
        loader_ms=(batch_tokens / MEAN_TOKENS * cluster.plan_ns + micro_steps * shape.num_tgt * cluster.pack_ns) / 1e6,
        alone_ms=1e3 * (validation_s / VALIDATE_EVERY + save_s / CHECKPOINT_EVERY),
    )


def smallest_batch(model: Model, devices: int, efficiency: float, cluster: Cluster) -> int | None:
    """The fewest target tokens for each device with which they reach this share of one device's speed, or None.

    One device has 25,000; the others have up to eight times as many.
    """
    alone = TOKENS / step_time(model, TOKENS, 1, cluster).total_ms
    for tokens in range(250, 8 * TOKENS + 1, 250):
        if tokens / step_time(model, tokens * devices, devices, cluster).total_ms >= efficiency * alone:
            return tokens
    return None


def table(model: Model, counts: tuple[int, ...], per_device: bool, cluster: Cluster) -> None:
    """Print a row for each number of devices."""
    src, tgt = drawn_lengths(1_500_000)
    alone = TOKENS / step_time(model, TOKENS, 1, cluster).total_ms
    print(f"\n{model.name}, {TOKENS:,} target tokens {'for each device' if per_device else 'a step'}; times in ms")
    columns = ("devices", "slowest device", "all-reduce", "hosts", "loader", "rank 0 alone", "step", "M tokens/s")
    print("| " + " | ".join((*columns, "efficiency", "limit")) + " |\n|" + "---|" * 10)
    for devices in counts:
        batch_tokens = TOKENS * devices if per_device else TOKENS
        time = step_time(
            model, batch_tokens, devices, cluster, waiting(model, src, tgt, batch_tokens, devices, cluster)
        )
        parts = (time.device_ms, time.all_reduce_ms, time.host_ms, time.loader_ms, time.alone_ms, time.total_ms)
        speed = batch_tokens / time.total_ms
        figures = (*(f"{ms:.1f}" for ms in parts), f"{speed / 1e3:.2f}", f"{speed / alone / devices:.0%}", time.limit)
        print(f"| {devices} | " + " | ".join(figures) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--base-ms", type=float, default=32.4, help="a step of base on one device; default: %(default)s"
    )
    parser.add_argument("--big-ms", type=float, default=73.0, help="a step of big; default: %(default)s")
    arguments = parser.parse_args()
    cluster = Cluster()
    models = (
        Model("base", arguments.base_ms, 0.7, 4.0, 100_000),
        Model("big", arguments.big_ms, 2.3, 7.9, 50_000),
    )
    for model in models:
        print(f"{model.name}: {model.num_parameters / 1e6:.1f}M parameters")
    for model in models:
        table(model, FIXED_COUNTS, False, cluster)
        table(model, PER_DEVICE_COUNTS, True, cluster)
    shares = (0.5, 0.8, 0.9)
    print("\nfewest target tokens for each device that reach a share of one device's speed (all devices equally fast)")
    print("| model | devices | " + " | ".join(f"{share:.0%}" for share in shares) + " |\n|---|---|---|---|---|")
    for model in models:
        for devices in PER_DEVICE_COUNTS[1:]:
            fewest = [smallest_batch(model, devices, share, cluster) for share in shares]
            print(
                f"| {model.name} | {devices} | " + " | ".join("none" if n is None else f"{n:,}" for n in fewest) + " |"
            )
    changes = {
        "as above": cluster,
        "half the network": replace(cluster, network_gb_s=cluster.network_gb_s / 2),
        "a message between hosts takes 100 µs": replace(cluster, hop_us=100.0),
        "hosts agree by a ring of 1,022 messages": replace(cluster, hop_us=cluster.hop_us * 1022 / 9),
        "planning takes twice as long": replace(cluster, plan_ns=2 * cluster.plan_ns),
        "the report is renewed during training": replace(cluster, report_s=0.0),
    }
    print(f"\nms a step on 512 devices, {TOKENS:,} target tokens each (all devices equally fast)")
    print("| | base | big |\n|---|---|---|")
    for name, changed in changes.items():
        times = [step_time(model, TOKENS * 512, 512, changed).total_ms for model in models]
        print(f"| {name} | " + " | ".join(f"{ms:.1f}" for ms in times) + " |")


if __name__ == "__main__":
    main()
