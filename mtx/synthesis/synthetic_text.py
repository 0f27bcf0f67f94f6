"""Turns the translations of monolingual text into synthetic training pairs.

Flow: lines -> translations, by a job that resumes (`mtx.storage.resumable`) -> filters -> TSV of source and target. The
lines are the target side of the pairs for back-translation, and the source side for distillation.

Distillation (sequence-level, Kim & Rush 2016): a small student learns from the translations of a teacher, and the two
are compared. Flow: the teacher's text -> `write_text` -> `translate_text` -> the student's run, trained like any
other -> `measure` of teacher, student and its int8 export. Each part is made once. For a source with a reference, the
student learns the hypothesis nearest to the reference, as in Mozilla's recipes.
"""

import json
import logging
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from mtx.config.schema import DataConfig
from mtx.data.cleaning import clean_pair
from mtx.data.token_store import PreparedData
from mtx.decoding.translator import Translator
from mtx.errors import DamagedFileError, UsageError
from mtx.evaluation.comparison import draw_table
from mtx.evaluation.test_set_scores import score_translations, translate
from mtx.formatting import counted
from mtx.scoring.metrics import TestSet
from mtx.scoring.suspicion import suspicion
from mtx.storage import durable
from mtx.storage.resumable import ResumableRows, Shard
from mtx.storage.run_files import CTRANSLATE2_WEIGHTS, WEIGHTS, find_model, model_identity, require_models
from mtx.storage.text_files import LineParts, read_lines

logger = logging.getLogger(__name__)

TRAIN = "train.tsv"
VALID = "valid.tsv"
DISTILLED = "distilled.tsv"
_PAIRS_AT_ONCE = 100_000
BLOCK_LINES = 1024  # the most lines that a killed process loses
LIMITS = DataConfig.model_validate({})  # the limits of training text
WORST_SHARE = 0.05  # the share of pairs dropped by the score of a forward model, as in Mozilla's recipes

KEPT = "kept"

Row = tuple[str, float | None]  # the translation of a line, and its score by the forward model


def write_pairs(
    lines: Shard,
    translated: ResumableRows,
    translate_block: Callable[[list[LineParts]], Iterable[Row]],
    output: AbstractContextManager[IO[bytes]],
    side: Literal["src", "tgt"] = "tgt",
) -> Counter[str]:
    """Translate lines into training pairs, a TSV file; those with the worst scores are dropped.

    Args:
        lines: the text, one sentence a line, each with its reference if it has one.
        translated: the finished translations; removed at the end.
        translate_block: returns the rows of a block of lines.
        side: the side of the lines in the pairs.

    Returns:
        The numbers of dropped lines by reason, and of kept lines.

    Raises:
        UsageError: if `translated` belongs to other translations.
    """
    counts = Counter[str]()
    with translated.completed(
        lines, lambda block: [json.dumps(row, ensure_ascii=False) for row in translate_block(block)]
    ):
        known_scores = sorted(value for _, value in _rows(translated) if value is not None)
        num_worst = int(WORST_SHARE * len(known_scores))
        highest_dropped = known_scores[num_worst - 1] if num_worst else float("-inf")
        with output as sink:
            for (translation, value), (line, *_) in zip(_rows(translated), lines, strict=True):
                if side == "src":
                    cleaned = clean_pair(line, translation, LIMITS)
                else:
                    cleaned = clean_pair(translation, line, LIMITS)
                reason = cleaned if isinstance(cleaned, str) else suspicion(line, translation)
                if not reason and value is not None and value <= highest_dropped:
                    reason = "improbable"
                if reason:
                    counts[reason] += 1
                else:
                    counts[KEPT] += 1
                    sink.write(tsv_line(cleaned))
    logger.info("%s: %s", translated.output, describe_counts(counts))
    return counts


def _rows(translated: ResumableRows) -> Iterator[Row]:
    for number, row in enumerate(translated.rows(), 1):
        try:
            translation, score = json.loads(row)
        except ValueError:
            raise DamagedFileError(f"{translated.path}: its row {number} is damaged") from None
        yield translation, score


def tsv_line(pair: Sequence[str]) -> bytes:
    """A pair as a line of TSV; its tabs become spaces."""
    return "\t".join(text.replace("\t", " ") for text in pair).encode() + b"\n"


def describe_counts(counts: Counter[str]) -> str:
    """The counts of `write_pairs` in words, such as `98 pairs of 100 lines (copy 2)`."""
    dropped = ", ".join(f"{reason} {count:,}" for reason, count in counts.most_common() if reason != KEPT)
    note = f" ({dropped})" if dropped else ""
    return f"{counted(counts[KEPT], 'pair')} of {counted(counts.total(), 'line')}{note}"


def write_text(data: PreparedData, directory: Path) -> list[str]:
    """Write the text of a prepared run as TSV files, without tagged training pairs; existing files are kept.

    Returns:
        The names of the files of the test sets.
    """
    untagged_corpora = [number for number, corpus in enumerate(data.report["corpora"]) if corpus["tag"] is None]
    tests = {f"tests/{name}.tsv": store for name, store in data.tests.items()}
    (directory / "tests").mkdir(exist_ok=True)
    for name, store in {**tests, VALID: data.valid, TRAIN: data.train}.items():
        if (directory / name).exists():
            continue
        rows = np.flatnonzero(np.isin(store.corpus, untagged_corpora)) if name == TRAIN else np.arange(store.num_pairs)
        with durable.new_file(directory / name) as file:
            for start in range(0, len(rows), _PAIRS_AT_ONCE):
                pairs = zip(*store.texts(rows[start : start + _PAIRS_AT_ONCE]), strict=True)
                file.writelines(map(tsv_line, pairs))
    return [*tests]


def check_teacher(directory: Path, teacher: str, mono: Path | None, text: list[str]) -> dict[str, Any]:
    """Refuse to resume the student of another teacher or text; returns the origin of its text.

    Args:
        text: the settings for text other than the teacher's own.
    """
    origin = {"teacher": model_identity(teacher), "mono": mono and durable.sha256(mono), "text": sorted(text)}
    path = directory / "teacher.json"
    if not path.exists():
        durable.write_json(path, origin)
    elif not origin.items() <= durable.read_json(path).items():
        raise UsageError(f"{directory}: made from another teacher or text", "use run_dir=DIR for a new student")
    return origin


def translate_text(
    translator: Translator,
    directory: Path,
    mono: Path | None,
    origin: dict[str, Any],
) -> None:
    """Write the synthetic pairs of the student, the teacher's translations, as DISTILLED.

    For a source with a reference the hypothesis with the highest chrF is used, for other text the best one.

    Args:
        origin: everything that the pairs depend on, from `check_teacher`.
    """
    output = directory / DISTILLED
    if output.exists():
        return

    def translate_block(block: list[LineParts]) -> Iterator[Row]:
        results = translator.hypotheses([line for line, *_ in block])
        for ranked, (_, *references) in zip(results, block, strict=True):
            yield nearest_by_chrf([hypothesis.text for hypothesis in ranked], *references), None

    origin = {**origin, "search": repr(translator.options), "translator": translator.engine.name}
    lines = Shard(lambda: source_lines(directory, mono))
    write_pairs(
        lines, ResumableRows(output, origin, BLOCK_LINES), translate_block, durable.new_file(output), side="src"
    )


def source_lines(directory: Path, mono: Path | None) -> Iterator[LineParts]:
    """The lines for the teacher: the sources of its own text with their references, then the lines of `mono`."""
    for line in read_lines(directory / TRAIN):
        source, reference = line.split("\t")
        yield source, reference
    for line in read_lines(mono) if mono else ():
        yield (line,)


def table(systems: dict[str, dict[str, float]]) -> list[str]:
    """A table with a row for the measurements of each system."""
    cells = "{bleu:.2f} {chrf:.1f} {megabytes:.1f} {rate:,.0f} {milliseconds:.1f}"
    head = ["", "BLEU", "chrF2", "MB", "sentences/s", "ms for one"]
    rows = [[name, *cells.format(**system).split()] for name, system in systems.items()]
    return draw_table([head, *rows], "text")


def measure(translator: Translator, model: str, test_set: TestSet) -> dict[str, float]:
    """The quality and cost of a model.

    bleu and chrf on a test set, the size of the weights in megabytes, the throughput in sentences per second as `rate`,
    and the median latency of a single sentence in milliseconds.

    Args:
        model: a model, an ensemble or an export with its weights in files.
    """

    def seconds(sources: list[str]) -> float:
        started = time.perf_counter()
        translator.translate(sources)
        return time.perf_counter() - started

    sources = test_set.sources
    scores = score_translations(translate(translator, test_set))  # also warms up
    files = (find_model(path) / name for path in require_models(model) for name in (WEIGHTS, CTRANSLATE2_WEIGHTS))
    return {
        "bleu": scores["bleu"]["score"],
        "chrf": scores["chrf"]["score"],
        "megabytes": sum(file.stat().st_size for file in files if file.is_file()) / 1e6,
        "rate": len(sources) / min(seconds(sources), seconds(sources)),  # the faster of two rounds
        # some sentences one by one, for the latency
        "milliseconds": 1e3 * statistics.median(seconds([source]) for source in sources[:30]),
    }


def nearest_by_chrf(texts: Sequence[str], reference: str | None = None) -> str:
    """The text with the highest chrF2 against a reference; the first one of equal ones, or without a reference."""
    if reference is None:
        return texts[0]
    from sacrebleu.metrics import CHRF

    metric = CHRF()
    return max(texts, key=lambda text: metric.sentence_score(text, [reference]).score)
