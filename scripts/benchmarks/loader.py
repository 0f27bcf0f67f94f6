"""Measures how many target tokens a second the loader delivers on one core, to a consumer that does nothing with them.

    python -m scripts.benchmarks.loader [--data-dir RUN/data] [--seconds 3]

It measures the prepared data of --data-dir and random text. The random text has lengths like those of Multi30k and of
WMT (mean 13.5 and 27 target tokens); 5M pairs need far more memory than the caches hold. The time starts at the call of
`load_steps` and includes the shuffling of each epoch. The last column, `gather`, is the rate in M tokens/s of one numpy
gather of a step's target ids with an index that exists already, which is the cost of reading alone.
"""

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mtx.data.packing import load_steps, micro_batch_shape
from mtx.data.sampler import BatchSampler, SamplerState, steps
from mtx.data.token_store import Side, TokenStore
from mtx.storage.run_files import TRAIN_STORE

MAX_TOKENS = 256
NUM_IDS = 32_000
DRAWN = (("captions", 29_000, 13.5), ("WMT-like", 500_000, 27.0), ("WMT-like", 5_000_000, 27.0))
SETTINGS = ((25_000, 1), (25_000, 4), (4096, 1))  # target tokens a step, micro-batches


def drawn_store(directory: Path, num_pairs: int, mean: float) -> TokenStore:
    """Writes a store of random ids in mapped files; lengths are log-normal, and correlated within a pair."""
    rng = np.random.default_rng(1)
    shared = rng.normal(0, 0.4, num_pairs)
    sides = []
    for name in ("src", "tgt"):
        drawn = mean * np.exp(shared + rng.normal(0, 0.2, num_pairs) - 0.1)
        lengths = np.clip(drawn.round(), 2, MAX_TOKENS).astype(np.int32)
        path = directory / f"{name}.{num_pairs}"
        rng.integers(1, NUM_IDS, int(lengths.sum(dtype=np.int64)), dtype=np.uint16).tofile(path)
        sides.append(Side.cut(np.asarray(np.memmap(path, np.uint16, mode="r")), lengths))
    return TokenStore(NUM_IDS, np.ones(1), num_pairs, np.zeros(1, np.uint16), *sides, read_block=None)


def loader_speed(store: TokenStore, batch_tokens: int, k: int, seconds: float) -> tuple[float, int, int]:
    """Returns target tokens a second, the number of steps, and the number of micro-batches beyond k per step."""
    sampler = BatchSampler(store.epoch_order(1), batch_tokens, MAX_TOKENS)
    _, shape = micro_batch_shape(
        batch_tokens, -(-batch_tokens // k), sampler.ratio, MAX_TOKENS, sampler.tokens_per_sentence
    )
    tokens = num_steps = extra = 0
    started = time.perf_counter()
    with contextlib.closing(load_steps(store, steps(sampler, SamplerState(), 1 << 40), k, shape)) as loaded:
        for step in loaded:
            tokens += step.num_tgt_tokens
            num_steps += 1
            extra += len(step.micro_batches) - k
            if (elapsed := time.perf_counter() - started) > seconds:
                break
    return tokens / elapsed, num_steps, extra


def gather_speed(side: Side, batch_tokens: int) -> float:
    """Returns the target tokens a second of `tokens[index]` alone, over 200 random steps."""
    rng = np.random.default_rng(2)
    indices = []
    for _ in range(200):
        starts, lengths = side.locate(rng.integers(0, side.num_sentences, batch_tokens))
        size = np.searchsorted(lengths.cumsum(), batch_tokens)
        starts, lengths = starts[:size], lengths[:size]
        indices.append(np.repeat(starts - (lengths.cumsum() - lengths), lengths) + np.arange(lengths.sum()))
    started = time.perf_counter()
    for index in indices:
        side.tokens[index]
    return sum(map(len, indices)) / (time.perf_counter() - started)


@contextlib.contextmanager
def stores(data_dir: Path | None) -> Iterator[dict[str, TokenStore]]:
    """Opens the prepared data, if there is any, and writes the random text; returns the stores by name."""
    with tempfile.TemporaryDirectory() as directory:
        by_name: dict[str, Any] = {} if data_dir is None else {str(data_dir): TokenStore.load(data_dir / TRAIN_STORE)}
        for name, num_pairs, mean in DRAWN:
            by_name[f"{name}, {num_pairs:,} pairs"] = drawn_store(Path(directory), num_pairs, mean)
        yield by_name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="prepared data: the folder with train.arrow")
    parser.add_argument("--seconds", type=float, default=3.0, help="measured time of each line of the table")
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    print(f"{'text':26} {'mean':>5} {'step':>7} {'k':>2} {'steps':>7} {'extra':>5} {'M tokens/s':>11} {'gather':>7}")
    with stores(arguments.data_dir) as by_name:
        for name, store in by_name.items():
            for batch_tokens, k in SETTINGS:
                speed, num_steps, extra = loader_speed(store, batch_tokens, k, arguments.seconds)
                gather = gather_speed(store.tgt, batch_tokens)
                print(
                    f"{name[-26:]:26} {store.tgt.lengths.mean():5.1f} {batch_tokens:7,} {k:2} {num_steps:7,} {extra:5} "
                    f"{speed / 1e6:11.1f} {gather / 1e6:7.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
