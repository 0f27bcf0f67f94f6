"""Measures what every rank does to plan a step of a large run: choose its pairs and deal them out to micro-batches.

    python scripts/bench_planner.py --pairs 1000000000 --ranks 512 --batch-tokens 12800000 --dir DIR

The lengths are random, like those of WMT (mean 27 target tokens), in two mapped files in DIR of 4 bytes a pair each,
which are removed at the end. The window of an epoch's order is permuted in the steps marked "new window". The memory is
what this process alone has (its private part), and that of the mapped files, which the processes of a machine share.
"""

import argparse
import contextlib
import os
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtx.data.packing import assign, micro_batch_shape
from mtx.data.sampler import BatchSampler, SamplerState

MAX_TOKENS, MEAN_TOKENS, CHUNK = 256, 27.0, 1 << 22  # CHUNK: pairs that are drawn at once


def draw_lengths(directory: Path, num_pairs: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Returns source and target lengths in mapped files: log-normal, and correlated within a pair."""
    rng = np.random.default_rng(1)
    paths = directory / "src", directory / "tgt"
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(path.open("wb")) for path in paths]
        for start in range(0, num_pairs, CHUNK):
            size = min(CHUNK, num_pairs - start)
            shared = rng.normal(0, 0.4, size).astype(np.float32)
            for file in files:
                drawn = MEAN_TOKENS * np.exp(shared + 0.2 * rng.standard_normal(size, np.float32) - 0.1)
                np.clip(drawn.round(), 2, MAX_TOKENS).astype(np.int32).tofile(file)
    src, tgt = (np.asarray(np.memmap(path, np.int32, mode="r")) for path in paths)
    return src, tgt


def timed(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """Returns the result and the seconds it took."""
    started = time.perf_counter()
    result = function(*arguments)
    return result, time.perf_counter() - started


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
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory(prefix="mtx-planner-", dir=arguments.dir) as directory:
        (src, tgt), seconds = timed(draw_lengths, Path(directory), arguments.pairs)
        print(f"{arguments.pairs:,} lengths on both sides written in {seconds:.0f} s", flush=True)
        before = memory()[0]
        sampler, seconds = timed(BatchSampler, src, tgt, None, 1, arguments.batch_tokens)
        print(f"sampler made in {seconds:.1f} s", flush=True)
        k, shape = micro_batch_shape(
            arguments.batch_tokens, 25_000, sampler.ratio, MAX_TOKENS, arguments.ranks
        )  # as `mtx train` does with training.micro_batch_tokens=25000
        plan(sampler, src, tgt, k, shape, arguments.steps)
        own, mapped = memory()
        print(f"own memory {own:.2f} GB, of it for planning {own - before:.2f} GB; mapped lengths {mapped:.2f} GB")


def plan(sampler: BatchSampler, src: Any, tgt: Any, k: int, shape: Any, num_steps: int) -> None:
    """Plan steps as the loader of each rank does, and print how long it took."""
    position, choosing, dealing, slow, extra = SamplerState(), [], [], [], 0
    for number in range(num_steps):
        step, choose_s = timed(sampler.step, position)
        groups, deal_s = timed(assign, src[step.pairs], tgt[step.pairs], k, shape)
        choosing.append(choose_s)
        dealing.append(deal_s)
        extra += len(groups) - k
        if choose_s + deal_s > 0.2:
            slow.append(f"step {number}: {choose_s:.2f} + {deal_s:.2f} s")
        position = step.after
    total = np.array(choosing) + np.array(dealing)
    print(f"{num_steps} steps of {len(step.pairs):,} pairs in {k} micro-batches; {extra} micro-batches beyond")
    for name, seconds in (("choose", choosing), ("deal", dealing), ("both", total)):
        print(
            f"{name:>7}: median {1e3 * np.median(seconds):8.2f} ms, mean {1e3 * np.mean(seconds):8.2f} ms, "
            f"largest {1e3 * np.max(seconds):9.2f} ms"
        )
    print("slower than 0.2 s:", "; ".join(slow) or "none", flush=True)


if __name__ == "__main__":
    main()
