"""What the text of translations shows: BLEU, chrF2 and TER against references, and what is suspicious without any.

`score` gives the scores of a test set, each with sacreBLEU's signature; `bleu` and `chrf` give one number. `mean_chrf`
is the utility of Minimum Bayes risk decoding (`Sampling.mbr` in options.py): the samples stand for what the model takes
to be possible, and the one with the highest mean utility against all of them has the least expected loss under the
model (Kumar & Byrne 2004; with samples Eikema & Aziz 2020). The utility is chrF2 of sentences, as sacreBLEU computes it
by default; fastchrf (Vamvas & Sennrich 2024) does so faster. sacreBLEU is imported when it is first needed.
"""

import logging
import re
import statistics
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter

from mtx.data.cleaning import clean_text
from mtx.data.languages import WITHOUT_SPACES, counts_words, tokenizer_of
from mtx.errors import DataError, MtxError
from mtx.formatting import install_command
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
    with durable.new_directory(directory) as new:
        for name, lines in texts.items():
            durable.write_text(new / name, "".join(f"{line}\n" for line in lines))
        durable.write_json(new / SCORES, {directory.name: scores.as_dict()})


_LONGEST_NGRAM = 4  # of BLEU
TOO_SHORT = "half of the references have fewer than four words or characters, so BLEU is nearly always 0"

Suspicion = Literal["repetition", "copy"]

# A letter of a script that puts no spaces between words, or a word
_TOKEN = re.compile(rf"[{WITHOUT_SPACES}]|[^\W_](?:[^\W_]|[\u0300-\u036f])*")
_STUTTER = re.compile(r"([^\W\d_]{1,10}?)\1{4}")
_LONGEST_UNIT = 20  # tokens of what is repeated
_FEWEST_TIMES, _FEWEST_OF_ONE_LETTER = 3, 5
_PHRASE_WORDS, _PHRASE_CHARS = 3, 6  # at least; ideographs are words of one character
_FEWEST_WORDS = 3  # of a copy: names and numbers are copied with good reason


def too_short_for_bleu(references: Sequence[str], tgt: str) -> bool:
    """Whether BLEU is nearly always 0: half of the references have fewer than four tokens, so no 4-gram can match."""
    from sacrebleu.metrics import BLEU

    tokenize = BLEU(tokenize=tokenizer_of(tgt, references)).tokenizer
    return bool(references) and statistics.median(len(tokenize(line).split()) for line in references) < _LONGEST_NGRAM


def normalize_lines(lines: Sequence[str], normalization: str) -> list[str]:
    """Text in the form in which it is scored: without line breaks inside a line, and in NFC if the model normalises.

    Args:
        normalization: the tokenizer's, `nfc`, `nmt_nfkc` or `none`.
    """
    cleaned = [clean_text(line) for line in lines]
    return [unicodedata.normalize("NFC", line) for line in cleaned] if normalization != "none" else cleaned


def bleu(hypotheses: Sequence[str], references: Sequence[str], tgt: str = "", tokenizer: str | None = None) -> float:
    """Corpus BLEU alone.

    Args:
        tokenizer: for a part of a test set, the tokenizer of the whole; by default that of these references.
    """
    from sacrebleu.metrics import BLEU

    return corpus_score(BLEU(tokenize=tokenizer or tokenizer_of(tgt, references)), hypotheses, references).score


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Corpus chrF2 alone."""
    from sacrebleu.metrics import CHRF

    return corpus_score(CHRF(), hypotheses, references).score


def suspicion(src: str, translation: str) -> Suspicion | None:
    """What is suspicious of a translation; None if nothing is.

    repetition: some words stand at least three times in a row, or a phrase twice, and more often than any in the
    source. Or some letters stand at least five times in a row in a word, and nothing so often in the source.
    copy: it is the source, which has at least three words.
    """
    of_src = _repetitions(src)
    stutters = _STUTTER.search(translation) and not _STUTTER.search(src) and of_src < _FEWEST_OF_ONE_LETTER
    if stutters or _repetitions(translation) > of_src:
        return "repetition"
    words = [word for word in _TOKEN.findall(src) if word.isalpha()]
    return "copy" if len(words) >= _FEWEST_WORDS and translation.split() == src.split() else None


def _repetitions(text: str) -> int:
    """How often some words stand in a row, at most; 0 if not often. Twice is often for a phrase."""
    tokens, most = _TOKEN.findall(text), 0
    for length in range(1, min(_LONGEST_UNIT, len(tokens) // 2) + 1):
        run, fewest = 0, 2 if length >= _PHRASE_WORDS else _FEWEST_TIMES
        for number in range(length, len(tokens)):
            run = run + 1 if tokens[number] == tokens[number - length] else 0
            times = run // length + 1
            if times >= max(fewest, most + 1):
                unit = "".join(tokens[number - length + 1 : number + 1])
                is_often = len(unit) > 1 or times >= _FEWEST_OF_ONE_LETTER
                is_often &= times >= _FEWEST_TIMES or (len(unit) >= _PHRASE_CHARS and not any(map(str.isdigit, unit)))
                most = times if is_often and not unit.isdigit() else most
    return most


def pairwise_chrf() -> Any:
    """Imports and returns fastchrf's function: [hypotheses], [references] -> [chrF of each with each], 0 to 100.

    Raises:
        MtxError: fastchrf is not installed.
    """
    try:
        import fastchrf
    except ImportError:
        raise MtxError("Minimum Bayes risk decoding: fastchrf is not installed", install_command("fastchrf")) from None
    return fastchrf.pairwise_chrf


def mean_chrf(samples: Sequence[str]) -> list[float]:
    """Returns for each sample its mean chrF, 0 to 100, with all samples as references, itself included.

    Equal samples are compared once, and count as often as they were drawn.
    """
    counts = Counter(samples)
    (chrf,) = pairwise_chrf()([[*counts]], [[*counts]])
    means = np.array(chrf) @ [*counts.values()] / len(samples)
    by_text = dict(zip(counts, means.tolist(), strict=True))
    return [by_text[sample] for sample in samples]
