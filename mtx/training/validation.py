"""Validation: how well a model in training does on text that it does not learn from.

Flow: model, data -> the part of each rank (`validate_part`) -> `Validation` on rank 0. The figures are computed in
fp32, on CUDA with TF32, BLEU and chrF2 by greedy decoding. Of several directions, each is translated and scored in its
own languages, and the mean of their scores counts.
"""

import itertools
import logging
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from mtx.config.schema import Config
from mtx.data.sampler import Ints
from mtx.data.token_store import PreparedData
from mtx.decoding.options import Placement, SearchOptions
from mtx.decoding.torch_engine import TorchEngine
from mtx.decoding.translator import Translator
from mtx.model.translation_model import TranslationModel
from mtx.scoring import metrics
from mtx.storage.model_description import info_of
from mtx.storage.text_files import Lines
from mtx.training.events import Sample, Validation

_NUM_SAMPLES = 5

logger = logging.getLogger(__name__)


def tests_of(data: PreparedData, config: Config, beam_size: int | None) -> Iterator[metrics.TestSet]:
    """The test sets of a run, each in its direction; logs each one that is to be translated."""
    for name, store in data.tests.items():
        src, tgt = config.data.language_pair(name)
        logger.info(f"translating {name}: {store.num_pairs:,} sentences, beam size {beam_size}")
        yield metrics.TestSet(name, tgt, store.src_texts(), store.tgt_texts(), src=src)


def pick_samples(sources: Lines, references: Lines, hypotheses: Lines) -> list[Sample]:
    """Five sentences at even distances; all of them if there are fewer."""
    rows = list(zip(sources, references, hypotheses, strict=False))
    count = min(_NUM_SAMPLES, len(rows))
    return [Sample(*rows[len(rows) * number // count]) for number in range(count)]


def deciding_metric(data: PreparedData, config: Config) -> str:
    """The metric that selects the best validation, as its key in the events.

    It depends only on the settings and the validation set, so that a resumed run uses the same metric: chrF2 if BLEU is
    not informative in one of the directions.
    """
    if config.training.best_metric != "auto":
        return config.training.best_metric
    for _, tgt, rows in _directions(config, data):
        _, references = data.valid.texts(rows)
        if metrics.too_short_for_bleu(references, tgt):
            return "chrf"
    return "bleu"


def _directions(config: Config, data: PreparedData, number: int = 0, size: int = 1) -> Iterator[tuple[str, str, Ints]]:
    """Source, target and rows of each direction in the validation set, or in one rank's part of it."""
    rows = np.arange(number, data.valid.num_pairs, size)
    for direction, (src, tgt) in enumerate(config.data.language_pairs):
        is_of_direction = data.valid.corpus[rows] == direction
        if is_of_direction.any():
            yield src, tgt, rows[is_of_direction]


def validate_part(
    config: Config, data: PreparedData, model: TranslationModel, number: int = 0, size: int = 1
) -> dict[str, Any]:
    """One rank's part of a validation, for `validation_of`; it changes nothing, so it may be interrupted anywhere.

    Args:
        number, size: of this rank, and of all.

    Returns:
        JSON values: the nll summed over this rank's sentences, and their translations.
    """
    rows = np.arange(number, data.valid.num_pairs, size)
    engine = TorchEngine([model], data.tokenizer, Placement(precision="tf32"))
    scores = engine.log_probs(data.valid.src.sentences(rows), data.valid.tgt.sentences(rows), alpha=0.0)
    translator = Translator(engine, data.tokenizer, info_of(config, data.report), SearchOptions(beam_size=1))
    hypotheses = np.empty(len(rows), object)
    for src, tgt, direction_rows in _directions(config, data, number, size):
        view = translator.to(tgt, src)
        # an explicit choice, which is not logged at each validation
        view.options = replace(view.options, split_sentences=view.splitter is not None)
        hypotheses[direction_rows // size] = view.translate(data.valid.texts(direction_rows)[0])
    return {
        "nll": -sum(score.log_prob for score in scores),
        "hypotheses": hypotheses.tolist(),
    }


Value = TypeVar("Value")


def interleave(parts: Sequence[list[Value]]) -> list[Value]:
    """The translations of sentences in order, of which each rank has made every n-th."""
    return [line for lines in itertools.zip_longest(*parts) for line in lines if line is not None]


def validation_of(config: Config, data: PreparedData, parts: Sequence[dict[str, Any]], started: float) -> Validation:
    """The validation that ranks have done in parts; `started` is on the monotonic clock."""
    metric = deciding_metric(data, config)
    normalization = data.tokenizer.normalization
    hypotheses = metrics.normalize_lines(interleave([part["hypotheses"] for part in parts]), normalization)
    references = metrics.normalize_lines(data.valid.tgt_texts(), normalization)

    def score(name: str) -> dict[str, float]:
        by_direction = {}
        for src, tgt, rows in _directions(config, data):
            direction_hypotheses = [hypotheses[row] for row in rows]
            direction_references = [references[row] for row in rows]
            scores = metrics.score(direction_hypotheses, direction_references, tgt, metrics=[name])
            by_direction[f"{src}-{tgt}"] = scores[name]["score"]
        return by_direction

    num_tokens = int(data.valid.tgt.lengths.sum()) - data.tokenizer.num_forced * data.valid.num_pairs
    bleu = score("bleu")
    chrf = score("chrf") if metric == "chrf" else None
    return Validation(
        nll=sum(part["nll"] for part in parts) / max(1, num_tokens),
        bleu=statistics.fmean(bleu.values()),
        chrf=statistics.fmean(chrf.values()) if chrf else None,
        seconds=time.monotonic() - started,
        hypotheses=hypotheses,
        samples=pick_samples(data.valid.src_texts(), references, hypotheses),
        length_ratio=sum(map(len, references)) / max(1, sum(map(len, hypotheses))),
        deciding_metric=metric,
        by_direction=chrf or bleu,
    )
