"""Counts the kernels of a compiled training step on CUDA without a GPU: launches, bytes, FLOP, and an estimated time.

    python -m scripts.traced.no_gpu -m scripts.traced.count_step
    python -m scripts.traced.no_gpu -m scripts.traced.count_step --preset big --tokens 25000

The step is traced and compiled as a GPU of that compute capability would run it (`traced_step.py`). Each kernel reads
and writes every tensor once, which caches cannot improve and bad kernels exceed. So the time is what an H100 could
reach with the efficiencies below, not what it does. The sentences are always the same: two versions of mtx can be
compared line by line.
"""

import argparse
import sys
from dataclasses import dataclass

import torch

from mtx.model import block_kernels
from mtx.model.architectures import num_parameters
from mtx.model.attention import BlockLayout
from scripts.traced.traced_step import NUM_IDS, Kernel, TrainingStep, traced

PEAK_FLOPS = 989e12  # of an H100 SXM in a second, dense bf16
PEAK_BYTES = 3.35e12  # in a second
# Assumed shares of these peaks.
PRODUCT_EFFICIENCY = 0.75
MEMORY_EFFICIENCY = 0.85
ATTENTION_EFFICIENCY = 0.20
LAUNCH_S = 1.5e-6  # assumed time from one kernel to the next within a graph
TILE_PRODUCTS = {"_forward": 2, "_backward_of_queries": 3, "_backward_of_keys": 4}  # of mtx.model.block_kernels
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
    num_bytes: int = 0
    flops: float = 0.0
    seconds: float = 0.0

    def add(self, other: "Row") -> None:
        self.launches += other.launches
        self.num_bytes += other.num_bytes
        self.flops += other.flops
        self.seconds += other.seconds


class Attention:
    """The layouts of a step's attention, on which its work depends."""

    def __init__(self, step: TrainingStep):
        batch = step.loaded.micro_batches[0]
        src = (batch.src_offsets, len(batch.src_ids))
        tgt = (batch.tgt_offsets, len(batch.tgt_in_ids))
        self._layouts = {  # by the numbers of queries and keys
            (queries[1], keys[1]): BlockLayout.of(queries[0], keys[0], queries[1], keys[1], queries is keys is tgt)
            for queries, keys in ((src, src), (tgt, src), (tgt, tgt))
        }
        assert src[1] != tgt[1], "the layouts differ in their sizes"
        self.num_sentences = int(batch.tgt_offsets.diff().count_nonzero())
        self.room = len(batch.tgt_offsets) - 1

    def flops(self, kernel: Kernel) -> float:
        """Returns the FLOP of a kernel's tiles, each of which lies over the keys of some queries, or the reverse."""
        (num_queries, heads, size), (num_keys, *_) = kernel.shapes[:2]
        layout = self._layouts[num_queries, num_keys]
        sizes = block_kernels._constants(size)
        name = kernel.name.rpartition(".")[2]
        starts, stops = layout.query_ranges if name == "_backward_of_keys" else layout.key_ranges
        rows = sizes["ROWS"]
        firsts = torch.arange(0, len(starts), rows)
        lengths = stops[(firsts + rows).clamp_max(len(starts)) - 1] - starts[firsts]
        num_tiles = int((lengths / rows).ceil().sum())
        return 2.0 * TILE_PRODUCTS[name] * num_tiles * heads * rows * rows * sizes["WIDTH"]


def row_of(kernel: Kernel, attention: Attention) -> Row:
    """Returns a kernel as a row: its name, with the shapes of a product, and its estimated time."""
    name = kernel.name
    flops = float(kernel.flops)
    efficiency = PRODUCT_EFFICIENCY
    if kernel.kind == "product":
        name += " " + " ".join("x".join(map(str, shape)) for shape in kernel.shapes if len(shape) > 1)
    elif kernel.kind == "attention":
        flops = attention.flops(kernel)
        efficiency = ATTENTION_EFFICIENCY
    busy = max(flops / (efficiency * PEAK_FLOPS), kernel.num_bytes / (MEMORY_EFFICIENCY * PEAK_BYTES))
    seconds = busy + kernel.launches * LAUNCH_S
    return Row(kernel.part, kernel.kind, name, kernel.launches, kernel.num_bytes, flops, seconds)


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
    attention = Attention(step)
    rows: dict[tuple[str, str, str], Row] = {}
    by_kind = {kind: Row("all", kind, "") for kind in KINDS}
    total = Row("all", "", "the whole step")
    for row in (row_of(kernel, attention) for kernel in kernels):
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
    loaded = step.loaded
    model = step.config.model
    num_positions = [len(ids) for ids in (loaded.micro_batches[0].src_ids, loaded.micro_batches[0].tgt_out_ids)]
    capability = ".".join(map(str, torch.cuda.get_device_capability()))
    lines = [
        f"{preset}: {loaded.num_tgt_tokens:,} target tokens, {loaded.num_src_tokens:,} source tokens in "
        f"{len(loaded.micro_batches)} micro-batch of {num_positions[1]:,} and {num_positions[0]:,} positions; "
        f"{attention.num_sentences:,} sentences, room for {attention.room:,}; torch {torch.__version__}, "
        f"compute capability {capability}",
        f"{'part':9} {'kind':10} {'launches':>8} {'MB':>10} {'GFLOP':>10} {'est. ms':>8}  kernel",
    ]
    lines += [_line(row) for row in shown]
    lines += [_line(row) for row in by_kind.values()]
    lines.append(_line(total))
    useful = 6 * num_parameters(model, NUM_IDS) * loaded.num_tgt_tokens  # as many source tokens as target tokens
    lines.append(
        f"{preset}: {loaded.num_tgt_tokens / total.seconds:,.0f} target tokens a second, "
        f"{useful / total.seconds / PEAK_FLOPS:.1%} of the products' peak, if products reach {PRODUCT_EFFICIENCY:.0%}, "
        f"attention's tiles {ATTENTION_EFFICIENCY:.0%} and memory {MEMORY_EFFICIENCY:.0%} of an H100's, and a launch "
        f"takes {LAUNCH_S * 1e6} us"
    )
    return lines


def _line(row: Row) -> str:
    figures = f"{row.launches:8,} {row.num_bytes / 1e6:10,.1f} {row.flops / 1e9:10,.1f} {row.seconds * 1e3:8.3f}"
    return f"{row.part:9} {row.kind:10} {figures}  {row.name[:90]}".rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", nargs="+", default=["base", "big"], help="presets to count")
    parser.add_argument("--tokens", type=int, default=25_000, help="target tokens of a step")
    arguments = parser.parse_args()
    if torch.version.cuda is None or not torch.cuda.is_available():
        command = "python -m scripts.traced.no_gpu -m scripts.traced.count_step"
        sys.exit(f"this needs the CUDA build of torch, and {command} without a GPU")
    for preset in arguments.preset:
        print("\n".join(table(*count(preset, arguments.tokens), preset)), flush=True)


if __name__ == "__main__":
    main()
