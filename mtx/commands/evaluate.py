"""`mtx evaluate`: translate and score test sets, or score files."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mtx.commands.options import AsJson, GlossaryFile, ProtocolName, Published, find_protocol, print_scores
from mtx.commands.translator_options import BEAM, load_translator, takes
from mtx.decoding.options import Placement, SearchOptions
from mtx.errors import UsageError
from mtx.formatting import mtx_command
from mtx.storage.run_contents import is_run, require_models

if TYPE_CHECKING:
    from mtx.decoding.metrics import Scores


@takes(*BEAM, "device", "batch_tokens")
def evaluate(
    model: Annotated[str | None, typer.Argument(help="Run directory or model directory.")] = None,
    hyp: Annotated[Path | None, typer.Option(help="Score this file instead of a model.")] = None,
    ref: Annotated[Path | None, typer.Option(help="Reference translations.")] = None,
    src: Annotated[Path | None, typer.Option(help="Source text for MODEL to translate.")] = None,
    testset: Annotated[str | None, typer.Option(help="One of sacreBLEU's test sets, such as wmt14/full.")] = None,
    direction: Annotated[
        str | None, typer.Option(help="Its direction, such as en-de; the model's own by default.")
    ] = None,
    protocol: Published = None,
    robust: Annotated[
        bool,
        typer.Option("--robust", help="Also in upper and title case, without end punctuation, with typing errors."),
    ] = False,
    glossary: GlossaryFile = None,
    as_json: AsJson = False,
    *,
    search: SearchOptions,
    place: Placement,
) -> None:
    """Translate the test sets and score them, or score files: BLEU, chrF and TER with signatures."""
    if (model is None) == (hyp is None):
        raise UsageError("expected MODEL or --hyp FILE", "mtx evaluate RUN, or mtx evaluate --hyp FILE --ref FILE")
    if hyp is not None:
        if robust or glossary is not None:
            raise UsageError("--robust and --glossary translate in other ways, so they need MODEL instead of --hyp")
        print_scores(_score_file(hyp, ref, testset, direction, protocol), as_json)
        return
    assert model is not None
    if robust and glossary is not None:
        raise UsageError("--robust and --glossary are two evaluations; leave one of them out")
    _check_text(model, src, ref, testset, direction)
    from mtx.data.glossary import Glossary
    from mtx.decoding.metrics import Scores
    from mtx.evaluation import test_sets
    from mtx.evaluation.evaluate import translate_and_score
    from mtx.evaluation.own_tests import evaluate_run
    from mtx.evaluation.term_use import score_with_glossary

    terms = None if glossary is None else Glossary.read(glossary)
    translator = load_translator(model, search, place)
    published = find_protocol(protocol, test_sets.target_language(direction) or translator.tgt)
    scores = dict[str, Scores]()
    if testset is not None:
        sets = [test_sets.sacrebleu_test_set(testset, direction or f"{translator.src}-{translator.tgt}")]
    elif src is not None and ref is not None:
        sets = [test_sets.TestSet(src.name, translator.tgt, *test_sets.parallel_lines(src, ref))]
    else:
        if terms is None:
            scores |= evaluate_run(translator, Path(model), published)
        sets = test_sets.test_sets_of_runs([Path(model)]) if robust or terms is not None else []
    for test_set in sets:
        if terms is not None:
            pair = score_with_glossary(translator, test_set, terms, published)
            scores[test_set.name], scores[f"{test_set.name}, {glossary}"] = pair
        elif test_set.name not in scores:
            scores[test_set.name] = translate_and_score(translator, test_set, protocol=published)
        for copy in test_sets.changed_copies(test_set) if robust else []:
            scores[copy.name] = translate_and_score(translator, copy, protocol=published)
    print_scores(scores, as_json)


def _score_file(
    hyp: Path, ref: Path | None, testset: str | None, direction: str | None, protocol: ProtocolName | None
) -> "dict[str, Scores]":
    """The scores of a file of hypotheses, against a file of references or a test set of sacreBLEU."""
    from mtx.evaluation import test_sets
    from mtx.evaluation.evaluate import score_file

    if ref is not None and testset is None:
        test_set, name = test_sets.test_set_of_files([], None, ref, test_sets.target_language(direction)), hyp.name
    elif testset is not None and ref is None:
        test_set = test_sets.sacrebleu_test_set(testset, direction or "")
        name = test_set.name
    else:
        raise UsageError("--hyp needs references to compare with", "--ref FILE, or --testset NAME --direction en-de")
    return {name: score_file(hyp, test_set, find_protocol(protocol, test_set.tgt))}


def _check_text(model: str, src: Path | None, ref: Path | None, testset: str | None, direction: str | None) -> None:
    """Refuse options that do not go together before a model is loaded."""
    if (src is None) != (ref is None):
        raise UsageError("--src and --ref belong together", "mtx evaluate MODEL --src FILE --ref FILE")
    if src is not None and testset is not None:
        raise UsageError("--testset has its own text; leave out --src and --ref")
    if direction is not None and testset is None:
        raise UsageError(
            "--direction belongs to --testset; here the model's own direction counts",
            mtx_command("evaluate", Path(model)),
        )
    require_models(model)
    if src is None and testset is None and not is_run(Path(model)):
        raise UsageError(
            f"{model}: is not a run directory, so it has no test sets",
            f"{mtx_command('evaluate', Path(model))} --src FILE --ref FILE, or --testset NAME",
        )
