"""Counts the kernels of a compiled training step on CUDA without a GPU: launches, bytes, FLOP, and an estimated time.

    python scripts/no_gpu.py scripts/count_step.py
    python scripts/no_gpu.py scripts/count_step.py --preset big --tokens 25000

The step is traced and compiled as a GPU of that compute capability would run it (`traced_step.py`). Each kernel reads
and writes every tensor once, which caches cannot improve and bad kernels exceed. So the time is what an H100 could
reach with the efficiencies below, not what it does. The sentences are always the same: two versions of mtx can be
compared line by line.
"""

import argparse
import sys
from dataclasses import dataclass
from itertools import pairwise

import torch
from traced_step import NUM_IDS, Kernel, TrainingStep, traced

from mtx.model.transformer import training_flops

PEAK_FLOPS, PEAK_BYTES = 989e12, 3.35e12  # of an H100 SXM, dense bf16, a second
PRODUCT_EFFICIENCY, MEMORY_EFFICIENCY, ATTENTION_EFFICIENCY = 0.75, 0.85, 0.35  # assumed shares of these peaks
LAUNCH_S = 1.5e-6  # assumed time from one kernel to the next within a graph
EMPTY_BLOCK_S = 2.2e-9  # assumed time of a block of the attention kernel for a sentence that is not there
TILE = 128  # queries and keys that a block of the attention kernel takes at once
BACKWARD_GRIDS, BACKWARD_FLOPS = 3, 2.5  # of attention, times those of its forward pass
PARTS = "forward", "backward", "graph", "host"
KINDS = "product", "attention", "generated", "operation"
SMALLEST_MS = 0.05  # lines with less are summed up


@dataclass
class Row:
    """Kernels with the same name in one part of the step."""

    part: str
    kind: str
    name: str
    launches: int = 0
    bytes: int = 0
    flops: float = 0.0
    seconds: float = 0.0

    @property
    def is_odd(self) -> bool:
        """Whether a product has a size that is no multiple of 8, and so runs slower in bf16."""
        return any(int(size) % 8 for shape in self.name.split()[1:] for size in shape.split("x"))

    def add(self, other: "Row") -> None:
        self.launches += other.launches
        self.bytes += other.bytes
        self.flops += other.flops
        self.seconds += other.seconds


class Sentences:
    """The lengths of a step's sentences, on which the work of attention depends."""

    def __init__(self, step: TrainingStep):
        batch = step.loaded.micro_batches[0]
        offsets = batch.tgt_offsets.tolist()
        self.lengths = [end - start for start, end in pairwise(offsets) if end > start]
        self.room, self.longest = len(offsets) - 1, batch.max_tokens

    def attention(self, kernel: Kernel) -> tuple[float, float]:
        """Returns the FLOP of an attention kernel's tiles, and the time of its empty blocks."""
        _, heads, size = kernel.shapes[0]
        tiles = [-(-length // TILE) for length in self.lengths]
        flops = float(sum(t * t for t in tiles) * heads * 4 * TILE * TILE * size)
        empty = self.room * -(-self.longest // TILE) - sum(tiles)
        if "backward" in kernel.name:
            return BACKWARD_FLOPS * flops, BACKWARD_GRIDS * empty * heads * EMPTY_BLOCK_S
        return flops, empty * heads * EMPTY_BLOCK_S


def row_of(kernel: Kernel, sentences: Sentences) -> Row:
    """Returns a kernel as a row: its name, with the shapes of a product, and its estimated time."""
    name, flops, added = kernel.name, float(kernel.flops), 0.0
    efficiency = PRODUCT_EFFICIENCY
    if kernel.kind == "product":
        name += " " + " ".join("x".join(map(str, shape)) for shape in kernel.shapes if len(shape) > 1)
    elif kernel.kind == "attention" and len(kernel.shapes[0]) == 3:
        efficiency, (flops, added) = ATTENTION_EFFICIENCY, sentences.attention(kernel)
    busy = max(flops / (efficiency * PEAK_FLOPS), kernel.bytes / (MEMORY_EFFICIENCY * PEAK_BYTES))
    seconds = busy + added + kernel.launches * LAUNCH_S
    return Row(kernel.part, kernel.kind, name, kernel.launches, kernel.bytes, flops, seconds)


def count(preset: str, tokens: int) -> tuple[TrainingStep, list[Kernel]]:
    """Returns the step and the kernels of one update: those that its graph recorded, and those that the host starts."""
    with traced() as trace:
        step = TrainingStep(preset, compiled=True, tokens=tokens)
        step.update()
        trace.kernels.clear()
        step.update()
    return step, trace.recorded + trace.kernels


def table(step: TrainingStep, kernels: list[Kernel], preset: str) -> list[str]:
    """Returns the lines of the table."""
    sentences = Sentences(step)
    rows: dict[tuple[str, str, str], Row] = {}
    by_kind = {kind: Row("all", kind, "") for kind in KINDS}
    total = Row("all", "", "the whole step")
    for row in (row_of(kernel, sentences) for kernel in kernels):
        rows.setdefault((row.part, row.kind, row.name), Row(row.part, row.kind, row.name)).add(row)
        by_kind[row.kind].add(row)
        total.add(row)
    small: dict[str, Row] = {part: Row(part, "", f"kernels with less than {SMALLEST_MS} ms") for part in PARTS}
    shown = []
    for row in rows.values():
        if row.seconds < SMALLEST_MS / 1e3:
            small[row.part].add(row)
        else:
            shown.append(row)
    shown += [row for row in small.values() if row.launches]
    shown.sort(key=lambda row: (PARTS.index(row.part), not row.kind, -row.seconds, row.name))
    loaded, model = step.loaded, step.config.model
    num_positions = [len(ids) for ids in (loaded.micro_batches[0].src_ids, loaded.micro_batches[0].tgt_out_ids)]
    capability = ".".join(map(str, torch.cuda.get_device_capability()))
    lines = [
        f"{preset}: {loaded.num_tgt_tokens:,} target tokens, {loaded.num_src_tokens:,} source tokens in "
        f"{len(loaded.micro_batches)} micro-batch of {num_positions[1]:,} and {num_positions[0]:,} positions; "
        f"{len(sentences.lengths):,} sentences, room for {sentences.room:,}; torch {torch.__version__}, "
        f"compute capability {capability}",
        f"{'part':9} {'kind':10} {'launches':>8} {'MB':>10} {'GFLOP':>10} {'est. ms':>8}  kernel",
    ]
    lines += [_line(row) for row in shown]
    lines += [_line(row) for row in by_kind.values()]
    lines.append(_line(total))
    useful = training_flops(model, NUM_IDS, loaded.num_src_tokens / loaded.num_tgt_tokens) * loaded.num_tgt_tokens
    odd = sum(row.launches for row in rows.values() if row.kind == "product" and row.is_odd)
    lines.append(f"{preset}: {odd} products with a size that is no multiple of 8, which the compiler may pad on a GPU")
    lines.append(
        f"{preset}: {loaded.num_tgt_tokens / total.seconds:,.0f} target tokens a second, "
        f"{useful / total.seconds / PEAK_FLOPS:.1%} of the products' peak, if products reach {PRODUCT_EFFICIENCY:.0%}, "
        f"attention {ATTENTION_EFFICIENCY:.0%} and memory {MEMORY_EFFICIENCY:.0%} of an H100's, a launch takes "
        f"{LAUNCH_S * 1e6} us and an empty block of attention {EMPTY_BLOCK_S * 1e9} ns"
    )
    return lines


def _line(row: Row) -> str:
    figures = f"{row.launches:8,} {row.bytes / 1e6:10,.1f} {row.flops / 1e9:10,.1f} {row.seconds * 1e3:8.3f}"
    return f"{row.part:9} {row.kind:10} {figures}  {row.name[:90]}".rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", nargs="+", default=["base", "big"], help="presets to count")
    parser.add_argument("--tokens", type=int, default=25_000, help="target tokens of a step")
    arguments = parser.parse_args()
    if torch.version.cuda is None or not torch.cuda.is_available():
        sys.exit("this needs the CUDA build of torch, and python scripts/no_gpu.py scripts/count_step.py without a GPU")
    for preset in arguments.preset:
        print("\n".join(table(*count(preset, arguments.tokens), preset)), flush=True)


if __name__ == "__main__":
    main()
