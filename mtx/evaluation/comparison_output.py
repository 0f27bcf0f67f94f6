"""What `mtx compare` prints of its comparisons: text to read, tables for a page or a paper, or values for programs.

Flow: `Results` -> `output_lines` in one of `FORMATS`. `comparison` computes, `mtx.formatting` draws.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from mtx.evaluation.comparison import Comparison, p_text
from mtx.evaluation.differing_settings import setting_text
from mtx.evaluation.significance import GroupScore
from mtx.formatting import draw_table

Format = Literal["text", "markdown", "latex", "json"]
FORMATS: tuple[Format, ...] = get_args(Format)


@dataclass(frozen=True)
class Results:
    """The comparisons of the same systems on one or more test sets.

    Attributes:
        runs: the names of the runs among the systems.
        differing_keys: the settings in which these differ, each with its value in every run.
        unfinished: what is not done yet of a run, by its name.
        test_sets: the comparison on each test set.
    """

    runs: list[str]
    differing_keys: dict[str, list[object]]
    unfinished: dict[str, str]
    test_sets: dict[str, Comparison]

    def notes(self) -> list[str]:
        """What a reader of the verdict has to know."""
        comparisons = self.test_sets.values()
        notes = [f"{run} {state}; its translations are of an earlier step" for run, state in self.unfinished.items()]
        has_one_seed = len(self.runs) > 1 and set(self.differing_keys) - {"seed"}
        if has_one_seed and not any(comparison.has_seeds() for comparison in comparisons):
            seeds = "train each with seed=1, seed=2 and seed=3, and compare all"
            notes.append(f"each setting has one run, and with another seed it may score otherwise: {seeds}")
        if any(comparison.has_few_seeds() for comparison in comparisons):
            notes.append("with fewer than three runs of a setting, only a large difference can be told from chance")
        return notes

    def headlines(self) -> list[str]:
        """The verdicts in words, with the name of the test set if there are several."""
        names = {name: f"{name}: " if len(self.test_sets) > 1 else "" for name in self.test_sets}
        return [f"{names[name]}{line}" for name, result in self.test_sets.items() for line in result.headline()]


def output_lines(results: Results, form: Format) -> list[str]:
    """The results in a format, as lines: text with details, paragraphs of Markdown, or comments of LaTeX."""
    if form == "json":
        return [json.dumps(_values(results))]
    lines = []
    for part in _parts(results, has_details=form == "text"):
        if isinstance(part, str):
            lines += {"text": [part], "markdown": [part, ""], "latex": [f"% {part}" if part else ""]}[form]
        else:
            lines += [*draw_table(part[0], part[1:], form), ""]
    return [line for line, before in zip(lines, ["", *lines], strict=False) if line or before]  # no two empty lines


def _values(results: Results) -> dict[str, Any]:
    comparisons = {name: comparison.as_dict() for name, comparison in results.test_sets.items()}
    values = {key: value for key, value in vars(results).items() if key not in ("runs", "test_sets")}
    return {**values, "verdict": results.headlines(), "notes": results.notes(), "test_sets": comparisons}


def _parts(results: Results, has_details: bool) -> Iterator[str | list[list[str]]]:
    """The lines of words and the tables, each with its head, that a comparison consists of."""
    yield from results.headlines()
    yield from (f"note: {note}" for note in results.notes())
    if has_details and results.differing_keys:
        yield from ["", "what differs:"]
        for key, values in results.differing_keys.items():
            of_runs = (f"{setting_text(v)} ({n})" for v, n in zip(values, results.runs, strict=True))
            yield f"  {key}: {', '.join(of_runs)}"
    for name, result in results.test_sets.items():
        yield from ["", f"{name}, {result.num_lines:,} sentences"]
        yield from [test] if (test := result.test()) else []
        yield from ["mean ± sample standard deviation over the seeds:"] if result.has_seeds() else []
        yield _table(result)
        yield from (f"{metric.name}: {metric.signature}" for metric in result.metrics)
        if has_details:
            yield from ["", *result.verdicts(), "", f"BLEU by {result.length_unit} of the reference:"]
            head = ["", "sentences", *result.names]
            yield [head, *([b.length, f"{b.count:,}", *(f"{score:.2f}" for score in b.bleu)] for b in result.lengths)]
            if result.sentences:
                yield f"where {result.names[result.other]} differs most from {result.names[0]}:"
            for row in result.sentences:
                yield f"  line {row.line}: {row.reference}"
                yield from (f"    chrF {s:5.1f}  {h}" for s, h in zip(row.chrf, row.hypotheses, strict=True))


def _table(result: Comparison) -> list[list[str]]:
    """A row for each group, with its p-values, and one for each run of several seeds; without empty columns."""
    rows = [["", "runs", *(text for metric in result.metrics for text in (metric.name, "95%", "p"))]]
    for number, group in enumerate(result.groups):
        is_single = len(group.members) == 1
        row = [group.label, str(len(group.members)) if result.has_seeds() else ""]
        for metric in result.metrics:
            mean, p_value = mean_and_p(metric.groups[number])
            row += [mean, metric.systems[group.members[0]].interval_text if is_single else "", p_value]
        rows.append(row)
        for member in [] if is_single else group.members:
            scores = [metric.systems[member] for metric in result.metrics]
            cells = (cell for score in scores for cell in (f"{score.score:.2f}", score.interval_text, ""))
            rows.append([f"  {result.names[member]}", "", *cells])
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    return [list(row) for row in zip(*columns, strict=True)]


def mean_and_p(score: GroupScore) -> tuple[str, str]:
    """The mean of a group with its sample standard deviation, and its p-value, as text; empty where there is none."""
    deviation = "" if score.deviation is None else f" ± {score.deviation:.2f}"
    return f"{score.mean:.2f}{deviation}", "" if score.p_value is None else p_text(score.p_value)
