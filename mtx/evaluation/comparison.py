"""Comparison of systems: the settings in which runs differ, the better system, and the output of `mtx compare`.

Flow: paths of systems -> `groups_of`, which groups runs that differ only in the seed; hypotheses + references ->
`compare` -> `Comparison` of one test set; all comparisons -> `Results` -> `output_lines`. The first system is the
baseline. This module translates nothing; `test_set_scores.system_outputs` provides the hypotheses.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from mtx.config.schema import Scope, key_names, leaves
from mtx.data.languages import counts_words, tokenizer_of
from mtx.data.sources import recorded_text
from mtx.decoding.metrics import METRICS, bleu, too_short_for_bleu
from mtx.errors import DataError
from mtx.evaluation.significance import (
    SIGNIFICANCE_LEVEL,
    GroupScore,
    MetricComparison,
    System,
    significance_tests,
)
from mtx.formatting import counted
from mtx.storage.run_files import RunLayout, is_run, load_config

_CHARACTER = re.compile(r"[A-Za-z0-9]+|\S")  # a number or a Latin name is one unit
LOCATION_KEYS = {*key_names(Scope.LOCAL)}  # these keys do not affect training
TEXT = "text"  # the key for the files that runs were prepared from
_PLACES = {*key_names(Scope.PLACE)}  # where these files are
_LABEL_KEYS = 3  # settings in the label of a group


@dataclass(frozen=True)
class Group:
    """Systems that are compared as one: runs of the same settings with different seeds, or a single system.

    Attributes:
        label: the settings in which the group differs from the others, or the name of its first system.
        members: indices of systems.
    """

    label: str
    members: list[int]


def differing_settings(systems: Sequence[Path]) -> dict[str, list[object]]:
    """The keys in which the runs among `systems` differ, without `LOCATION_KEYS`, each with its value in every run.

    The key `text` has the name and the first digits of the sha256 of each file that a run was prepared from.
    """
    runs = [_load(path) for path in systems if is_run(path)]
    rows = {key: [run.get(key) for run in runs] for key in sorted({key for run in runs for key in run})}
    return {key: row for key, row in rows.items() if any(value != row[0] for value in row)}


def groups_of(systems: Sequence[Path], names: Sequence[str]) -> list[Group]:
    """All systems in the groups in which they are compared, in the order of their first members.

    Runs that differ in the seed and in nothing else are one group.

    Args:
        names: labels of systems without differing settings.
    """
    members = defaultdict[tuple[str, int], list[int]](list)
    seen = Counter[str]()
    for index, path in enumerate(systems):
        values = _load(path) if is_run(path) else {"index": index}
        seen[str(values)] += 1  # a run with the same seed again is in another group
        members[str({**values, "seed": None}), seen[str(values)]].append(index)
    labels = {}
    for first, *more in members.values():
        labels[first] = names[first] + (f" and {counted(len(more), 'more seed')}" if more else "")
    if len(labels) < len(systems):
        runs = [first for first in labels if is_run(systems[first])]
        differing = differing_settings([systems[first] for first in runs])
        keys = sorted(differing.keys() - {"seed", TEXT})
        by_settings = [
            ", ".join(f"{key}={setting_text(differing[key][number])}" for key in keys) for number in range(len(runs))
        ]
        has_other_text = TEXT in differing and not differing.keys() & _PLACES  # which distinguish the texts
        if not has_other_text and len(keys) <= _LABEL_KEYS and len({*by_settings}) == len(runs):
            labels |= zip(runs, by_settings, strict=True)
    return [Group(labels[group[0]], group) for group in members.values()]


def setting_text(value: object) -> str:
    """A value as it is written in a setting."""
    if isinstance(value, tuple | list):
        return ",".join(map(setting_text, value))
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _load(run: Path) -> dict[str, Any]:
    """The compared values of a run: its settings by dotted key, and its recorded files under `TEXT`."""
    paths = RunLayout(run)
    values = {key: value for key, value in leaves(load_config(paths).model_dump()) if key not in LOCATION_KEYS}
    return {**values, TEXT: [f"{name} {sha256[:8]}" for name, sha256 in recorded_text(paths.sources)]}


_NUM_BINS = 5  # of reference lengths; the last bin has no end
_BIN_WORDS, _BIN_CHARACTERS = 10, 20
_FEW_SEEDS = 3
_LEAST_P = 0.0001


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
        kind, test = "system", "sacreBLEU's paired bootstrap, which accounts for the choice of sentences only"
        if self.has_seeds():
            kind = "group"
            seeds = "a test that accounts for random seeds and the choice of sentences (Obuchowski and Rockette 1995)"
            test = f"{seeds}, or for two single systems by {test}"
        return f"p is for the difference to the first {kind}, {self.groups[0].label}, by {test}"

    def headline(self) -> list[str]:
        """The verdicts by the deciding metric: a sentence for each group except the first."""
        return self.verdicts(self.decided_by)

    def verdicts(self, *names: str) -> list[str]:
        """A sentence for each group except the first, by each metric or by each of these names.

        Runs of one group are never compared with each other.
        """
        metrics = [metric for metric in self.metrics if not names or metric.name in names]
        if len(self.groups) > 1:
            return [self._verdict(metric, index) for index in range(1, len(self.groups)) for metric in metrics]
        if len(self.names) == 1:
            return []
        means = (f"{metric.name} {mean_and_p(metric.groups[0])[0]}" for metric in metrics)
        return [f"the {len(self.names)} runs differ only in their seeds: {', '.join(means)}"]

    def _verdict(self, metric: MetricComparison, index: int) -> str:
        (baseline, group), score = (self.groups[0], self.groups[index]), metric.groups[index]
        gain = metric.gain(index)
        assert score.p_value is not None
        if gain == 0:
            return f"{group.label} and {baseline.label} are equal in {metric.name}"
        difference = f"{'better' if gain > 0 else 'worse'} than {baseline.label} by {abs(gain):.2f} {metric.name}"
        significance = (
            "which may be due to chance"
            if score.p_value >= SIGNIFICANCE_LEVEL
            else "a statistically significant difference"
        )
        test = "paired bootstrap"
        numbers = len(group.members), len(baseline.members)
        if max(numbers) > 1:
            if min(numbers) == 1 and score.p_value < SIGNIFICANCE_LEVEL:  # the test uses the spread of the other group
                one, several = (group, baseline) if numbers[0] == 1 else (baseline, group)
                significance += f" if other seeds of {one.label} would vary as those of {several.label}"
            test = f"{numbers[0]} run{'s' * (numbers[0] > 1)} against {numbers[1]}, over seeds and sentences"
        return f"{group.label} is {difference}, {significance} (p {p_text(score.p_value)}, {test})"


def p_text(p_value: float) -> str:
    """A p-value with four digits after the point, after a sign of relation."""
    return f"= {p_value:.4f}" if p_value >= _LEAST_P else f"< {_LEAST_P}"


def compare(
    systems: Sequence[System],
    references: list[str],
    metrics: Collection[str] = METRICS,
    tgt: str = "",
    groups: Sequence[Group] = (),
) -> Comparison:
    """Compare systems, or groups of them, with the first, the baseline.

    Args:
        metrics: some of bleu, chrf and ter.
        tgt: target language, which determines BLEU's tokenizer and the unit of lengths.
        groups: from `groups_of`; by default each system is a group.

    Raises:
        DataError: if a system has more or fewer lines than there are references, or there are none.
    """
    for system in systems:
        if len(system.hypotheses) != len(references):
            raise DataError(f"{system.name} has {len(system.hypotheses)} lines, the references have {len(references)}")
    if not references:
        raise DataError("nothing to compare: no lines")
    tokenizer = tokenizer_of(tgt, references)
    groups = list(groups) or [Group(system.name, [index]) for index, system in enumerate(systems)]
    measured = significance_tests(systems, references, metrics, tgt, [group.members for group in groups])
    names = [metric.name for metric in measured]
    main = "chrF2" if "chrF2" in names and too_short_for_bleu(references, tgt) else next(iter(names), "")
    return Comparison(
        names=[system.name for system in systems],
        num_lines=len(references),
        groups=groups,
        metrics=measured,
        decided_by=main,
        length_unit="words" if counts_words(tokenizer) else "characters",
        lengths=_by_length(systems, references, tokenizer),
    )


def words(text: str, tokenizer: str) -> list[str]:
    """The words of a text, or its characters if BLEU's tokenizer splits them (see `tokenizer_of`)."""
    return text.split() if counts_words(tokenizer) else _CHARACTER.findall(text)


def _by_length(systems: Sequence[System], references: list[str], tokenizer: str) -> list[LengthBin]:
    size = _BIN_WORDS if counts_words(tokenizer) else _BIN_CHARACTERS
    bins = defaultdict[int, list[int]](list)
    for row, reference in enumerate(references):
        bins[min(max(len(words(reference, tokenizer)) - 1, 0) // size, _NUM_BINS - 1)].append(row)
    lengths = []
    for number, rows in sorted(bins.items()):
        part = [references[i] for i in rows]
        scores = [bleu([s.hypotheses[i] for i in rows], part, tokenizer=tokenizer) for s in systems]
        longest = (number + 1) * size if number < _NUM_BINS - 1 else None
        lengths.append(LengthBin(number * size + 1, longest, len(rows), scores))
    return lengths


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
        smallest = min(len(group.members) for group in comparison.groups)
        notes = [f"{run} {state}; its translations are of an earlier step" for run, state in self.unfinished.items()]
        if not comparison.has_seeds() and len(self.runs) > 1 and self.differing_keys.keys() - {"seed"}:
            seeds = "train each with seed=1, seed=2 and seed=3, and compare all"
            notes.append(f"each setting has only one run, and another seed may change its score: {seeds}")
        if comparison.has_seeds() and len(comparison.groups) > 1 and smallest < _FEW_SEEDS:
            notes.append("with fewer than three runs per setting, only large differences are significant")
        return notes

    def headlines(self) -> list[str]:
        """The verdicts in words, with the name of the test set if there are several."""
        lines = [(name, line) for name, result in self.test_sets.items() for line in result.headline()]
        return [f"{name}: {line}" if len(self.test_sets) > 1 else line for name, line in lines]


def output_lines(results: Results, form: Format) -> list[str]:
    """The results in a format, as lines: text with details, paragraphs of Markdown, or comments of LaTeX."""
    if form == "json":
        values = asdict(results) | {"verdict": results.headlines(), "notes": results.notes()}
        for name, comparison in results.test_sets.items():
            sentences = {"headline": comparison.headline(), "verdicts": comparison.verdicts()}
            values["test_sets"][name] |= {"test": comparison.test(), **sentences}
        return [json.dumps(values)]
    lines = []
    for part in _parts(results, has_details=form == "text"):
        if isinstance(part, str):
            lines += {"text": [part], "markdown": [part, ""], "latex": [f"% {part}" if part else ""]}[form]
        else:
            lines += [*draw_table(part[0], part[1:], form), ""]
    return [line for line, before in zip(lines, ["", *lines], strict=False) if line or before]  # no two empty lines


def _parts(results: Results, has_details: bool) -> Iterator[str | list[list[str]]]:
    """The parts of a comparison: lines of text, and tables with their heads."""
    yield from results.headlines()
    yield from (f"note: {note}" for note in results.notes())
    if has_details and results.differing_keys:
        yield from ["", "differences:"]
        for key, values in results.differing_keys.items():
            of_runs = (f"{setting_text(v)} ({n})" for v, n in zip(values, results.runs, strict=True))
            yield f"  {key}: {', '.join(of_runs)}"
    for name, result in results.test_sets.items():
        yield from ["", f"{name}, {result.num_lines:,} sentences"]
        yield from [test] if (test := result.test()) else []
        yield from ["mean ± sample standard deviation over the seeds:"] if result.has_seeds() else []
        yield score_table(result)
        yield from (f"{metric.name}: {metric.signature}" for metric in result.metrics)
        if has_details:
            yield from ["", *result.verdicts(), "", f"BLEU by {result.length_unit} of the reference:"]
            yield length_table(result)


def length_table(result: Comparison) -> list[list[str]]:
    """BLEU of all systems by the length of the reference, with a head."""
    rows = [[part.length, f"{part.count:,}", *(f"{score:.2f}" for score in part.bleu)] for part in result.lengths]
    return [["", "sentences", *result.names], *rows]


def score_table(result: Comparison) -> list[list[str]]:
    """A head, a row for each group with p-values, and a row for each run of several seeds; without empty columns."""
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
    return f"{score.mean:.2f}{deviation}", "" if score.p_value is None else p_text(score.p_value).removeprefix("= ")


Style = Literal["text", "markdown", "latex"]
_NAMES = "backslash asciitilde asciicircum less greater bar quotedbl"  # of LaTeX, after \text
_ESCAPES: dict[Style, dict[int, str]] = {
    "text": {},
    "markdown": str.maketrans({"\\": "\\\\", "|": "\\|"}),
    "latex": str.maketrans(
        {character: f"\\{character}" for character in "&%$#_{}"}
        | {character: rf"\text{name}{{}}" for character, name in zip('\\~^<>|"', _NAMES.split(), strict=True)}
        | {"±": r"$\pm$"}
    ),
}


def draw_table(head: Sequence[str], rows: Sequence[Sequence[str]], style: Style) -> list[str]:
    """The lines of a table; the first column, with names, is aligned left, all others right.

    Each of `rows` has as many cells as `head`. The LaTeX needs no package; special characters are escaped.
    """
    cells = [[cell.translate(_ESCAPES[style]) for cell in row] for row in (head, *rows)]
    if style == "markdown":
        cells.insert(1, [":--", *["--:"] * (len(head) - 1)])
    columns: list[list[str]] = []
    for column in zip(*cells, strict=True):
        width = max(map(len, column))
        columns.append([cell.rjust(width) if columns else cell.ljust(width) for cell in column])
    padded = zip(*columns, strict=True)
    match style:
        case "text":
            return ["  ".join(row).rstrip() for row in padded]
        case "markdown":
            return [f"| {' | '.join(row)} |" for row in padded]
    first, *others = [rf"{' & '.join(row)} \\" for row in padded]
    begin = rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}"
    return [begin, r"\hline", first, r"\hline", *others, r"\hline", r"\end{tabular}"]
