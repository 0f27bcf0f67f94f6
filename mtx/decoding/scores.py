"""The scores of a test set by sacreBLEU, BLEU, chrF and TER, each with its signature, and the files that keep them."""

import logging
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from mtx.data.cleaning import clean_text
from mtx.data.languages import counts_words, tokenizer_of
from mtx.decoding.metrics import TOO_SHORT, too_short_for_bleu
from mtx.errors import DataError
from mtx.storage import durable
from mtx.storage.run_files import HYPOTHESIS_TEXT, REFERENCE_TEXT, SCORES, SOURCE_TEXT

logger = logging.getLogger(__name__)

_CHARACTER = re.compile(r"[A-Za-z0-9]+|\S")  # a number or a Latin name is one unit
_LONGEST_TER_S = 1800.0


@dataclass(frozen=True)
class CorpusScore:
    """The score of a whole test set by one metric, and sacreBLEU's signature of how it was computed."""

    score: float
    signature: str


@dataclass(frozen=True)
class Scores:
    """The three scores of one test set.

    Attributes:
        ter: None if it would take too long, see `ter_takes_too_long`.
        published: BLEU by published protocols, by the name of the protocol.
    """

    bleu: CorpusScore
    chrf: CorpusScore
    ter: CorpusScore | None = None
    published: dict[str, CorpusScore] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        values = asdict(self)
        published = values.pop("published")
        return {**{name: value for name, value in values.items() if value is not None}, **published}

    def lines(self, name: str) -> list[str]:
        """The score line that `train` and `evaluate` print, and one line for each published protocol."""
        ter = "" if self.ter is None else f"  TER {self.ter.score:.1f}"
        line = f"{name} BLEU {self.bleu.score:.2f}  chrF2 {self.chrf.score:.1f}{ter}"
        protocols = [f"{name} {p} BLEU {bleu.score:.2f}  {bleu.signature}" for p, bleu in self.published.items()]
        return [f"{line}  {self.bleu.signature}", *protocols]

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> "Scores":
        """The scores of `as_dict`, without those of published protocols."""
        return TypeAdapter(cls).validate_python(value)


def words(text: str, tokenizer: str) -> list[str]:
    """The words of a text, or its characters if BLEU's tokenizer splits them (see `tokenizer_of`)."""
    return text.split() if counts_words(tokenizer) else _CHARACTER.findall(text)


def ter_takes_too_long(hypotheses: Sequence[str], references: Sequence[str]) -> bool:
    """Whether sacreBLEU's TER could take more than half an hour; a warning says so.

    Its time grows with the length of a line to the power of 3.5, to 28 s for one line of 300 words that has little in
    common with its reference (docs/benchmarks.md); beyond that length it searches less and grows slowly.
    """
    seconds = 0.0
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        num_words = min(len(hypothesis.split()), len(reference.split()))
        seconds += 0.57 * (min(num_words, 300) / 100) ** 3.5 * max(1, num_words / 300)
    if seconds > _LONGEST_TER_S:
        logger.warning("TER is left out: on lines as long as these it could take %.0f minutes", seconds / 60)
    return seconds > _LONGEST_TER_S


def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    tgt: str = "",
    more_references: Sequence[Sequence[str]] = (),
) -> Scores:
    """Corpus BLEU, chrF2 and TER.

    Args:
        tgt: target language, which decides BLEU's tokenizer together with the references (`tokenizer_of`).
        more_references: further translations of the same sources, each a list of lines.

    Raises:
        DataError: if the numbers of lines differ (sacreBLEU would silently cut the longer list), or are zero.
    """
    from sacrebleu.metrics import BLEU, CHRF, TER

    streams = [references, *more_references]
    for stream in streams:
        if len(hypotheses) != len(stream):
            raise DataError(f"{len(hypotheses)} hypotheses for {len(stream)} references")
    if not hypotheses:
        raise DataError("nothing to score: no lines")

    return Scores(
        bleu=corpus_score(BLEU(tokenize=tokenizer_of(tgt, references)), hypotheses, *streams),
        chrf=corpus_score(CHRF(), hypotheses, *streams),
        ter=None if ter_takes_too_long(hypotheses, references) else corpus_score(TER(), hypotheses, *streams),
    )


def corpus_score(metric: Any, hypotheses: Sequence[str], *references: Sequence[str]) -> CorpusScore:
    """The score of a metric of sacreBLEU, with its signature."""
    value = metric.corpus_score(list(hypotheses), [*map(list, references)]).score
    return CorpusScore(float(value), str(metric.get_signature()))


def warn_if_too_short(name: str, references: Sequence[str], tgt: str) -> None:
    """Warn if BLEU says nothing about a test set; chrF2 does."""
    if too_short_for_bleu(references, tgt):
        logger.warning("%s: %s; chrF2 is the score to go by", name, TOO_SHORT)


def write_test_set(
    directory: Path, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str], scores: Scores
) -> None:
    """Write src.txt, hyp.txt, ref.txt and scores.json; a directory that is there is replaced."""
    texts = {SOURCE_TEXT: map(clean_text, sources), HYPOTHESIS_TEXT: hypotheses, REFERENCE_TEXT: references}
    with durable.new_directory(directory, replace=True) as new:
        for name, lines in texts.items():
            durable.write_text(new / name, "".join(f"{line}\n" for line in lines))
        durable.write_json(new / SCORES, {directory.name: scores.as_dict()})
