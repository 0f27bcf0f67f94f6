"""Trains a recipe with variations and seeds, and writes one table of what each variation brings.

    python -m scripts.studies.ablate multi30k-en-de data.dir=DIR data.test=val --rows FILE --dir runs/ablation --seeds 3

The arguments are a recipe and settings, as `mtx train` takes them; they are the first row, `base`. Each line of FILE is
a further row, `name: key=value key=value`. Every row is trained with the seeds 1, 2, ... into DIR/ROW/seed-N. The same
command resumes where it was interrupted, and adds rows and seeds. `data.test=val` scores the validation set, so that
the test set plays no part in choices.

The table has the mean and the sample standard deviation over the seeds, the p-value of the difference to the first row
(that of `mtx compare`), and the mean time of a training.
"""

import argparse
import shlex
import sys
from pathlib import Path
from statistics import mean

from mtx.evaluation.comparison import Comparison, Group, compare
from mtx.evaluation.test_set_scores import system_outputs
from mtx.evaluation.test_sets import test_sets_of_runs
from mtx.formatting import format_duration
from mtx.storage.run_files import STATE, RunLayout, full_checkpoint_steps
from mtx.training.checkpoint import load_state
from scripts.studies.trainings import Training, run_all, write_tables

BASE = "base"


def main() -> None:
    """Reads the command line, trains what is not trained yet, and writes the tables."""
    arguments = _arguments()
    rows = {BASE: [], **_read_rows(arguments.rows)}
    seeds = range(1, arguments.seeds + 1)
    runs = {name: [arguments.dir / name / f"seed-{seed}" for seed in seeds] for name in rows}
    trainings = [
        Training(runs[name][seed - 1], [*arguments.settings, *rows[name]], seed) for seed in seeds for name in rows
    ]
    run_all("train", trainings, arguments.jobs, arguments.threads)
    result = _compare(runs, arguments.test)
    signatures = "; ".join(f"{metric.name}: {metric.signature}" for metric in result.metrics)
    head = ["row", *(text for metric in result.metrics for text in (metric.name, "p")), "time", "settings"]
    write_tables(arguments.dir, head, _cells(result, rows, runs), [signatures])


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
    """The rows of a file; empty lines and those that begin with # are skipped."""
    rows = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, settings = line.partition(":")
        if not colon or not name.strip() or name.strip() in (BASE, *rows) or "/" in name:
            sys.exit(f"error: {path}:{number}: expected `name: key=value ...` with a new name, got {line!r}")
        rows[name.strip()] = shlex.split(settings)
    return rows


def _compare(runs: dict[str, list[Path]], test: str | None) -> Comparison:
    """The rows, each over its seeds, against the first."""
    systems = [run for row in runs.values() for run in row]
    text = test_sets_of_runs(systems, test)[0]
    outputs, references = system_outputs(text, systems, {})
    groups = []
    start = 0
    for name, row in runs.items():
        groups.append(Group(name, list(range(start, start + len(row)))))
        start += len(row)
    return compare(outputs, references, metrics=("bleu", "chrf"), tgt=text.tgt, groups=groups)


def _cells(result: Comparison, rows: dict[str, list[str]], runs: dict[str, list[Path]]) -> list[list[str]]:
    cells = []
    for number, (name, settings) in enumerate(rows.items()):
        scores = [cell for metric in result.metrics for cell in metric.groups[number].cells()]
        cells.append([name, *scores, format_duration(mean(map(_seconds, runs[name]))), " ".join(settings)])
    return cells


def _seconds(run: Path) -> float:
    """The time of a training, over all its starts."""
    paths = RunLayout(run)
    return load_state(paths.checkpoint(full_checkpoint_steps(paths)[-1]) / STATE).elapsed_s


if __name__ == "__main__":
    main()
