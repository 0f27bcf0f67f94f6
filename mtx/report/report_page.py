"""The report of a run as one HTML page: how well it translates, its data, and whether more training is worthwhile.

Flow: run directories -> `RunSummary`, `TestSetResults` -> values of report.html -> HTML. Several runs share one page.
The template holds the words, this module computes the values.
"""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from mtx.config import settings
from mtx.config.schema import DataConfig
from mtx.data.cleaning import clean_text
from mtx.decoding.attention_maps import AttentionMaps
from mtx.decoding.torch_engine import TorchTranslator
from mtx.errors import UsageError
from mtx.evaluation.comparison import Comparison, p_text
from mtx.evaluation.comparison_output import mean_and_p
from mtx.evaluation.differing_settings import differing_settings, setting_text
from mtx.evaluation.gains import advice
from mtx.evaluation.significance import MetricComparison
from mtx.files.durations import format_duration
from mtx.report.attention_page import viewer_data
from mtx.report.learning_curves import learning_curves
from mtx.report.page import render
from mtx.report.run_summary import RunSummary, read_run, settings_rows
from mtx.report.samples import samples
from mtx.report.svg_chart import NUM_COLOURS
from mtx.report.test_set_results import TestSetResults, test_set_results
from mtx.report.training_history import progress
from mtx.report.usability import usability
from mtx.run.events import DECIDING_METRICS, quality, recorded_metric

_MAX_PIECES = 40  # of the longest sentence whose attention is shown
_MAX_WEIGHTS = 250_000  # of all attention maps together; they take 1.3 MB of the page
_MACHINE_KEYS = ("machine", "device", "precision", "threads", "kernel", "compile",
                 "micro_batch_tokens", "mtx", "torch", "python", "platform")  # fmt: skip
_HEADS = {"kept": "kept", "read": "read", "held_out": "held out", "weight": "weight"}
_FOLLOWS = ("config, sha256", "starts", "seed")  # these differ when settings do, or say nothing about the result
Row = tuple[Any, ...]


def report_page(roots: Sequence[Path], translator: TorchTranslator | None = None) -> str:
    """The report of one run, or of several runs side by side.

    Args:
        translator: has the model of the first run, whose attention is shown; with None no attention is shown.

    Raises:
        UsageError: if a directory is no run, or there are more runs than colours for them.
        DataError: if two runs have different test sets of the same name.
    """
    if len(roots) > NUM_COLOURS:
        raise UsageError(f"{len(roots)} runs: a report shows at most {NUM_COLOURS}")
    runs = [read_run(root) for root in roots]
    names, first = _short_names(runs), runs[0]
    results = test_set_results(roots, names)
    languages = dict.fromkeys(f"{run.config.data.src} to {run.config.data.tgt}" for run in runs)
    curves, metric = (
        list(learning_curves(runs, names)),
        DECIDING_METRICS[recorded_metric(first.history.of("validation"))],
    )
    shown = "BLEU" if metric == "nll" else metric  # the nll is in the chart of the loss
    facts = [dict(_facts(run, is_brief=len(runs) > 1)) for run in runs]
    fact_names = list(dict.fromkeys(name for of_run in facts for name in of_run))
    settings_table, machine = _differing_first(settings_rows(runs)), _differing_first(_machine_rows(runs))
    return render(
        "report.html", title=f"{' and '.join(languages)}: {', '.join(names)}", names=names,
        when=f"Made on {time.strftime('%Y-%m-%d at %H:%M')}.",
        runs=[_run_values(number, run, names[number], facts[number], first) for number, run in enumerate(runs)],
        fact_names=fact_names,
        fact_rows=[(name, *(of.get(key, "") for key in fact_names)) for name, of in zip(names, facts, strict=True)],
        charts=curves,
        validation_chart=next((c for c in curves if c["title"] == f"Validation {shown}"), None),
        samples=samples(runs), test_sets=[_test_set_values(result, first, metric) for result in results],
        headlines=list(_headlines(results, first, metric)),
        differing=[(key, *map(setting_text, values)) for key, values in differing_settings(roots).items()],
        other_differences=[key for key, *_ in machine[0][: machine[1]] if key not in _FOLLOWS],
        finished=first.is_finished,
        settings=settings_table[0], settings_differ=range(settings_table[1]),
        machine=machine[0], machine_differ=range(machine[1]),
        attention_data=viewer_data(_sample_maps(first, translator) if translator else []),
    )  # fmt: skip


def _short_names(runs: Sequence[RunSummary]) -> list[str]:
    """The names of the run directories, or their paths if two names are the same."""
    names = [PurePath(run.name).name or run.name for run in runs]
    return names if len({*names}) == len(names) else [run.name for run in runs]


def _differing_first(rows: Iterable[tuple[str, list[str]]]) -> tuple[list[Row], int]:
    """Rows of a table with the runs as columns, first those in which the runs differ, and how many these are."""
    differing: list[Row] = []
    equal: list[Row] = []
    for key, values in rows:
        (differing if len({*values}) > 1 else equal).append((key, *values))
    return differing + equal, len(differing)


def _machine_rows(runs: Sequence[RunSummary]) -> Iterable[tuple[str, list[str]]]:
    """Machine, versions, and the hashes of code, configuration and data of each run."""
    facts = [{**dict(_machine(run)), "data, sha256": _data_hash(run)} for run in runs]
    for key in dict.fromkeys(key for of_run in facts for key in of_run):
        yield key, [of_run.get(key, "unknown") for of_run in facts]


def _run_values(number: int, run: RunSummary, name: str, facts: Mapping[str, str], first: RunSummary) -> dict[str, Any]:
    return {
        "name": name, "colour": number + 1, "facts": list(facts.items()), "hints": run.hints(),
        "gains": list(_gain_rows(run)), "advice": list(map(str, advice(run.gains))),
        "data": _data_values(run), "same_data": bool(number and _data_hash(run) == _data_hash(first) != "unknown"),
        "src": run.config.data.src, "tgt": run.config.data.tgt, "config_text": settings.dump(run.config),
    }  # fmt: skip


def _gain_rows(run: RunSummary) -> Iterable[Row]:
    """Each test set and metric with its scores before and after training, the gain and its p-value."""
    for gain in run.gains:
        for change in gain.changes:
            scores = f"{change.before:.2f}", f"{change.after:.2f}", f"{change.points:+.2f}"
            yield (gain.test, change.metric, *scores, p_text(change.p_value))


def _headlines(results: Sequence[TestSetResults], run: RunSummary, metric: str) -> Iterable[dict[str, str]]:
    """The score of a run on each test set, or that of its best validation if there is none."""
    for result in results:
        main, *others = _metrics(result.comparison, metric)
        row = main["rows"][0]
        interval = f"95% interval {row['interval']}" if row["interval"] else ""
        more = [f"{other['name']} {other['rows'][0]['score']}" for other in others]
        outdated = "" if run.is_finished else "of the model when training ended before"
        yield {"score": row["score"], "metric": main["name"], "on": "on", "name": result.name,
               "about": " · ".join(filter(None, [interval, *more, outdated]))}  # fmt: skip
    key = next(key for key, name in DECIDING_METRICS.items() if name == metric)
    best = max(run.history.of("validation"), key=lambda event: quality(event, key), default=None)
    if not results and best:
        how = "" if key == "nll" else ", by greedy search"
        yield {"score": f"{best.get(key, 0):.2f}", "metric": metric, "on": "on the", "name": "validation set",
               "about": f"at step {best['step']:,}{how}; the test sets are scored at the end"}  # fmt: skip


def _facts(run: RunSummary, is_brief: bool) -> Iterable[tuple[str, str]]:
    """The overview of a run: its most important facts; brief ones stand in a column of a table."""
    training = run.config.training
    last = math.inf if training.max_steps is None else training.max_steps  # training.max_epochs may end it
    passed = f", beyond training.max_steps={training.max_steps}" if run.step > last else ""
    out_of = "" if passed or last == math.inf else f" of {last:,}"
    epochs, of_epochs = run.history.epochs, ""
    if training.max_epochs and epochs:
        out_of, of_epochs = "", f" ({epochs:.1f} of {training.max_epochs} epochs)"
    steps = f"{run.step:,}{out_of} steps of {training.batch_tokens:,} target tokens{of_epochs}{passed}"
    yield "State", run.state
    yield "Training", f"{steps}, {format_duration(3600 * run.history.hours)}"
    improving = progress(run.history)
    if run.is_finished and (judgement := usability(run)) is not None:
        usable = f"{judgement.text[:1].upper()}{judgement.text[1:]}."
        yield "Is it usable?", usable.partition(":")[0] if is_brief else usable
    yield "Is it still improving?", improving.partition(";")[0] if is_brief else improving
    if report := run.data_report:
        corpora = ", ".join(PurePath(corpus["name"]).name for corpus in report["corpora"])
        counts = {name: value["leaks"]["train_pairs"] for name, value in report["tests"].items()}
        leaks = (
            f"{name}: {f'{count:,} training pairs have one of its sources' if count else 'no, none of its sources'}"
            for name, count in counts.items()
        )
        yield "Trained on", f"{report['kept']:,} sentence pairs ({corpora})"
        yield "Does the training text hold test sentences?", "; ".join(leaks)


def _data_values(run: RunSummary) -> dict[str, Any]:
    """The tables on the training data; empty before the data is prepared."""
    report = run.data_report
    if not report:
        return {}
    held_out = f"; {report['held_out']:,} held out for validation and test" if report["held_out"] else ""
    columns = ["kept", "read", *(key for key, usual in (("held_out", 0), ("weight", 1.0))
                                 if any(corpus[key] != usual for corpus in report["corpora"]))]  # fmt: skip
    src_tokens, tgt_tokens = report["src_tokens"], report["tgt_tokens"]
    return {
        "facts": [
            ("Pairs", f"{report['kept']:,} trained on, of {report['read']:,} read{held_out}"),
            ("Pieces", f"{src_tokens:,} source, {tgt_tokens:,} target; {report['pieces']:,} different ones"),
            ("Text from", _origin(run.config.data)),
        ],
        "hash": _data_hash(run),
        "corpora_head": ["corpus", *(_HEADS[key] for key in columns), "dropped"],
        "corpora": [
            (corpus["name"], *(corpus[key] for key in columns),
             ", ".join(f"{count:,} {reason}" for reason, count in corpus["dropped"].items()) or "none")
            for corpus in report["corpora"]
        ],
        "dropped": [(reason, drop["pairs"], *_example(drop["example"])) for reason, drop in report["dropped"].items()],
        "sets": [
            (name, value["pairs"], value["leaks"]["train_pairs"], "held out" if value["held_out"] else "its own text",
             " / ".join(_example(value["leaks"]["example"])))
            for name, value in {"validation": report["valid"], **report["tests"]}.items()
        ],
    }  # fmt: skip


def _data_hash(run: RunSummary) -> str:
    return str(run.last_start.get("data", run.provenance.get("data", "unknown")))


def _origin(data: DataConfig) -> str:
    if data.generator is not None:
        return f"mtx's own generator, {data.generator}"
    if data.hub is not None and data.dir is None:
        return f"{data.hub.name} on the Hugging Face hub"
    return f"local files, in {data.dir or 'the folder where the command was given'}"


def _example(pair: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The place of an example pair, its source and its target."""
    return (f"{pair['corpus']}, line {pair['line']:,}", pair["src"], pair["tgt"]) if pair else ()


def _machine(run: RunSummary) -> Iterable[tuple[str, str]]:
    for key in _MACHINE_KEYS:
        if key in run.last_start:
            yield key.replace("_", " "), str(run.last_start[key])
    yield "starts", str(len(run.history.starts))
    yield "seed", str(run.config.seed)
    for key in ("code", "config"):
        if key in run.provenance:
            yield f"{key}, sha256", str(run.provenance[key])


def _test_set_values(results: TestSetResults, first: RunSummary, metric: str) -> dict[str, Any]:
    comparison = results.comparison
    headline = comparison.headline()
    return {
        "src": first.config.data.src, "tgt": first.config.data.tgt, "results": results, "comparison": comparison,
        "verdicts": headline, "other_verdicts": [v for v in comparison.verdicts() if v not in headline],
        "metrics": _metrics(comparison, metric),
        "groups": list(_group_rows(comparison)) if comparison.has_seeds() else [],
        "traits": [
            (name, traits.exact, traits.empty, traits.repeating, f"{traits.length_ratio:.2f}")
            for name, traits in zip(comparison.names, results.traits, strict=True)
        ],
        "lengths": [(bin.length, bin.count, *(f"{bleu:.2f}" for bleu in bin.bleu)) for bin in comparison.lengths],
    }  # fmt: skip


def _group_rows(comparison: Comparison) -> Iterable[Row]:
    """Each group of runs that differ only in their seeds: its label, number of runs, and mean and p by what decides."""
    metric = next(metric for metric in comparison.metrics if metric.name == comparison.decided_by)
    for group, score in zip(comparison.groups, metric.groups, strict=True):
        yield (group.label, len(group.members), *mean_and_p(score))


def _metrics(comparison: Comparison, first: str) -> list[dict[str, Any]]:
    """The scores of all systems by each metric, beginning with the metric `first`, if it was computed."""
    return [_metric(metric) for metric in sorted(comparison.metrics, key=lambda metric: metric.name != first)]


def _metric(metric: MetricComparison) -> dict[str, Any]:
    """The scores of all systems by one metric, with intervals as numbers and as percentages of their common scale."""
    ranges = [system.interval or (system.score, system.score) for system in metric.systems]
    low = math.floor(min(low for low, _ in ranges))
    high = max(math.ceil(max(high for _, high in ranges)), low + 1)

    def place(value: float) -> str:
        return f"{100 * (value - low) / (high - low):.1f}"

    rows = [
        {"score": f"{system.score:.2f}", "p": "" if system.p_value is None else p_text(system.p_value),
         "interval": system.interval_text,
         "from": place(start), "to": place(end), "at": place(system.score)}
        for system, (start, end) in zip(metric.systems, ranges, strict=True)
    ]  # fmt: skip
    return {"name": metric.name, "is_error": metric.is_error, "low": low, "high": high, "rows": rows}


def _sample_maps(run: RunSummary, translator: TorchTranslator) -> list[AttentionMaps]:
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
