"""Translates text of one language into synthetic training pairs, in parts, so that a killed process can resume.

Flow: lines -> blocks -> translations, which a file next to the output keeps -> filters -> TSV of source and target. The
lines are the target side of the pairs for back-translation, and the source side for distillation.
The blocks are the same in every call, so that a translation does not depend on where an earlier call ended.

Distillation (sequence-level, Kim & Rush 2016): a small student learns from the translations of a teacher, and the two
are compared. Flow: the teacher's text -> `write_text` -> `translate_text` -> the student's run, which is trained like
any other -> `measure` of teacher, student and its export in int8. Each part is made once. Of a source with
a reference, the student learns the hypothesis nearest to it, as in Mozilla's recipes.
"""

import itertools
import json
import logging
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from mtx.data.cleaning import Limits, clean_pair
from mtx.data.token_store import PreparedData, TokenStore
from mtx.decoding.metrics import suspicion
from mtx.decoding.translator import Translator
from mtx.errors import DamagedFileError, UsageError
from mtx.evaluation.comparison import draw_table
from mtx.evaluation.test_set_scores import translate_and_score
from mtx.evaluation.test_sets import TestSet
from mtx.formatting import counted
from mtx.storage import durable
from mtx.storage.resumable import ResumableRows
from mtx.storage.run_contents import find_model, model_identity, require_models
from mtx.storage.run_files import CTRANSLATE2_WEIGHTS, WEIGHTS
from mtx.storage.text_files import read_lines

logger = logging.getLogger(__name__)

TRAIN = "train.tsv"
VALID = "valid.tsv"
DISTILLED = "distilled.tsv"
_ABOUT = "teacher.json"
_PAIRS_AT_ONCE = 100_000
_NUM_ALONE = 30  # sentences that are translated one by one to measure the time of one
_ROUNDS = 2  # of the translation of all sentences; the faster one counts
BLOCK_LINES = 1024  # what a killed process loses at most
LIMITS = Limits(256, 4.0)  # those of training text
WORST_SHARE = 0.05  # of the pairs, by a forward model: the share that Mozilla's recipes drop

KEPT = "kept"

Row = tuple[str, float | None]  # the translation of a line, and its score by the forward model


@dataclass(frozen=True)
class SyntheticText:
    """The work on one text.

    Attributes:
        lines: gives the text, one sentence a line; called several times.
        kept: what is translated, in blocks of lines that are translated together.
        translate: gives the translations of some lines; takes the number of the first one too.
        score: gives the log-probability per token of some lines, given their translations, by a forward model; the
            pairs of the worst are dropped. None without such a model.
        side: the side of the pairs that the lines are.
    """

    lines: Callable[[], Iterable[str]]
    kept: ResumableRows
    translate: Callable[[list[str], int], list[str]]
    score: Callable[[list[str], list[str]], list[float | None]] | None = None
    side: Literal["src", "tgt"] = "tgt"

    def run(self, progress: Callable[[int], object]) -> None:
        """Translate the lines that are not translated yet; `progress` is called with the number of each block's.

        Raises:
            UsageError: if `kept` belongs to other translations.
        """
        num_done = self.kept.resume()
        progress(num_done)
        lines = itertools.islice(self.lines(), num_done, None)
        number = num_done + 1
        while block := list(itertools.islice(lines, self.kept.block_rows)):
            translations = self.translate(block, number)
            scores = self.score(translations, block) if self.score else [None] * len(block)
            rows = zip(translations, scores, strict=True)
            self.kept.append([json.dumps(row, ensure_ascii=False) for row in rows])
            number += len(block)
            progress(len(block))

    def write_pairs(self, sink: IO[bytes]) -> Counter[str]:
        """Write the pairs for training as TSV; returns how many lines were dropped, by reason, and how many kept."""
        scores = sorted(score for _, score in self._rows() if score is not None)
        num_worst = int(WORST_SHARE * len(scores))
        worst = scores[num_worst - 1] if num_worst else -math.inf
        counts = Counter[str]()
        for (translation, score), line in zip(self._rows(), self.lines(), strict=True):
            pair = clean_pair(*((line, translation) if self.side == "src" else (translation, line)), LIMITS)
            if isinstance(pair, str):
                counts[pair] += 1
            elif noted := suspicion(line, translation):
                counts[noted] += 1
            elif score is not None and score <= worst:
                counts["improbable"] += 1
            else:
                counts[KEPT] += 1
                sink.write(tsv_line(pair))
        return counts

    def _rows(self) -> Iterator[Row]:
        for number, row in enumerate(self.kept.rows(), 1):
            try:
                translation, score = json.loads(row)
            except ValueError:
                raise DamagedFileError(f"{self.kept.path}: its row {number} is damaged") from None
            yield translation, score


def tsv_line(pair: Sequence[str]) -> bytes:
    """A pair as a line of TSV; its tabs become spaces."""
    return "\t".join(text.replace("\t", " ") for text in pair).encode() + b"\n"


def described(counts: Counter[str]) -> str:
    """What `SyntheticText.write_pairs` has counted, such as `98 pairs of 100 lines (copy 2)`."""
    dropped = ", ".join(f"{reason} {count:,}" for reason, count in counts.most_common() if reason != KEPT)
    pairs, lines = counted(counts[KEPT], "pair"), counted(counts.total(), "line")
    return f"{pairs} of {lines}{dropped and f' ({dropped})'}"


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
                file.write(tsv_line(pair))


def check_teacher(directory: Path, teacher: str, mono: Path | None, text: list[str]) -> dict[str, Any]:
    """Refuse to resume the student of another teacher or text; returns what its text is made from.

    Args:
        text: the settings that name other text than the teacher's own.
    """
    about = {"teacher": model_identity(teacher), "mono": mono and durable.sha256(mono), "text": sorted(text)}
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
    kept = ResumableRows(output, about, BLOCK_LINES)
    work = SyntheticText(lambda: source_lines(directory, mono), kept, translate, side="src")
    with kept.lock():
        work.run(progress)
        with durable.new_file(output) as sink:
            counts = work.write_pairs(sink)
        kept.remove()
    logger.info("%s: %s", output, described(counts))


def _pairs(path: Path) -> Iterator[list[str]]:
    return (line.split("\t") for line in read_lines(path))


def source_lines(directory: Path, mono: Path | None) -> Iterator[str]:
    """What the teacher translates: the sources of its own text, and then the lines of `mono`."""
    return itertools.chain((pair[0] for pair in _pairs(directory / TRAIN)), () if mono is None else read_lines(mono))


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


def table(systems: Sequence[System]) -> list[str]:
    """A row for each system."""
    rows = [
        [s.name, f"{s.bleu:.2f}", f"{s.chrf:.1f}", f"{s.megabytes:.1f}", f"{s.rate:,.0f}", f"{s.milliseconds:.1f}"]
        for s in systems
    ]
    return draw_table(("", "BLEU", "chrF2", "MB", "sentences/s", "ms for one"), rows, "text")


def measure(name: str, translator: Translator, model: str, test_set: TestSet) -> System:
    """Translate a test set, score it and take the time.

    Args:
        model: a model, an ensemble or an export, whose weights are in the files.
    """

    def seconds(sources: list[str]) -> float:
        started = time.perf_counter()
        translator.translate(sources)
        return time.perf_counter() - started

    sources = test_set.sources
    scores = translate_and_score(translator, test_set)  # which also warms up
    rate = len(sources) / min(seconds(sources) for _ in range(_ROUNDS))
    alone = statistics.median(seconds([source]) for source in sources[:_NUM_ALONE])
    files = (find_model(path) / name for path in require_models(model) for name in (WEIGHTS, CTRANSLATE2_WEIGHTS))
    num_bytes = sum(file.stat().st_size for file in files if file.is_file())
    return System(name, scores.bleu.score, scores.chrf.score, num_bytes / 1e6, rate, 1e3 * alone)


def nearest_by_chrf(texts: Sequence[str], reference: str) -> str:
    """The text with the highest chrF2 against a reference, the first one of equal ones."""
    from sacrebleu.metrics import CHRF

    metric = CHRF()
    return max(texts, key=lambda text: float(metric.sentence_score(text, [reference]).score))
