"""Distillation: a small student learns from the translations of a teacher, and the two are compared.

`mtx distil` calls it. Flow: the teacher's text -> `write_text` -> `translate_text` -> the student's run, which
`mtx.pipeline` trains like any other -> `measure` of teacher, student and its export in int8. Each part is made once; a
killed command goes on where it was. Sequence-level distillation is Kim & Rush 2016. Of a source with a reference,
Mozilla's recipes learn the hypothesis nearest to it.
"""

import itertools
import logging
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mtx.config.schema import Config
from mtx.data.preprocess import PreparedData
from mtx.data.token_store import TokenStore
from mtx.decoding.synthetic_text import BLOCK_LINES, SyntheticText, described, write_pairs
from mtx.decoding.text_translator import Hypothesis, TextTranslator
from mtx.errors import Advice, UsageError
from mtx.evaluation.evaluate import score_translations
from mtx.evaluation.metrics import nearest_by_chrf, normalize_lines
from mtx.evaluation.test_sets import TestSet
from mtx.files import durable
from mtx.files.resumable import ResumableRows
from mtx.files.sizes import counted
from mtx.files.text_files import read_lines
from mtx.model import architecture
from mtx.model_directory import description
from mtx.run.contents import model_directory, model_identity, require_models
from mtx.run.layout import CTRANSLATE2_WEIGHTS, WEIGHTS

logger = logging.getLogger(__name__)

TRAIN, VALID, DISTILLED = "train.tsv", "valid.tsv", "distilled.tsv"
_ABOUT = "teacher.json"
_PAIRS_AT_ONCE = 100_000
_ENOUGH_PAIRS = 1_000_000  # from so many on the teacher's own text is enough for a student
_LARGEST_SHARE = 0.5  # of the teacher's parameters, above which a student is hardly smaller
_LEAST_SPEEDUP = 1.5
_LOST_BLEU = 1.0
_NUM_ALONE = 30  # sentences that are translated one by one to measure the time of one
_ROUNDS = 2  # of each measurement of speed; the best one counts


def write_text(data: PreparedData, directory: Path) -> list[str]:
    """Write the text of a prepared run as TSV files, without training pairs that have a tag; what is there stays.

    Returns:
        The names of the files of the test sets.
    """
    train, corpora = data.train, data.report["corpora"]
    untagged = [number for number, corpus in enumerate(corpora) if corpus["tag"] is None]
    rows = np.flatnonzero(np.isin(train.corpus, untagged))
    tests = {f"tests/{name}.tsv": store for name, store in data.tests.items()}
    (directory / "tests").mkdir(exist_ok=True)
    for name, store in {**tests, VALID: data.valid}.items():
        _write_pairs(directory / name, store, np.arange(store.num_pairs))
    _write_pairs(directory / TRAIN, train, rows)
    return [*tests]


def _write_pairs(path: Path, store: TokenStore, rows: "np.ndarray[Any, Any]") -> None:
    if path.exists():
        return
    with durable.new_file(path) as file:
        for start in range(0, len(rows), _PAIRS_AT_ONCE):
            for pair in zip(*store.texts(rows[start : start + _PAIRS_AT_ONCE]), strict=True):
                file.write("\t".join(text.replace("\t", " ") for text in pair).encode() + b"\n")


def check_teacher(directory: Path, teacher: str, mono: Path | None, text: list[str]) -> dict[str, Any]:
    """Refuse to go on with the student of another teacher or text; returns what its text is made from.

    Args:
        text: the settings that name other text than the teacher's own.
    """
    mono_hash = None if mono is None else durable.sha256(mono)
    about = {"teacher": model_identity(teacher), "mono": mono_hash, "text": sorted(text)}
    if not (directory / _ABOUT).exists():
        durable.write_json(directory / _ABOUT, about)
    elif {key: durable.read_json(directory / _ABOUT).get(key) for key in about} != about:
        raise UsageError(f"{directory}: is of another teacher or of other text", "run_dir=DIR makes another student")
    return about


def translate_text(
    translator: TextTranslator, directory: Path, mono: Path | None, about: dict[str, Any],
    progress: Callable[[int], object],
) -> None:  # fmt: skip
    """Write what the student learns beside the teacher's own text: the teacher's translations, as DISTILLED.

    Of a source with a reference the hypothesis with the highest chrF is taken, of other text the best one.

    Args:
        progress: is called with the numbers of lines that are done.
    """
    output, references = directory / DISTILLED, _References(directory / TRAIN)
    if output.exists():
        return

    def translate(block: list[str], first: int) -> list[str]:
        found = translator.hypotheses(block, None, first)
        pairs = zip(found, references.of(first, len(block)), strict=True)
        return [_nearest(hypotheses, reference) for hypotheses, reference in pairs]

    about = {**about, "search": repr(translator.options), "translator": type(translator).__name__}
    kept = ResumableRows.beside(output, about, BLOCK_LINES)
    work = SyntheticText(lambda: source_lines(directory, mono), kept, translate, side="src")
    with kept.held():
        work.run(progress)
        with durable.new_file(output) as sink:
            counts = write_pairs(work, sink)
        kept.remove()
    logger.info("%s: %s", output, described(counts, num_lines(directory, mono)))


class _References:
    """The targets of a TSV file, and None behind them, in the order in which blocks of lines ask for them."""

    def __init__(self, path: Path):
        self._path, self._next = path, 0
        self._targets: Iterator[str | None] = iter(())

    def of(self, first: int, count: int) -> list[str | None]:
        """Those of `count` lines from the number `first` on."""
        if first != self._next:
            targets = itertools.chain((pair[1] for pair in _pairs(self._path)), itertools.repeat(None))
            self._targets = itertools.islice(targets, first - 1, None)
        self._next = first + count
        return list(itertools.islice(self._targets, count))


def _pairs(path: Path) -> Iterator[list[str]]:
    return (line.split("\t") for line in read_lines(path))


def _nearest(hypotheses: Sequence[Hypothesis], reference: str | None) -> str:
    texts = [hypothesis.text for hypothesis in hypotheses]
    return texts[0] if reference is None else nearest_by_chrf(texts, reference)


def source_lines(directory: Path, mono: Path | None) -> Iterator[str]:
    """What the teacher translates: the sources of its own text, and then the lines of `mono`."""
    return itertools.chain((pair[0] for pair in _pairs(directory / TRAIN)), () if mono is None else read_lines(mono))


def num_lines(directory: Path, mono: Path | None) -> int:
    """The number of `source_lines`."""
    return sum(1 for _ in source_lines(directory, mono))


def num_parameters(model: str) -> int:
    """The number of parameters of a model, or of all models of an ensemble."""
    found = (description.read(model_directory(path)) for path in require_models(model))
    return sum(architecture.num_parameters(one.config, one.tokenizer.num_ids) for one in found)


def doubts(config: Config, teacher: str, num_ids: int, num_pairs: int, mono: Path | None) -> Iterator[Advice]:
    """Why the student of this configuration may not pay, before it is trained."""
    size, own = num_parameters(teacher), architecture.num_parameters(config.model, num_ids)
    if own > _LARGEST_SHARE * size:
        yield Advice(
            f"the student has {own:,} parameters and its teacher {size:,}, so it cannot become much smaller or faster",
            "model.num_encoder_layers, model.num_decoder_layers, model.d_model and model.d_ff set other sizes; "
            "several teachers, A+B, give a better one",
        )
    if mono is None and num_pairs < _ENOUGH_PAIRS:
        yield Advice(
            f"the student sees no text beyond the {num_pairs:,} pairs of its teacher, so it learns little more than "
            "they hold",
            "data.mono=FILE adds text of the source language",
        )


HEAD = ("", "BLEU", "chrF2", "MB", "sentences/s", "ms for one")


@dataclass(frozen=True)
class System:
    """What a model costs and what it is worth.

    Attributes:
        megabytes: of its weights.
        rate: sentences per second, many at once.
        milliseconds: for one sentence alone, the median.
    """

    name: str
    bleu: float
    chrf: float
    megabytes: float
    rate: float
    milliseconds: float

    def cells(self) -> list[str]:
        """A row of the table under `HEAD`."""
        numbers = (f"{self.bleu:.2f}", f"{self.chrf:.1f}", f"{self.megabytes:.1f}", f"{self.rate:,.0f}")
        return [self.name, *numbers, f"{self.milliseconds:.1f}"]


def measure(name: str, translator: TextTranslator, num_bytes: int, test_set: TestSet) -> System:
    """Translate a test set, score it and take the time."""
    translator.translate(test_set.sources[:_NUM_ALONE])
    times = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        hypotheses = translator.translate(test_set.sources)
        times.append(time.perf_counter() - started)
    alone = []
    for source in test_set.sources[:_NUM_ALONE] * _ROUNDS:
        started = time.perf_counter()
        translator.translate([source])
        alone.append(time.perf_counter() - started)
    normalization = translator.tokenizer.normalization
    scores = score_translations(normalize_lines(hypotheses, normalization), test_set, normalization, None)
    rate = len(test_set.sources) / min(times)
    return System(name, scores.bleu.score, scores.chrf.score, num_bytes / 1e6, rate, 1e3 * statistics.median(alone))


def weight_bytes(model: str) -> int:
    """The size of the weights of a model, an ensemble or an export."""
    roots = map(model_directory, require_models(model))
    files = (root / name for root in roots for name in (WEIGHTS, CTRANSLATE2_WEIGHTS))
    return sum(file.stat().st_size for file in files if file.is_file())


def verdict(teacher: System, student: System, mono: Path | None) -> str:
    """Whether the student, as it is used, pays; and what to do if it does not."""
    lost, faster = teacher.bleu - student.bleu, student.rate / teacher.rate
    smaller = teacher.megabytes / student.megabytes
    gains = f"{faster:.1f} times as fast, {smaller:.1f} times smaller"
    change = f"{-lost:+.2f} BLEU"
    if lost > _LOST_BLEU:
        more = "more source text (data.mono=FILE)" if mono is None else "still more source text"
        return f"the student is {gains}, but loses {lost:.2f} BLEU: {more}, longer training or a larger student"
    if faster < _LEAST_SPEEDUP:
        return f"the student does not pay: {gains}, {change}; fewer layers or a smaller model.d_model make it faster"
    return f"the student is {gains}, {change}"


def summary(config: Config, num_sources: int) -> str:
    """One line about what is about to happen."""
    layers = f"{config.model.num_encoder_layers}+{config.model.num_decoder_layers} layers of {config.model.d_model}"
    return f"the teacher translates {counted(num_sources, 'line')}; a student of {layers} learns from them"
