"""The report of a run as one HTML page: how well it translates, its data, and whether more training is worthwhile.

Flow: run directories -> `RunSummary`, `test_set_values` -> values of report.html -> HTML. Several runs share one page.
The template holds the words, this module computes the values.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from mtx.config import settings
from mtx.config.schema import Config, leaves
from mtx.data.cleaning import clean_text
from mtx.decoding.scoring import AttentionMaps
from mtx.decoding.translator import Translator
from mtx.errors import DamagedFileError, UsageError
from mtx.evaluation.comparison import LOCATION_KEYS, differing_settings, p_text, setting_text
from mtx.evaluation.test_set_scores import advice
from mtx.formatting import format_duration
from mtx.report.charts import NUM_COLOURS, learning_curves
from mtx.report.checks import leaks, sets_of
from mtx.report.html_page import render, viewer_data
from mtx.report.run_history import RunSummary, progress, read_run
from mtx.report.test_set_results import samples, test_set_values
from mtx.report.verdict import usability
from mtx.storage.run_directory import DECIDING_METRICS, quality, recorded_metric
from mtx.storage.run_files import REPORT, RunLayout

_MAX_PIECES = 40  # of the longest sentence whose attention is shown
_MAX_WEIGHTS = 250_000  # of all attention maps together; they take 1.3 MB of the page
_MACHINE_KEYS = (
    "machine",
    "device",
    "precision",
    "threads",
    "kernel",
    "compile",
    "micro_batch_tokens",
    "mtx",
    "torch",
    "python",
    "platform",
)
Row = tuple[Any, ...]


def report_page(roots: Sequence[Path], translator: Translator | None = None) -> str:
    """The report of one run, or of several runs side by side.

    Args:
        translator: has the model of the first run, whose attention is shown; with None no attention is shown.

    Raises:
        UsageError: if a directory is no run, or there are more runs than colours for them.
        DataError: if two runs have different test sets of the same name.
        DamagedFileError: if a file of a run does not hold what mtx writes into it.
    """
    if len(roots) > NUM_COLOURS:
        raise UsageError(f"{len(roots)} runs: a report shows at most {NUM_COLOURS}")
    runs = [read_run(root) for root in roots]
    first, names = runs[0], [root.name or str(root) for root in roots]
    if len({*names}) < len(names):
        names = [str(root) for root in roots]
    key = recorded_metric(first.history.of("validation"))
    metric = DECIDING_METRICS[key]
    shown = "BLEU" if key == "nll" else metric  # the nll is in the chart of the loss
    test_sets = test_set_values(roots, names, metric)
    languages = dict.fromkeys(f"{run.config.data.src} to {run.config.data.tgt}" for run in runs)
    curves = list(learning_curves(runs, names))
    values = [_run_values(number, run, names[number], runs) for number, run in enumerate(runs)]
    default = dict(leaves(Config.model_validate({}).model_dump(mode="json")))
    config = [dict(leaves(run.config.model_dump(mode="json"))) for run in runs]
    changed = {key for of in config for key in of if of[key] != default.get(key)} - LOCATION_KEYS
    of_settings, settings_differ = _table(
        [{key: setting_text(of[key]) for key in of if key in changed} for of in config], "null"
    )
    machine, machine_differ = _table([_machine(run) for run in runs], "unknown")
    return render(
        "report.html",
        title=f"{' and '.join(languages)}: {', '.join(names)}",
        names=names,
        when=f"Made on {time.strftime('%Y-%m-%d at %H:%M')}.",
        runs=values,
        fact_names=[name for name, _ in values[0]["facts"]],
        fact_rows=[(of_run["name"], *(value for _, value in of_run["facts"])) for of_run in values],
        charts=curves,
        validation_chart=next((chart for chart in curves if chart["title"] == f"Validation {shown}"), None),
        samples=samples(runs),
        test_sets=test_sets,
        headlines=list(_headlines(test_sets, first, key)),
        differing=[(key, *map(setting_text, values)) for key, values in differing_settings(roots).items()],
        other_differences=[machine[row][0] for row in machine_differ],
        finished=first.is_finished,
        settings=of_settings,
        settings_differ=settings_differ,
        machine=machine,
        machine_differ=machine_differ,
        attention_data=viewer_data(_sample_maps(first, translator) if translator else []),
    )


def _table(of_runs: Sequence[Mapping[str, str]], missing: str) -> tuple[list[Row], range]:
    """Rows of a table with the runs as columns, first those in which the runs differ, and which rows these are."""
    keys = dict.fromkeys(key for of_run in of_runs for key in of_run)
    rows = [(key, *(of_run.get(key, missing) for of_run in of_runs)) for key in keys]
    rows.sort(key=lambda row: len({*row[1:]}) == 1)
    return rows, range(sum(len({*row[1:]}) > 1 for row in rows))


def _machine(run: RunSummary) -> dict[str, str]:
    """Machine, versions, and the hashes of code and data of a run."""
    start = run.last_start
    return {
        **{key.replace("_", " "): str(start[key]) for key in _MACHINE_KEYS if key in start},
        "code, sha256": str(run.provenance.get("code", "unknown")),
        "data, sha256": _data_hash(run),
    }


def _data_hash(run: RunSummary) -> str:
    return str(run.last_start.get("data", run.provenance.get("data", "unknown")))


def _run_values(number: int, run: RunSummary, name: str, runs: Sequence[RunSummary]) -> dict[str, Any]:
    try:
        data = _data_values(run) if run.data_report else {}
    except (AttributeError, KeyError, TypeError, ValueError):
        path = RunLayout(Path(run.name)).data / REPORT
        raise DamagedFileError(f"{path}: is not a report of mtx on prepared data") from None
    return {
        "name": name,
        "colour": number + 1,
        "facts": [(name, value) for name, value in _facts(run, data, is_brief=len(runs) > 1) if value or len(runs) > 1],
        "hints": run.hints(),
        "gains": [
            (
                gain.test,
                change.metric,
                f"{change.before:.2f}",
                f"{change.after:.2f}",
                f"{change.points:+.2f}",
                p_text(change.p_value),
            )
            for gain in run.gains
            for change in gain.changes
        ],
        "advice": list(map(str, advice(run.gains))),
        "data": data,
        "same_data": bool(number and _data_hash(run) == _data_hash(runs[0]) != "unknown"),
        "src": run.config.data.src,
        "tgt": run.config.data.tgt,
        "config_text": settings.dump(run.config),
    }


def _headlines(test_sets: Sequence[dict[str, Any]], run: RunSummary, key: str) -> Iterable[dict[str, str]]:
    """The score of a run on each test set, or that of its best validation if there is none."""
    for test_set in test_sets:
        main, *others = test_set["metrics"]
        row = main["rows"][0]
        about = [f"95% interval {row['interval']}"]
        about += [f"{other['name']} {other['rows'][0]['score']}" for other in others]
        about += [] if run.is_finished else ["of the model when training ended before"]
        words = {"name": test_set["name"], "about": " · ".join(about)}
        yield {"score": row["score"], "metric": main["name"], **words}
    best = max(run.history.of("validation"), key=lambda event: quality(event, key), default=None)
    if not test_sets and best:
        about_it = f"at step {best['step']:,}; the test sets are scored at the end"
        words = {"name": "the validation set", "about": about_it}
        yield {"score": f"{best.get(key, 0):.2f}", "metric": DECIDING_METRICS[key], **words}


def _facts(run: RunSummary, data: dict[str, Any], is_brief: bool) -> Iterable[tuple[str, str]]:
    """The overview of a run: its most important facts, as far as they are known; brief ones are for a table of runs."""
    training = run.config.training
    out_of = f" of {training.max_steps:,}" if training.max_steps and not training.max_epochs else ""
    epochs = f" ({run.history.epochs:.1f} of {training.max_epochs} epochs)" if training.max_epochs else ""
    steps = f"{run.step:,}{out_of} steps of {training.batch_tokens:,} target tokens{epochs}"
    yield "State", run.state
    yield "Training", f"{steps}, {format_duration(3600 * run.history.hours)}"
    improving = progress(run.history)
    verdict = usability(run) if run.is_finished else None
    usable = f"{verdict.text[:1].upper()}{verdict.text[1:]}." if verdict else ""
    yield "Is it usable?", usable.partition(":")[0] if is_brief else usable
    yield "Is it still improving?", improving.partition(";")[0] if is_brief else improving
    yield "Trained on", data.get("pairs", "")
    yield "Does the training text hold test sentences?", data.get("leaks", "")


def _data_values(run: RunSummary) -> dict[str, Any]:
    """The tables on the training data, and what the overview says of it."""
    report = run.data_report
    corpora = report["corpora"]
    names = ", ".join(PurePath(corpus["name"]).name for corpus in corpora)
    held_out = f"; {report['held_out']:,} held out for validation and test" if report["held_out"] else ""
    columns = ("kept", "read", "held_out", "weight")
    src_tokens, tgt_tokens = report["src_tokens"], report["tgt_tokens"]
    return {
        "pairs": f"{report['kept']:,} sentence pairs ({names})",
        "leaks": "; ".join(f"{name}: {leaks(test)}" for name, test in report["tests"].items()),
        "facts": [
            ("Pairs", f"{report['kept']:,} trained on, of {report['read']:,} read{held_out}"),
            ("Pieces", f"{src_tokens:,} source, {tgt_tokens:,} target; {report['pieces']:,} different ones"),
        ],
        "hash": _data_hash(run),
        "corpora_head": ["corpus", *(key.replace("_", " ") for key in columns), "dropped"],
        "corpora": [
            (
                corpus["name"],
                *(corpus[key] for key in columns),
                ", ".join(f"{count:,} {reason}" for reason, count in corpus["dropped"].items()) or "none",
            )
            for corpus in corpora
        ],
        "dropped": [(reason, drop["pairs"], *_example(drop["example"])) for reason, drop in report["dropped"].items()],
        "sets": [
            (
                name,
                held["pairs"],
                held["leaks"]["train_pairs"],
                "held out" if held["held_out"] else "its own text",
                " / ".join(_example(held["leaks"]["example"])),
            )
            for name, held in sets_of(report).items()
        ],
    }


def _example(pair: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The place of an example pair, its source and its target."""
    return (f"{pair['corpus']}, line {pair['line']:,}", pair["src"], pair["tgt"]) if pair else ()


def _sample_maps(run: RunSummary, translator: Translator) -> list[AttentionMaps]:
    """Attention maps of the last validation's samples: of short sentences only, and as many as fit into the page."""
    events = run.validations_with_samples()
    sources = [sample["src"] for sample in events[-1]["samples"]] if events else []
    short = [src for src in sources if len(translator.tokenizer.encode([clean_text(src)])[0]) <= _MAX_PIECES]
    selected, room = [], _MAX_WEIGHTS
    for maps in translator.attention_maps(short) if short else ():
        room -= sum(weights.size for weights in (maps.encoder, maps.decoder, maps.cross))
        if room < 0:
            break
        selected.append(maps)
    return selected
