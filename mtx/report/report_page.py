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
from mtx.data.writing_systems import writes_spaces
from mtx.decoding.attention_maps import AttentionMaps
from mtx.decoding.translator import Translator
from mtx.errors import UsageError
from mtx.evaluation.comparison import Comparison
from mtx.evaluation.differing_settings import differing_settings
from mtx.files.durations import format_duration
from mtx.report.attention_page import viewer_data
from mtx.report.learning_curves import learning_curves
from mtx.report.page import render
from mtx.report.run_summary import RunSummary, read_run
from mtx.report.svg_chart import NUM_COLOURS
from mtx.report.test_set_results import TestSetResults, test_set_results
from mtx.report.training_history import progress
from mtx.report.usability import usability
from mtx.report.word_diff import word_diff

_MAX_PIECES = 40  # of the longest sentence whose attention is shown
_MAX_WEIGHTS = 300_000  # of all attention maps together; they take 1.6 MB of the page
_MAX_SAMPLED = 8  # validations whose samples are shown
_MACHINE_KEYS = ("machine", "device", "precision", "threads", "kernel", "compile", "micro_batch_tokens", "mtx", "torch",
                 "python", "platform")  # fmt: skip
Row = tuple[Any, ...]


def report_page(roots: Sequence[Path], translator: Translator | None = None) -> str:
    """The report of one run, or of several runs side by side.

    Args:
        translator: has the model of the first run, whose attention is shown; with None no attention is shown.

    Raises:
        UsageError: if a directory is no run, or there are more runs than colours for them.
        DataError: if two runs have different test sets of the same name.
    """
    if len(roots) > NUM_COLOURS // 2:
        raise UsageError(f"{len(roots)} runs: a report shows at most {NUM_COLOURS // 2}")
    runs = [read_run(root) for root in roots]
    names, first = _short_names(runs), runs[0]
    results = test_set_results(roots, names)
    languages = dict.fromkeys(f"{run.config.data.src} to {run.config.data.tgt}" for run in runs)
    differing = [(key, *map(str, values)) for key, values in differing_settings(roots).items()]
    return render(
        "report.html", title=f"{' and '.join(languages)}: {', '.join(names)}", names=names,
        when=f"Made on {time.strftime('%Y-%m-%d at %H:%M')}.",
        runs=[_run_values(number, run, names[number], results, first) for number, run in enumerate(runs)],
        charts=list(learning_curves(runs, names)), test_sets=[_test_set_values(result, first) for result in results],
        differing=[*differing, *_other_differences(runs)], finished=first.is_finished,
        attention_data=viewer_data(_sample_maps(first, translator) if translator else []),
    )  # fmt: skip


def _short_names(runs: Sequence[RunSummary]) -> list[str]:
    """The names of the run directories, or their paths if two names are the same."""
    names = [PurePath(run.name).name or run.name for run in runs]
    return names if len({*names}) == len(names) else [run.name for run in runs]


def _other_differences(runs: Sequence[RunSummary]) -> Iterable[Row]:
    """What differs besides the settings: machine, versions, hashes of code and data; long values are cut."""
    facts = [{**dict(_machine(run)), "data, sha256": _data_hash(run)} for run in runs]
    for key in dict.fromkeys(key for of_run in facts for key in of_run):
        values = [of_run.get(key, "unknown") for of_run in facts]
        if len({*values}) > 1 and key not in ("config, sha256", "starts", "seed"):
            yield (key, *(value[: 12 if "sha256" in key else 40] for value in values))


def _run_values(
    number: int, run: RunSummary, name: str, results: Sequence[TestSetResults], first: RunSummary
) -> dict[str, Any]:
    data_hash = _data_hash(run)
    return {
        "name": name, "colour": number + 1, "facts": list(_facts(number, run, results)),
        "hints": run.hints(), "samples": _samples(run), "data": _data_values(run),
        "same_data": bool(number and data_hash == _data_hash(first) != "unknown"),
        "src": run.config.data.src, "tgt": run.config.data.tgt, "machine": list(_machine(run)),
        "changed_settings": run.changed_settings(), "config_text": settings.as_yaml(run.config),
    }  # fmt: skip


def _facts(number: int, run: RunSummary, results: Sequence[TestSetResults]) -> Iterable[tuple[str, str]]:
    """The overview of a run: its most important facts."""
    training = run.config.training
    last = math.inf if training.max_steps is None else training.max_steps  # training.max_epochs may end it
    passed = f", beyond training.max_steps={training.max_steps}" if run.step > last else ""
    out_of = "" if passed or last == math.inf else f" of {last:,}"
    steps = f"{run.step:,}{out_of} steps of {training.batch_tokens:,} target tokens{passed}"
    yield "State", run.state
    yield "Training", f"{steps}, {format_duration(3600 * run.history.hours)}"
    if run.is_finished and (judgement := usability(run)) is not None:
        yield "Is it usable?", f"{judgement.text[:1].upper()}{judgement.text[1:]}."
    yield "Is it still improving?", progress(run.history)
    for result in results:
        bleu = result.comparison.metrics[0].systems[number]
        interval = "" if bleu.ci is None else f", 95% confidence ± {bleu.ci:.2f}"
        outdated = "" if run.is_finished else "; of the model when training ended before"
        yield f"BLEU on {result.name}", f"{bleu.score:.2f}{interval}{outdated}"
    if report := run.data_report:
        corpora = ", ".join(PurePath(corpus["name"]).name for corpus in report["corpora"])
        counts = {name: value["leaks"]["train_pairs"] for name, value in report["tests"].items()}
        leaks = (
            f"{name}: {f'{count:,} training pairs have one of its sources' if count else 'no, none of its sources'}"
            for name, count in counts.items()
        )
        yield "Trained on", f"{report['kept']:,} sentence pairs ({corpora})"
        yield "Does the training text hold test sentences?", "; ".join(leaks)


def _samples(run: RunSummary) -> list[dict[str, Any]]:
    """The samples of evenly spaced validations, with marks on the words that the reference lacks."""
    events = run.validations_with_samples()
    references = [sample["ref"] for sample in events[0]["samples"]] if events else []
    by_character = not writes_spaces(run.config.data.tgt, references)
    count = min(_MAX_SAMPLED, len(events))
    validations = [events[round(number * (len(events) - 1) / max(1, count - 1))] for number in range(count)]
    return [
        {
            "src": sample["src"], "ref": sample["ref"],
            "hyps": [
                (event["step"], word_diff(event["samples"][row]["hyp"], sample["ref"], by_character)[0])
                for event in validations if row < len(event["samples"])
            ],
        }
        for row, sample in enumerate(validations[0]["samples"] if validations else [])
    ]  # fmt: skip


def _data_values(run: RunSummary) -> dict[str, Any]:
    """The tables on the training data; empty before the data is prepared."""
    report = run.data_report
    if not report:
        return {}
    held_out = f"; {report['held_out']:,} held out for validation and test" if report["held_out"] else ""
    src_tokens, tgt_tokens = report["src_tokens"], report["tgt_tokens"]
    return {
        "facts": [
            ("Pairs", f"{report['kept']:,} trained on, of {report['read']:,} read{held_out}"),
            ("Pieces", f"{src_tokens:,} source, {tgt_tokens:,} target; {report['pieces']:,} different ones"),
            ("Text from", _origin(run.config.data)),
            ("Data, sha256", _data_hash(run)),
        ],
        "corpora": [
            (*(corpus[key] for key in ("name", "weight", "read", "kept", "held_out")),
             ", ".join(f"{count:,} {reason}" for reason, count in corpus["dropped"].items()) or "none")
            for corpus in report["corpora"]
        ],
        "dropped": [(reason, drop["pairs"], *_example(drop["example"])) for reason, drop in report["dropped"].items()],
        "sets": [
            (name, value["pairs"], "held out" if value["held_out"] else "its own text", value["leaks"]["train_pairs"],
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


def _test_set_values(results: TestSetResults, first: RunSummary) -> dict[str, Any]:
    comparison = results.comparison
    return {
        "src": first.config.data.src, "tgt": first.config.data.tgt, "results": results, "comparison": comparison,
        "verdicts": comparison.verdicts(), "scores": list(_score_rows(comparison)),
        "traits": [
            (name, traits.exact, traits.empty, traits.repeating, f"{traits.length_ratio:.2f}")
            for name, traits in zip(comparison.names, results.traits, strict=True)
        ],
        "lengths": [(bin.length, bin.count, *(f"{bleu:.2f}" for bleu in bin.bleu)) for bin in comparison.lengths],
    }  # fmt: skip


def _score_rows(comparison: Comparison) -> Iterable[Row]:
    for metric in comparison.metrics:
        for name, system in zip(comparison.names, metric.systems, strict=True):
            interval = "" if system.mean is None else f"{system.mean:.2f} ± {system.ci:.2f}"
            row = (metric.name, name, f"{system.score:.2f}", interval)
            p_value = "" if system.p_value is None else f"{system.p_value:.4f}"
            yield (*row, p_value) if len(comparison.names) > 1 else row


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
