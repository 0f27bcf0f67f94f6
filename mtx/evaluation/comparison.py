"""Comparison of systems: the settings in which runs differ, the better system, and the output of `mtx compare`.

Flow: paths of systems -> `groups_of`, which groups runs that differ only in the seed; hypotheses + references ->
`compare` -> `Comparison` of one test set; all comparisons -> `Results` -> `output_lines`. The first system is the
baseline. This module translates nothing; `test_set_scores.system_outputs` provides the hypotheses.
"""

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from mtx.config.schema import Scope, key_names, leaves
from mtx.data.languages import counts_words, tokenizer_of
from mtx.errors import DataError
from mtx.evaluation.significance import SIGNIFICANCE_LEVEL, MetricComparison, System, p_text, significance_tests
from mtx.formatting import counted
from mtx.runs.run_directory import load_config
from mtx.scoring.metrics import DEFAULT_METRICS, METRICS, Pairs, bleu, digits_of, parts_of, too_short_for_bleu
from mtx.storage.run_files import RunLayout, is_run, recorded_text

_CHARACTER = re.compile(r"[A-Za-z0-9]+|\S")  # a number or a Latin name is one unit
LOCATION_KEYS = {*key_names(Scope.LOCAL)}  # these keys do not affect training
TEXT = "text"  # the key for the files that runs were prepared from
_LAST_BIN = 4  # of reference lengths, which has no end


@dataclass(frozen=True)
class Group:
    """Systems that are compared as one: runs of the same settings with different seeds, or a single system.

    Attributes:
        label: the few settings in which the groups of seeds differ, or the name of its first system.
        members: indices of systems.
    """

    label: str
    members: list[int]


def differing_settings(systems: Sequence[Path]) -> dict[str, list[object]]:
    """The keys in which the runs among `systems` differ, without `LOCATION_KEYS`, each with its value in every run.

    The key `text` has the name and the first digits of the sha256 of each file that a run was prepared from.
    """
    runs = [load_values(path) for path in systems if is_run(path)]
    rows = {key: [run.get(key) for run in runs] for key in sorted(set[str]().union(*runs))}
    return {key: row for key, row in rows.items() if any(value != row[0] for value in row)}


def groups_of(systems: Sequence[Path], names: Sequence[str]) -> list[Group]:
    """All systems in the groups in which they are compared, in the order of their first members.

    Runs that differ in the seed and in nothing else are one group.

    Args:
        names: labels of systems without differing settings.
    """
    values = [load_values(path) if is_run(path) else {"path": path} for path in systems]
    groups = defaultdict[tuple[str, int], list[int]](list)
    for index, run in enumerate(values):
        # A run with the same seed again is in another group.
        groups[str({**run, "seed": None}), values[:index].count(run)].append(index)
    labels = {}
    for first, *more in groups.values():
        labels[first] = names[first] + (f" and {counted(len(more), 'more seed')}" if more else "")
    runs = [first for first in labels if is_run(systems[first])]
    keys = sorted(differing_settings([systems[first] for first in runs]).keys() - {"seed", TEXT})
    settings = {run: ", ".join(f"{key}={setting_text(values[run].get(key))}" for key in keys) for run in runs}
    # a label of more than three settings would not be read
    if len(groups) < len(systems) and len(keys) <= 3 and len({*settings.values()}) == len(runs):
        labels |= settings
    return [Group(labels[members[0]], members) for members in groups.values()]


def setting_text(value: object) -> str:
    """A value as it is written in a setting."""
    if isinstance(value, tuple | list):
        return ",".join(map(setting_text, value))
    return value if isinstance(value, str) else json.dumps(value, default=str)


def load_values(run: Path) -> dict[str, Any]:
    """The compared values of a run: its settings by dotted key, and its recorded files under `TEXT`."""
    paths = RunLayout(run)
    values = {key: value for key, value in leaves(load_config(paths).model_dump()) if key not in LOCATION_KEYS}
    return {**values, TEXT: [f"{name} {sha256[:8]}" for name, sha256 in recorded_text(paths.sources)]}


@dataclass(frozen=True)
class LengthBin:
    """Sentences whose references have `shortest` to `longest` words or characters, and each system's BLEU on them."""

    shortest: int
    longest: int | None
    count: int
    bleu: list[float]

    @property
    def length(self) -> str:
        """The range of lengths in words."""
        return f"{self.shortest} to {self.longest}" if self.longest else f"{self.shortest} and more"


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`.

    Attributes:
        groups: the compared groups of systems: runs that differ only in their seeds are one group.
        decided_by: the name of the metric of the headline: BLEU, or chrF2 where BLEU is not informative.
        length_unit: words, or characters if the target language writes no spaces.
    """

    names: list[str]
    num_lines: int
    groups: list[Group]
    metrics: list[MetricComparison]
    decided_by: str
    length_unit: str
    lengths: list[LengthBin]

    def has_seeds(self) -> bool:
        """Whether a group has several runs."""
        return len(self.groups) < len(self.names)

    def test(self) -> str:
        """A sentence on the test and the baseline of the p-values; empty if nothing is tested."""
        if len(self.groups) < 2:
            return ""
        kind = "system"
        test = "sacreBLEU's paired bootstrap, which accounts for the choice of sentences only"
        if self.has_seeds():
            seeds = "a test that accounts for random seeds and the choice of sentences (Obuchowski and Rockette 1995)"
            kind = "group"
            test = f"{seeds}, or for two single systems by {test}"
        if any(metric.name not in METRICS.values() for metric in self.metrics):
            test += "; for metrics of programs, both of its ends count"
        return f"p is for the difference to the first {kind}, {self.groups[0].label}, by {test}"

    def headline(self) -> list[str]:
        """The verdicts by the deciding metric: a sentence for each group except the first."""
        return self.verdicts(self.decided_by)

    def verdicts(self, name: str = "") -> list[str]:
        """A sentence for each group except the first, by each metric or the one of this name.

        Runs of one group are never compared with each other.
        """
        metrics = [metric for metric in self.metrics if name in ("", metric.name)]
        if len(self.groups) > 1:
            return [self._verdict(metric, index) for index in range(1, len(self.groups)) for metric in metrics]
        means = ", ".join(f"{metric.name} {metric.groups[0].cells(metric.digits)[0]}" for metric in metrics)
        return [f"the {len(self.names)} runs differ only in their seeds: {means}"] if self.has_seeds() else []

    def _verdict(self, metric: MetricComparison, index: int) -> str:
        baseline = self.groups[0]
        group = self.groups[index]
        gain = metric.gain(index)
        p_value = metric.groups[index].p_value
        num_runs = len(group.members)
        num_baseline = len(baseline.members)
        assert p_value is not None
        if gain == 0:
            return f"{group.label} and {baseline.label} are equal in {metric.name}"
        significance = "which may be due to chance"
        test = "paired bootstrap"
        if p_value < SIGNIFICANCE_LEVEL:
            significance = "a statistically significant difference"
            if num_runs != num_baseline and 1 in (num_runs, num_baseline):  # the test uses the other group's spread
                smaller, larger = sorted((group, baseline), key=lambda runs: len(runs.members))
                significance += f" if other seeds of {smaller.label} would vary as those of {larger.label}"
        if max(num_runs, num_baseline) > 1:
            test = f"{counted(num_runs, 'run')} against {num_baseline}, over seeds and sentences"
        return (
            f"{group.label} is {'better' if gain > 0 else 'worse'} than {baseline.label} by "
            f"{abs(gain):.{metric.digits}f} {metric.name}, {significance} (p {p_text(p_value)}, {test})"
        )

    def scores(self) -> list[list[str]]:
        """A head, a row for each group with p-values, and a row for each run of several seeds; no empty columns."""
        rows = [["", "runs", *(head for metric in self.metrics for head in (metric.name, "95%", "p"))]]
        for number, group in enumerate(self.groups):
            first, *more = group.members
            rows.append([group.label, str(1 + len(more)) if self.has_seeds() else ""])
            for metric in self.metrics:
                mean, p_value = metric.groups[number].cells(metric.digits)
                rows[-1] += [mean, "" if more else metric.systems[first].cells(metric.digits)[1], p_value]
            for member in group.members if more else ():
                rows.append([f"  {self.names[member]}", ""])
                for metric in self.metrics:
                    rows[-1] += [*metric.systems[member].cells(metric.digits), ""]
        columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
        return [[*row] for row in zip(*columns, strict=True)]

    def bleu_by_length(self) -> list[list[str]]:
        """BLEU of all systems by the length of the reference, with a head."""
        rows = [[part.length, f"{part.count:,}", *(f"{score:.2f}" for score in part.bleu)] for part in self.lengths]
        return [["", "sentences", *self.names], *rows]


def compare(
    systems: Sequence[System],
    references: list[str],
    metrics: Collection[str] = DEFAULT_METRICS,
    tgt: str = "",
    groups: Sequence[Group] = (),
) -> Comparison:
    """Compare systems, or groups of them, with the first, the baseline.

    Args:
        metrics: some of `METRICS`; the systems may have further ones, see `System.measured`.
        tgt: target language, which determines BLEU's tokenizer and the unit of lengths.
        groups: from `groups_of`; by default each system is a group.

    Raises:
        DataError: if a system has more or fewer lines than there are references, or there are none.
    """
    check_lengths(systems, references)
    tokenizer = tokenizer_of(tgt, references)
    names = [system.name for system in systems]
    groups = groups or [Group(name, [index]) for index, name in enumerate(names)]
    tested_metrics = significance_tests(systems, references, metrics, tgt, [group.members for group in groups])
    decided_by = tested_metrics[0].name if tested_metrics else ""
    if any(metric.name == "chrF2" for metric in tested_metrics) and too_short_for_bleu(references, tgt):
        decided_by = "chrF2"
    unit = "characters"
    size = 20
    if counts_words(tokenizer):
        unit = "words"
        size = 10
    bins = [min(max(len(words(line, tokenizer)) - 1, 0) // size, _LAST_BIN) for line in references]
    lengths = []
    for number in sorted({*bins}):
        rows = [row for row, bin_number in enumerate(bins) if bin_number == number]
        part = [references[row] for row in rows]
        scores = [bleu([system.hypotheses[row] for row in rows], part, tokenizer=tokenizer) for system in systems]
        longest = (number + 1) * size if number < _LAST_BIN else None
        lengths.append(LengthBin(number * size + 1, longest, len(rows), scores))
    return Comparison(names, len(references), [*groups], tested_metrics, decided_by, unit, lengths)


def check_lengths(systems: Sequence[System], references: Sequence[str]) -> None:
    """Raise a DataError if a system has more or fewer lines than there are references, or there are none."""
    for system in systems:
        if len(system.hypotheses) != len(references):
            raise DataError(f"{system.name} has {len(system.hypotheses)} lines, the references have {len(references)}")
    if not references:
        raise DataError("nothing to score: no lines")


def mean_tables(comparisons: Mapping[str, Comparison], pairs: Pairs) -> dict[str, list[list[str]]]:
    """For each test set with several directions, the mean scores of the groups as a table with a head."""
    tables = {}
    for name, parts in parts_of(comparisons, pairs).items():
        by_name = [{metric.name: metric for metric in comparisons[part].metrics} for part in parts]
        shared = [metric for metric in by_name[0] if all(metric in metrics for metrics in by_name)]  # perhaps not TER
        rows = [["", *shared]]
        for number, group in enumerate(comparisons[parts[0]].groups):
            rows.append([group.label])
            for metric in shared:
                mean = fmean(metrics[metric].groups[number].mean for metrics in by_name)
                rows[-1].append(f"{mean:.{digits_of(metric)}f}")
        if len(parts) > 1:
            tables[f"{name}, mean of {len(parts)} directions"] = rows
    return tables


def words(text: str, tokenizer: str) -> list[str]:
    """The words of a text, or its characters if BLEU's tokenizer splits them (see `tokenizer_of`)."""
    return text.split() if counts_words(tokenizer) else _CHARACTER.findall(text)


Format = Literal["text", "markdown", "latex", "json"]


@dataclass(frozen=True)
class Results:
    """The comparisons of the same systems on one or more test sets.

    Attributes:
        runs: the names of the runs among the systems.
        differing_keys: the settings in which these differ, each with its value in every run.
        unfinished: the states of unfinished runs, by name.
        test_sets: the comparison on each test set.
    """

    runs: list[str]
    differing_keys: dict[str, list[object]]
    unfinished: dict[str, str]
    test_sets: dict[str, Comparison]

    def notes(self) -> list[str]:
        """What readers of the verdict should know."""
        [comparison, *_] = self.test_sets.values()  # the groups of all test sets are the same
        notes = [f"{run} {state}; its translations are of an earlier step" for run, state in self.unfinished.items()]
        if comparison.has_seeds():
            if len(comparison.groups) > 1 and min(len(group.members) for group in comparison.groups) < 3:
                notes.append("with fewer than three runs per setting, only large differences are significant")
        elif len(self.runs) > 1 and self.differing_keys.keys() - {"seed"}:
            notes.append(
                "each setting has only one run, and another seed may change its score: train each with seed=1, seed=2 "
                "and seed=3, and compare all"
            )
        return notes

    def headlines(self) -> list[str]:
        """The verdicts in words, with the name of the test set if there are several."""
        prefix = "{}: " if len(self.test_sets) > 1 else ""
        return [prefix.format(name) + line for name, result in self.test_sets.items() for line in result.headline()]


def output_lines(results: Results, form: Format, pairs: Pairs = ()) -> list[str]:
    """The results in a format, as lines: text with details, paragraphs of Markdown, or comments of LaTeX.

    Args:
        pairs: source and target of each test set.
    """
    if form == "json":
        values = asdict(results) | {"verdict": results.headlines(), "notes": results.notes()}
        for name, comparison in results.test_sets.items():
            sentences = {"headline": comparison.headline(), "verdicts": comparison.verdicts()}
            values["test_sets"][name] |= {"test": comparison.test(), **sentences}
        return [json.dumps(values)]
    lines = [""]
    for part in _parts(results, pairs, has_details=form == "text"):
        if isinstance(part, str):
            lines.append(f"% {part}" if part and form == "latex" else part)
            if form == "markdown":
                lines.append("")
        else:
            lines += [*draw_table(part, form), ""]
    # no two empty lines
    return [line for line_before, line in zip(lines, lines[1:], strict=False) if line or line_before]


def _parts(results: Results, pairs: Pairs, has_details: bool) -> Iterator[str | list[list[str]]]:
    """The parts of a comparison: lines of text, and tables with their heads."""
    yield from results.headlines()
    yield from (f"note: {note}" for note in results.notes())
    if has_details and results.differing_keys:
        yield from ["", "differences:"]
        for key, values in results.differing_keys.items():
            settings = (f"{setting_text(value)} ({run})" for value, run in zip(values, results.runs, strict=True))
            yield f"  {key}: {', '.join(settings)}"
    for name, result in results.test_sets.items():
        yield from ["", f"{name}, {result.num_lines:,} sentences", *filter(None, [result.test()])]
        if result.has_seeds():
            yield "mean ± sample standard deviation over the seeds:"
        yield result.scores()
        yield from (f"{metric.name}: {metric.signature}" for metric in result.metrics)
        if has_details:
            yield from ["", *result.verdicts(), "", f"BLEU by {result.length_unit} of the reference:"]
            yield result.bleu_by_length()
    for name, table in mean_tables(results.test_sets, pairs).items():
        yield from ["", name]
        yield table


_FORMATS = {"text": "plain", "markdown": "pipe", "latex": "latex"}  # of tabulate


def draw_table(rows: Sequence[Sequence[str]], style: Format) -> list[str]:
    """The lines of a table; the first column, with names, is aligned left, all others right.

    The first of `rows` is the head; all have as many cells. The LaTeX needs no package; special characters are escaped.
    """
    from tabulate import tabulate

    rows = [[cell.replace("\n", r"\n") for cell in row] for row in rows]  # a name may have line breaks
    if style == "markdown":
        rows = [[cell.replace("|", r"\|") for cell in row] for row in rows]
    table: str = tabulate(
        rows,
        () if style == "text" else "firstrow",  # a head has wider columns than a row
        _FORMATS[style],
        colalign=["left", *["right"] * (len(rows[0]) - 1)],
        disable_numparse=True,
        preserve_whitespace=True,
    )
    return (table.replace("±", r"$\pm$") if style == "latex" else table).split("\n")
