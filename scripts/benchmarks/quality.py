"""Compares the translations of mtx with those of a tuned MarianMTModel after the same training time.

    python -m scripts.benchmarks.quality data.dir=DIR data.train=train data.src=en data.tgt=de --minutes 30 --threads 2
    python -m scripts.benchmarks.quality multi30k-en-de data.dir=DIR --minutes 5 10 20 --dir RUNS --picture FILE.png

The arguments are settings, as `mtx train` takes them, of a recipe or else of own-text; the peer uses of them what
concerns the text. All systems train on the same text with the same threads for N minutes. mtx's time covers the
whole command: cleaning, tokenizer, training, scoring. The peer's covers its training steps alone: compiling,
validating and translating are not counted. `quality_peer.py` has the peer, which runs with dropout 0.1 and 0.3; the
better one is the one with the lower validation nll. The test set decides nothing. `--other 'NAME: key=value ...'` adds
a row of mtx with further settings. What is finished in `--dir` is not done again.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import torch

from mtx.config.settings import is_override
from mtx.evaluation.comparison import draw_table
from mtx.machine import num_cores
from mtx.runs.run_directory import read_events
from mtx.storage.run_files import RunLayout, stored_scores
from scripts.benchmarks.machine import KEEP_FREED_MEMORY, machine, versions

SCORING_S = 1800.0  # a training is killed when it has taken this and twice its minutes
COLUMNS = {
    "minutes": "minutes", "system": "system", "bleu": "BLEU", "chrf": "chrF2", "nll": "validation nll",
    "steps": "steps", "seconds": "s",
}  # fmt: skip
DISTRIBUTIONS = ("torch", "transformers", "sacrebleu", "mtx-translate")
Row = dict[str, Any]
Task = Callable[[argparse.Namespace, Path, float], Row]


def main() -> None:
    """Reads the command line, runs every system, and prints the table."""
    arguments = _arguments()
    arguments.dir.mkdir(parents=True, exist_ok=True)
    tasks = [(system, minutes) for minutes in arguments.minutes for system in _systems(arguments)]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        rows = list(pool.map(partial(_result_or_end, pool, arguments), tasks))
    for minutes in arguments.minutes:
        peers = [row for row in rows if row["minutes"] == minutes and "dropout" in row]
        for row in peers:
            row["is_better"] = row is min(peers, key=lambda row: float(row["nll"]))
    cells = [[_cell(row[key]) for key in COLUMNS] for row in rows]
    print("\n".join(draw_table([list(COLUMNS.values()), *cells], "text")))
    about = {"machine": machine(torch.device("cpu")), "versions": versions(*DISTRIBUTIONS), "arguments": sys.argv}
    (arguments.dir / "table.json").write_text(json.dumps({"rows": rows, **about}, indent=1) + "\n", encoding="utf-8")
    if arguments.picture:
        draw_picture(rows, arguments.picture)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("settings", nargs="+", help="settings of mtx train, perhaps with a recipe")
    parser.add_argument("--minutes", type=float, nargs="+", default=[30.0], help="training times of each system")
    parser.add_argument("--threads", type=int, default=num_cores(), help="of each system; default: all cores")
    parser.add_argument("--jobs", type=int, default=1, help="systems side by side, each with --threads threads")
    parser.add_argument("--systems", default="mtx,marian", help="some of mtx,marian")
    parser.add_argument("--dropouts", type=float, nargs="+", default=[0.1, 0.3], help="of the peer")
    parser.add_argument("--other", action="append", default=[], help="a further row of mtx: 'NAME: key=value ...'")
    parser.add_argument("--dir", type=Path, default=Path("runs/quality"), help="directory of all runs and tables")
    parser.add_argument("--picture", type=Path, help="draw BLEU against the minutes into this file")
    arguments = parser.parse_intermixed_args()
    if all(map(is_override, arguments.settings)):
        arguments.settings = ["own-text", *arguments.settings]
    arguments.systems = arguments.systems.split(",")
    if unknown := set(arguments.systems) - {"mtx", "marian"}:
        parser.error(f"--systems: unknown {', '.join(sorted(unknown))}")
    return arguments


def _systems(arguments: argparse.Namespace) -> dict[str, Task]:
    """What trains each system, by its name."""
    systems: dict[str, Task] = {}
    if "mtx" in arguments.systems:
        systems["mtx"] = partial(_mtx, name="mtx", settings=[])
        for row in arguments.other:
            name, _, settings = row.partition(":")
            systems[name] = partial(_mtx, name=name, settings=shlex.split(settings))
    if "marian" in arguments.systems:
        systems |= {f"marian, dropout {dropout}": partial(_peer, dropout=dropout) for dropout in arguments.dropouts}
    return systems


def _result_or_end(pool: ThreadPoolExecutor, arguments: argparse.Namespace, task: tuple[str, float]) -> Row:
    """`_result`; after an error nothing more begins."""
    try:
        return _result(arguments, *task)
    except SystemExit:
        pool.shutdown(wait=False, cancel_futures=True)
        raise


def _result(arguments: argparse.Namespace, system: str, minutes: float) -> Row:
    """The figures of one system after this time; of an earlier call if it was finished then."""
    place = arguments.dir / f"{system.replace(' ', '-').replace('.', '_')}-{minutes * 60:.0f}s"
    stored = place.with_suffix(".json")
    inputs = [*arguments.settings, *arguments.other, arguments.threads]
    if not stored.exists():
        row = {"system": system, "minutes": minutes, **_systems(arguments)[system](arguments, place, minutes)}
        stored.write_text(json.dumps({"settings": inputs, **row}) + "\n", encoding="utf-8")
    result: Row = json.loads(stored.read_text(encoding="utf-8"))
    if result["settings"] != inputs:
        sys.exit(f"error: {stored} is of other settings: {result['settings']}; use another --dir")
    return result


def _cell(value: Any) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _process(
    command: list[str], threads: int, log: Path, minutes: float, variables: dict[str, str] | None = None
) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), **(variables or {})}
    limit_s = 120 * minutes + SCORING_S
    with log.open("ab") as file:
        try:
            result = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, stderr=file, text=True, check=False, timeout=limit_s
            )
        except subprocess.TimeoutExpired:
            sys.exit(f"error: {shlex.join(command)} was killed at its limit of {limit_s:g} s; {log} has its messages")
    if result.returncode:
        sys.exit(f"error: {shlex.join(command)} ended with exit code {result.returncode}; {log} has its messages")
    return result.stdout


def _mtx(arguments: argparse.Namespace, place: Path, minutes: float, name: str, settings: list[str]) -> Row:
    shutil.rmtree(place, ignore_errors=True)  # of an interrupted call, whose time nobody knows
    limit = f"training.time_limit={60 * minutes:.0f}s"
    started = time.monotonic()
    command = [sys.executable, "-m", "mtx", "train", *arguments.settings, *settings, limit, f"run_dir={place}"]
    _process(command, arguments.threads, place.with_suffix(".log"), minutes)
    seconds = time.monotonic() - started
    paths = RunLayout(place)
    scores, *_ = stored_scores(paths).values()
    events = list(read_events(paths.metrics))
    nll = min(float(event["nll"]) for event in events if event["event"] == "validation")
    steps = max(int(event["step"]) for event in events if event["event"] == "train")
    bleu, chrf = (float(scores[key]["score"]) for key in ("bleu", "chrf"))
    return {"bleu": bleu, "chrf": chrf, "nll": nll, "steps": steps, "seconds": seconds}


def _peer(arguments: argparse.Namespace, place: Path, minutes: float, dropout: float) -> Row:
    job = {
        "settings": arguments.settings, "seconds": 60 * minutes, "threads": arguments.threads, "dropout": dropout,
        "run_dir": str(place),
    }  # fmt: skip
    command = [sys.executable, "-m", "scripts.benchmarks.quality_peer", json.dumps(job)]
    row: Row = json.loads(_process(command, arguments.threads, place.with_suffix(".log"), minutes, KEEP_FREED_MEMORY))
    return {**row, "dropout": dropout}


def draw_picture(rows: list[Row], path: Path) -> None:
    """Draw BLEU against the minutes: a line for each row of mtx, and one for the better peer of each time."""
    from matplotlib import style
    from matplotlib.figure import Figure

    from scripts.docs.pictures import BLUE, GREY, LOOKS, ORANGE, save

    with style.context(["default", LOOKS]):
        figure = Figure(figsize=(7.5, 4.5), layout="constrained")
        axes = figure.add_subplot(xlabel="minutes of training", ylabel="BLEU")
        shown = [row for row in rows if row.get("is_better", True)]
        lines: dict[str, list[Row]] = {}
        for row in shown:
            lines.setdefault("tuned MarianMTModel" if "dropout" in row else row["system"], []).append(row)
        for (name, points), color in zip(lines.items(), cycle([BLUE, GREY, ORANGE]), strict=False):
            minutes, scores = ([row[key] for row in points] for key in ("minutes", "bleu"))
            axes.plot(minutes, scores, marker="o", color=color, label=name)
        axes.set_ylim(bottom=0)
        axes.grid()
        axes.legend(loc="lower right", frameon=False)
        save(figure, path)


if __name__ == "__main__":
    main()
