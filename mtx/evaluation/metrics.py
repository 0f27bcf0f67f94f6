"""Scores by sacreBLEU: BLEU, chrF and TER, each with its signature, and the files that they come from."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mtx.data.cleaning import clean_text
from mtx.decoding.text_translator import TextTranslator
from mtx.errors import DataError, MtxError, UsageError
from mtx.evaluation.protocols import Protocol
from mtx.files import durable, text_files
from mtx.run.layout import HYPOTHESIS_TEXT, REFERENCE_TEXT, SCORES, SOURCE_TEXT

# Languages that write no spaces between words, by their codes of two and of three letters.
_CHINESE = ("zh", "zho", "cmn", "yue")
_WITHOUT_SPACES = (
    *_CHINESE, "ja", "jpn", "th", "tha", "lo", "lao", "km", "khm", "my", "mya", "bo", "bod", "dz", "dzo",
)  # fmt: skip
_CHARACTER = re.compile(r"[A-Za-z0-9]+|\S")  # a number or a Latin name is one unit


@dataclass(frozen=True)
class Metric:
    """A corpus score and sacreBLEU's signature of how it was computed."""

    score: float
    signature: str


@dataclass(frozen=True)
class Scores:
    """The three scores of one test set.

    Attributes:
        published: BLEU by published protocols, by their names.
    """

    bleu: Metric
    chrf: Metric
    ter: Metric
    published: dict[str, Metric] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        values = asdict(self)
        published = values.pop("published")
        return {**values, **published}

    def line(self, name: str) -> str:
        """The score line that `train` and `evaluate` print, and one for each published protocol."""
        bleu, chrf, ter = self.bleu, self.chrf, self.ter
        line = f"{name} BLEU {bleu.score:.2f}  chrF2 {chrf.score:.1f}  TER {ter.score:.1f}  {bleu.signature}"
        others = [f"\n{name} {p} BLEU {metric.score:.2f}  {metric.signature}" for p, metric in self.published.items()]
        return "".join([line, *others])

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> "Scores":
        bleu, chrf, ter = (Metric(value[name]["score"], value[name]["signature"]) for name in ("bleu", "chrf", "ter"))
        return cls(bleu, chrf, ter)


def writes_spaces(language: str) -> bool:
    """Whether a language writes spaces between words; a script or a region may follow its code, as in zh-Hant."""
    return _code(language) not in _WITHOUT_SPACES


def _code(language: str) -> str:
    return re.split("[-_]", language)[0].lower()


def words(text: str, language: str) -> list[str]:
    """The words of a text or, where the language writes no spaces between them, its characters."""
    return text.split() if writes_spaces(language) else _CHARACTER.findall(text)


def tokenizer_of(tgt: str) -> str:
    """sacreBLEU's tokenizer for BLEU in a language: 13a for words between spaces, else one for characters."""
    if writes_spaces(tgt):
        return "13a"
    return "zh" if _code(tgt) in _CHINESE else "char"


def score(
    hypotheses: Sequence[str], references: Sequence[str], tgt: str = "", protocol: Protocol | None = None,
    more_references: Sequence[Sequence[str]] = (),
) -> Scores:  # fmt: skip
    """Corpus BLEU, chrF2 and TER.

    Args:
        tgt: target language, for BLEU's tokenizer where words are not separated by spaces.
        protocol: for a BLEU score beside the others.
        more_references: other translations of the same lines, where there are some.

    Raises:
        DataError: where they differ in length, or hold nothing (sacreBLEU would cut the longer ones silently).
    """
    from sacrebleu.metrics import BLEU, CHRF, TER

    streams = [list(references), *map(list, more_references)]
    for stream in streams:
        if len(hypotheses) != len(stream):
            raise DataError(f"{len(hypotheses)} hypotheses for {len(stream)} references")
    if not hypotheses:
        raise DataError("nothing to score: no lines")
    metrics = []
    for metric in (BLEU(tokenize=tokenizer_of(tgt)), CHRF(), TER()):
        value = metric.corpus_score(list(hypotheses), streams).score
        metrics.append(Metric(float(value), str(metric.get_signature())))
    bleu, chrf, ter = metrics
    return Scores(bleu, chrf, ter, {} if protocol is None else _published(hypotheses, streams, protocol))


def _published(hypotheses: Sequence[str], references: list[list[str]], protocol: Protocol) -> dict[str, Metric]:
    text, bleu = protocol.tokenized(references[0], [hypotheses, *references[1:]]), protocol.metric()
    tokenized, *more_references = text.systems
    value = float(bleu.corpus_score(tokenized, [text.references, *more_references]).score)
    return {protocol.name: Metric(value, text.signature(str(bleu.get_signature())))}


def bleu(hypotheses: Sequence[str], references: Sequence[str], tgt: str = "") -> float:
    """Corpus BLEU alone, for validation."""
    from sacrebleu.metrics import BLEU

    return float(BLEU(tokenize=tokenizer_of(tgt)).corpus_score(list(hypotheses), [list(references)]).score)


def comparable(lines: Sequence[str], normalization: str) -> list[str]:
    """Text as it is scored: no line break inside a line, and in NFC where the model works in NFC."""
    cleaned = [clean_text(line) for line in lines]
    return [unicodedata.normalize("NFC", line) for line in cleaned] if normalization == "nfc" else cleaned


@dataclass(frozen=True)
class NamedTestSet:
    """Text to translate and score: a run's, one of sacreBLEU's named test sets in one direction, or two files.

    Attributes:
        more_references: other translations of the same lines, which some of sacreBLEU's test sets have.
    """

    name: str
    tgt: str
    sources: list[str]
    references: list[str]
    more_references: list[list[str]] = field(default_factory=list)


def evaluate(
    translator: TextTranslator, named: NamedTestSet, directory: Path | None, protocol: Protocol | None = None
) -> Scores:
    """Translate a test set, score it, and leave src.txt, hyp.txt, ref.txt and scores.json in `directory`, if given."""
    normalization = translator.tokenizer.normalization
    hypotheses = comparable(translator.translate(named.sources), normalization)
    references = comparable(named.references, normalization)
    more_references = [comparable(lines, normalization) for lines in named.more_references]
    scores = score(hypotheses, references, named.tgt, protocol, more_references)
    if directory is None:
        return scores
    with durable.new_directory(directory, replace=True) as new:
        for file_name, lines in (
            (SOURCE_TEXT, [clean_text(line) for line in named.sources]),
            (HYPOTHESIS_TEXT, hypotheses),
            (REFERENCE_TEXT, references),
        ):
            durable.write_text(new / file_name, "".join(f"{line}\n" for line in lines))
        durable.write_json(new / SCORES, {named.name: scores.as_dict()})
    return scores


def parallel_lines(first: Path, second: Path) -> tuple[list[str], list[str]]:
    """The lines of two text files that must have equally many."""
    a, b = (list(text_files.read_lines(path)) for path in (first, second))
    if len(a) != len(b):
        raise DataError(f"{first} has {len(a)} lines, {second} has {len(b)}")
    return a, b


def score_files(hyp: Path, ref: Path, tgt: str = "", protocol: Protocol | None = None) -> Scores:
    """Score a file of hypotheses against a file of references, as they are."""
    hypotheses, references = parallel_lines(hyp, ref)
    return score(comparable(hypotheses, "none"), comparable(references, "none"), tgt, protocol)


def evaluate_test_set(
    translator: TextTranslator, named: NamedTestSet, protocol: Protocol | None = None
) -> dict[str, Scores]:
    """Translate and score text that belongs to no run; nothing is written."""
    return {named.name: evaluate(translator, named, None, protocol)}


def score_test_set(hyp: Path, named: NamedTestSet, protocol: Protocol | None = None) -> dict[str, Scores]:
    """Score a file of hypotheses against one of sacreBLEU's test sets."""
    hypotheses = list(text_files.read_lines(hyp))
    if len(hypotheses) != len(named.references):
        raise DataError(f"{hyp} has {len(hypotheses)} lines, the test set {named.name} has {len(named.references)}")
    hypotheses, references = comparable(hypotheses, "none"), comparable(named.references, "none")
    more_references = [comparable(lines, "none") for lines in named.more_references]
    return {named.name: score(hypotheses, references, named.tgt, protocol, more_references)}


def target_language(direction: str | None) -> str:
    """The target of a direction such as en-de; empty where there is none."""
    return "" if direction is None else _split_direction(direction)[1]


def _split_direction(direction: str) -> tuple[str, str]:
    src, dash, tgt = direction.partition("-")
    if not (src and dash and tgt):
        raise UsageError(f"--direction: expected two languages such as en-de, got {direction!r}")
    return src, tgt


def named_test_set(name: str, pair: str) -> NamedTestSet:
    """Load a test set and all of its references by sacreBLEU's name, such as wmt14/full; sacreBLEU downloads it.

    Args:
        pair: the direction, such as en-de.

    Raises:
        UsageError: where sacreBLEU does not know the name or the direction.
        MtxError: where the download fails.
    """
    import sacrebleu

    if name not in sacrebleu.get_available_testsets():
        raise UsageError(f"sacreBLEU knows no test set named {name}", "sacrebleu --list names them")
    _, tgt = _split_direction(pair)
    if pair not in sacrebleu.get_langpairs_for_testset(name):
        known = ", ".join(sacrebleu.get_langpairs_for_testset(name))
        raise UsageError(f"test set {name} has no direction {pair}; it has {known}")
    try:
        paths = [Path(sacrebleu.get_source_file(name, pair)), *map(Path, sacrebleu.get_reference_files(name, pair))]
    except (OSError, SystemExit) as error:
        raise MtxError(f"test set {name} could not be downloaded: {error}") from None
    sources, references, *more_references = (list(text_files.read_lines(path)) for path in paths)
    return NamedTestSet(name.replace("/", "-"), tgt, sources, references, more_references)
