"""`mtx compare`: which run, model or file of hypotheses is better, and may that be chance?"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mtx.commands.options import Device, Output, ProtocolName, Published, find_protocol, open_output
from mtx.commands.translator_options import WHOLE_LINES, load_translator
from mtx.decoding.options import Placement
from mtx.errors import UsageError
from mtx.storage.run_contents import is_run
from mtx.storage.streams import print_lines
from mtx.storage.text_files import printable

if TYPE_CHECKING:
    from mtx.evaluation.comparison_output import Results
    from mtx.evaluation.test_sets import TestSet

_WORSE = 3  # exit code of --fail-if-worse


class Metric(StrEnum):
    """The metrics to compare by."""

    bleu = "bleu"
    chrf = "chrf"
    ter = "ter"


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
    fail_if_worse: Annotated[
        bool, typer.Option("--fail-if-worse", help="Exit with 3 if another is significantly worse than the first.")
    ] = False,
    device: Device = "auto",
    form: Annotated[
        Literal["text", "markdown", "latex", "json"],
        typer.Option("--format", help="A table for a page or a paper, or all values for programs."),
    ] = "text",
    output: Output = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Compare runs, models or files of hypotheses by BLEU, chrF and TER, each setting over its seeds."""
    texts = _texts(systems, src, ref, direction, test)
    results = _results(systems, texts, metrics, protocol, device)
    from mtx.evaluation.comparison_output import output_lines

    lines = output_lines(results, "json" if as_json else form)
    if output is None:
        print_lines(lines)
    else:
        with open_output(output) as file:
            file.write("".join(f"{printable(line)}\n" for line in lines).encode())
    measured = [metric for comparison in results.test_sets.values() for metric in comparison.metrics]
    if fail_if_worse and any(metric.is_worse(number) for metric in measured for number in range(len(metric.groups))):
        raise typer.Exit(_WORSE)


def _results(
    systems: list[Path],
    texts: "list[TestSet]",
    metrics: list[Metric] | None,
    protocol: ProtocolName | None,
    device: str,
) -> "Results":
    """Translate what is not translated yet, and compare the systems on each test set."""
    from mtx.decoding.metrics import warn_if_too_short
    from mtx.evaluation import comparison
    from mtx.evaluation.comparison_output import Results
    from mtx.evaluation.differing_settings import differing_settings, groups_of
    from mtx.evaluation.evaluate import system_outputs
    from mtx.evaluation.significance import METRICS
    from mtx.storage.run_status import unfinished

    models = [path for path in systems if path not in texts[0].hypotheses]
    place = Placement(device, engine="torch")
    translators = {path: load_translator(str(path), WHOLE_LINES, place) for path in models}
    tgt = texts[0].tgt or next((translator.tgt for translator in translators.values()), "")
    published = find_protocol(protocol, tgt)
    groups = groups_of(systems, [str(path) for path in systems])
    comparisons = {}
    for text in texts:
        outputs, references = system_outputs(text, systems, translators)
        warn_if_too_short(text.name, references, tgt)
        comparisons[text.name] = comparison.compare(outputs, references, metrics or METRICS, tgt, published, groups)
    runs = [path for path in systems if is_run(path)]
    return Results(
        runs=[str(run) for run in runs],
        differing_keys=differing_settings(systems),
        unfinished={str(run): state for run in runs if run in texts[0].hypotheses and (state := unfinished(run))},
        test_sets=comparisons,
    )


def _texts(
    systems: list[Path], src: Path | None, ref: Path | None, direction: str | None, test: str | None
) -> "list[TestSet]":
    if len(systems) < 2:
        raise UsageError("expected two or more systems", "mtx compare RUN RUN, or mtx compare HYP HYP --ref FILE")
    misplaced = (src or direction) if ref is None else test
    if misplaced is not None:
        raise UsageError(
            "--src and --direction go with --ref, --test goes with runs",
            "mtx compare RUN RUN --test NAME, or mtx compare MODEL MODEL --src FILE --ref FILE",
        )
    from mtx.evaluation import test_sets

    if ref is None:
        return test_sets.test_sets_of_runs(systems, test)
    return [test_sets.test_set_of_files(systems, src, ref, test_sets.target_language(direction))]
