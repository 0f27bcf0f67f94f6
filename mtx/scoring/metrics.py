"""BLEU, chrF2 and TER of translations against references.

Flow: `TestSet` -> its text in the form in which it is scored (`TestSet.translated`) -> `score`, each with sacreBLEU's
signature -> `write_test_set`, into evaluation/NAME of a run. `bleu` gives one number. sacreBLEU is imported when it is
first needed.
"""

import logging
import statistics
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple, Self

from mtx.data.languages import tokenizer_of, writes_spaces
from mtx.data.markup import clean_text
from mtx.errors import DataError
from mtx.formatting import format_duration
from mtx.storage import durable
from mtx.storage.run_files import HYPOTHESIS_TEXT, REFERENCE_TEXT, SCORES, SOURCE_TEXT
from mtx.storage.text_files import Lines

logger = logging.getLogger(__name__)

METRICS = {"bleu": "BLEU", "chrf": "chrF2", "chrf++": "chrF++", "ter": "TER"}  # and their names
DEFAULT_METRICS = ("bleu", "chrf", "ter")
LONGEST_TER_S = 1800.0
_FEW_WORDS = 0.85  # for each word of the source: en-de has 0.93, and en-crh, which is agglutinative, 0.82

# Of one test set, as in scores.json: {"bleu": {"score": 39.41, "signature": "…"}, "chrf": …, "ter": …}
Scores = dict[str, Any]
Pairs = Collection[tuple[str, str]]  # source and target of each direction
Text = tuple[Lines, Lines, str, str]  # sources, references, and their languages


class Band(IntEnum):
    """How good the translations of a test set are; a higher band is better."""

    USELESS = 0
    POOR = 1  # hardly usable
    GIST = 2  # usable for the gist
    DRAFT = 3  # usable as a draft
    GOOD = 4


# The lowest score of each band, see https://cloud.google.com/translate/automl/docs/evaluate#bleu; on Multi30k en-de a
# BLEU of 21 corresponds to a chrF2 of 45. Text of a grammar can be learned perfectly.
LIMITS = {
    "bleu": {Band.GOOD: 40, Band.DRAFT: 30, Band.GIST: 20, Band.POOR: 10, Band.USELESS: 0},
    "chrf": {Band.GOOD: 65, Band.DRAFT: 55, Band.GIST: 45, Band.POOR: 35, Band.USELESS: 0},
    "synthetic": {Band.GOOD: 95, Band.DRAFT: 80, Band.GIST: 60, Band.POOR: 30, Band.USELESS: 0},  # of BLEU
}


class ReasonForChrf(NamedTuple):
    """Why chrF2 and not BLEU decides how good the translations of a test set are.

    Attributes:
        text: the reason in words.
        bleu_is_a_bound: whether BLEU still says something, so that the band is at most one above BLEU's.
    """

    text: str
    bleu_is_a_bound: bool


@dataclass(frozen=True)
class TestSet:
    """One test set, and the translations of it that are to be scored.

    Attributes:
        tgt: target language; empty if unknown.
        src: source language; empty if unknown.
        sources: lines to translate; empty for none.
        more_references: further translations of the same sources, each a list of lines.
        hypotheses: existing translations, by their run directory or file.
        translations: of the sources, see `translated`.
    """

    name: str
    tgt: str
    sources: list[str]
    references: list[str]
    more_references: list[list[str]] = field(default_factory=list)
    hypotheses: dict[Path, list[str]] = field(default_factory=dict)
    src: str = ""
    translations: list[str] = field(default_factory=list)

    def translated(self, translations: Lines, normalization: str) -> Self:
        """The test set with these translations and its references as they are scored, see `normalize_lines`."""
        return replace(
            self,
            translations=normalize_lines(translations, normalization),
            references=normalize_lines(self.references, normalization),
            more_references=[normalize_lines(lines, normalization) for lines in self.more_references],
        )


def score_line(name: str, scores: Scores) -> str:
    """The score line of `train` and `evaluate`."""
    bleu_score = scores["bleu"]
    ter = f"  TER {scores['ter']['score']:.1f}" if "ter" in scores else ""
    interval = " [{:.1f}, {:.1f}]".format(*bleu_score["interval"]) if "interval" in bleu_score else ""
    return (
        f"{name} BLEU {bleu_score['score']:.2f}{interval}  chrF2 {scores['chrf']['score']:.1f}{ter}  "
        f"{bleu_score['signature']}"
    )


def metric_line(name: str, metric: str, entry: Mapping[str, Any]) -> str:
    """The line of `mtx evaluate` for the entry of one metric on a test set."""
    title = METRICS.get(metric, metric)
    digits = digits_of(title)
    interval = ""
    if "interval" in entry:
        low, high = entry["interval"]
        interval = f" [{low:.{digits - 1}f}, {high:.{digits - 1}f}]"
    return f"{name} {title} {entry['score']:.{digits}f}{interval}  {entry['signature']}"


def digits_of(name: str) -> int:
    """The number of digits after the point of a score by the metric with this name.

    BLEU and the other metrics of mtx are 0 to 100. The numbers of a command, such as COMET's, are mostly 0 to 1.
    """
    return 2 if name in METRICS.values() else 4


def parts_of(names: Iterable[str], pairs: Pairs) -> dict[str, list[str]]:
    """The test sets among `names`; the parts of one with several directions are NAME.en-de and others, not its mean.

    Args:
        pairs: the directions of the run; a name such as dev.2019-01 only looks like one.
    """
    by_set = defaultdict[str, list[str]](list)
    for name in names:
        shared, _, direction = name.rpartition(".")
        if tuple(direction.split("-")) in pairs:
            by_set[shared].append(name)
        else:
            by_set.setdefault(name, [name])
    return {name if len(parts) > 1 else parts[0]: parts for name, parts in by_set.items()}


def mean_scores(scores: Mapping[str, Scores], pairs: Pairs) -> dict[str, Scores]:
    """The mean scores of each test set with several directions, see `parts_of`."""
    means = dict[str, Scores]()
    for name, parts in parts_of(scores, pairs).items():
        if len(parts) == 1:
            continue
        means[name] = {}
        for metric, entry in scores[parts[0]].items():
            has_mean = metric in METRICS or "command" in entry
            if has_mean and all(metric in scores[part] for part in parts):
                means[name][metric] = {
                    "score": statistics.fmean(scores[part][metric]["score"] for part in parts),
                    "signature": f"mean of {len(parts)} language pairs",
                }
    return means


def ter_takes_too_long(hypotheses: Lines, references: Lines, longest_s: float) -> bool:
    """Whether sacreBLEU's TER could take more than `longest_s` seconds; logs a warning if so.

    Its time grows with the length of a line to the power of 3.5, to 28 s for one line of 300 words that has little in
    common with its reference (docs/benchmarks.md); beyond that length it searches less and grows slowly.
    """
    lengths = (min(len(line.split()) for line in pair) for pair in zip(hypotheses, references, strict=True))
    seconds: float = sum(0.57 * (min(length, 300) / 100) ** 3.5 * max(1, length / 300) for length in lengths)
    if seconds > longest_s:
        logger.warning("skipping TER, which could take %s on such long lines", format_duration(seconds))
    return seconds > longest_s


def corpus_score(metric: Any, hypotheses: Lines, *references: Lines) -> durable.Json:
    """The score of a metric of sacreBLEU, and its signature of how it was computed."""
    value = metric.corpus_score(list(hypotheses), [*map(list, references)]).score
    return {"score": float(value), "signature": str(metric.get_signature())}


def score(
    hypotheses: Lines,
    references: Lines,
    tgt: str = "",
    more_references: Sequence[Lines] = (),
    measure: Callable[..., Any] = corpus_score,
    metrics: Collection[str] = DEFAULT_METRICS,
    longest_ter_s: float = LONGEST_TER_S,
) -> Scores:
    """Corpus scores by some metrics, without TER if it would take too long, each with sacreBLEU's signature.

    Args:
        tgt: target language, which determines BLEU's tokenizer together with the references (`tokenizer_of`).
        more_references: further translations of the same sources, each a list of lines.
        measure: gives the entry of a metric of sacreBLEU, from the metric, the hypotheses and all references.
        metrics: some of `METRICS`.
        longest_ter_s: see `ter_takes_too_long`.

    Raises:
        DataError: if the numbers of lines differ (sacreBLEU would silently cut the longer list), or are zero.
    """
    from sacrebleu.metrics import BLEU, CHRF, TER

    streams = [references, *more_references]
    for stream in streams:
        if len(hypotheses) != len(stream):
            raise DataError(f"expected {len(stream)} hypotheses, one for each reference, got {len(hypotheses)}")
    if not hypotheses:
        raise DataError("nothing to score: no lines")

    by_name = {
        "bleu": BLEU(tokenize=tokenizer_of(tgt, references)),
        "chrf": CHRF(),
        "chrf++": CHRF(word_order=2),
    }
    if "ter" in metrics and not ter_takes_too_long(hypotheses, references, longest_ter_s):
        by_name["ter"] = TER()
    return {name: measure(metric, hypotheses, *streams) for name, metric in by_name.items() if name in metrics}


def warn_about_bleu(name: str, references: Lines, tgt: str, sources: Lines = (), src: str = "") -> None:
    """Warn if BLEU is not informative on a test set; chrF2 still is.

    Args:
        sources: for text that is to be judged, see `why_chrf`; systems are compared without.
    """
    if reason := why_chrf([(sources, references, src, tgt)]):
        logger.warning("%s: %s; use chrF2 instead", name, reason.text)


def write_test_set(directory: Path, test_set: TestSet, scores: Scores) -> None:
    """Write src.txt, hyp.txt, ref.txt and scores.json; an existing directory is replaced."""
    texts = {
        SOURCE_TEXT: map(clean_text, test_set.sources),
        HYPOTHESIS_TEXT: test_set.translations,
        REFERENCE_TEXT: test_set.references,
    }
    with durable.new_directory(directory) as new:
        for name, lines in texts.items():
            durable.write_text(new / name, "".join(f"{line}\n" for line in lines))
        durable.write_json(new / SCORES, {directory.name: scores})


def too_short_for_bleu(references: Lines, tgt: str) -> bool:
    """Whether BLEU is nearly always 0: half of the references have fewer than four tokens, so no 4-gram can match."""
    from sacrebleu.metrics import BLEU

    tokenize = BLEU(tokenize=tokenizer_of(tgt, references)).tokenizer
    return bool(references) and statistics.median(len(tokenize(line).split()) for line in references) < 4


def why_chrf(texts: Collection[Text]) -> ReasonForChrf | None:
    """Why chrF2 and not BLEU decides how good the translations of a test set are; None if BLEU does.

    Args:
        texts: the text of each direction. The ratio of the words is their mean, as the scores are, and is not known if
            a language is written without spaces.
    """
    if any(too_short_for_bleu(references, tgt) for _, references, _, tgt in texts):
        return ReasonForChrf(
            "half of the references have fewer than four words or characters, so BLEU is nearly always 0",
            bleu_is_a_bound=False,
        )
    ratios = []
    for sources, references, src, tgt in texts:
        num_src_words = sum(len(line.split()) for line in sources)
        num_tgt_words = sum(len(line.split()) for line in references)
        is_known = num_src_words and writes_spaces(src, sources) and writes_spaces(tgt, references)
        if not is_known:
            return None
        ratios.append(num_tgt_words / num_src_words)
    ratio = statistics.fmean(ratios)
    if ratio > _FEW_WORDS:
        return None
    return ReasonForChrf(
        f"the references have {ratio:.2f} words for each word of the source",
        bleu_is_a_bound=True,
    )


def find_band(scores: Scores, texts: Collection[Text], bleu_limits: str = "bleu") -> tuple[Band, ReasonForChrf | None]:
    """How good the translations of a test set are: the band of its scores by `LIMITS`, and `why_chrf`.

    Where the references have few words, these are long, and BLEU counts one with a wrong ending as wrong. The band is
    then chrF2's, at most one above BLEU's.

    Args:
        bleu_limits: the key of the limits for BLEU.
    """
    bleu_band = _band_of_score(scores["bleu"]["score"], LIMITS[bleu_limits])
    chrf_band = _band_of_score(scores["chrf"]["score"], LIMITS["chrf"])
    reason = why_chrf(texts)
    if reason is None:
        return bleu_band, None
    if reason.bleu_is_a_bound:
        return Band(min(chrf_band, bleu_band + 1)), reason
    return chrf_band, reason


def _band_of_score(value: float, limits: Mapping[Band, float]) -> Band:
    """The best band whose lowest score a score reaches."""
    return max(band for band, lowest_score in limits.items() if value >= lowest_score)


def normalize_lines(lines: Lines, normalization: str) -> list[str]:
    """Text in the form in which it is scored: without line breaks inside a line, and in NFC if the model normalises.

    Args:
        normalization: the tokenizer's, `nfc`, `nmt_nfkc` or `none`.
    """
    cleaned = [clean_text(line) for line in lines]
    return [unicodedata.normalize("NFC", line) for line in cleaned] if normalization != "none" else cleaned


def bleu(hypotheses: Lines, references: Lines, tgt: str = "", tokenizer: str | None = None) -> float:
    """Corpus BLEU alone.

    Args:
        tokenizer: for a part of a test set, the tokenizer of the whole; by default that of these references.
    """
    from sacrebleu.metrics import BLEU

    metric = BLEU(tokenize=tokenizer or tokenizer_of(tgt, references))
    return float(corpus_score(metric, hypotheses, references)["score"])
