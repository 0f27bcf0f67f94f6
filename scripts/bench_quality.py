"""Compares the translations of mtx with those of a tuned MarianMTModel after the same training time.

    python scripts/bench_quality.py multi30k-de-en data.dir=DIR --minutes 30 --threads 2 --json FILE

The arguments are a recipe and settings, as `mtx train` takes them; the peer uses of them what concerns the text. Both
systems train on the same text with the same threads for so many minutes. mtx's time is that of the whole command:
cleaning, tokenizer, training, scoring. The peer's is that of its training steps alone: compiling, validating and
translating are not counted. `quality_peer.py` has the peer, which runs with dropout 0.1 and 0.3; the better one is the
one with the lower validation nll. The test set decides nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from bench_machine import machine, versions

from mtx.files.tables import draw
from mtx.run.contents import stored_scores
from mtx.run.events import read_events
from mtx.run.layout import RunLayout
from mtx.run.machine import num_cores

DROPOUTS = (0.1, 0.3)
COLUMNS = {
    "system": "system",
    "bleu": "BLEU",
    "chrf": "chrF2",
    "nll": "validation nll",
    "steps": "steps",
    "seconds": "s",
}
DISTRIBUTIONS = ("torch", "transformers", "sacrebleu", "mtx-translate")


def main() -> None:
    """Reads the command line, runs every system, and prints the table."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="mtx-quality-") as directory, ThreadPoolExecutor(arguments.jobs) as pool:
        tasks = [task for system in arguments.systems for task in TASKS[system]]
        rows = list(pool.map(lambda task: task(arguments, Path(directory)), tasks))
    peers = [row for row in rows if row["system"] != "mtx"]
    if len(peers) > 1:
        min(peers, key=lambda row: float(row["nll"]))["system"] += ", the better"
    print("\n".join(draw(list(COLUMNS.values()), [[_cell(row[key]) for key in COLUMNS] for row in rows], "text")))
    if arguments.json:
        about = {"machine": machine(torch.device("cpu")), "versions": versions(*DISTRIBUTIONS), "arguments": sys.argv}
        arguments.json.write_text(json.dumps({"rows": rows, **about}, indent=1) + "\n", encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("settings", nargs="+", help="a recipe and key=value settings of mtx train")
    parser.add_argument("--minutes", type=float, default=30.0, help="training time of each system")
    parser.add_argument("--threads", type=int, default=num_cores(), help="of each system; default: all cores")
    parser.add_argument("--jobs", type=int, default=1, help="systems side by side, each with so many threads")
    parser.add_argument("--systems", default="mtx,marian", help="some of mtx,marian")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_intermixed_args()
    arguments.systems = arguments.systems.split(",")
    if unknown := set(arguments.systems) - set(TASKS):
        parser.error(f"--systems: unknown {', '.join(sorted(unknown))}")
    return arguments


def _cell(value: Any) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _process(command: list[str], threads: int) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if result.returncode:
        sys.exit(f"error: {' '.join(command)} ended with exit code {result.returncode}")
    return result


def _mtx(arguments: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    run, started = scratch / "mtx", time.monotonic()
    limit = f"training.time_limit={60 * arguments.minutes:.0f}s"
    command = [sys.executable, "-m", "mtx", "train", *arguments.settings, limit, f"run_dir={run}"]
    _process(command, arguments.threads)
    seconds = time.monotonic() - started
    paths = RunLayout(run)
    (first, *_), events = stored_scores(paths).values(), read_events(paths.metrics)
    nll = min(float(event["nll"]) for event in events if event["event"] == "validation")
    steps = max(int(event["step"]) for event in events if event["event"] == "train")
    bleu, chrf = (float(first[key]["score"]) for key in ("bleu", "chrf"))
    return {"system": "mtx", "bleu": bleu, "chrf": chrf, "nll": nll, "steps": steps, "seconds": seconds}


def _peer(arguments: argparse.Namespace, scratch: Path, dropout: float) -> dict[str, Any]:
    job = {
        "settings": arguments.settings, "seconds": 60 * arguments.minutes, "threads": arguments.threads,
        "dropout": dropout, "run_dir": str(scratch / f"peer-{dropout}"),
    }  # fmt: skip
    script = Path(__file__).with_name("quality_peer.py")
    row: dict[str, Any] = json.loads(_process([sys.executable, str(script), json.dumps(job)], arguments.threads).stdout)
    return row


TASKS = {"mtx": [_mtx], "marian": [partial(_peer, dropout=dropout) for dropout in DROPOUTS]}

if __name__ == "__main__":
    main()
