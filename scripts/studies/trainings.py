"""Trainings that scripts start side by side, each a process with its own log, and the tables that come of them.

`ablate.py` and `compare_architectures.py` use it, `published_teacher.py` for its table alone. A run's settings are next
to it, in RUN.json, and what it printed in RUN.log. The same call resumes where it was interrupted.
"""

import csv
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from mtx.evaluation.comparison import draw_table
from scripts.benchmarks.machine import machine, versions

_DONE = {"prepare": "prepared", "train": "trained"}


@dataclass(frozen=True)
class Training:
    """A run, with the recipe and the settings that it is trained with; `seed` is one of them if it is not None."""

    run: Path
    settings: list[str]
    seed: int | None = None


def run_all(command: Literal["prepare", "train"], trainings: Sequence[Training], num_jobs: int, threads: int) -> None:
    """Does `mtx COMMAND` for all trainings, `num_jobs` at a time; it does nothing for those that are finished.

    The script ends with an error if one of them fails or has begun with other settings.
    """
    with ThreadPoolExecutor(num_jobs) as pool:
        codes = list(pool.map(partial(_run, command, threads), trainings))
    if failed := [str(training.run) for training, code in zip(trainings, codes, strict=True) if code]:
        sys.exit(f"error: not {_DONE[command]}: {', '.join(failed)}; see above, or the .log next to each")


def _run(command: str, threads: int, training: Training) -> int:
    """Returns the exit code of the command, or 2 if the run has other settings."""
    run = training.run
    stored = training.run.with_suffix(".json")
    run.parent.mkdir(parents=True, exist_ok=True)
    if not stored.exists():
        stored.write_text(json.dumps(training.settings) + "\n", encoding="utf-8")
    if (earlier_settings := json.loads(stored.read_text(encoding="utf-8"))) != training.settings:
        earlier = shlex.join(earlier_settings)
        print(f"error: {run} has other settings: {earlier}; use another --dir", file=sys.stderr)
        return 2
    seed = [] if training.seed is None else [f"seed={training.seed}"]
    words = [sys.executable, "-m", "mtx", command, *training.settings, *seed, f"run_dir={run}"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with run.with_suffix(".log").open("ab") as log:
        code = subprocess.run(words, env=environment, stdout=log, stderr=log, check=False).returncode
    print(f"{run}: {_DONE[command] if code == 0 else f'exit code {code}'}", file=sys.stderr)
    return code


def write_tables(directory: Path, head: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]) -> None:
    """Prints a table and writes table.csv and table.md, which has the machine, the command and `notes` below it."""
    command = shlex.join(["python", "-m", f"scripts.studies.{Path(sys.argv[0]).stem}", *sys.argv[1:]])
    about = f"{machine(torch.device('cpu'))['name']}, torch {versions('torch')['torch']}; `{command}`"
    lines = [*draw_table([head, *rows], "markdown"), "", about, *notes, ""]
    (directory / "table.md").write_text("\n".join(lines), encoding="utf-8")
    with (directory / "table.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *rows])
    print("\n".join(draw_table([head, *rows], "text")))
