"""`mtx compare`: which run, model or file of hypotheses is better, and may that be chance?"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtx.commands.options import AsJson, Device, Published, find_protocol
from mtx.commands.translate import load_translator
from mtx.errors import UsageError
from mtx.files.streams import print_json, print_lines
from mtx.run.contents import is_run

if TYPE_CHECKING:
    from mtx.evaluation.comparison import Comparison
    from mtx.evaluation.test_sets import TestSet

_WORSE = 3  # exit code of --fail-if-worse


class Metric(StrEnum):
    """The metrics to compare by."""

    bleu = "bleu"
    chrf = "chrf"
    ter = "ter"


class Test(StrEnum):
    """sacreBLEU's paired tests."""

    bs = "bs"
    ar = "ar"


def compare(
    systems: Annotated[
        list[Path], typer.Argument(help="Runs, model directories, files of hypotheses; the first is the baseline.")
    ],
    ref: Annotated[Path | None, typer.Option(help="Reference translations, if no run has the text.")] = None,
    src: Annotated[Path | None, typer.Option(help="Source text for models to translate.")] = None,
    direction: Annotated[str | None, typer.Option(help="Languages of the files, such as en-de.")] = None,
    test: Annotated[str | None, typer.Option(help="One test set of the runs; all that they share by default.")] = None,
    metrics: Annotated[list[Metric] | None, typer.Option("-m", "--metrics", help="All three by default.")] = None,
    protocol: Published = None,
    paired: Annotated[Test, typer.Option(help="Paired bootstrap resampling, or approximate randomisation.")] = Test.bs,
    fail_if_worse: Annotated[
        bool, typer.Option("--fail-if-worse", help="Exit with 3 if another is significantly worse than the first.")
    ] = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Compare runs, models or files of hypotheses by BLEU, chrF and TER with sacreBLEU's significance tests."""
    texts = _texts(systems, src, ref, direction, test)
    from mtx.evaluation import comparison
    from mtx.evaluation.differing_settings import differing_settings, groups_by_seed
    from mtx.evaluation.evaluate import system_outputs, warn_if_too_short
    from mtx.evaluation.significance import METRICS

    models = [path for path in systems if path not in texts[0].hypotheses]
    translators = {path: load_translator(str(path), device=device) for path in models}
    tgt = texts[0].tgt or next((translator.tgt for translator in translators.values()), "")
    published = find_protocol(protocol, tgt)
    comparisons = {}
    for text in texts:
        outputs, references = system_outputs(text, systems, translators)
        warn_if_too_short(text.name, references, tgt)
        comparisons[text.name] = comparison.compare(
            outputs, references, paired.value, metrics or METRICS, tgt, published
        )
    keys, groups = differing_settings(systems), groups_by_seed(systems)
    if as_json:
        values: dict[str, Any] = {"differing_keys": keys, "same_but_for_seed": groups}
        print_json({**values, "test_sets": {name: c.as_dict() for name, c in comparisons.items()}})
    else:
        _print_keys(keys, [str(path) for path in systems if is_run(path)])
        for name, result in comparisons.items():
            _print(name, result, groups)
    is_worse = [m.is_worse(n) for c in comparisons.values() for m in c.metrics for n in range(1, len(systems))]
    if fail_if_worse and any(is_worse):
        raise typer.Exit(_WORSE)


def _texts(
    systems: list[Path], src: Path | None, ref: Path | None, direction: str | None, test: str | None
) -> "list[TestSet]":
    if len(systems) < 2:
        raise UsageError("expected two or more systems", "mtx compare RUN RUN, or mtx compare HYP HYP --ref FILE")
    if ref is not None and test is not None:
        raise UsageError("--test names a test set of runs, --ref belongs to files")
    if src is not None and ref is None:
        raise UsageError("--src and --ref belong together", "mtx compare MODEL MODEL --src FILE --ref FILE")
    if direction is not None and (ref is None or src is not None):
        raise UsageError("--direction is that of files; runs and models have their own")
    from mtx.evaluation import test_sets

    if ref is None:
        return test_sets.test_sets_of_runs(systems, test)
    return [test_sets.test_set_of_files(systems, src, ref, test_sets.target_language(direction))]


def _print_keys(keys: dict[str, list[object]], names: list[str]) -> None:
    if not keys:
        return
    print_lines(["what differs:"])
    for key, values in keys.items():
        listed = ", ".join(f"{v} ({n})" for v, n in zip(values, names, strict=True))
        print_lines([f"  {key}: {listed}"])


def _print(name: str, result: "Comparison", groups: list[list[int]]) -> None:
    from mtx.evaluation.comparison import mean_and_deviation

    width = max(map(len, result.names))
    lines = [f"{name}, {result.num_lines:,} sentences"]
    for metric in result.metrics:
        lines += ["", f"{metric.name}  {metric.signature}"]
        for system, measured in zip(result.names, metric.systems, strict=True):
            about = "" if measured.ci is None else f"  95%: {measured.mean:.2f} ± {measured.ci:.2f}"
            chance = "" if measured.p_value is None else f"  p = {measured.p_value:.4f}"
            lines.append(f"  {system:{width}}  {measured.score:6.2f}{about}{chance}")
        for group in groups:
            if len(group) > 1:
                mean, deviation = mean_and_deviation([metric.systems[number].score for number in group])
                lines.append(f"  {len(group)} runs that differ in their seeds: {mean:.2f} ± {deviation:.2f}")
    lines += ["", *result.verdicts(), "", f"BLEU by {result.length_unit} of the reference:"]
    for bucket in result.lengths:
        scores = "  ".join(f"{score:6.2f}" for score in bucket.bleu)
        lines.append(f"  {bucket.length:12} {bucket.count:6,} sentences  {scores}")
    if result.sentences:
        lines += ["", f"where {result.names[1]} differs most from {result.names[0]}:"]
    for row in result.sentences:
        lines.append(f"  line {row.line}: {row.reference}")
        lines += [f"    chrF {s:5.1f}  {h}" for s, h in zip(row.chrf, row.hypotheses, strict=True)]
    print_lines(lines)
