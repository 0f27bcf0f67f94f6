"""The report of a run as one HTML page: translation quality, data, and whether more training is worthwhile.

Flow: run directories -> `RunSummary`, `test_set_values` -> values of report.html -> HTML. Several runs share one page.
The template contains the words; this module computes the values.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from mtx.config import settings
from mtx.config.schema import Config, leaves
from mtx.errors import DamagedFileError, UsageError
from mtx.evaluation.comparison import LOCATION_KEYS, differing_settings, setting_text
from mtx.evaluation.test_set_scores import advice
from mtx.formatting import format_duration
from mtx.report.charts import NUM_COLOURS, learning_curves
from mtx.report.checks import example, leaks, set_lines
from mtx.report.html_page import render
from mtx.report.run_history import RunSummary, progress, read_run
from mtx.report.test_set_results import samples, test_set_values
from mtx.report.verdict import usability
from mtx.storage.run_directory import DECIDING_METRICS, recorded_metric
from mtx.storage.run_files import REPORT

_NOT_MACHINE = {"event", "step", "time", "hours"}  # of a start event
Row = tuple[Any, ...]


def report_page(roots: Sequence[Path]) -> str:
    """The report of one run, or of several runs side by side.

    Raises:
        UsageError: if a directory is not a run, or there are more runs than colours.
        DataError: if two runs have different test sets of the same name.
        DamagedFileError: if a file of a run has unexpected content.
    """
    if len(roots) > NUM_COLOURS:
        raise UsageError(f"too many runs for a report: expected at most {NUM_COLOURS}, got {len(roots)}")
    runs = [read_run(root) for root in roots]
    names = [root.name or str(root) for root in roots]
    if len({*names}) < len(names):
        names = [str(root) for root in roots]
    charts = list(learning_curves(runs, names))
    decider = DECIDING_METRICS[recorded_metric(runs[0].history.of("validation"))]
    default = dict(leaves(Config.model_validate({}).model_dump()))
    configs = [dict(leaves(run.config.model_dump())) for run in runs]
    changed = {key for config in configs for key in config if config[key] != default.get(key)} - LOCATION_KEYS
    values = [_run_values(number, run, names[number], runs) for number, run in enumerate(runs)]
    return render(
        "report.html",
        title=f"{values[0]['src']} to {values[0]['tgt']}: {', '.join(names)}",
        names=names,
        when=f"Made on {time.strftime('%Y-%m-%d at %H:%M')}.",
        runs=values,
        facts_of_runs=_table([run["facts"] for run in values], ""),
        charts=charts,
        validation_chart=next((chart for chart in charts if chart["title"] == f"Validation {decider}"), None),
        samples=samples(runs[0]) if len(runs) == 1 else [],
        test_sets=test_set_values(roots, names),
        differing=[(key, *map(setting_text, of_runs)) for key, of_runs in differing_settings(roots).items()],
        settings=_table([{key: setting_text(config[key]) for key in config if key in changed} for config in configs]),
        machine=_table([_machine(run) for run in runs]),
    )


def _table(of_runs: Sequence[Mapping[str, str]], missing: str = "unknown") -> list[Row]:
    """Rows of a table with the runs as columns; rows in which the runs differ come first."""
    keys = dict.fromkeys(key for of_run in of_runs for key in of_run)
    rows = [(key, *(of_run.get(key, missing) for of_run in of_runs)) for key in keys]
    return sorted(rows, key=lambda row: len({*row[1:]}) == 1)


def _machine(run: RunSummary) -> dict[str, str]:
    """Machine, versions, and the hashes of data and code of a run."""
    of_start = {key.replace("_", " "): str(run.last_start[key]) for key in run.last_start if key not in _NOT_MACHINE}
    return {**of_start, "code": str(run.provenance.get("code", "unknown"))}


def _run_values(number: int, run: RunSummary, name: str, runs: Sequence[RunSummary]) -> dict[str, Any]:
    try:
        data = _data_values(run) if run.data_report else {}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise DamagedFileError(f"{run.paths.data / REPORT}: not a report of mtx on prepared data") from None
    return {
        "name": name,
        "colour": number + 1,
        "facts": {name: value for name, value in _facts(run, data) if value},
        "is_finished": run.is_finished,
        "hints": run.hints(),
        "gains": [gain.line() for gain in run.gains],
        "advice": list(map(str, advice(run.gains))),
        "data": data,
        "same_data": number > 0 and run.last_start.get("data") == runs[0].last_start.get("data", ""),
        "src": run.config.data.src,
        "tgt": run.config.data.tgt,
        "config_text": settings.dump(run.config),
    }


def _facts(run: RunSummary, data: dict[str, Any]) -> Iterable[tuple[str, str]]:
    """The overview of a run: its most important known facts."""
    training = run.config.training
    out_of = f" of {training.max_steps:,}" if training.max_steps and not training.max_epochs else ""
    epochs = f" ({run.history.epochs:.1f} of {training.max_epochs} epochs)" if training.max_epochs else ""
    steps = f"{run.step:,}{out_of} steps of {training.batch_tokens:,} target tokens{epochs}"
    yield "State", run.state
    yield "Training", f"{steps}, {format_duration(3600 * run.history.hours)}"
    if run.is_finished and (verdict := usability(run)):
        yield "Is it usable?", f"{verdict.text[:1].upper()}{verdict.text[1:]}."
    yield "Is it still improving?", progress(run.history)
    yield "Trained on", data.get("pairs", "")
    yield "Does the training text contain test sentences?", data.get("leaks", "")


def _data_values(run: RunSummary) -> dict[str, Any]:
    """The tables on the training data, and the facts for the overview."""
    report = run.data_report
    corpora = report["corpora"]
    names = ", ".join(PurePath(corpus["name"]).name for corpus in corpora)
    held_out = f"; {report['held_out']:,} held out for validation and test" if report["held_out"] else ""
    columns = ("name", "kept", "read", "held_out", "weight")
    src_tokens, tgt_tokens = report["src_tokens"], report["tgt_tokens"]
    return {
        "pairs": f"{report['kept']:,} sentence pairs ({names})",
        "leaks": "; ".join(f"{name}: {leaks(test)}" for name, test in report["tests"].items()),
        "facts": [
            ("Pairs", f"{report['kept']:,} trained on, of {report['read']:,} read{held_out}"),
            ("Subwords", f"{src_tokens:,} source, {tgt_tokens:,} target; vocabulary of {report['pieces']:,}"),
        ],
        "corpora": [
            (*(corpus[key] for key in columns), ", ".join(f"{n:,} {reason}" for reason, n in corpus["dropped"].items()))
            for corpus in corpora
        ],
        "dropped": [(reason, drop["pairs"], example(drop["example"])) for reason, drop in report["dropped"].items()],
        "sets": list(set_lines(report)),
    }
