"""`mtx compare`: which run, model or file of hypotheses is better, and may that be chance?"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from mtx.commands.command_line import Device, Output, argument, complete_runs, open_output, option
from mtx.commands.translator_options import load_translator
from mtx.decoding.options import Placement, SearchOptions
from mtx.errors import UsageError
from mtx.storage.run_files import is_run
from mtx.storage.streams import print_lines
from mtx.storage.text_files import printable

_WORSE = 3  # exit code of --fail-if-worse
Metric = StrEnum("Metric", ["bleu", "chrf", "ter"])


def compare(
    systems: Annotated[
        list[Path],
        argument(
            "SYSTEM...", "Runs, model directories or files of hypotheses; the first is the baseline.", complete_runs
        ),
    ],
    ref: Annotated[Path | None, option("FILE", "Reference translations, if no run has a test set.")] = None,
    src: Annotated[Path | None, option("FILE", "Source text for models to translate.")] = None,
    direction: Annotated[str | None, option("SRC-TGT", "Languages of the files, such as en-de.")] = None,
    test: Annotated[
        str | None,
        option("NAME", "Test set of the runs.  [default: all that they share]"),
    ] = None,
    metrics: Annotated[
        list[Metric] | None,
        option("NAME", "bleu, chrf or ter; may be repeated.  [default: all three]", "-m", "--metrics"),
    ] = None,
    fail_if_worse: Annotated[
        bool,
        typer.Option("--fail-if-worse", help="Exit with code 3 if a system is significantly worse than the first."),
    ] = False,
    form: Annotated[
        Literal["text", "markdown", "latex", "json"],
        option("NAME", "text, markdown, latex or json.", "--format"),
    ] = "text",
    output: Output = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    device: Device = "auto",
) -> None:
    """Compare runs, models or files, with significance tests.

    The scores are BLEU, chrF and TER. Runs that differ only in their seed count as one system.
    """
    if len(systems) < 2:
        raise UsageError("expected two or more systems", "mtx compare RUN RUN, or mtx compare HYP HYP --ref FILE")
    if test if ref else src or direction:
        raise UsageError(
            "--src and --direction go with --ref, --test goes with runs",
            "mtx compare RUN RUN --test NAME, or mtx compare MODEL MODEL --src FILE --ref FILE",
        )
    from mtx.decoding.metrics import METRICS, warn_if_too_short
    from mtx.evaluation import comparison, test_sets
    from mtx.evaluation.test_set_scores import system_outputs
    from mtx.storage.run_directory import unfinished

    if ref is None:
        texts = test_sets.test_sets_of_runs(systems, test)
    else:
        texts = [test_sets.test_set_of_files(systems, src, [ref], test_sets.target_language(direction))]
    models = [path for path in systems if path not in texts[0].hypotheses]
    translators = {path: load_translator(str(path), SearchOptions(), Placement(device)) for path in models}
    tgt = texts[0].tgt or next((translator.tgt for translator in translators.values()), "")
    groups = comparison.groups_of(systems, [str(path) for path in systems])
    comparisons = {}
    for text in texts:
        outputs, references = system_outputs(text, systems, translators)
        warn_if_too_short(text.name, references, tgt)
        comparisons[text.name] = comparison.compare(outputs, references, metrics or METRICS, tgt, groups)
    runs = [path for path in systems if is_run(path)]
    results = comparison.Results(
        runs=[str(run) for run in runs],
        differing_keys=comparison.differing_settings(systems),
        unfinished={str(run): state for run in runs if run in texts[0].hypotheses and (state := unfinished(run))},
        test_sets=comparisons,
    )
    lines = comparison.output_lines(results, "json" if as_json else form)
    if output is None:
        print_lines(lines)
    else:
        with open_output(output) as file:
            file.write("".join(f"{printable(line)}\n" for line in lines).encode())
    measured = [metric for each in comparisons.values() for metric in each.metrics]
    if fail_if_worse and any(metric.is_worse(number) for metric in measured for number in range(len(groups))):
        raise typer.Exit(_WORSE)
