"""BLEU, chrF and TER of hypotheses against references, computed by sacreBLEU, each with its signature.

Flow: hypotheses and references -> `normalize_lines` -> `score` -> `Scores`. This module reads no files and translates
nothing; `evaluate.py` does.
"""

import re
import statistics
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from mtx.data.cleaning import clean_text
from mtx.errors import DataError
from mtx.evaluation.languages import counts_words, tokenizer_of
from mtx.evaluation.protocols import Protocol

_CHARACTER = re.compile(r"[A-Za-z0-9]+|\S")  # a number or a Latin name is one unit
_LONGEST_NGRAM = 4  # of BLEU
TOO_SHORT = "half of the references have fewer than four words or characters, so BLEU is nearly always 0"


@dataclass(frozen=True)
class CorpusScore:
    """The score of a whole test set by one metric, and sacreBLEU's signature of how it was computed."""

    score: float
    signature: str


@dataclass(frozen=True)
class Scores:
    """The three scores of one test set.

    Attributes:
        published: BLEU by published protocols, by the name of the protocol.
    """

    bleu: CorpusScore
    chrf: CorpusScore
    ter: CorpusScore
    published: dict[str, CorpusScore] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        values = asdict(self)
        published = values.pop("published")
        return {**values, **published}

    def lines(self, name: str) -> list[str]:
        """The score line that `train` and `evaluate` print, and one line for each published protocol."""
        line = f"{name} BLEU {self.bleu.score:.2f}  chrF2 {self.chrf.score:.1f}  TER {self.ter.score:.1f}"
        protocols = [f"{name} {p} BLEU {bleu.score:.2f}  {bleu.signature}" for p, bleu in self.published.items()]
        return [f"{line}  {self.bleu.signature}", *protocols]

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> "Scores":
        """The scores of `as_dict`, without those of published protocols."""
        metrics = (value[name] for name in ("bleu", "chrf", "ter"))
        bleu, chrf, ter = (CorpusScore(metric["score"], metric["signature"]) for metric in metrics)
        return cls(bleu, chrf, ter)


def words(text: str, tokenizer: str) -> list[str]:
    """The words of a text, or its characters if BLEU's tokenizer splits them (see `tokenizer_of`)."""
    return text.split() if counts_words(tokenizer) else _CHARACTER.findall(text)


def too_short_for_bleu(references: Sequence[str], tgt: str) -> bool:
    """Whether BLEU is nearly always 0: half of the references have fewer than four tokens, so no 4-gram can match."""
    from sacrebleu.metrics import BLEU

    tokenize = BLEU(tokenize=tokenizer_of(tgt, references)).tokenizer
    return bool(references) and statistics.median(len(tokenize(line).split()) for line in references) < _LONGEST_NGRAM


def normalize_lines(lines: Sequence[str], normalization: str) -> list[str]:
    """Text in the form in which it is scored: without line breaks inside a line, and in NFC if the model uses NFC.

    Args:
        normalization: the tokenizer's, `nfc` or `none`.
    """
    cleaned = [clean_text(line) for line in lines]
    return [unicodedata.normalize("NFC", line) for line in cleaned] if normalization == "nfc" else cleaned


def score(
    hypotheses: Sequence[str], references: Sequence[str], tgt: str = "", protocol: Protocol | None = None,
    more_references: Sequence[Sequence[str]] = (),
) -> Scores:  # fmt: skip
    """Corpus BLEU, chrF2 and TER.

    Args:
        tgt: target language, which decides BLEU's tokenizer together with the references (`tokenizer_of`).
        protocol: adds a BLEU score by this published protocol.
        more_references: further translations of the same sources, each a list of lines.

    Raises:
        DataError: if the numbers of lines differ (sacreBLEU would silently cut the longer list), or are zero.
    """
    from sacrebleu.metrics import BLEU, CHRF, TER

    streams = [list(references), *map(list, more_references)]
    for stream in streams:
        if len(hypotheses) != len(stream):
            raise DataError(f"{len(hypotheses)} hypotheses for {len(stream)} references")
    if not hypotheses:
        raise DataError("nothing to score: no lines")
    scores = []
    for metric in (BLEU(tokenize=tokenizer_of(tgt, references)), CHRF(), TER()):
        value = metric.corpus_score(list(hypotheses), streams).score
        scores.append(CorpusScore(float(value), str(metric.get_signature())))
    bleu, chrf, ter = scores
    published = {} if protocol is None else {protocol.name: _published(hypotheses, streams, protocol)}
    return Scores(bleu, chrf, ter, published)


def _published(hypotheses: Sequence[str], references: list[list[str]], protocol: Protocol) -> CorpusScore:
    text, metric = protocol.tokenized(references[0], [hypotheses, *references[1:]]), protocol.metric()
    tokenized, *more_references = text.systems
    value = float(metric.corpus_score(tokenized, [text.references, *more_references]).score)
    return CorpusScore(value, text.signature(str(metric.get_signature())))


def bleu(hypotheses: Sequence[str], references: Sequence[str], tgt: str = "", tokenizer: str | None = None) -> float:
    """Corpus BLEU alone.

    Args:
        tokenizer: for a part of a test set, the tokenizer of the whole; by default that of these references.
    """
    from sacrebleu.metrics import BLEU

    metric = BLEU(tokenize=tokenizer or tokenizer_of(tgt, references))
    return float(metric.corpus_score(list(hypotheses), [list(references)]).score)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Corpus chrF2 alone."""
    from sacrebleu.metrics import CHRF

    return float(CHRF().corpus_score(list(hypotheses), [list(references)]).score)
