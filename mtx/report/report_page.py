"""The report of a run as one HTML page: translation quality, data, and whether more training is worthwhile.

Flow: run directories -> `RunSummary`, `test_set_values` -> values of report.html -> HTML. Several runs share one page.
The templates contain the words and mark what differs; this module computes the values.
"""

import contextlib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from jinja2 import UndefinedError

from mtx.config import settings
from mtx.config.schema import Config, leaves
from mtx.data.languages import tokenizer_of, writes_spaces
from mtx.data.sources import show_example
from mtx.errors import DamagedFileError, UsageError
from mtx.evaluation.comparison import TEXT, compare, groups_of, load_values, mean_tables, setting_text, words
from mtx.evaluation.test_set_scores import system_outputs
from mtx.evaluation.test_sets import test_sets_of_runs
from mtx.formatting import file_name, format_duration
from mtx.report.advice import advise_on_gains, count_by_quality, leaks, set_lines, usability
from mtx.report.charts import NUM_COLOURS, learning_curves
from mtx.report.html_page import render
from mtx.report.run_history import RunSummary, improvement, read_run
from mtx.runs.run_directory import DECIDING_METRICS, recorded_metric
from mtx.scoring.metrics import TestSet
from mtx.storage.run_files import REPORT, stored_scores

_TOKEN = re.compile(r"\s*(?:\w+|[^\w\s])\s*")
_CHARACTER = re.compile(r"\s*\S\s*")

Marked = list[tuple[str, bool]]  # parts of a text; True: the other text lacks this part here


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
    default = dict(leaves(Config.model_validate({}).model_dump()))
    values = [load_values(root) for root in roots]
    changed = {key for config in values for key in config if config[key] != default.get(key)} - {TEXT}
    rows = _table([{key: setting_text(config[key]) for key in config} for config in values])
    first_data = runs[0].config.data
    tgt = "" if first_data.directions else first_data.tgt
    facts, data = zip(*map(_overview, runs), strict=True)
    test_sets = list(test_set_values(roots, names))
    comparisons = {test_set["name"]: test_set["comparison"] for test_set in test_sets}
    return render(
        "report.html",
        names=names,
        when=f"Made on {time.strftime('%Y-%m-%d at %H:%M')}.",
        runs=runs,
        data=data,
        facts_of_runs=_table(facts, ""),
        charts=[*learning_curves(runs, names)],
        decider=DECIDING_METRICS[recorded_metric(runs[0].history.events_of("validation"))],
        word_diff=word_diff,
        by_character=lambda text: not writes_spaces(tgt, [text]),
        test_sets=test_sets,
        means=mean_tables(comparisons, first_data.language_pairs),
        differing=[row for row in rows if len({*row[1:]}) > 1],
        settings=[row for row in rows if row[0] in changed],
        machine=_table([*map(_machine, runs)]),
        advise_on_gains=advise_on_gains,
        dump=settings.dump,
    )


def _table(columns: Sequence[Mapping[str, str]], missing: str = "unknown") -> list[tuple[str, ...]]:
    """Rows of a table with the runs as columns; rows in which the runs differ come first."""
    keys = dict.fromkeys(key for column in columns for key in column)
    rows = [(key, *(column.get(key, missing) for column in columns)) for key in keys]
    different = [row for row in rows if len({*row[1:]}) != 1]
    equal = [row for row in rows if len({*row[1:]}) == 1]
    return different + equal


def _machine(run: RunSummary) -> dict[str, str]:
    """Machine, versions, and the hashes of data and code of a run."""
    start = run.last_start
    machine = {key.replace("_", " "): str(start[key]) for key in start if key not in ("event", "step", "time", "hours")}
    return {**machine, "code": str(run.provenance.get("code", "unknown"))}


def _overview(run: RunSummary) -> tuple[dict[str, str], str]:
    """The most important known facts about a run, and the part of the page about its data; empty before it has some."""
    training = run.config.training
    history = run.history
    limit = f" of {training.max_steps:,}" if training.max_steps and not training.max_epochs else ""
    epochs = f" ({history.last_value('epochs'):.1f} of {training.max_epochs} epochs)" if training.max_epochs else ""
    facts = {
        "State": run.state,
        "Training": f"{history.last_value('step'):,}{limit} steps of {training.batch_tokens:,} target tokens"
        f"{epochs}, {format_duration(3600 * history.last_value('hours'))}",
    }
    if run.is_finished and (verdict := usability(run)):
        facts["Is it usable?"] = f"{verdict.text[:1].upper()}{verdict.text[1:]}."
    if counts := count_by_quality(stored_scores(run.paths)):
        facts["Which translations need a look?"] = "; ".join(counts)
    development = improvement(history)
    facts["Is it still improving?"] = development.text if development else "Unknown: too few validations yet."
    if not (report := run.data_report):
        return facts, ""
    try:
        names = ", ".join(dict.fromkeys(file_name(corpus["name"]) for corpus in report["corpora"]))
        facts["Trained on"] = f"{report['kept']:,} sentence pairs ({names})"
        if tests := [f"{name}: {leaks(test)}" for name, test in report["tests"].items()]:
            facts["Does the training text contain test sentences?"] = "; ".join(tests)
        corpora = []
        for corpus in report["corpora"]:
            reasons = ", ".join(f"{number:,} {reason}" for reason, number in corpus["dropped"].items())
            name = f"{corpus['name']} {corpus['src']}-{corpus['tgt']}" if "src" in corpus else corpus["name"]
            corpora.append((name, *map(corpus.__getitem__, ("kept", "read", "held_out", "weight")), reasons))
        dropped = [(reason, drop["pairs"], show_example(drop["example"])) for reason, drop in report["dropped"].items()]
        sets = [*set_lines(report)]
        return facts, render("report_data.html", report=report, corpora=corpora, dropped=dropped, sets=sets)
    except (AttributeError, KeyError, TypeError, ValueError, UndefinedError):
        raise DamagedFileError(f"{run.paths.data / REPORT}: not a report of mtx on prepared data") from None


def test_set_values(roots: Sequence[Path], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The results on the test sets that all runs have translated; empty if there are none.

    Args:
        names: the names of the runs in the report.
    """
    test_sets = list[TestSet]()
    with contextlib.suppress(UsageError):  # they have none in common
        test_sets = test_sets_of_runs(roots)
    for test_set in test_sets:
        outputs, references = system_outputs(test_set, roots, {})
        systems = [replace(system, name=name) for system, name in zip(outputs, names, strict=True)]
        sentences = telling_sentences(test_set, [system.hypotheses for system in systems], references)
        yield {
            "name": test_set.name,
            "languages": (test_set.src, test_set.tgt),
            "comparison": compare(systems, references, tgt=test_set.tgt, groups=groups_of(roots, names)),
            "sentences": sentences[: 2000 // (1 + len(systems))],  # references and translations of a test set
            "typical": sentences[len(sentences) // 2],
        }


@dataclass(frozen=True)
class Sentence:
    """One sentence of a test set.

    Attributes:
        length: words or characters of the reference.
        translations: the sentence-level chrF (0 to 100) and the hypothesis of each system.
    """

    line: int
    length: int
    src: str
    ref: str
    translations: list[tuple[float, str]]


def telling_sentences(test_set: TestSet, systems: list[list[str]], references: list[str]) -> list[Sentence]:
    """All sentences with the hypotheses of all systems, the most informative ones first.

    With one system these are the worst by chrF, with several the ones whose chrF differs most.
    """
    from sacrebleu.metrics import CHRF

    metric = CHRF()
    tokenizer = tokenizer_of(test_set.tgt, references)
    sentences = list[Sentence]()
    for line, (src, ref, *hyps) in enumerate(zip(test_set.sources, references, *systems, strict=True), 1):
        translations = [(metric.sentence_score(hyp, [ref]).score, hyp) for hyp in hyps]
        sentences.append(Sentence(line, len(words(ref, tokenizer)), src, ref, translations))
    return sorted(
        sentences,
        key=lambda sentence: (
            round(min(sentence.translations)[0] - max(sentence.translations)[0], 1),
            round(sentence.translations[0][0], 1),
            len(sentence.src),
        ),
    )


def word_diff(hyp: str, ref: str, by_character: bool = False) -> tuple[Marked, Marked]:
    """Compare two texts word by word, or character by character; the spaces around a word belong to it."""
    pattern = _CHARACTER if by_character else _TOKEN
    hyp_parts = pattern.findall(hyp)
    ref_parts = pattern.findall(ref)
    hyp_words = [part.strip() for part in hyp_parts]
    ref_words = [part.strip() for part in ref_parts]
    marked_hyp = Marked()
    marked_ref = Marked()
    matcher = SequenceMatcher(None, hyp_words, ref_words, autojunk=False)
    for tag, hyp_start, hyp_end, ref_start, ref_end in matcher.get_opcodes():
        is_different = tag != "equal"
        if hyp_start < hyp_end:
            marked_hyp.append(("".join(hyp_parts[hyp_start:hyp_end]), is_different))
        if ref_start < ref_end:
            marked_ref.append(("".join(ref_parts[ref_start:ref_end]), is_different))
    return marked_hyp, marked_ref
