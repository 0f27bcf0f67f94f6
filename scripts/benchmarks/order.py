"""Measures the order of the pairs of an epoch: its time and memory, and how even the steps are that it gives.

The first table is for N pairs in blocks of 16,384, whose lengths are those of one block: the index arithmetic is real,
and no text is read. The second one is for a prepared text, in blocks of 256 pairs and windows of 64 blocks. It shows
the share of positions with tokens, the standard deviation of the mean target length of a step, and that of the share
of the last corpus.

    python -m scripts.benchmarks.order --pairs 1000000000 --data-dir PREPARED
"""

import argparse
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mtx.data.packing import assign, micro_batch_shape
from mtx.data.prepare import WINDOW_PAIRS
from mtx.data.sampler import BLOCK, BatchSampler, EpochOrder, SamplerState, Side
from mtx.data.tables import BLOCK_PAIRS
from mtx.data.token_store import TokenStore
from mtx.storage.run_files import TRAIN_STORE

MAX_TOKENS = 256
SMALL_BLOCK = 256
SMALL_WINDOW = 64 * SMALL_BLOCK
SETTINGS = ((4096, 1), (25_000, 8))  # target tokens of a step, micro-batches


def anonymous_mb() -> float:
    """Returns the anonymous memory of this process."""
    status = Path("/proc/self/status").read_text()
    return int(next(re.finditer(r"RssAnon:\s+(\d+)", status))[1]) * 1024 / 1e6


def measure(name: str, work: Callable[[], Any]) -> None:
    """Prints the time and the largest additional memory of some work."""
    before = anonymous_mb()
    peaks = [before]
    has_ended = threading.Event()

    def watch() -> None:
        while not has_ended.wait(0.005):
            peaks.append(anonymous_mb())

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.perf_counter()
    work()
    elapsed_s = time.perf_counter() - started
    has_ended.set()
    watcher.join()
    print(f"{name:22} {elapsed_s:8.2f} s {max(peaks) - before:8,.0f} MB", flush=True)


def made_order(num_pairs: int) -> EpochOrder:
    """Returns the order of pairs whose ids are nowhere."""
    lengths = np.random.default_rng(0).integers(3, 48, BLOCK_PAIRS)
    one = Side.cut(np.empty(0, np.uint16), lengths)
    sizes = np.diff([*range(0, num_pairs, BLOCK_PAIRS), num_pairs])
    side = replace(one, blocks=np.array([(size, 0, 0) for size in sizes], BLOCK))
    return EpochOrder(side, side, np.ones(len(sizes)), 1, WINDOW_PAIRS)


def evenness(store: TokenStore, window: int, batch_tokens: int, k: int) -> tuple[float, float, float]:
    """Returns the share of positions with tokens in an epoch, and the two standard deviations over its steps."""
    sides = []
    for side in (store.src, store.tgt):
        whole = Side.cut(np.empty(0, np.uint16), side.lengths)
        firsts = [*range(0, whole.num_sentences, SMALL_BLOCK), whole.num_sentences]
        blocks = [(stop - first, 0, first) for first, stop in zip(firsts, firsts[1:], strict=False)]
        sides.append(replace(whole, blocks=np.array(blocks, BLOCK)))
    order = EpochOrder(sides[0], sides[1], np.ones(len(sides[0].blocks)), 1, window)
    sampler = BatchSampler(order, batch_tokens, MAX_TOKENS)
    k, shape = micro_batch_shape(
        batch_tokens, -(-batch_tokens // k), sampler.ratio, MAX_TOKENS, sampler.tokens_per_sentence
    )
    is_last_corpus = store.corpus == store.corpora.max()
    position = SamplerState()
    rows = []
    while position.epoch == 0:
        step = sampler.step(position)
        position = step.position_after
        groups = assign(step.src_lengths, step.tgt_lengths, k, shape)
        tokens = step.src_lengths.sum() + step.tgt_lengths.sum()
        positions = len(groups) * (shape.num_src + shape.num_tgt)
        rows.append((tokens / positions, step.tgt_lengths.mean(), is_last_corpus[step.pairs].mean()))
    shares, lengths, corpora = np.array(rows).T
    return float(shares.mean()), float(lengths.std()), float(corpora.std())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1_000_000_000, help="default: %(default)s")
    parser.add_argument("--data-dir", type=Path, help="prepared data: the folder with train.arrow")
    arguments = parser.parse_args()
    order = made_order(arguments.pairs)
    measure("an epoch", lambda: order.num_pairs(0))
    measure("its first window", lambda: order.rows(0, 0, 1))
    middle = arguments.pairs // 2
    measure("resuming in the middle", lambda: made_order(arguments.pairs).rows(0, middle, middle + 1))
    if arguments.data_dir:
        store = TokenStore.load(arguments.data_dir / TRAIN_STORE)
        print(f"\n{'step':>7} {'k':>2} {'windows':>8} {'tokens/positions':>17} {'length':>7} {'corpus':>7}")
        for batch_tokens, k in SETTINGS:
            for window in (store.num_pairs, SMALL_WINDOW):
                share, length, corpus = evenness(store, window, batch_tokens, k)
                num_windows = -(-store.num_pairs // window)
                print(f"{batch_tokens:7,} {k:2} {num_windows:8} {share:17.2%} {length:7.3f} {corpus:7.4f}", flush=True)


if __name__ == "__main__":
    main()
