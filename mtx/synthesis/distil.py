"""Distillation: a small student learns from the translations of a teacher, and the two are compared.

`mtx distil` calls it. Flow: the teacher's text -> `write_text` -> `translate_text` -> the student's run, which
`mtx.training.run` trains like any other -> `measure` of teacher, student and its export in int8. Each part is made
once; a killed command resumes where it was. Sequence-level distillation is Kim & Rush 2016. Of a source with a
reference, Mozilla's recipes learn the hypothesis nearest to it.
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

from mtx.data.token_store import PreparedData, TokenStore
from mtx.decoding.metrics import normalize_lines
from mtx.decoding.translator import Translator
from mtx.errors import UsageError
from mtx.evaluation.evaluate import score_translations
from mtx.evaluation.test_sets import TestSet
from mtx.storage import durable
from mtx.storage.resumable import ResumableRows
from mtx.storage.run_contents import find_model, model_identity, require_models
from mtx.storage.run_files import CTRANSLATE2_WEIGHTS, WEIGHTS
from mtx.storage.text_files import read_lines
from mtx.synthesis.synthetic_text import BLOCK_LINES, SyntheticText, described, write_pairs

logger = logging.getLogger(__name__)

TRAIN = "train.tsv"
VALID = "valid.tsv"
DISTILLED = "distilled.tsv"
_ABOUT = "teacher.json"
_PAIRS_AT_ONCE = 100_000
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
    """Refuse to resume the student of another teacher or text; returns what its text is made from.

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
    translator: Translator,
    directory: Path,
    mono: Path | None,
    about: dict[str, Any],
    progress: Callable[[int], object],
) -> None:
    """Write what the student learns beside the teacher's own text: the teacher's translations, as DISTILLED.

    Of a source with a reference the hypothesis with the highest chrF is taken, of other text the best one.

    Args:
        progress: is called with the numbers of lines that are done.
    """
    output = directory / DISTILLED
    references: Iterator[str] | None = None
    if output.exists():
        return

    def translate(block: list[str], first: int) -> list[str]:
        nonlocal references
        if references is None:
            references = itertools.islice((pair[1] for pair in _pairs(directory / TRAIN)), first - 1, None)
        chosen = []
        for hypotheses in translator.hypotheses(block, None, first):
            texts = [hypothesis.text for hypothesis in hypotheses]
            reference = next(references, None)
            chosen.append(texts[0] if reference is None else nearest_by_chrf(texts, reference))
        return chosen

    about = {**about, "search": repr(translator.options), "translator": translator.engine.name}
    kept = ResumableRows.for_output(output, about, BLOCK_LINES)
    work = SyntheticText(lambda: source_lines(directory, mono), kept, translate, side="src")
    with kept.lock():
        work.run(progress)
        with durable.new_file(output) as sink:
            counts = write_pairs(work, sink)
        kept.remove()
    logger.info("%s: %s", output, described(counts))


def _pairs(path: Path) -> Iterator[list[str]]:
    return (line.split("\t") for line in read_lines(path))


def source_lines(directory: Path, mono: Path | None) -> Iterator[str]:
    """What the teacher translates: the sources of its own text, and then the lines of `mono`."""
    return itertools.chain((pair[0] for pair in _pairs(directory / TRAIN)), () if mono is None else read_lines(mono))


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


def measure(name: str, translator: Translator, num_bytes: int, test_set: TestSet) -> System:
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
    roots = map(find_model, require_models(model))
    files = (root / name for root in roots for name in (WEIGHTS, CTRANSLATE2_WEIGHTS))
    return sum(file.stat().st_size for file in files if file.is_file())


def nearest_by_chrf(texts: Sequence[str], reference: str) -> str:
    """The text with the highest chrF2 against a reference, the first one of equal ones."""
    from sacrebleu.metrics import CHRF

    metric = CHRF()
    return max(texts, key=lambda text: float(metric.sentence_score(text, [reference]).score))
