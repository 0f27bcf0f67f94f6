"""Fits the map from the features of translations to their expected chrF2, see `mtx.scoring.quality`.

Flow: validation text -> translated as the model will be used -> features and sentence chrF2 -> ridge regression ->
isotonic regression -> `quality.json`. The hook `FitQuality` does this at the end of training, `fit_quality` for the
command `mtx evaluate`.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from math import inf
from pathlib import Path

import numpy as np
import sacrebleu

from mtx.config.schema import TEACHER_TEST
from mtx.decoding.translator import Translator
from mtx.errors import DataError
from mtx.formatting import divide_up
from mtx.runs.run_directory import hold_lock
from mtx.scoring import metrics
from mtx.scoring.quality import FEWEST_FIT_LINES, FIT_TIME_SHARE, MOST_FIT_LINES, FeatureRegion, Floats, QualityMap
from mtx.storage import durable
from mtx.storage.run_files import QUALITY, RunLayout, find_run
from mtx.storage.streams import progress
from mtx.training.events import Run
from mtx.training.hooks import Hook

logger = logging.getLogger(__name__)

_LEAST_SPEARMAN = 0.1
_NUM_FOLDS = 5
_PENALTY = 10.0  # of the ridge regression, on features with a variance of 1
_LINES_OF_A_BIN = 40  # at least; steps of the isotonic regression with fewer lines would be noise
_BLOCK_LINES = 50  # after which the time is checked
_INSIDE = 0.995  # the share of the validation text that lies in the region of a map


class FitQuality(Hook):
    """Fits a map for each direction on validation text, within a small share of the time limit.

    None is fitted on a teacher's translations, which do not show how good others are.
    """

    def on_model(self, run: Run) -> None:
        if TEACHER_TEST in run.data.tests:
            return
        translator = Translator.load(
            run.paths.model,
            device=run.runtime.device,
            threads=run.runtime.threads,
            batch_tokens=run.config.decoding.batch_tokens,
        )
        valid = run.data.valid
        pairs = run.config.data.language_pairs
        time_limit = run.config.training.time_limit or inf
        seconds = FIT_TIME_SHARE * time_limit / len(pairs)
        maps = {}
        for number, (src, tgt) in enumerate(pairs):
            part = valid.take_corpora([number])
            quality_map = fit(translator.to(tgt, src), part.src_texts(), part.tgt_texts(), seconds)
            if quality_map:
                maps[f"{src}-{tgt}"] = quality_map
        _write(run.paths.model, maps)


def fit_quality(translator: Translator, model: Path, sources: list[str], references: list[str]) -> None:
    """Fits a map on these lines, and adds it to a model directory, with the lock of the run whose model it is.

    Raises:
        DataError: it cannot be fitted; nothing is written.
        MtxError: another process works on the run.
    """
    run = find_run(model)
    with hold_lock(RunLayout(run)) if run else nullcontext():
        quality_map = fit(translator, sources, references)
        if not quality_map:
            raise DataError(f"{model}: no estimate of quality was fitted")
        direction = "-".join(translator.languages)
        search = quality_map.beam_size, quality_map.length_penalty
        old_map = translator.quality_maps.get(direction)
        if old_map and (old_map.beam_size, old_map.length_penalty) != search:
            logger.warning(
                f"{direction}: this replaces the estimate of quality for beam size {old_map.beam_size}, length penalty "
                f"{old_map.length_penalty:g}; translations with that search have none now"
            )
        _write(model, {**translator.quality_maps, direction: quality_map})


def _write(model: Path, maps: Mapping[str, QualityMap]) -> None:
    if maps:
        values = {direction: quality_map.model_dump() for direction, quality_map in maps.items()}
        durable.replace_files(model, {QUALITY: durable.json_bytes(values)})


def fit(
    translator: Translator, sources: Sequence[str], references: Sequence[str], seconds: float = inf
) -> QualityMap | None:
    """Returns a map fitted on translations of these lines; None if they are too few or it would predict nothing.

    Args:
        translator: one direction, with the search settings that the map will be for.
        seconds: at most; the remaining lines are skipped.
    """
    direction = "-".join(translator.languages)
    deadline = time.monotonic() + seconds
    rows = list[Floats]()
    pairs = list[tuple[str, str]]()
    too_few = f"{direction}: no estimate of quality: it needs {FEWEST_FIT_LINES} lines of validation text"
    if len(sources) < FEWEST_FIT_LINES:
        logger.info(too_few)
        return None
    order = np.random.default_rng(1).permutation(len(sources))[:MOST_FIT_LINES]
    with progress("fitting the estimate of quality", len(order)) as update:
        for block in np.array_split(order, max(1, len(order) // _BLOCK_LINES)):
            translated = translator.hypotheses([sources[number] for number in block], n_best=1)
            for number, [best, *_] in zip(block, translated, strict=True):
                features_of_parts = translator.features(best)
                if features_of_parts:
                    sizes, values = zip(*features_of_parts, strict=True)
                    rows.append(np.average(values, axis=0, weights=sizes))
                    pairs.append((best.text, references[number]))
            update(len(block))
            if time.monotonic() > deadline:
                break
    if len(rows) < FEWEST_FIT_LINES:
        logger.info(too_few)
        return None
    features = np.array(rows)
    chrf = np.array([sacrebleu.sentence_chrf(text, [reference]).score for text, reference in pairs])
    predicted = np.empty(len(chrf))  # of each line by a model that was fitted without it
    for fold in range(_NUM_FOLDS):
        held_out = slice(fold, None, _NUM_FOLDS)
        weights, bias = _fit_ridge(np.delete(features, held_out, 0), np.delete(chrf, held_out))
        predicted[held_out] = features[held_out] @ weights + bias
    spearman = rank_correlation(predicted, chrf)
    if spearman < _LEAST_SPEARMAN:
        logger.info("%s: no estimate of quality: it would follow chrF2 by %.2f (Spearman)", direction, spearman)
        return None
    logger.info("%s: the estimate of quality follows chrF2 by %.2f (Spearman)", direction, spearman)
    knots, scores = fit_isotonic(predicted, chrf)
    src, tgt = translator.languages
    hypotheses, their_references = zip(*pairs, strict=True)
    corpus_scores = metrics.score(hypotheses, their_references, tgt, metrics=("bleu", "chrf"))
    band, reason = metrics.find_band(corpus_scores, [(sources, references, src, tgt)])
    if reason and not reason.bleu_is_a_bound:  # in short text without spaces, good translations have less chrF2
        band = metrics.Band.GOOD
    quartile, median = np.quantile(np.interp(predicted, knots, scores), [0.25, 0.5])
    # Translations of 70 and of 90 are good enough, however good the others are.
    redo_below = 100 if band == metrics.Band.USELESS else min(quartile, 70)
    look_below = 100 if band <= metrics.Band.POOR else min(median, 90)
    weights, bias = _fit_ridge(features, chrf)
    return QualityMap(
        beam_size=translator.options.num_beams,
        length_penalty=translator.options.alpha,
        bias=bias,
        weights=weights.tolist(),
        knots=knots,
        values=scores,
        redo_below=redo_below,
        look_below=look_below,
        region=_fit_region(features),
    )


def _fit_region(features: Floats) -> FeatureRegion:
    """Returns the region of features [N, F] in which nearly all of these lie."""
    mean, scale = _mean_and_scale(features)
    distances = np.linalg.norm((features - mean) / scale, axis=1)
    return FeatureRegion(
        means=mean.tolist(), deviations=scale.tolist(), max_distance=float(np.quantile(distances, _INSIDE))
    )


def _mean_and_scale(features: Floats) -> tuple[Floats, Floats]:
    """Returns the mean and the standard deviation of each feature [N, F]; 1 for a constant one."""
    scale = features.std(0)
    scale[scale == 0] = 1
    return features.mean(0), scale


def _fit_ridge(features: Floats, scores: Floats) -> tuple[Floats, float]:
    """Returns the weights of features [N, F] and the bias that predict `scores` [N], by ridge regression."""
    mean, scale = _mean_and_scale(features)
    normal = (features - mean) / scale
    weights = np.linalg.solve(normal.T @ normal + _PENALTY * np.eye(len(mean)), normal.T @ (scores - scores.mean()))
    weights /= scale
    return weights, float(scores.mean() - mean @ weights)


def fit_isotonic(predicted: Floats, scores: Floats) -> list[list[float]]:
    """Returns knots and values of the monotonic map from `predicted` to `scores`, by bins of equal size.

    Neighbouring bins whose means fall are pooled (pool adjacent violators; Ayer et al. 1955).
    """
    pooled = list[Floats]()  # rows: predicted, scores
    num_bins = min(20, divide_up(len(scores), _LINES_OF_A_BIN))
    for bin_lines in np.array_split(np.argsort(predicted, kind="stable"), num_bins):
        lines = np.stack([predicted[bin_lines], scores[bin_lines]])
        while pooled and (pooled[-1].mean(axis=1) >= lines.mean(axis=1)).any():
            lines = np.hstack([pooled.pop(), lines])
        pooled.append(lines)
    return [[float(lines[side].mean()) for lines in pooled] for side in (0, 1)]


def rank_correlation(first: Floats, second: Floats) -> float:
    """Returns Spearman's correlation of two series; 0 if one of them is constant."""
    # The number of smaller values minus that of larger ones: twice the rank, less its mean; ties share one.
    ranks = [np.sign(series[:, None] - series).sum(1) for series in (first, second)]
    return float(ranks[0] @ ranks[1] / (np.linalg.norm(ranks, axis=1).prod() or 1))
