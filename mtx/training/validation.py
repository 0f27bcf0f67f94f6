"""Validation: how well a model in training does on text that it does not learn from.

Flow: model, data -> the part of each rank (`validate_part`) -> `Validation` on rank 0. The figures are computed in
fp32, on CUDA with TF32, BLEU and chrF2 by greedy decoding.
"""

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mtx.config.schema import Config
from mtx.data.token_store import PreparedData
from mtx.decoding import metrics
from mtx.decoding.options import Placement, SearchOptions
from mtx.decoding.torch_engine import TorchEngine
from mtx.decoding.translator import Translator
from mtx.model.translation_model import TranslationModel
from mtx.storage.model_description import info_of
from mtx.storage.run_directory import quality

_NUM_SAMPLES = 5
_LEAST_SHARE = 0.1  # of the time of a validation, which does more than search


def pick_samples(sources: Sequence[str], references: Sequence[str], hypotheses: Sequence[str]) -> list[dict[str, str]]:
    """Five sentences (src, ref, hyp) at even distances; all of them if there are fewer."""
    rows = list(zip(sources, references, hypotheses, strict=False))
    count = min(_NUM_SAMPLES, len(rows))
    return [dict(zip(("src", "ref", "hyp"), rows[len(rows) * n // count], strict=True)) for n in range(count)]


@dataclass(frozen=True)
class Validation:
    """The result of one validation.

    Attributes:
        nll: unsmoothed, per target token, `</s>` included.
        chrf: None unless it decides.
        metric: what decides, see `deciding_metric`.
        samples: the same few sentences each time.
        length_ratio: characters of the references for each character of the hypotheses.
    """

    nll: float
    bleu: float
    chrf: float | None
    seconds: float
    hypotheses: list[str]
    samples: list[dict[str, str]]
    length_ratio: float = 1.0
    metric: str = "bleu"

    @property
    def ppl(self) -> float:
        return math.exp(min(self.nll, 700.0))

    def figures(self) -> dict[str, Any]:
        """The event of a validation for metrics.jsonl."""
        figures = {"nll": self.nll, "ppl": self.ppl, "seconds": round(self.seconds, 2), "samples": self.samples}
        figures |= {"decides": self.metric, "bleu": self.bleu}
        return figures if self.chrf is None else {**figures, "chrf": self.chrf}

    @property
    def score(self) -> float:
        """The value that selects the best validation, larger for a better one."""
        return quality(vars(self), self.metric)

    @property
    def later_seconds(self) -> float:
        """The seconds of a validation whose translations were not longer than the references.

        At first, a model repeats words up to the maximum length; later it does not.
        """
        return self.seconds * min(1.0, max(_LEAST_SHARE, self.length_ratio))


def deciding_metric(data: PreparedData, config: Config) -> str:
    """The metric that selects the best validation, as its key in the events.

    It depends only on the settings and the validation set, so that a resumed run uses the same metric.
    """
    if config.training.best_metric != "auto":
        return config.training.best_metric
    return "chrf" if metrics.too_short_for_bleu(data.valid.tgt_texts(), config.data.tgt) else "bleu"


def validate_part(
    model: TranslationModel, data: PreparedData, config: Config, number: int = 0, size: int = 1
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
    hypotheses = translator.translate(data.valid.src_texts()[number::size])
    return {"nll": -sum(score.log_prob for score in scores), "hypotheses": hypotheses}


def interleave(parts: Sequence[list[str]]) -> list[str]:
    """The translations of sentences in order, of which each rank has made every n-th."""
    return [line for lines in itertools.zip_longest(*parts) for line in lines if line is not None]


def validation_of(parts: Sequence[dict[str, Any]], data: PreparedData, config: Config, started: float) -> Validation:
    """The validation that ranks have done in parts; `started` is on the monotonic clock."""
    tgt, metric = config.data.tgt, deciding_metric(data, config)
    nll = sum(part["nll"] for part in parts) / max(1, int(data.valid.tgt.lengths.sum()))
    sources, form = data.valid.src_texts(), data.tokenizer.normalization
    hypotheses = metrics.normalize_lines(interleave([part["hypotheses"] for part in parts]), form)
    references = metrics.normalize_lines(data.valid.tgt_texts(), form)
    bleu = metrics.bleu(hypotheses, references, tgt)
    chrf = metrics.chrf(hypotheses, references) if metric == "chrf" else None
    samples = pick_samples(sources, references, hypotheses)
    ratio = sum(map(len, references)) / max(1, sum(map(len, hypotheses)))
    return Validation(nll, bleu, chrf, time.monotonic() - started, hypotheses, samples, ratio, metric)
