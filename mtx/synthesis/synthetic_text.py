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
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import tee
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np

from mtx.config.schema import TEACHER_TEST, DataConfig
from mtx.data.cleaning import clean_pair, hash_texts
from mtx.data.held_out import held_out_size
from mtx.data.language_detection import is_in_other_language
from mtx.data.markup import clean_text
from mtx.data.token_store import PreparedData
from mtx.decoding.translator import Translator
from mtx.errors import DamagedFileError, DataError, UsageError
from mtx.evaluation.comparison import draw_table
from mtx.evaluation.test_set_scores import score_translations, translate
from mtx.formatting import counted
from mtx.scoring.metrics import TestSet
from mtx.scoring.suspicion import suspicion
from mtx.storage import disk, durable
from mtx.storage.resumable import Blocks, ResumableRows, Shard
from mtx.storage.run_files import CTRANSLATE2_WEIGHTS, WEIGHTS, find_model, require_models
from mtx.storage.text_files import LineParts, printable, read_lines
from mtx.synthesis.teachers import ExternalTeacher, Teacher

logger = logging.getLogger(__name__)

TRAIN = "train.tsv"
VALID = "valid.tsv"
DISTILLED = "distilled.tsv"
LIMITS = DataConfig.model_validate({})  # the limits of training text
WORST_SHARE = 0.05  # the share of pairs dropped by the score of a forward model, as in Mozilla's recipes

KEPT = "kept"
# A sign of one of these groups in an answer, and none in the line, is not of a translation, but of what is around it.
# It drops at most 0.4% of the pairs of Tatoeba and Multi30k.
_SIGNS = [re.compile(signs) for signs in (":(?!\\d)|：", '["“”„«»「」『』]', r"[()\[\]{}（）【】]", "[<>|*`#_=]")]
_FEWEST_SHIFTED = 64  # lines
_LONGEST_SHIFT = 3
_LOW_CORRELATION = 0.3  # of the lengths of translations with those of their lines, which is higher
_HIGH_CORRELATION = 0.6
_FEWEST_LINES = 20  # of which a test set and a validation set get one each


class StudentText(NamedTuple):
    """The files with the text of a student, and what its teacher translates for them.

    Attributes:
        lines: for each file of synthetic pairs, what the teacher translates.
        train, tests: the files with training text and with test sets.
        num_pairs: the size of the text.
    """

    lines: dict[str, Shard]
    train: list[str]
    tests: list[str]
    num_pairs: int


Measurements = dict[str, float]  # see `measure`
Row = tuple[str, float | None]  # the translation of a line, and its score by the forward model


def write_pairs(
    teacher: Teacher,
    lines: Shard,
    translated: ResumableRows,
    output: AbstractContextManager[IO[bytes]],
    side: Literal["src", "tgt"] = "tgt",
    score: Callable[[list[str], list[str]], Sequence[float | None]] | None = None,
) -> Counter[str]:
    """Translate lines into training pairs, a TSV file; those with the worst scores are dropped.

    Args:
        lines: the text, one sentence a line, each with its reference if it has one.
        translated: the finished translations; removed at the end.
        side: the side of the lines in the pairs.
        score: returns the score of each of some translations of lines.

    Returns:
        The numbers of dropped lines by reason, and of kept lines.

    Raises:
        UsageError: if `translated` belongs to other translations.
    """
    counts = Counter[str]()
    examples = dict[str, str]()  # the first dropped pair for each reason

    def write_rows(blocks: Blocks) -> Iterator[list[str]]:
        blocks, blocks_to_score = tee(blocks)
        for translations, block in zip(teacher.translate(blocks), blocks_to_score, strict=True):
            sources = [line for line, *_ in block]
            if teacher.language and are_shifted(sources, translations):
                raise teacher.shifted()
            scores = score(translations, sources) if score else [None] * len(sources)
            yield [json.dumps(row, ensure_ascii=False) for row in zip(translations, scores, strict=True)]

    with translated.completed(lines, write_rows):
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
                if not reason and teacher.language:
                    reason = find_addition(line, translation, teacher.language)
                if not reason and value is not None and value <= highest_dropped:
                    reason = "improbable"
                if reason:
                    counts[reason] += 1
                    examples.setdefault(reason, f"{printable(line[:80])} -> {printable(translation[:80])}")
                else:
                    counts[KEPT] += 1
                    sink.write(tsv_line(cleaned))
    logger.info("%s: %s", translated.output, describe_counts(counts))
    for reason, example in examples.items():
        logger.info("  %s, such as: %s", reason, example)
    return counts


def find_addition(line: str, answer: str, language: str) -> str | None:
    """What shows that an answer is not only the translation of a line; None for nothing.

    Models that chat write prefaces, notes and refusals.

    Args:
        language: expected.
    """
    if "\n" in answer:
        return "several lines"
    if any(signs.search(answer) and not signs.search(line) for signs in _SIGNS):
        return "added punctuation"
    return "another language" if is_in_other_language(answer, language) else None


def are_shifted(lines: Sequence[str], translations: Sequence[str]) -> bool:
    """Whether translations are as long as the lines before or after their own, and not as those.

    A teacher that skips a line, or answers in another order, makes pairs that no count finds.
    """
    if len(lines) < _FEWEST_SHIFTED:
        return False
    src, tgt = (np.array(list(map(len, side)), dtype=float) for side in (lines, translations))
    if not (src.std() and tgt.std()):
        return False
    shifts = [np.roll(src, shift) for shift in range(-_LONGEST_SHIFT, _LONGEST_SHIFT + 1)]
    likeness = np.corrcoef([*shifts, tgt])[-1, :-1]
    return bool(likeness[_LONGEST_SHIFT] < _LOW_CORRELATION and likeness.max() > _HIGH_CORRELATION)


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


def write_text(data: PreparedData, directory: Path, mono: Path | None) -> StudentText:
    """Write the text of a prepared run as TSV files, without tagged training pairs; existing files are kept.

    Args:
        mono: more text for the teacher.
    """
    untagged_corpora = [number for number, corpus in enumerate(data.report["corpora"]) if corpus["tag"] is None]
    tests = {f"tests/{name}.tsv": store for name, store in data.tests.items()}
    (directory / "tests").mkdir(exist_ok=True)
    for name, store in {**tests, VALID: data.valid, TRAIN: data.train}.items():
        if (directory / name).exists():
            continue
        if name == TRAIN:
            store = store.take_corpora(untagged_corpora)
        with durable.new_file(directory / name) as file:
            for number in range(len(store.corpora)):
                block = store.read_block(number)
                pairs = zip(block["src_text"].to_pylist(), block["tgt_text"].to_pylist(), strict=True)
                file.writelines(map(tsv_line, pairs))
    lines = Shard(lambda: source_lines(directory, mono))
    return StudentText({DISTILLED: lines}, [TRAIN, DISTILLED], [*tests], data.train.num_pairs)


def check_teacher(directory: Path, teacher: object, mono: Path | None, text: list[str]) -> dict[str, Any]:
    """Refuse to resume the student of another teacher or text; returns the origin of its text.

    What was begun with another one is removed as long as nothing was translated.

    Args:
        teacher: its identity.
        text: the settings for text other than the teacher's own.
    """
    origin = {"teacher": teacher, "mono": mono and durable.sha256(mono), "text": sorted(text)}
    path = directory / "teacher.json"
    if path.exists() and not origin.items() <= durable.read_json(path).items():
        is_valid_translated = (directory / f"{VALID}.src").exists() and (directory / VALID).exists()
        if is_valid_translated or (directory / DISTILLED).exists() or any(directory.rglob("*.part")):
            raise UsageError(f"{directory}: made from another teacher or text", "use run_dir=DIR for a new student")
        durable.remove_tree(directory)
    directory.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        durable.write_json(path, origin)
    return origin


def divide_lines(mono: Path, directory: Path) -> StudentText:
    """Divide the lines of a text into those for validation, test and training, by their hashes as in `held_out`.

    Each part is a file, without empty and repeated lines. A call that finds all three writes none.

    Raises:
        DataError: there are too few lines.
    """
    test = f"tests/{TEACHER_TEST}.tsv"
    files = {name: directory / f"{name}.src" for name in (VALID, test, DISTILLED)}
    if not all(map(Path.exists, files.values())):
        hashes = hash_texts(_text_lines(mono))
        unique_hashes, first_rows = np.unique(hashes, return_index=True)
        size = held_out_size(unique_hashes.size)
        if unique_hashes.size < _FEWEST_LINES:
            raise DataError(f"{mono}: has {unique_hashes.size} different lines, a student needs {_FEWEST_LINES}")
        parts = np.full(hashes.size, "", dtype=object)
        parts[first_rows] = DISTILLED
        parts[first_rows[:size]] = test
        parts[first_rows[-size:]] = VALID
        (directory / "tests").mkdir(exist_ok=True)
        for name, path in files.items():
            with durable.new_file(path) as file:
                file.writelines(
                    f"{line}\n".encode() for line, part in zip(_text_lines(mono), parts, strict=True) if part == name
                )
    lines = {name: Shard(partial(read_parts, path)) for name, path in files.items()}
    return StudentText(lines, [DISTILLED], [test], len(lines[DISTILLED]))


def read_parts(path: Path) -> Iterator[LineParts]:
    """The lines of a text, without references."""
    return ((line,) for line in read_lines(path))


def _text_lines(path: Path) -> Iterator[str]:
    """The lines of a text as they are cleaned, without empty ones."""
    return filter(None, map(clean_text, read_lines(path)))


def translate_text(teacher: Teacher, lines: Shard, output: Path, origin: dict[str, Any]) -> None:
    """Write the pairs of lines and their translations by a teacher.

    Args:
        origin: everything that the pairs depend on, from `check_teacher`.
    """
    rows = ResumableRows(output, {**origin, **teacher.identity}, teacher.block_lines)
    if not write_pairs(teacher, lines, rows, durable.new_file(output), side="src")[KEPT]:
        disk.unlink(output)
        raise DataError(f"{output}: none of the translations is usable", "see the examples above")


def source_lines(directory: Path, mono: Path | None) -> Iterator[LineParts]:
    """The lines for the teacher: the sources of its own text with their references, then the lines of `mono`."""
    for line in read_lines(directory / TRAIN):
        source, reference = line.split("\t")
        yield source, reference
    for line in read_lines(mono) if mono else ():
        yield (line,)


def table(systems: dict[str, Measurements], test: str) -> list[str]:
    """A table with a row for the measurements of each system on a test set; what was not measured is empty."""
    head = ["", "BLEU", "chrF2", "MB", "sentences/s", "ms for one"]
    forms = {"bleu": "{:.2f}", "chrf": "{:.1f}", "megabytes": "{:.1f}", "rate": "{:,.0f}", "milliseconds": "{:.1f}"}
    rows = [
        [name, *(form.format(values[key]) if key in values else "" for key, form in forms.items())]
        for name, values in systems.items()
    ]
    lines = draw_table([head, *rows], "text")
    if test == TEACHER_TEST:
        lines.append(f"{test}: the references are the teacher's, so the scores show how near the student comes to it,")
        lines.append("and not how good either is")
    return lines


def measure_teacher(teacher: ExternalTeacher, test_set: TestSet, directory: Path) -> Measurements:
    """The quality of an external teacher on a test set that is not its own text, and its speed in this process.

    Both are kept in a file of the directory, so that the teacher is asked once.
    """
    path = directory / "measurements.json"
    if path.exists():
        stored = durable.read_json(path)
        return {name: stored[name] for name in ("bleu", "chrf", "rate") if name in stored}
    values = Measurements()
    if test_set.name != TEACHER_TEST:
        teacher.announce(test_set.sources)
        lines: list[LineParts] = [(line,) for line in test_set.sources]
        translations = [text for block in teacher.translate(iter([lines])) for text in block]
        scores = score_translations(test_set.translated(translations, "nfc"))
        values |= {"bleu": scores["bleu"]["score"], "chrf": scores["chrf"]["score"]}
    if teacher.seconds:
        values["rate"] = teacher.num_lines / teacher.seconds
    durable.write_json(path, values)
    return values


def measure(translator: Translator, model: str, test_set: TestSet) -> Measurements:
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
