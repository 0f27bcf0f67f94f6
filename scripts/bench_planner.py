"""Measures what every rank does to plan a step of a large run: choose its pairs and deal them out to micro-batches.

    python scripts/bench_planner.py --pairs 1000000000 --ranks 512 --batch-tokens 12800000 --dir DIR

The lengths are random, like those of WMT (mean 27 target tokens): 16M pairs, repeated, in two mapped files in DIR of 4
bytes a pair each, which are removed at the end. The times are those of the loader's thread: by the clock, and on the
processor, which other programs on the machine disturb less.
"""

import argparse
import contextlib
import re
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mtx.data.packing import Shape, assign, micro_batch_shape
from mtx.data.sampler import BatchSampler, SamplerState

MAX_TOKENS, MEAN_TOKENS, NUM_DRAWN = 256, 27.0, 1 << 24


def draw_lengths(directory: Path, num_pairs: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Returns source and target lengths in mapped files: log-normal, and correlated within a pair."""
    rng = np.random.default_rng(1)
    shared = 0.4 * rng.standard_normal(min(NUM_DRAWN, num_pairs), np.float32)
    sides = []
    for name in ("src", "tgt"):
        drawn = MEAN_TOKENS * np.exp(shared + 0.2 * rng.standard_normal(len(shared), np.float32) - 0.1)
        lengths = np.clip(drawn.round(), 2, MAX_TOKENS).astype(np.int32)
        with (directory / name).open("wb") as file:
            for start in range(0, num_pairs, len(lengths)):
                lengths[: num_pairs - start].tofile(file)
        sides.append(np.asarray(np.memmap(directory / name, np.int32, mode="r")))
    return sides[0], sides[1]


def memory() -> tuple[float, float]:
    """Returns this process's own memory and its part of mapped files that is in memory, in GB; 0 if not on Linux."""
    with contextlib.suppress(OSError):
        status = Path("/proc/self/status").read_text()
        own, mapped = (int(re.search(rf"{key}:\s+(\d+)", status)[1]) for key in ("RssAnon", "RssFile"))  # type: ignore[index]
        return own * 1024 / 1e9, mapped * 1024 / 1e9
    return 0.0, 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1_000_000_000)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--batch-tokens", type=int, default=25_000 * 512, help="target tokens of a step, on all ranks")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--dir", type=Path, help="where the lengths are written; default: the temporary directory")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mtx-planner-", dir=arguments.dir) as directory:
        src, tgt = draw_lengths(Path(directory), arguments.pairs)
        before = memory()[0]
        started = time.perf_counter()
        sampler = BatchSampler(src, tgt, None, 1, arguments.batch_tokens)
        print(f"{arguments.pairs:,} pairs: sampler made in {time.perf_counter() - started:.1f} s", flush=True)
        k, shape = micro_batch_shape(
            arguments.batch_tokens, 25_000, sampler.ratio, MAX_TOKENS, sampler.tokens_per_sentence, arguments.ranks
        )
        plan(sampler, k, shape, arguments.steps)
        own, mapped = memory()
        print(f"memory for planning {own - before:.2f} GB; mapped lengths that were read {mapped:.2f} GB")


def plan(sampler: BatchSampler, k: int, shape: Shape, num_steps: int) -> None:
    """Plan steps as the loader of each rank does, and print how long it took."""
    position, choosing, dealing, extra = SamplerState(), [], [], 0
    for _ in range(num_steps):
        clocks = [(time.perf_counter(), time.thread_time())]
        step = sampler.step(position)
        clocks.append((time.perf_counter(), time.thread_time()))
        extra += len(assign(step.src_lengths, step.tgt_lengths, k, shape)) - k
        clocks.append((time.perf_counter(), time.thread_time()))
        times = np.diff(clocks, axis=0)
        choosing.append(times[0])
        dealing.append(times[1])
        position = step.position_after
    print(f"{num_steps} steps of {len(step.pairs):,} pairs in {k} micro-batches, and {extra} more in all")
    print(" ms a step   median     mean  largest  processor: median     mean  largest")
    total = np.add(choosing, dealing)
    for name, seconds in (("choose", choosing), ("deal out", dealing), ("both", total)):
        (wall, processor) = 1e3 * np.array(seconds).T
        figures = [f"{f(values):8.1f}" for values in (wall, processor) for f in (np.median, np.mean, np.max)]
        print(f"{name:>10} {' '.join(figures[:3])} {figures[3]:>18} {' '.join(figures[4:])}")


if __name__ == "__main__":
    main()
