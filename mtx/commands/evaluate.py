"""`mtx evaluate`: translate and score test sets, or score files."""

from pathlib import Path
from typing import Annotated, Any

import typer

from mtx.commands.command_line import AsJson, GlossaryFile, Published, argument, complete_runs, option
from mtx.commands.translator_options import BEAM, load_translator, takes
from mtx.decoding.options import Placement, SearchOptions
from mtx.errors import UsageError
from mtx.formatting import mtx_command
from mtx.storage.run_files import is_run, require_models
from mtx.storage.streams import print_json, print_lines


@takes(*BEAM, "device", "batch_tokens")
def evaluate(
    model: Annotated[
        str | None,
        argument("[MODEL]", "Run directory or model directory.", complete_runs),
    ] = None,
    hyp: Annotated[Path | None, option("FILE", "Score this file instead of a model.")] = None,
    ref: Annotated[list[Path] | None, option("FILE", "Reference translations; may be repeated.")] = None,
    src: Annotated[Path | None, option("FILE", "Source text for MODEL to translate.")] = None,
    testset: Annotated[str | None, option("NAME", "Test set of sacreBLEU, such as wmt14/full.")] = None,
    direction: Annotated[
        str | None,
        option("SRC-TGT", "Direction of the test set, such as en-de.  [default: as MODEL]"),
    ] = None,
    protocol: Published = None,
    robust: Annotated[
        bool,
        typer.Option(
            "--robust", help="Also score changed copies: upper case, title case, no final punctuation, typos."
        ),
    ] = False,
    glossary: GlossaryFile = None,
    as_json: AsJson = False,
    *,
    search: SearchOptions,
    place: Placement,
) -> None:
    """Score a model on its test sets, or a file of translations.

    The scores are BLEU, chrF and TER, with sacreBLEU's signatures.
    """
    refused = {
        "expected MODEL or --hyp FILE": (model is None) == (hyp is None),
        "--robust and --glossary need MODEL, and do not go together": (robust + (glossary is not None) > (hyp is None)),
        "--hyp needs references, --ref FILE or --testset NAME": hyp is not None and (not ref) == (testset is None),
        "--src and --ref go together": hyp is None and (src is None) != (not ref),
        "--testset has its own text; drop --src and --ref": src is not None and testset is not None,
        "--direction goes with --testset or --hyp; otherwise MODEL has a direction": (
            direction is not None and hyp is None and testset is None
        ),
    }
    if problem := next((text for text, is_so in refused.items() if is_so), None):
        raise UsageError(
            problem, "mtx evaluate RUN, mtx evaluate MODEL --src FILE --ref FILE, or mtx evaluate --hyp FILE --ref FILE"
        )
    from mtx.data.glossary import Glossary
    from mtx.evaluation import protocols, test_sets
    from mtx.evaluation.test_set_scores import evaluate_run, score_file, score_with_glossary, translate_and_score

    if hyp is not None:
        if not ref:
            test_set = test_sets.sacrebleu_test_set(testset or "", direction or "")
            name = test_set.name
        else:
            test_set = test_sets.test_set_of_files([], None, ref, test_sets.target_language(direction))
            name = hyp.name
        print_scores({name: score_file(hyp, test_set, protocol and protocols.find(protocol, test_set.tgt))}, as_json)
        return
    assert model is not None
    require_models(model)
    if src is None and testset is None and not is_run(root := Path(model)):
        help = f"{mtx_command('evaluate', root)} --src FILE --ref FILE, or --testset NAME"
        raise UsageError(f"{model}: is not a run directory, so it has no test sets", help)
    terms = None if glossary is None else Glossary.read(glossary)
    translator = load_translator(model, search, place)
    published = protocol and protocols.find(protocol, test_sets.target_language(direction) or translator.tgt)
    scores = dict[str, Any]()
    if testset is not None:
        sets = [test_sets.sacrebleu_test_set(testset, direction or f"{translator.src}-{translator.tgt}")]
    elif ref:
        sets = [test_sets.test_set_of_files([], src, ref, translator.tgt)]
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


def print_scores(scores: dict[str, Any], as_json: bool) -> None:
    from mtx.evaluation.test_set_scores import score_lines

    if as_json:
        print_json(scores)
    elif scores:
        print_lines(line for name, found in scores.items() for line in score_lines(name, found))
