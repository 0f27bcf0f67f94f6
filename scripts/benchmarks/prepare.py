"""Compares `mtx prepare` of checkouts in turns, and the start of a training on what it prepared.

    python -m scripts.benchmarks.prepare --data-dir DIR --pairs 1000000 --json FILE
    python -m scripts.benchmarks.prepare --data-dir DIR --tree OLD --tree NEW --rounds 3 --first-step 1 --first-step 8

The pairs are made from the text --train in --data-dir, which is named as in data.train. One to twelve sentences are
joined, and end in a number that differs in each pass through the text, so that no pairs are equal by chance. A tenth
of the pairs are copies of earlier ones, and cleaning drops 2% for other reasons. With the sentences of Tatoeba, a pair
has 142 bytes. The pairs are the same in every run of this script.

`main` is the process of the command; `worker` is the largest of the others, one of which learns the tokenizer. Memory
is in MB of 10^6 bytes: `anon` holds no pages of files, `mapped` holds them, and `pss` is the memory of all processes.
All three are peaks. `temporary` is the peak of all files in the run directory but the store. `first_step_N` is a
training of a tiny model by N ranks on the CPU, from the command until the first step is in metrics.jsonl; `anon` and
`mapped` are those of the largest rank at that time. The table shows the medians of each tree, and then of the ratios
to the first tree in the same round. The JSON file has every run, the memory of each rank, and the line of the log after
which `main_anon` had its peak. The figures are from Linux's /proc.
"""

import argparse
import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mtx.config import settings
from mtx.data.sources import find_corpora
from mtx.storage.run_files import TRAIN_STORE
from scripts.benchmarks.machine import machine, write_report

NUM_JOINED = (1, 2, 3, 5, 8, 12)  # sentences of a pair
JOINED_PERCENT = (55, 27, 10, 5, 2, 1)  # pairs of each number
JUNK_SHARE = 0.02
JUNK = ("\tLeer.\n", "The same.\tThe same.\n", f"Short.\t{30 * 'sehr lang '}\n", "Bell\x07.\tGlocke\x07.\n")
COPY_SHARE = 0.1
MAX_COPIED = 300_000  # pairs of which copies are made
TINY = ("model.preset=tiny", "model.d_model=32", "training.batch_tokens=4096", "training.micro_batch_tokens=512")
SAMPLE_S = 0.1
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def text_settings(text: Path) -> list[str]:
    return [f"data.train={text}", "data.src=en", "data.tgt=de"]


def make_lines(text: Path) -> Iterator[str]:
    """Yields the lines of a TSV file of pairs without end, always the same ones."""
    corpora = find_corpora(settings.resolve(None, text_settings(text)).config.data)
    blocks = [block for corpus in corpora.train for block in corpus.blocks()]
    sentences = [
        pair for block in blocks for pair in zip(block.src, block.tgt, strict=True) if "\t" not in "".join(pair)
    ]
    rng = random.Random(1)
    rng.shuffle(sentences)  # they may be sorted
    copied = list[str]()
    position = 0
    while True:
        kind = rng.random()
        if kind < JUNK_SHARE:
            yield rng.choice(JUNK)
        elif kind < JUNK_SHARE + COPY_SHARE and copied:
            yield rng.choice(copied)
        else:
            (num_joined,) = rng.choices(NUM_JOINED, JOINED_PERCENT)
            pass_number, first = divmod(position, len(sentences))
            src, tgt = zip(*sentences[first : first + num_joined], strict=True)
            line = f"{' '.join(src)} {pass_number}\t{' '.join(tgt)} {pass_number}\n"
            position += num_joined
            if len(copied) < MAX_COPIED:
                copied.append(line)
            yield line


@dataclass(frozen=True)
class Process:
    """What a process uses at one moment; see the top of the file."""

    pid: int
    anon_mb: float
    mapped_mb: float
    pss_mb: float
    cpu_s: float


def find_processes(root: int) -> list[Process]:
    """Returns a process and its descendants, itself first, without those that have just started or ended."""
    processes = list[Process]()
    pids = [root]
    for pid in pids:
        path = Path(f"/proc/{pid}")
        with contextlib.suppress(OSError):  # it has ended
            for children in path.glob("task/*/children"):
                pids += map(int, children.read_text().split())
            text = (path / "status").read_text() + (path / "smaps_rollup").read_text()
            mb = {name: int(kb) * 1024 / 1e6 for name, kb in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}
            user, system = (path / "stat").read_text().rpartition(")")[2].split()[11:13]
            cpu_s = (int(user) + int(system)) / TICKS_PER_S
            if cpu_s:  # without, it has just been forked, and shows the memory of its parent
                processes.append(Process(pid, mb["RssAnon"], mb["RssFile"], mb["Pss"], cpu_s))
    return processes


@dataclass(frozen=True)
class Sample:
    """A command at one moment: its processes, the main process first, and the last line that it has logged."""

    elapsed_s: float
    processes: list[Process]
    last_line: str


def sample_mtx(tree: Path, *arguments: str) -> Iterator[Sample]:
    """Runs `mtx` of a checkout, and yields a sample every SAMPLE_S seconds; it ends with the iterator at the latest."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}  # not the mtx of the current directory
    command = [sys.executable, "-m", "mtx", *arguments]
    started = time.perf_counter()
    with (
        tempfile.NamedTemporaryFile() as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log) as process,
    ):
        try:
            while process.poll() is None:
                if processes := find_processes(process.pid):
                    last_line = Path(log.name).read_text().strip().rpartition("\n")[2]
                    yield Sample(time.perf_counter() - started, processes, last_line)
                time.sleep(SAMPLE_S)
        finally:
            process.terminate()
        if process.returncode:
            sys.exit(f"{Path(log.name).read_text()}error: {command} ended with {process.returncode}")


def measure_preparation(tree: Path, run_dir: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """Runs `mtx prepare` of a checkout, and returns its figures."""
    samples = list[Sample]()
    temporary = 0
    for sample in sample_mtx(tree, "prepare", *arguments, *TINY, f"run_dir={run_dir}"):
        samples.append(sample)
        with contextlib.suppress(OSError):  # a file has just been removed
            files = [path for path in run_dir.rglob("*") if path.name != TRAIN_STORE]
            temporary = max(temporary, sum(path.stat().st_size for path in files))
    largest = max(samples, key=lambda sample: sample.processes[0].anon_mb)
    workers = [process for sample in samples for process in sample.processes[1:]]
    workers_cpu_s = {process.pid: process.cpu_s for process in workers}
    return {
        "total_s": sample.elapsed_s,
        "main_cpu_s": sample.processes[0].cpu_s,
        "workers_cpu_s": sum(workers_cpu_s.values()),
        "pss_mb": max(sum(process.pss_mb for process in sample.processes) for sample in samples),
        "main_anon_mb": largest.processes[0].anon_mb,
        "main_anon_after": largest.last_line,
        "worker_anon_mb": max((process.anon_mb for process in workers), default=0.0),
        "store_mb": (run_dir / "data" / TRAIN_STORE).stat().st_size / 1e6,
        "temporary_mb": temporary / 1e6,
    }


def measure_first_step(tree: Path, prepared: Path, num_ranks: int) -> dict[str, Any]:
    """Trains a copy of a prepared run until its first step, and returns the figures of its ranks."""
    run_dir = prepared.with_name("start")
    shutil.copytree(prepared, run_dir, copy_function=os.link)
    arguments = [f"run_dir={run_dir}", "training.max_steps=2", "device=cpu", "--device", str(num_ranks)]
    metrics = run_dir / "metrics.jsonl"
    processes = list[Process]()
    with contextlib.closing(sample_mtx(tree, "train", str(run_dir), *arguments)) as samples:
        for sample in samples:
            processes += sample.processes
            if metrics.exists() and '"event": "train"' in metrics.read_text():
                break
    shutil.rmtree(run_dir)
    ranks = sample.processes[-num_ranks:]  # without the process that has started them
    name = f"first_step_{num_ranks}"
    return {
        f"{name}_s": sample.elapsed_s,
        f"{name}_anon_mb": [rank.anon_mb for rank in ranks],
        f"{name}_mapped_mb": [rank.mapped_mb for rank in ranks],
        f"{name}_peak_anon_mb": max(process.anon_mb for process in processes),
        f"{name}_peak_mapped_mb": max(process.mapped_mb for process in processes),
    }


def print_table(rows: Sequence[dict[str, Any]], trees: Sequence[Path]) -> None:
    """Prints the median of each figure for each tree, and then the ratios."""
    print(f"{'':28}", *(f"{str(tree)[-16:]:>16}" for tree in trees), *(f"{'ratio':>16}" for _ in trees))
    for name, value in rows[0].items():
        if value and not isinstance(value, str):
            figures = np.array([np.max(row[name]) for row in rows]).reshape(-1, len(trees))  # by round and tree
            medians = np.median([figures, figures / figures[:, :1]], axis=1)
            print(f"{name:28}", *(f"{median:16,.3f}" for median in medians.flat))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="key=value", help="settings of mtx prepare")
    parser.add_argument("--data-dir", type=Path, required=True, help="folder with English and German text")
    parser.add_argument("--train", default="train", help="text in it, as in data.train; default: %(default)s")
    parser.add_argument("--pairs", type=int, default=1_000_000, help="number of pairs; default: %(default)s")
    parser.add_argument("--tree", type=Path, action="append", help="a checkout of mtx; default: this one")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each tree; default: %(default)s")
    parser.add_argument("--first-step", type=int, action="append", default=[], metavar="RANKS")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    paths = arguments.tree or [Path(__file__).parents[2]]
    trees = [(path / "mtx").resolve(strict=True).parent for path in paths]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the temporary directory is removed
    rows = list[dict[str, Any]]()
    about = {"pairs": arguments.pairs, "settings": arguments.settings, "machine": machine(torch.device("cpu"))}
    with tempfile.TemporaryDirectory(prefix="mtx-bench-") as scratch:
        text = Path(scratch, "made.tsv")
        run_dir = Path(scratch, "run")
        with text.open("w", encoding="utf-8", newline="") as file:
            file.writelines(islice(make_lines(arguments.data_dir / arguments.train), arguments.pairs))
        for number, tree in product(range(arguments.rounds), trees):
            figures = measure_preparation(tree, run_dir, [*arguments.settings, *text_settings(text)])
            figures["pairs_per_minute"] = arguments.pairs * 60 / figures["total_s"]
            for num_ranks in arguments.first_step:
                figures |= measure_first_step(tree, run_dir, num_ranks)
            shutil.rmtree(run_dir)
            rows.append({"tree": str(tree), **figures})
            write_report(arguments.json, {**about, "rows": rows})
            print(f"round {number + 1}, {tree}: {figures['total_s']:.1f} s", flush=True)
    print_table(rows, trees)


if __name__ == "__main__":
    main()
