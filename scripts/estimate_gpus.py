"""Estimates how long other GPUs train, from the step that was measured on an H100. It measures nothing.

    python scripts/estimate_gpus.py

A step has two parts. Products and attention take time in inverse proportion to the peak rate of a GPU, everything else
in inverse proportion to the bandwidth of its memory. docs/scaling.md has the tables and their sources.
"""

from dataclasses import dataclass

PAIR_TOKENS = 17  # target tokens of a pair with 130 bytes, both sides together
PRODUCTS = 18.4 / 32.4  # the share of products and attention in a step of base
CPU_SLOWDOWN = 10.0 / 0.27 / 32.4e-3  # two cores with bf16: 10.0 TFLOP at 63% of 0.43 TFLOP/s, not 32.4 ms


@dataclass(frozen=True)
class Gpu:
    """A GPU by its data sheet.

    Attributes:
        tflops: dense products with fp32 sums, in bf16, or in fp32 where there is no bf16.
        tb_s: bandwidth of the memory. size: an element in bytes.
    """

    name: str
    memory: str
    tflops: float
    tb_s: float
    size: int = 2

    @property
    def slowdown(self) -> float:
        """How many times as long as an H100 it takes for a step."""
        moved = self.size / H100.size * H100.tb_s / self.tb_s
        return PRODUCTS * H100.tflops / self.tflops + (1 - PRODUCTS) * moved


@dataclass(frozen=True)
class Training:
    """A training: its steps, and the milliseconds that a step takes on an H100."""

    name: str
    steps: float
    step_ms: float


H100 = Gpu("H100 SXM", "80 GB", 989, 3.35)
GPUS = [
    H100,
    Gpu("A100 SXM", "80 GB", 312, 2.039),
    Gpu("GeForce RTX 4090", "24 GB", 165, 1.008),
    Gpu("GeForce RTX 3090", "24 GB", 71, 0.936),
    Gpu("T4 (fp32)", "16 GB", 8.1, 0.32, size=4),
]
TRAININGS = [
    Training("1,000,000 pairs", 20 * 1_000_000 * PAIR_TOKENS / 8192, 11.81),
    Training("5,000,000 pairs", 10 * 5_000_000 * PAIR_TOKENS / 25_000, 32.4),
    Training("the paper's base", 100_000, 32.4),
    Training("the paper's big", 300_000, 73.0),
]


def duration(seconds: float) -> str:
    """Two digits and a unit."""
    for unit, size in {"days": 86400, "h": 3600, "min": 60}.items():
        if seconds >= 1.5 * size or unit == "min":
            amount = seconds / size
            return f"{amount:.1f} {unit}" if amount < 9.95 else f"{float(f'{amount:.2g}'):,.0f} {unit}"
    raise AssertionError


def main() -> None:
    """Print a row for each GPU, and one for a CPU."""
    head = ["machine", "memory", "TFLOP/s", "TB/s", *(training.name for training in TRAININGS)]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    machines = [([gpu.name, gpu.memory, f"{gpu.tflops:g}", f"{gpu.tb_s:g}"], gpu.slowdown) for gpu in GPUS]
    for cells, slowdown in [*machines, (["two CPU cores with bf16", "", "0.43", ""], CPU_SLOWDOWN)]:
        times = [duration(training.steps * training.step_ms / 1e3 * slowdown) for training in TRAININGS]
        print(f"| {' | '.join([*cells, *times])} |")


if __name__ == "__main__":
    main()
