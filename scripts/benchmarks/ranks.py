"""Times a training step of several ranks of one thread and of one process with as many threads, on a CPU.

    python -m scripts.benchmarks.ranks --data-dir DIR [--ranks 2] [--steps 100] [--rounds 3]

DIR has Multi30k's files. Both train the recipe multi30k-en-de from the same start, in turns, and are stopped after
--steps steps. What is compared is the mean time of a step from the 20th on, so that neither start counts.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FIRST = 20  # the step from which time counts
LIMIT_S = 1800  # of a preparation or training


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True, type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    ratios = list[float]()
    with tempfile.TemporaryDirectory(prefix="mtx-ranks-") as directory:
        prepared = Path(directory, "prepared")
        mtx("prepare", "multi30k-en-de", f"data.dir={arguments.data_dir}", f"run_dir={prepared}").wait(LIMIT_S)
        for number in range(arguments.rounds):
            process_s, ranks_s = (
                seconds_a_step(prepared, Path(directory, f"{size}-{number}"), arguments, size)
                for size in (1, arguments.ranks)
            )
            ratio = ranks_s / process_s
            ratios.append(ratio)
            print(f"one process {process_s:.3f} s a step, {arguments.ranks} ranks {ranks_s:.3f} s: {ratio:.3f} times")
    print(f"median: {statistics.median(ratios):.3f} times the time of one process with {arguments.ranks} threads")


def mtx(*arguments: str, **environment: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "mtx", *arguments], env={**os.environ, **environment}, stderr=subprocess.DEVNULL
    )


def seconds_a_step(prepared: Path, run: Path, arguments: argparse.Namespace, size: int) -> float:
    """The mean time of a step of some ranks, or of one process that has all threads."""
    shutil.copytree(prepared, run)
    settings = ["training.validate_every=1000000", "training.checkpoint_every=1000000", "device=cpu"]
    devices = [] if size == 1 else ["--device", str(size)]
    threads = str(arguments.ranks // size)
    process = mtx("train", str(run), f"run_dir={run}", *settings, *devices, OMP_NUM_THREADS=threads)
    deadline = time.monotonic() + LIMIT_S
    while (rows := times(run / "metrics.jsonl"))[-1][0] < arguments.steps:
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            sys.exit(f"error: training ended before step {arguments.steps}, or took {LIMIT_S} s")
        time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    process.wait(LIMIT_S)
    first_step, started = next(row for row in rows if row[0] >= FIRST)
    last_step, ended = rows[-1]
    return (ended - started) / (last_step - first_step)


def times(metrics: Path) -> list[tuple[int, float]]:
    """The steps that are in the metrics, and when they ended."""
    lines = metrics.read_bytes().split(b"\n")[:-1] if metrics.exists() else []
    events = [event for event in map(json.loads, lines) if event["event"] == "train"]
    return [(0, 0.0), *((event["step"], event["time"]) for event in events)]


if __name__ == "__main__":
    main()
