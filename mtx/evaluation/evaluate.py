"""Evaluation: models translate test sets, and the hypotheses are scored.

Flow: `TestSet` and translator -> hypotheses -> `scores.score` -> `Scores`, with files in evaluation/NAME of a run.
For `mtx compare`, `system_outputs` collects the hypotheses of several systems, which `comparison.py` then compares.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mtx.decoding.metrics import (
    CorpusScore,
    Scores,
    corpus_score,
    normalize_lines,
    score,
    warn_if_too_short,
    write_test_set,
)
from mtx.decoding.translator import Translator
from mtx.errors import DataError
from mtx.evaluation.protocols import Protocol
from mtx.evaluation.significance import System
from mtx.evaluation.test_sets import TestSet
from mtx.storage import text_files
from mtx.storage.run_contents import is_run, load_config
from mtx.storage.run_files import RunLayout

logger = logging.getLogger(__name__)


def translate_and_score(
    translator: Translator,
    test_set: TestSet,
    directory: Path | None = None,
    protocol: Protocol | None = None,
) -> Scores:
    """Translate a test set and score the hypotheses.

    Args:
        directory: where src.txt, hyp.txt, ref.txt and scores.json are written; None writes nothing.
        protocol: adds a BLEU score by this published protocol.
    """
    normalization = translator.tokenizer.normalization
    hypotheses = normalize_lines(translator.translate(test_set.sources), normalization)
    scores = score_translations(hypotheses, test_set, normalization, protocol)
    if directory is not None:
        references = normalize_lines(test_set.references, normalization)
        write_test_set(directory, test_set.sources, hypotheses, references, scores)
    return scores


def score_file(path: Path, test_set: TestSet, protocol: Protocol | None = None) -> Scores:
    """Score a file of hypotheses against the references of a test set.

    Raises:
        DataError: if the file has more or fewer lines than the test set, or is not UTF-8.
    """
    hypotheses = list(text_files.read_lines(path, "strict"))
    if len(hypotheses) != len(test_set.references):
        raise DataError(f"{path} has {len(hypotheses)} lines, {test_set.name} has {len(test_set.references)}")
    return score_translations(normalize_lines(hypotheses, "none"), test_set, "none", protocol)


def score_translations(
    hypotheses: list[str], test_set: TestSet, normalization: str, protocol: Protocol | None
) -> Scores:
    """The scores of translations of a test set that `normalize_lines` has normalised; the references will be."""
    references, *more_references = (
        normalize_lines(lines, normalization) for lines in (test_set.references, *test_set.more_references)
    )
    warn_if_too_short(test_set.name, references, test_set.tgt)
    scores = score(hypotheses, references, test_set.tgt, more_references)
    if protocol is None:
        return scores
    text = protocol.tokenized(references, [hypotheses, *more_references])
    tokenized, *others = text.systems
    bleu = corpus_score(protocol.metric(), tokenized, text.references, *others)
    return replace(scores, published={protocol.name: CorpusScore(bleu.score, text.signature(bleu.signature))})


def system_outputs(
    test_set: TestSet, paths: Sequence[Path], translators: Mapping[Path, Translator]
) -> tuple[list[System], list[str]]:
    """The hypotheses of all systems on one test set, in the order of `paths`, and the references.

    All text is normalised to NFC if any of the models or runs normalises.

    Args:
        translators: a translator for each of `paths` for which the test set has no hypotheses yet.
    """
    hypotheses = dict(test_set.hypotheses)
    for path, translator in translators.items():
        logger.info("translating %s by %s: %s sentences", test_set.name, path, f"{len(test_set.sources):,}")
        hypotheses[path] = translator.translate(test_set.sources)
    forms: set[str] = {translator.tokenizer.normalization for translator in translators.values()}
    forms |= {load_config(RunLayout(path)).tokenizer.normalization for path in paths if is_run(path)}
    normalization = "nfc" if forms - {"none"} else "none"
    systems = [System(str(path), normalize_lines(hypotheses[path], normalization)) for path in paths]
    return systems, normalize_lines(test_set.references, normalization)
