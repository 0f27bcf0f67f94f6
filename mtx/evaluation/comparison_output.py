"""What `mtx compare` prints of its comparisons: text to read, tables for a page or a paper, or values for programs.

Flow: `Results` -> `output_lines` in one of `FORMATS`. `comparison` computes, `mtx.files.tables` draws.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from mtx.evaluation.comparison import Comparison, p_text
from mtx.evaluation.differing_settings import setting_text
from mtx.evaluation.significance import GroupScore
from mtx.files.tables import Style, draw

Format = Literal["text", "markdown", "latex", "json"]
FORMATS: tuple[Format, ...] = get_args(Format)


_ENDS = {"training.max_steps", "training.max_epochs", "training.time_limit", "training.patience"}
_EQUAL_STEPS = 1.1  # the most steps of a run for each step of another that counts as equally long


@dataclass(frozen=True)
class Results:
    """The comparisons of the same systems on one or more test sets.

    Attributes:
        runs: the names of the runs among the systems.
        differing_keys: the settings in which these differ, each with its value in every run.
        same_but_for_seed: groups of systems, by their indices.
        unfinished: what is not done yet of a run, by its name.
        translated_steps: the step whose translations are compared, of those runs of which it is known.
        test_sets: the comparison on each test set.
    """

    runs: list[str]
    differing_keys: dict[str, list[object]]
    same_but_for_seed: list[list[int]]
    unfinished: dict[str, str]
    translated_steps: dict[str, int]
    test_sets: dict[str, Comparison]

    def notes(self) -> list[str]:
        """What a reader of the verdict has to know."""
        steps = {run: f"step {step:,}" for run, step in self.translated_steps.items()}
        notes = [
            f"{run} {state}; its translations are those of {steps.get(run, 'an earlier step')}"
            for run, state in self.unfinished.items()
        ]
        has_one_seed = len(self.runs) > 1 and set(self.differing_keys) - {"seed"}
        if has_one_seed and not any(comparison.has_seeds() for comparison in self.test_sets.values()):
            seeds = "train each with seed=1, seed=2 and seed=3, and compare all"
            notes.append(f"each setting has one run, and with another seed it may score otherwise: {seeds}")
            if ends := sorted(_ENDS & set(self.differing_keys)):
                notes.append(f"runs that differ in their seeds and in {', '.join(ends)} do not count as one setting")
        notes += self._unequal_steps()
        if any(comparison.has_few_seeds() for comparison in self.test_sets.values()):
            notes.append("with fewer than three runs of a setting, only a large difference can be told from chance")
        if any(comparison.has_seeds() and comparison.paired == "ar" for comparison in self.test_sets.values()):
            notes.append("--paired ar holds for two single runs only, not for runs of several seeds")
        return notes

    def _unequal_steps(self) -> list[str]:
        """A note for each setting whose runs ended at clearly different steps, which seeds do not explain."""
        notes = []
        names = next(iter(self.test_sets.values())).names
        for members in self.same_but_for_seed:
            steps = [self.translated_steps.get(names[member]) for member in members]
            known = [step for step in steps if step is not None]
            if known and max(known) > _EQUAL_STEPS * min(known):
                ended = ", ".join(f"{step:,}" for step in known)
                notes.append(
                    f"{names[members[0]]} and its other seeds ended at steps {ended}, and differ for "
                    "that too: training.max_steps ends all at the same step, a time limit does not"
                )
        return notes

    def headlines(self) -> list[str]:
        """The verdicts in words, with the name of the test set if there are several."""
        names = {name: f"{name}: " if len(self.test_sets) > 1 else "" for name in self.test_sets}
        return [f"{names[name]}{line}" for name, result in self.test_sets.items() for line in result.headline()]


def output_lines(results: Results, form: Format) -> list[str]:
    """The results in a format, as lines."""
    if form == "json":
        return [json.dumps(_values(results))]
    lines = list(_page(results, form))
    return [line for line, before in zip(lines, ["", *lines], strict=False) if line or before]  # no two empty lines


def _values(results: Results) -> dict[str, Any]:
    comparisons = {name: comparison.as_dict() for name, comparison in results.test_sets.items()}
    values = {key: value for key, value in vars(results).items() if key not in ("runs", "test_sets")}
    return {**values, "verdict": results.headlines(), "notes": results.notes(), "test_sets": comparisons}


def _group_table(result: Comparison, style: Style) -> list[str]:
    """A row for each group: its mean and sample standard deviation, and the p-value of the test against the first."""
    has_seeds, columns = result.has_seeds(), min(len(result.groups), 2)  # of a single group there is no p
    names = (text for metric in result.metrics for text in (metric.name, "p")[:columns])
    head, rows = ["", *(["runs"] if has_seeds else []), *names], []
    for number, group in enumerate(result.groups):
        cells = [cell for metric in result.metrics for cell in mean_and_p(metric.groups[number])[:columns]]
        rows.append([group.label, *([str(len(group.members))] if has_seeds else []), *cells])
    return draw(head, rows, style)


def mean_and_p(score: GroupScore) -> tuple[str, str]:
    """The mean of a group with its sample standard deviation, and its p-value, as text; empty where there is none."""
    deviation = "" if score.deviation is None else f" ± {score.deviation:.2f}"
    return f"{score.mean:.2f}{deviation}", "" if score.p_value is None else p_text(score.p_value)


def _system_table(result: Comparison, style: Style) -> list[str]:
    """A row for each system: its scores and their 95% confidence intervals over sentences, if there are any."""
    columns = 2 if all(score.interval for metric in result.metrics for score in metric.systems) else 1
    head = ["", *(text for metric in result.metrics for text in (metric.name, "95%")[:columns])]
    rows = []
    for number, name in enumerate(result.names):
        measured = [metric.systems[number] for metric in result.metrics]
        cells = [(f"{score.score:.2f}", score.interval_text)[:columns] for score in measured]
        rows.append([name, *(cell for pair in cells for cell in pair)])
    return draw(head, rows, style)


def _page(results: Results, form: Style) -> Iterator[str]:
    """Verdicts, notes and tables: as text with details, as paragraphs of Markdown, or as comments of LaTeX."""

    def words(text: str) -> list[str]:
        return {"text": [text], "markdown": [text, ""], "latex": [f"% {text}"]}[form]

    for text in (*results.headlines(), *(f"note: {note}" for note in results.notes())):
        yield from words(text)
    if form == "text" and results.differing_keys:
        yield from ["", "what differs:"]
        for key, values in results.differing_keys.items():
            of_runs = (f"{setting_text(v)} ({n})" for v, n in zip(values, results.runs, strict=True))
            yield f"  {key}: {', '.join(of_runs)}"
    for name, result in results.test_sets.items():
        yield ""
        yield from words(f"{name}, {result.num_lines:,} sentences")
        yield from words(test) if (test := result.test()) else ()
        yield from words("mean ± sample standard deviation over the seeds:") if result.has_seeds() else ()
        yield from [*_group_table(result, form), "", *_system_table(result, form), ""]
        for metric in result.metrics:
            yield from words(f"{metric.name}: {metric.signature}")
        yield from _details(result) if form == "text" else ()


def _details(result: Comparison) -> Iterator[str]:
    """All verdicts, BLEU by sentence length, and sentences on which two systems differ."""
    yield from ["", *result.verdicts(), "", f"BLEU by {result.length_unit} of the reference:"]
    buckets = [[b.length, f"{b.count:,}", *(f"{score:.2f}" for score in b.bleu)] for b in result.lengths]
    yield from (f"  {line}" for line in draw(["", "sentences", *result.names], buckets, "text"))
    if result.sentences:
        yield from ["", f"where {result.names[result.other]} differs most from {result.names[0]}:"]
    for row in result.sentences:
        yield f"  line {row.line}: {row.reference}"
        yield from (f"    chrF {s:5.1f}  {h}" for s, h in zip(row.chrf, row.hypotheses, strict=True))
