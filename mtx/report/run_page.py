"""The report of a run: one page that tells what was learned, how well, from what, and whether to go on.

Several runs are laid over each other. Flow: run directories -> `Run`, `Scored` -> values of `report.html` -> text. The
template holds the words, this module the figures.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from mtx.config import settings
from mtx.config.schema import DataConfig
from mtx.data.cleaning import clean_text
from mtx.decoding.attention_maps import AttentionMaps
from mtx.decoding.translator import Translator
from mtx.errors import UsageError
from mtx.evaluation import compared_systems
from mtx.evaluation.comparison import Comparison, Metric
from mtx.evaluation.metrics import writes_spaces
from mtx.files.durations import format_duration
from mtx.report.attention_page import viewer_data
from mtx.report.charts import NUM_COLOURS
from mtx.report.history import progress
from mtx.report.page import render
from mtx.report.run_charts import charts
from mtx.report.run_files import Run, read_run
from mtx.report.scored import Scored, marked, score_runs

_MAX_PIECES = 40  # of a sentence whose attention is shown
_MAX_WEIGHTS = 300_000  # of all of them: 1.6 MB of the page
_MAX_SHOWN = 8  # validations at which samples are shown
_STYLES = ["base.css", "attention.css", "report.css"]
_SCRIPTS = ["attention.js", "report.js"]
_MACHINE = ("machine", "device", "precision", "threads", "kernel", "compile", "micro_batch_tokens", "mtx", "torch",
            "python", "platform")  # fmt: skip
Row = tuple[Any, ...]


def report(roots: Sequence[Path], translator: Translator | None = None) -> str:
    """The page of one run, or of several laid over each other.

    Args:
        translator: with the model of the first run, whose attention is shown; None shows none.

    Raises:
        UsageError: where one is no run directory, or there are more than there are colours.
        DataError: where test sets of the same name differ.
    """
    if len(roots) > NUM_COLOURS // 2:
        raise UsageError(f"{len(roots)} runs: a report shows at most {NUM_COLOURS // 2}")
    runs = [read_run(root) for root in roots]
    languages = [f"{run.config.data.src} to {run.config.data.tgt}" for run in runs]
    names = _short_names(runs)
    scored = score_runs(roots, names)
    differing = compared_systems.differing_keys(roots) if len(roots) > 1 else {}
    return render(
        "report.html", title=f"{' and '.join(dict.fromkeys(languages))}: {', '.join(names)}", names=names,
        when=f"Made on {time.strftime('%Y-%m-%d at %H:%M')}.", styles=_STYLES, scripts=_SCRIPTS,
        runs=[_run_values(number, run, names[number], scored, runs[0]) for number, run in enumerate(runs)],
        charts=list(charts(runs, names)), scored=[_scored_values(each, runs[0]) for each in scored],
        differing=[*((key, *map(str, values)) for key, values in differing.items()), *_other_differences(runs)],
        finished=runs[0].is_finished,
        attention_data=viewer_data(_chosen_maps(runs[0], translator) if translator else []),
    )  # fmt: skip


def _short_names(runs: Sequence[Run]) -> list[str]:
    """The runs' own names; with their folders where these alone would be the same."""
    short = [PurePath(run.name).name or run.name for run in runs]
    return short if len({*short}) == len(short) else [run.name for run in runs]


def _other_differences(runs: Sequence[Run]) -> Iterable[Row]:
    """What differs beside settings: machine, versions, hashes of code and data, each shortened."""
    told = [{**dict(_machine(run)), "data, sha256": _data_hash(run)} for run in runs]
    for key in dict.fromkeys(key for each in told for key in each):
        values = [each.get(key, "unknown") for each in told]
        if len({*values}) > 1 and key not in ("config, sha256", "starts", "seed"):
            yield (key, *(value[:40] if "sha256" not in key else value[:12] for value in values))


# One run


def _run_values(number: int, run: Run, name: str, scored: Sequence[Scored], first: Run) -> dict[str, Any]:
    hashes = _data_hash(run), _data_hash(first)
    return {
        "name": name, "colour": number + 1, "facts": list(_facts(number, run, scored)),
        "hints": run.hints(), "samples": _samples(run), "data": _data_values(run),
        "same_data": bool(number and hashes[0] == hashes[1] != "unknown"),
        "src": run.config.data.src, "tgt": run.config.data.tgt,
        "machine": list(_machine(run)), "given": run.given(), "config_text": settings.dump(run.config),
    }  # fmt: skip


def _facts(number: int, run: Run, scored: Sequence[Scored]) -> Iterable[tuple[str, str]]:
    """What one wants to know first."""
    yield "State", run.state
    of = (
        f"{run.step:,} of {run.config.training.max_steps:,} steps of {run.config.training.batch_tokens:,} target tokens"
    )
    yield "Training", f"{of}, {format_duration(3600 * run.history.hours)}"
    yield "Is it still improving?", progress(run.history)
    for each in scored:
        bleu = each.found.metrics[0].systems[number]
        when = "" if run.is_finished else "; of the model when training ended before"
        yield f"BLEU on {each.name}", f"{bleu.score:.2f}{_interval(bleu.ci, ', 95% confidence ± ')}{when}"
    if run.data:
        corpora = ", ".join(PurePath(corpus["name"]).name for corpus in run.data["corpora"])
        yield "Trained on", f"{run.data['kept']:,} sentence pairs ({corpora})"
        yield "Does the training text hold test sentences?", "; ".join(_leaks(run.data))


def _leaks(data: Mapping[str, Any]) -> Iterable[str]:
    """In how many training pairs sources of each test set stand."""
    for name, value in data["tests"].items():
        count = value["leaks"]["train_pairs"]
        yield f"{name}: {f'{count:,} training pairs have one of its sources' if count else 'no, none of its sources'}"


def _interval(ci: float | None, before: str) -> str:
    return "" if ci is None else f"{before}{ci:.2f}"


def _samples(run: Run) -> list[dict[str, Any]]:
    """The samples of some validations, with the words marked that the reference lacks."""
    events, by_character = run.sampled(), not writes_spaces(run.config.data.tgt)
    count = min(_MAX_SHOWN, len(events))
    chosen = [events[round(number * (len(events) - 1) / max(1, count - 1))] for number in range(count)]
    return [
        {
            "src": first["src"], "ref": first["ref"],
            "hyps": [
                (event["step"], marked(event["samples"][row]["hyp"], first["ref"], by_character)[0])
                for event in chosen if row < len(event["samples"])
            ],
        }
        for row, first in enumerate(chosen[0]["samples"] if chosen else [])
    ]  # fmt: skip


def _data_values(run: Run) -> dict[str, Any]:
    """The report of the data as tables; empty before there is one."""
    data = run.data
    if not data:
        return {}
    held_out = f"; {data['held_out']:,} held out for validation and test" if data["held_out"] else ""
    facts = [
        ("Pairs", f"{data['kept']:,} trained on, of {data['read']:,} read{held_out}"),
        ("Pieces", f"{data['src_tokens']:,} source, {data['tgt_tokens']:,} target; {data['pieces']:,} different ones"),
        ("Text from", _origin(run.config.data)),
        ("Data, sha256", _data_hash(run)),
    ]
    corpora = [
        (c["name"], c["weight"], c["read"], c["kept"], c["held_out"], _counts(c["dropped"])) for c in data["corpora"]
    ]
    dropped = [(reason, value["pairs"], *_where(value["example"])) for reason, value in data["dropped"].items()]
    sets = [
        (name, value["pairs"], "held out" if value["held_out"] else "its own text", value["leaks"]["train_pairs"],
         " / ".join(_where(value["leaks"]["example"])))
        for name, value in {"validation": data["valid"], **data["tests"]}.items()
    ]  # fmt: skip
    return {"facts": facts, "corpora": corpora, "dropped": dropped, "sets": sets}


def _data_hash(run: Run) -> str:
    start = run.history.starts[-1] if run.history.starts else {}
    return str(start.get("data", run.made.get("data", "unknown")))


def _origin(data: DataConfig) -> str:
    """Where the text comes from, as the settings say."""
    if data.generator is not None:
        return f"mtx's own generator, {data.generator}"
    if data.hub is not None and data.dir is None:
        return f"{data.hub.name} on the Hugging Face hub"
    return f"local files, in {data.dir or 'the folder where the command was given'}"


def _counts(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in dropped.items()) or "none"


def _where(example: Mapping[str, Any] | None) -> tuple[str, ...]:
    """A pair of report.json: where it stands, and its two sides."""
    return () if not example else (f"{example['corpus']}, line {example['line']:,}", example["src"], example["tgt"])


def _machine(run: Run) -> Iterable[tuple[str, str]]:
    start = run.history.starts[-1] if run.history.starts else {}
    for key in _MACHINE:
        if key in start:
            yield key.replace("_", " "), str(start[key])
    yield "starts", str(len(run.history.starts))
    yield "seed", str(run.config.seed)
    for key in ("code", "config"):
        if key in run.made:
            yield f"{key}, sha256", str(run.made[key])


# All runs


def _scored_values(scored: Scored, first: Run) -> dict[str, Any]:
    found, src, tgt = scored.found, first.config.data.src, first.config.data.tgt
    return {
        "src": src, "tgt": tgt,
        "name": scored.name, "found": found, "worst": scored.worst, "middle": scored.middle,
        "best": scored.best, "differing": scored.differing,
        "verdicts": found.verdicts() if len(found.names) > 1 else [],
        "traits": [
            (name, each.right, each.empty, each.repeating, f"{each.length:.2f}")
            for name, each in zip(found.names, scored.traits, strict=True)
        ],
        "scores": [row for metric in found.metrics for row in _score_rows(found, metric)],
        "lengths": [
            (each.length, each.count, *(f"{score:.2f}" for score in each.bleu)) for each in found.lengths
        ],
    }  # fmt: skip


def _score_rows(found: Comparison, metric: Metric) -> Iterable[Row]:
    for name, system in zip(found.names, metric.systems, strict=True):
        interval = "" if system.mean is None else f"{system.mean:.2f}{_interval(system.ci, ' ± ')}"
        chance = [] if len(found.names) == 1 else ["" if system.p_value is None else f"{system.p_value:.4f}"]
        yield (metric.name, name, f"{system.score:.2f}", interval, *chance)


# Attention


def _chosen_maps(run: Run, translator: Translator) -> list[AttentionMaps]:
    """Attention in the samples of a run's last validation, as far as they are short and all fit a page."""
    events = run.sampled()
    sources = [sample["src"] for sample in events[-1]["samples"]] if events else []
    short = [src for src in sources if len(translator.tokenizer.encode([clean_text(src)])[0]) <= _MAX_PIECES]
    found, room = [], _MAX_WEIGHTS
    for maps in translator.attention_maps(short) if short else ():
        room -= sum(weights.size for weights in (maps.encoder, maps.decoder, maps.cross))
        if room < 0:
            break
        found.append(maps)
    return found
