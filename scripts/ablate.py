"""Trains a recipe with variations and seeds, and writes one table of what each variation brings.

    python scripts/ablate.py multi30k-en-de data.dir=DIR data.test=val --rows FILE --dir runs/ablation --seeds 3

The arguments are a recipe and settings, as `mtx train` takes them; they are the first row, `base`. Each line of FILE is
a further row, `name: key=value key=value`. Every row is trained with the seeds 1, 2, ... into DIR/ROW/seed-N. The same
command goes on where it was interrupted, and adds rows and seeds. `data.test=val` scores the validation set, so that
the test set plays no part in choices.

The table has the mean and the sample standard deviation over the seeds, the p-value of the difference to the first row
(that of `mtx compare`), and the mean time of a training.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean

import torch
from bench_machine import machine, versions

from mtx.evaluation.comparison import Comparison, compare
from mtx.evaluation.comparison_output import mean_and_p
from mtx.evaluation.differing_settings import Group
from mtx.evaluation.evaluate import system_outputs
from mtx.evaluation.test_sets import test_sets_of_runs
from mtx.files.durations import format_duration
from mtx.files.tables import Style, draw
from mtx.run.contents import full_checkpoint_steps
from mtx.run.layout import STATE, RunLayout
from mtx.training.checkpoint import load_state

BASE = "base"


def main() -> None:
    """Reads the command line, trains what is not trained yet, and writes the tables."""
    arguments = _arguments()
    rows = {BASE: [], **_read_rows(arguments.rows)}
    seeds = range(1, arguments.seeds + 1)
    runs = {name: [arguments.dir / name / f"seed-{seed}" for seed in seeds] for name in rows}
    with ThreadPoolExecutor(arguments.jobs) as pool:
        jobs = [(rows[name], seed, run) for seed in seeds for name in rows for run in [runs[name][seed - 1]]]
        codes = list(pool.map(lambda job: _train(arguments, *job), jobs))
    if failed := [str(run) for (_, _, run), code in zip(jobs, codes, strict=True) if code]:
        sys.exit(f"error: not trained: {', '.join(failed)}; see above, or the .log beside each")
    result = _compare(runs, arguments.test)
    lines = _table(result, rows, runs, "markdown")
    command = shlex.join(["python", "scripts/ablate.py", *sys.argv[1:]])
    about = f"{machine(torch.device('cpu'))['name']}, torch {versions('torch')['torch']}; `{command}`"
    signatures = "; ".join(f"{metric.name}: {metric.signature}" for metric in result.metrics)
    (arguments.dir / "table.md").write_text("\n".join([*lines, "", about, signatures, ""]), encoding="utf-8")
    (arguments.dir / "table.csv").write_text("\n".join(_table(result, rows, runs, "csv")) + "\n", encoding="utf-8")
    print("\n".join(_table(result, rows, runs, "text")))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("settings", nargs="+", help="a recipe and key=value settings of mtx train")
    parser.add_argument("--rows", type=Path, required=True, help="file with a line `name: key=value ...` for each row")
    parser.add_argument("--dir", type=Path, required=True, help="directory of the runs and of the tables")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds of each row")
    parser.add_argument("--jobs", type=int, default=1, help="trainings side by side")
    parser.add_argument("--threads", type=int, default=1, help="threads of each training")
    parser.add_argument("--test", help="the test set to compare on; default: the only one")
    return parser.parse_intermixed_args()


def _read_rows(path: Path) -> dict[str, list[str]]:
    """The rows of a file; empty lines and those that begin with # are left out."""
    rows = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, settings = line.partition(":")
        if not colon or not name.strip() or name.strip() in (BASE, *rows) or "/" in name:
            sys.exit(f"error: {path}:{number}: expected `name: key=value ...` with a new name, got {line!r}")
        rows[name.strip()] = shlex.split(settings)
    return rows


def _train(arguments: argparse.Namespace, settings: list[str], seed: int, run: Path) -> int:
    """Train one run, which does nothing if it is finished, and refuse other settings; returns the exit code."""
    run.parent.mkdir(parents=True, exist_ok=True)
    wanted, stored = [*arguments.settings, *settings], run.with_suffix(".json")
    if not stored.exists():
        stored.write_text(json.dumps(wanted) + "\n", encoding="utf-8")
    if (before := json.loads(stored.read_text(encoding="utf-8"))) != wanted:
        print(f"error: {run} has other settings: {shlex.join(before)}; another --dir starts anew", file=sys.stderr)
        return 2
    command = [sys.executable, "-m", "mtx", "train", *arguments.settings, *settings, f"seed={seed}", f"run_dir={run}"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
    with run.with_suffix(".log").open("ab") as log:
        code = subprocess.run(command, env=environment, stdout=log, stderr=log, check=False).returncode
    print(f"{run}: {'trained' if code == 0 else f'exit code {code}'}", file=sys.stderr)
    return code


def _compare(runs: dict[str, list[Path]], test: str | None) -> Comparison:
    """The rows, each over its seeds, against the first."""
    systems = [run for row in runs.values() for run in row]
    text = test_sets_of_runs(systems, test)[0]
    outputs, references = system_outputs(text, systems, {})
    groups, first = [], 0
    for name, row in runs.items():
        groups.append(Group(name, list(range(first, first + len(row)))))
        first += len(row)
    return compare(outputs, references, metrics=("bleu", "chrf"), tgt=text.tgt, groups=groups)


def _table(result: Comparison, rows: dict[str, list[str]], runs: dict[str, list[Path]], style: Style) -> list[str]:
    head = ["row", *(text for metric in result.metrics for text in (metric.name, "p")), "time", "settings"]
    cells = []
    for number, (name, settings) in enumerate(rows.items()):
        scores = [cell for metric in result.metrics for cell in mean_and_p(metric.groups[number])]
        cells.append([name, *scores, format_duration(mean(map(_seconds, runs[name]))), " ".join(settings)])
    return draw(head, cells, style)


def _seconds(run: Path) -> float:
    """The time of a training, over all its starts."""
    paths = RunLayout(run)
    return load_state(paths.checkpoint(full_checkpoint_steps(paths)[-1]) / STATE).elapsed_s


if __name__ == "__main__":
    main()
