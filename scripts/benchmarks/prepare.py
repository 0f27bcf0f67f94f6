"""Compares `mtx prepare` of checkouts in turns, and the start of a training on what it prepared.

    python -m scripts.benchmarks.prepare --data-dir DIR --pairs 1000000 --json FILE
    python -m scripts.benchmarks.prepare --data-dir DIR --tree OLD --tree NEW --rounds 3 --first-step 1 --first-step 8

The pairs are made from the text --train in --data-dir, which is named as in data.train. One to twelve sentences are
joined, and end in a number that differs in each pass through the text, so that no pairs are equal by chance. A tenth
of the pairs are copies of earlier ones, and cleaning drops 2% for other reasons. With the sentences of Tatoeba, a pair
has 143 bytes. The pairs are the same in every run of this script.

`main` is the process of the command, and `worker` the largest of its other processes; one of them learns the tokenizer.
Memory is a peak, in MB of 10^6 bytes: `anon` holds no pages of files, `mapped` holds them, and `pss` is the memory of
all processes. `main_anon_after` is the last line of the log before the peak of `main_anon`. `temporary` is the peak of
the files in the run directory that do not remain. `first_step_N` is a training of a tiny model by N ranks on the CPU,
from the command until the first step is in metrics.jsonl. It has the memory of each rank at that time and at its peak;
the table shows the largest rank. The figures of a tree are medians of its runs. A ratio is the median of the ratios to
the first tree in the same round. Linux's /proc has the figures.
"""

import argparse
import contextlib
import itertools
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch

from mtx.config import settings
from mtx.data.sources import find_corpora
from mtx.errors import MtxError
from mtx.storage.run_files import TRAIN_STORE, RunLayout
from scripts.benchmarks.machine import machine, versions, write_report
from scripts.benchmarks.processes import Process, run_mtx

Pair = tuple[str, str]

CHECKOUT = Path(__file__).parents[2]
SIDES = {"src": "en", "tgt": "de"}
STAGES = ("cleaning", "tokenizer", "encoding")
NUM_JOINED = (1, 2, 3, 5, 8, 12)  # sentences of a pair
JOINED_PERCENT = (55, 27, 10, 5, 2, 1)  # pairs of each number
COPY_SHARE = 0.1
MAX_COPIED = 300_000  # pairs of which copies are made
JUNK_SHARE = 0.02
JUNK = (("", "Leer."), ("The same.", "The same."), ("Short.", 30 * "sehr lang "), ("Bell\x07.", "Glocke\x07."))
TINY = (
    "model.preset=tiny", "model.d_model=32", "model.d_ff=64", "model.num_heads=2", "model.num_encoder_layers=1",
    "model.num_decoder_layers=1", "training.batch_tokens=4096", "training.micro_batch_tokens=512",
)  # fmt: skip


def text_settings(directory: Path, train: str) -> list[str]:
    """Returns the settings of mtx for a text."""
    return [f"data.dir={directory}", f"data.train={train}", *(f"data.{key}={side}" for key, side in SIDES.items())]


def read_sentences(directory: Path, train: str) -> list[Pair]:
    """Reads the text from which pairs are made."""
    try:
        corpora = find_corpora(settings.resolve(None, text_settings(directory, train)).config.data)
        blocks = [block for corpus in corpora.train for block in corpus.blocks()]
    except MtxError as error:
        sys.exit(f"error: {error}")
    return [pair for block in blocks for pair in zip(block.src, block.tgt, strict=True)]


def make_pairs(sentences: Sequence[Pair]) -> Iterator[Pair]:
    """Yields made pairs without end, always the same ones."""
    rng = random.Random(1)
    shuffled = rng.sample(sentences, len(sentences))  # the sentences of a text may be sorted
    copied = list[Pair]()
    position = 0
    while True:
        kind = rng.random()
        if kind < JUNK_SHARE:
            yield rng.choice(JUNK)
        elif kind < JUNK_SHARE + COPY_SHARE and copied:
            yield rng.choice(copied)
        else:
            (num_joined,) = rng.choices(NUM_JOINED, JOINED_PERCENT)
            pass_number, first = divmod(position, len(shuffled))
            src, tgt = zip(*shuffled[first : first + num_joined], strict=True)
            pair = (" ".join([*src, str(pass_number)]), " ".join([*tgt, str(pass_number)]))
            position += num_joined
            if len(copied) < MAX_COPIED:
                copied.append(pair)
            yield pair


def write_pairs(pairs: Iterator[Pair], directory: Path) -> int:
    """Writes pairs as train.en and train.de; returns the size in bytes."""
    src_path, tgt_path = (directory / f"train.{side}" for side in SIDES.values())
    with src_path.open("wb") as src_file, tgt_path.open("wb") as tgt_file:
        for src, tgt in pairs:
            src_file.write(f"{src}\n".encode())
            tgt_file.write(f"{tgt}\n".encode())
    return src_path.stat().st_size + tgt_path.stat().st_size


@dataclass(frozen=True)
class Sample:
    """A preparation at one moment: its processes, the last line of its log, and the sizes of its files by name."""

    processes: dict[int, Process]
    last_line: str
    sizes: dict[str, int]


def file_sizes(directory: Path) -> dict[str, int]:
    """Returns the sizes in bytes of all files in a directory and its folders, by their names."""
    sizes = dict[str, int]()
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):  # it has just been removed
            sizes[path.name] = path.stat().st_size
    return sizes


def measure_preparation(tree: Path, text_dir: Path, run_dir: Path, more: Sequence[str]) -> dict[str, Any]:
    """Runs `mtx prepare` of a checkout on the pairs that were written, and returns its figures."""
    arguments = [*more, *text_settings(text_dir, "train"), *TINY, f"run_dir={run_dir}"]
    samples = list[Sample]()
    with run_mtx(tree, "prepare", *arguments) as command:
        for processes in command.watch():
            last_line = command.log[-1][1] if command.log else ""
            samples.append(Sample(processes, last_line, file_sizes(run_dir)))
        total_s = command.elapsed_s
    if command.process.returncode:
        command.fail()
    main = command.process.pid
    largest = max(samples, key=lambda sample: sample.processes[main].anon_mb)
    cpu_s = {pid: process.cpu_s for sample in samples for pid, process in sample.processes.items()}
    others = [process for sample in samples for pid, process in sample.processes.items() if pid != main]
    kept = file_sizes(run_dir)
    temporary = [sum(size for name, size in sample.sizes.items() if name not in kept) for sample in samples]
    return {
        "total_s": total_s,
        **stage_seconds(command.log),
        "main_cpu_s": cpu_s[main],
        "workers_cpu_s": sum(cpu_s.values()) - cpu_s[main],
        "pss_mb": max(sum(process.pss_mb for process in sample.processes.values()) for sample in samples),
        "main_anon_mb": largest.processes[main].anon_mb,
        "main_anon_after": largest.last_line,
        "main_mapped_mb": max(sample.processes[main].mapped_mb for sample in samples),
        "worker_anon_mb": max((process.anon_mb for process in others), default=0.0),
        "store_mb": kept[TRAIN_STORE] / 1e6,
        "temporary_mb": max(temporary) / 1e6,
    }


def stage_seconds(log: Sequence[tuple[float, str]]) -> dict[str, float]:
    """Returns the seconds of each stage, which ends with the last line that begins with its name."""
    ends = {stage: logged_s for logged_s, line in log for stage in STAGES if line.startswith(f"{stage}: ")}
    seconds = dict[str, float]()
    begin = 0.0
    for stage, end in ends.items():
        seconds[f"{stage}_s"] = end - begin
        begin = end
    return seconds


def measure_first_step(tree: Path, run_dir: Path, num_ranks: int) -> dict[str, Any]:
    """Starts a training of a prepared run, stops it after its first step, and returns the figures of its ranks."""
    run = RunLayout(run_dir.with_name("start"))
    shutil.copytree(run_dir, run.root, copy_function=os.link)
    devices = ["--device", str(num_ranks)] if num_ranks > 1 else []
    arguments = [str(run.root), f"run_dir={run.root}", "training.max_steps=2", "device=cpu", *devices]
    samples = list[dict[int, Process]]()
    with run_mtx(tree, "train", *arguments) as command:
        for processes in command.watch():
            samples.append(processes)
            if run.metrics.exists() and '"event": "train"' in run.metrics.read_text(encoding="utf-8"):
                seconds = command.elapsed_s
                break
        else:
            command.fail()
    shutil.rmtree(run.root)
    name = f"first_step_{num_ranks}"
    figures: dict[str, Any] = {f"{name}_s": seconds}
    launcher = command.process.pid if num_ranks > 1 else None
    for kind in ("anon_mb", "mapped_mb"):
        ranks = [
            [getattr(sample[pid], kind) for sample in samples if pid in sample]
            for pid in samples[-1] if pid != launcher
        ]  # fmt: skip
        figures[f"{name}_{kind}"] = [values[-1] for values in ranks]
        figures[f"{name}_peak_{kind}"] = [max(values) for values in ranks]
    return figures


def table(rows: Sequence[dict[str, Any]], trees: Sequence[str]) -> Iterator[str]:
    """Yields a line for each figure: its median for each tree, and the median ratio of each other tree to the first."""
    first, *others = trees
    yield "".join([f"{'':28}", *(f"{tree[-14:]:>16}" for tree in trees), *(f"{'ratio':>8}" for _ in others)])
    for name, value in rows[0].items():
        if isinstance(value, str):
            continue
        values = {tree: [largest(row[name]) for row in rows if row["tree"] == tree] for tree in trees}
        cells = [f"{median(values[tree]):16,.1f}" for tree in trees]
        for tree in others:
            ratios = [new / old for old, new in zip(values[first], values[tree], strict=True) if old]
            cells.append(f"{median(ratios):8.3f}" if ratios else f"{'':8}")
        yield "".join([f"{name:28}", *cells])


def largest(value: float | list[float]) -> float:
    """Returns a figure, or that of the largest rank."""
    return max(value) if isinstance(value, list) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="key=value", help="settings of mtx prepare")
    parser.add_argument("--data-dir", type=Path, required=True, help="folder with English and German text")
    parser.add_argument("--train", default="train", help="the text in it, as in data.train; default: %(default)s")
    parser.add_argument("--pairs", type=int, default=1_000_000, help="number of pairs; default: %(default)s")
    parser.add_argument("--tree", type=Path, action="append", help="a checkout of mtx; default: this one")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each tree; default: %(default)s")
    parser.add_argument("--first-step", type=int, action="append", default=[], metavar="RANKS")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    trees = [tree.resolve() for tree in arguments.tree or [CHECKOUT]]
    for tree in trees:
        if not (tree / "mtx").is_dir():
            parser.error(f"--tree {tree}: not a checkout of mtx")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the temporary directory is removed
    rows = list[dict[str, Any]]()
    with tempfile.TemporaryDirectory(prefix="mtx-bench-") as scratch:
        pairs = make_pairs(read_sentences(arguments.data_dir, arguments.train))
        size = write_pairs(itertools.islice(pairs, arguments.pairs), Path(scratch))
        print(f"{arguments.pairs:,} pairs, {size / arguments.pairs:.0f} bytes a pair", flush=True)
        report = {
            "rows": rows, "pairs": arguments.pairs, "bytes": size, "settings": arguments.settings,
            "machine": machine(torch.device("cpu")), "versions": versions("torch", "numpy", "pyarrow", "sentencepiece"),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }  # fmt: skip
        run_dir = Path(scratch, "run")
        for number, tree in itertools.product(range(arguments.rounds), trees):
            figures = measure_preparation(tree, Path(scratch), run_dir, arguments.settings)
            figures["pairs_per_minute"] = arguments.pairs * 60 / figures["total_s"]
            for num_ranks in arguments.first_step:
                figures |= measure_first_step(tree, run_dir, num_ranks)
            shutil.rmtree(run_dir)
            rows.append({"tree": str(tree), **figures})
            write_report(arguments.json, report)
            print(
                f"round {number + 1}, {tree}: {figures['total_s']:.1f} s; the main process had its peak of "
                f"{figures['main_anon_mb']:,.0f} MB after the line: {figures['main_anon_after']}",
                flush=True,
            )
    print("\n".join(table(rows, [str(tree) for tree in trees])))


if __name__ == "__main__":
    main()
