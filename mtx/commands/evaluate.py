"""`mtx evaluate`, `mtx compare` and `mtx report`: how good a model is, which is better, and what a run was like."""

from pathlib import Path
from typing import Any, Literal

import typer

from mtx.commands.command_line import (
    AS_JSON,
    GLOSSARY,
    OUTPUT,
    argument,
    complete_runs,
    flag,
    logger,
    open_output,
    option,
    print_result,
)
from mtx.commands.translator_options import BEAM, DIRECTION, LoadOptions, load_translator, takes
from mtx.errors import UsageError
from mtx.formatting import mtx_command
from mtx.storage.run_files import find_model, is_run, require_models, require_run
from mtx.storage.text_files import printable

METRICS = option(
    "NAME",
    "bleu, chrf, ter, chrf++, comet or comet:MODEL; may be repeated.  [default: bleu, chrf and ter]",
    "-m",
    "--metrics",
)
METRIC_PYTHON = option("PATH", "For comet: the Python of an environment with COMET.", "--metric-python")
METRIC_COMMAND = option(
    "CMD",
    "Also score by this program: JSON with src, hyp and ref a line in, a number a line out.",
    "--metric-command",
)


@takes(*DIRECTION, *BEAM, "device", "batch_tokens")
def evaluate(
    model: str | None = argument("[MODEL]", "Run directory or model directory.", complete_runs),
    hyp: Path | None = option("FILE", "Score this file instead of a model."),
    ref: list[Path] | None = option("FILE", "Reference translations; may be repeated."),
    src: Path | None = option("FILE", "Source text for MODEL to translate."),
    testset: str | None = option("NAME", "Test set of sacreBLEU, such as wmt14/full."),
    direction: str | None = option("SRC-TGT", "Direction of the test set, such as en-de.  [default: as MODEL]"),
    protocol: Literal["aiayn", "multi30k-lc"] | None = option(
        "NAME", "Also compute BLEU as a publication did: aiayn or multi30k-lc."
    ),
    metrics: list[str] | None = METRICS,
    metric_python: str | None = METRIC_PYTHON,
    metric_command: str | None = METRIC_COMMAND,
    robust: bool = flag("--robust", "Also score changed copies: upper case, title case, no final punctuation, typos."),
    without_leaks: bool = flag(
        "--without-leaks", "Also score the lines without an exact or near match in the training text."
    ),
    glossary: Path | None = GLOSSARY,
    fit_quality: bool = flag("--fit-quality", "Fit the estimate of quality on --src and --ref instead."),
    as_json: bool = AS_JSON,
    *,
    options: LoadOptions,
) -> None:
    """Score a model on its test sets, or a file of translations.

    The scores are BLEU, chrF and TER, with sacreBLEU's signatures. Metrics of other programs, such as COMET, are
    stored with a run.
    """
    problems = {
        "expected MODEL or --hyp FILE": bool(model) == bool(hyp),
        "--robust and --glossary need MODEL, and do not go together": (robust and glossary)
        or ((robust or glossary) and hyp),
        "--hyp needs references, --ref FILE or --testset NAME": hyp and bool(ref) == bool(testset),
        "--src and --ref go together": not hyp and bool(src) != bool(ref),
        "--fit-quality needs MODEL, --src and one --ref": fit_quality
        and not (model and src and ref and len(ref) == 1 and not (robust or glossary)),
        "--testset has its own text; drop --src and --ref": src and testset,
        "--without-leaks needs a run, without --src, --testset and --glossary": without_leaks
        and (not model or not is_run(Path(model)) or src or testset or glossary),
        "--direction goes with --testset or --hyp; otherwise MODEL has a direction": direction and not (hyp or testset),
    }
    for problem, is_there in problems.items():
        if is_there:
            raise UsageError(
                problem,
                "mtx evaluate RUN, mtx evaluate MODEL --src FILE --ref FILE, or mtx evaluate --hyp FILE --ref FILE",
            )
    from mtx.evaluation import protocols, test_sets
    from mtx.evaluation.metric_process import choose_commands
    from mtx.evaluation.test_set_scores import (
        ChosenMetrics,
        evaluate_run,
        score_file,
        score_lines,
        score_translations,
        score_with_glossary,
        translate,
    )
    from mtx.scoring.metrics import DEFAULT_METRICS

    names = metrics or DEFAULT_METRICS
    by_command = choose_commands(names, metric_python, metric_command, has_source=bool(src or not ref))
    scores = dict[str, Any]()
    translator: Any = None
    root = Path(model or "")
    if model:
        require_models(model)
        if not (src or testset or is_run(root)):
            raise UsageError(
                f"{model}: is not a run directory, so it has no test sets",
                f"{mtx_command('evaluate', root)} --src FILE --ref FILE, or --testset NAME",
            )
        translator = load_translator(model, glossary, **options)
        if testset:
            direction = direction or f"{translator.src}-{translator.tgt}"
    tgt = translator.tgt if translator and not testset and (ref or protocol) else test_sets.target_language(direction)
    published = protocols.Protocol(protocol, tgt) if protocol else None
    chosen = ChosenMetrics(names, by_command, published)
    if fit_quality and src and ref:
        from mtx.evaluation import quality_fit

        quality_fit.fit_quality(translator, find_model(root), *test_sets.parallel_lines(src, *ref))
        return
    if ref:
        sets = [test_sets.test_set_of_files([], src, ref, tgt)]
    elif testset:
        sets = [test_sets.sacrebleu_test_set(testset, direction or "")]
    else:
        scores = {} if glossary else evaluate_run(translator, root, chosen, without_leaks)
        sets = test_sets.test_sets_of_runs([root]) if robust or glossary else []
    for test_set in sets:
        name = test_set.name
        if hyp:
            scores[hyp.name if ref else name] = score_file(hyp, test_set, chosen)
        elif glossary:
            scores[name], scores[f"{name}, {glossary}"] = score_with_glossary(translator, test_set, chosen)
        elif name not in scores:
            scores[name] = score_translations(translate(translator, test_set), chosen)
        for copy in test_sets.changed_copies(test_set) if robust else ():
            scores[copy.name] = score_translations(translate(translator, copy), chosen)
    for values in scores.values():
        for metric in values.keys() & {*DEFAULT_METRICS} - {*names}:  # stored, but not chosen
            del values[metric]
    lines = (line for name, values in scores.items() for line in score_lines(name, values, bool(metrics)))
    print_result(scores, lines, as_json)


@takes(*DIRECTION, "device")
def compare(
    systems: list[Path] = argument(
        "SYSTEM...", "Runs, model directories or files of hypotheses; the first is the baseline.", complete_runs
    ),
    ref: list[Path] | None = option("FILE", "Reference translations, if no run has a test set."),
    src: Path | None = option("FILE", "Source text for models to translate."),
    direction: str | None = option("SRC-TGT", "Languages of the files, such as en-de."),
    test: str | None = option("NAME", "Test set of the runs.  [default: all that they share]"),
    metrics: list[str] | None = METRICS,
    metric_python: str | None = METRIC_PYTHON,
    metric_command: str | None = METRIC_COMMAND,
    fail_if_worse: bool = flag(
        "--fail-if-worse", "Exit with code 3 if a system is significantly worse than the first."
    ),
    form: Literal["text", "markdown", "latex", "json"] = option(
        "NAME", "text, markdown, latex or json.", "--format", default="text"
    ),
    output: Path | None = OUTPUT,
    as_json: bool = flag("--json", "The same as --format json."),
    *,
    options: LoadOptions,
) -> None:
    """Compare runs, models or files, with significance tests.

    The scores are BLEU, chrF and TER, or those of -m. Runs that differ only in their seed count as one system.
    """
    if len(systems) < 2:
        raise UsageError("expected two or more systems", "mtx compare RUN RUN, or mtx compare HYP HYP --ref FILE")
    if (ref and test) or (not ref and (src or direction)):
        raise UsageError(
            "--src and --direction go with --ref, --test goes with runs",
            "mtx compare RUN RUN --test NAME, or mtx compare MODEL MODEL --src FILE --ref FILE",
        )
    if ref and len(ref) > 1:
        raise UsageError(
            f"--ref: compare takes one file of references, got {len(ref)}",
            "mtx evaluate --hyp FILE --ref FILE --ref FILE scores against several",
        )
    from mtx.evaluation import comparison, test_sets
    from mtx.evaluation.metric_process import choose_commands
    from mtx.evaluation.test_set_scores import measure, system_outputs
    from mtx.runs.run_directory import unfinished
    from mtx.scoring.metrics import DEFAULT_METRICS, warn_about_bleu

    names = metrics or DEFAULT_METRICS
    by_command = choose_commands(names, metric_python, metric_command, has_source=bool(src or not ref))
    if ref:
        texts = [test_sets.test_set_of_files(systems, src, ref, test_sets.target_language(direction))]
    else:
        texts = test_sets.test_sets_of_runs(systems, test)
    translators = {path: load_translator(str(path), **options) for path in systems if path not in texts[0].hypotheses}
    groups = comparison.groups_of(systems, list(map(str, systems)))
    comparisons = {}
    for text in texts:
        tgt = text.tgt or next((translator.tgt for translator in translators.values()), "")
        outputs, references = system_outputs(text, systems, translators)
        warn_about_bleu(text.name, references, tgt)
        if by_command:
            comparison.check_lengths(outputs, references)
            outputs = [measure(system, references, text, by_command) for system in outputs]
        comparisons[text.name] = comparison.compare(outputs, references, names, tgt, groups)
    runs = list(filter(is_run, systems))
    results = comparison.Results(
        runs=list(map(str, runs)),
        differing_keys=comparison.differing_settings(systems),
        unfinished={str(run): state for run in runs if run in texts[0].hypotheses and (state := unfinished(run))},
        test_sets=comparisons,
    )
    with open_output(output) as sink:
        pairs = [(text.src, text.tgt) for text in texts]
        for line in comparison.output_lines(results, "json" if as_json else form, pairs):
            sink.write(f"{printable(line)}\n".encode())
        sink.flush()  # before an exit code of its own
    measured = [metric for result in comparisons.values() for metric in result.metrics]
    if fail_if_worse and any(metric.is_worse(number) for metric in measured for number in range(len(groups))):
        raise typer.Exit(3)  # as its help says


def report(
    runs: list[Path] = argument("RUN...", "Run directories; the first is the baseline.", complete_runs),
    output: Path | None = option(
        "FILE",
        "HTML page to write.  [default: report.html in RUN; for several runs, in this directory]",
        "-o",
        "--output",
    ),
) -> None:
    """Write the HTML report of one or several runs."""
    from mtx.report.report_page import report_page

    layouts = list(map(require_run, runs))
    path = output or (layouts[0].report if len(runs) == 1 else Path("report.html"))
    with open_output(path, is_page=not output) as sink:
        sink.write(report_page(runs).encode())
    logger.info("report: %s", path)
