"""The report of a run as one HTML page: translation quality, data, and whether more training is worthwhile.

Flow: run directories -> `RunSummary`, `test_set_values` -> values of report.html -> HTML. Several runs share one page.
The templates contain the words; this module computes the values.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

from jinja2 import UndefinedError

from mtx.config import settings
from mtx.config.schema import Config, leaves
from mtx.data.languages import writes_spaces
from mtx.errors import DamagedFileError, UsageError
from mtx.evaluation.comparison import TEXT, compared_values, setting_text
from mtx.formatting import format_duration
from mtx.report.advice import example, leaks, of_gains, set_lines, usability
from mtx.report.charts import NUM_COLOURS, learning_curves
from mtx.report.html_page import render
from mtx.report.run_history import RunSummary, improvement, read_run
from mtx.report.test_set_results import test_set_values, word_diff
from mtx.storage.run_directory import DECIDING_METRICS, recorded_metric
from mtx.storage.run_files import REPORT

_NOT_MACHINE = {"event", "step", "time", "hours"}  # of a start event
_COLUMNS = ("name", "kept", "read", "held_out", "weight")  # of a corpus in report.json


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
    decider = DECIDING_METRICS[recorded_metric(runs[0].history.of("validation"))]
    default = dict(leaves(Config.model_validate({}).model_dump()))
    values = [compared_values(root) for root in roots]
    changed = {key for config in values for key in config if config[key] != default.get(key)} - {TEXT}
    rows = _table([{key: setting_text(config[key]) for key in config} for config in values])
    references = [sample.ref for _, sentences in runs[0].samples for sample in sentences]
    facts, data = zip(*map(_overview, runs), strict=True)
    return render(
        "report.html",
        names=names,
        when=f"Made on {time.strftime('%Y-%m-%d at %H:%M')}.",
        runs=runs,
        data=data,
        facts_of_runs=_table(facts, ""),
        charts=[*learning_curves(runs, names)],
        decider=decider,
        word_diff=word_diff,
        by_character=not writes_spaces(runs[0].config.data.tgt, references),
        test_sets=test_set_values(roots, names),
        differing=[row for row in rows if len({*row[1:]}) > 1],
        settings=[row for row in rows if row[0] in changed],
        machine=_table([*map(_machine, runs)]),
        of_gains=of_gains,
        dump=settings.dump,
    )


def _table(columns: Sequence[Mapping[str, str]], missing: str = "unknown") -> list[tuple[str, ...]]:
    """Rows of a table with the runs as columns; rows in which the runs differ come first."""
    keys = dict.fromkeys(key for column in columns for key in column)
    rows = [(key, *(column.get(key, missing) for column in columns)) for key in keys]
    return sorted(rows, key=lambda row: len({*row[1:]}) == 1)


def _machine(run: RunSummary) -> dict[str, str]:
    """Machine, versions, and the hashes of data and code of a run."""
    start = {key.replace("_", " "): str(run.last_start[key]) for key in run.last_start if key not in _NOT_MACHINE}
    return {**start, "code": str(run.provenance.get("code", "unknown"))}


def _overview(run: RunSummary) -> tuple[dict[str, str], str]:
    """The most important known facts about a run, and the part of the page about its data; empty before it has some."""
    training, history = run.config.training, run.history
    out_of = f" of {training.max_steps:,}" if training.max_steps and not training.max_epochs else ""
    epochs = f" ({history.last('epochs'):.1f} of {training.max_epochs} epochs)" if training.max_epochs else ""
    facts = {
        "State": run.state,
        "Training": f"{history.last('step'):,}{out_of} steps of {training.batch_tokens:,} target tokens{epochs}, "
        f"{format_duration(3600 * history.last('hours'))}",
    }
    if run.is_finished and (verdict := usability(run)):
        facts["Is it usable?"] = f"{verdict.text[:1].upper()}{verdict.text[1:]}."
    development = improvement(history)
    facts["Is it still improving?"] = development.text if development else "Unknown: too few validations yet."
    if not (report := run.data_report):
        return facts, ""
    try:
        names = ", ".join(PurePath(corpus["name"]).name for corpus in report["corpora"])
        facts["Trained on"] = f"{report['kept']:,} sentence pairs ({names})"
        if tests := [f"{name}: {leaks(test)}" for name, test in report["tests"].items()]:
            facts["Does the training text contain test sentences?"] = "; ".join(tests)
        corpora = []
        for corpus in report["corpora"]:
            reasons = ", ".join(f"{number:,} {reason}" for reason, number in corpus["dropped"].items())
            corpora.append((*map(corpus.__getitem__, _COLUMNS), reasons))
        dropped = [(reason, drop["pairs"], example(drop["example"])) for reason, drop in report["dropped"].items()]
        sets = [*set_lines(report)]
        return facts, render("report_data.html", report=report, corpora=corpora, dropped=dropped, sets=sets)
    except (AttributeError, KeyError, TypeError, ValueError, UndefinedError):
        raise DamagedFileError(f"{run.paths.data / REPORT}: not a report of mtx on prepared data") from None
