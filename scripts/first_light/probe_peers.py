"""The step of other implementations on sentences of the same lengths, in padded batches sorted by length.

Compiled, each has one batch of the middle length and one fixed shape, which is more than its users get. Eager, it has
batches from the shortest to the longest. Each is measured as soon as it is ready, and again in the turn of this
process, alone on the device. `baselines.py` has the models.
"""

import argparse
import itertools
import sys
import time

import torch
from turns import EARLY_S, errors_reported, peak_flops, rates, report, wait_for_turn

from mtx.config import settings
from mtx.model.device import fast_precision, find_device, use_device
from scripts.benchmarks.baselines import bucketed, padded_batch
from scripts.benchmarks.train_worker import (
    System,
    Work,
    drawn_data,
    flops_per_tgt_token,
    measure,
    plain_update,
    warm_up,
)

NUM_EAGER = 8  # batches
SHARE = 0.17  # of the memory of a GPU with less than 100 GB, where the other peer and the steps of mtx are too


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--preset", default="base")
    parser.add_argument("--tokens", type=int, default=25_000)
    parser.add_argument("--ids", type=int, default=37_000)
    parser.add_argument("--peer", choices=("nn-transformer", "marian"), required=True)
    parser.add_argument("--eager", action="store_true", help="not compiled")
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args(arguments)
    device = find_device(options.device)
    use_device(device)
    precision = fast_precision(device)
    eager = f"marian-{precision}" if options.peer == "marian" else options.peer
    if device.type == "cuda" and torch.cuda.get_device_properties(device).total_memory < 100e9:
        torch.cuda.set_per_process_memory_fraction(SHARE)
    config = settings.resolve(
        None, ["data.src=en", "data.tgt=de", f"model.preset={options.preset}", f"precision={precision}"]
    ).config
    data = drawn_data(config, options.ids, 8 * options.tokens)
    systems = dict[tuple[str, int], System]()
    peak = peak_flops(device, precision)
    flops = flops_per_tgt_token(config.model, data.train)

    def report_peer(name: str, tokens: int, is_turn: bool) -> None:
        row = measure(systems[name, tokens], options.seconds if is_turn else min(EARLY_S, options.seconds), device)
        report(
            "peer", preset=options.preset, system=name, precision=precision, tokens=tokens,
            alone="yes" if is_turn else "no", **rates(row, flops, peak),
        )  # fmt: skip

    for name in [eager] if options.eager else [eager, f"{eager}-compiled"]:
        for tokens in (options.tokens, options.tokens // 2):  # half of it where memory is short
            is_short = False
            with errors_reported("peer", preset=options.preset, system=name, tokens=tokens):
                try:
                    systems[name, tokens] = ready(name, tokens, config, data.train, device, options.preset)
                    report_peer(name, tokens, is_turn=False)
                except torch.OutOfMemoryError:
                    is_short = True
                    raise
            if not is_short:
                break
            torch.cuda.empty_cache()
    wait_for_turn(device)
    for name, tokens in systems:
        with errors_reported("peer", preset=options.preset, system=name):
            report_peer(name, tokens, is_turn=True)


def ready(name, tokens, config, store, device, preset) -> System:
    """Returns a system that has seen all of its batches."""
    buckets = bucketed(store, tokens)
    compiled = name.endswith("compiled")
    number = 1 if compiled else min(NUM_EAGER, len(buckets))
    batches = [padded_batch(store, buckets[(2 * i + 1) * len(buckets) // (2 * number)]) for i in range(number)]
    if device.type == "cuda":
        batches = [batch.pinned() for batch in batches]
    ready_batches = [Work([b], b.num_src_tokens, b.num_tgt_tokens, b.num_positions) for b in batches]
    started = time.perf_counter()
    update = plain_update(config, store.num_ids, device, name, dynamic=False)
    system = System(itertools.cycle(ready_batches), update)
    seconds = warm_up(system, device, started, number + 2)
    report("first step", preset=preset, system=name, seconds=round(seconds, 1))
    return system


if __name__ == "__main__":
    main(sys.argv[1:])
