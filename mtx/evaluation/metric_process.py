"""Metrics that a program outside mtx computes in a process of its own: COMET, or any command.

The program reads rows from stdin, a JSON object with `src`, `hyp` and `ref` a line, and prints a number for each; a
higher one is better. If its first line begins with `#`, that is the metric's signature, otherwise the command is. What
is before the first `|` of the signature is the name of the metric.

Flow: options -> `choose_commands`; `TestSet` with translations -> `score_by_command` -> an entry of scores.json, which
`stored_entries` reads again. The answers are bounded in time, number and length.
"""

import hashlib
import json
import logging
import math
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from mtx.data.markup import clean_text
from mtx.errors import MtxError, UsageError
from mtx.evaluation.protocols import LANGUAGES
from mtx.evaluation.significance import SentenceMean, score_with_interval
from mtx.formatting import counted, format_duration
from mtx.scoring.metrics import METRICS, Scores, TestSet
from mtx.storage import durable
from mtx.storage.programs import find_program, run_on_lines
from mtx.storage.run_files import SCORES
from mtx.storage.streams import progress
from mtx.storage.text_files import printable

logger = logging.getLogger(__name__)

_COMET_MODEL = "Unbabel/wmt22-comet-da"
_COMET_BYTES_PER_S = 450  # on one core, see docs/benchmarks.md
_INSTALL_COMET = "python3.11 -m venv comet; comet/bin/pip install unbabel-comet 'setuptools<81'"
_FIRST_ANSWER_S = 600.0  # a program may load or download a model before it
_NEXT_ANSWER_S = 120.0
_TAKEN_NAMES = ("", *METRICS, *METRICS.values(), *LANGUAGES, "terms")  # in scores.json and in tables


@dataclass(frozen=True)
class CommandMetric:
    """A metric that a program computes.

    Attributes:
        command: as it is stored and shown; `comet:MODEL` for COMET.
        words: the program and its arguments.
        bytes_per_s: of the rows that it reads on one core, without a GPU; None if unknown.
    """

    command: str
    words: list[str]
    bytes_per_s: int | None = None


def choose_commands(
    metrics: Sequence[str], comet_python: str | None, command: str | None, has_source: bool
) -> list[CommandMetric]:
    """The metrics that programs compute, by the options of a command.

    Args:
        metrics: names of metrics, also of those of mtx.
        comet_python: the Python of an environment with COMET.
        command: of a further metric.
        has_source: whether there is source text.

    Raises:
        UsageError: if there is no such metric, or something is missing.
    """
    chosen = []
    for name in dict.fromkeys(metrics):
        kind, _, model = name.partition(":")
        if kind == "comet":
            if not comet_python:
                raise UsageError(f"-m {name}: expected --metric-python PATH, the Python of COMET", _INSTALL_COMET)
            model = model or _COMET_MODEL
            if not shutil.which(comet_python):
                raise UsageError(f"--metric-python {comet_python}: not an executable file", _INSTALL_COMET)
            words = [comet_python, "-I", str(Path(__file__).with_name("comet_metric.py")), model]
            chosen.append(CommandMetric(f"comet:{model}", words, _COMET_BYTES_PER_S))
        elif name not in METRICS:
            raise UsageError(
                f"-m {name}: expected {', '.join(METRICS)}, comet or comet:MODEL", "--metric-command runs others"
            )
    if comet_python and not chosen:
        raise UsageError("--metric-python is for comet", "-m comet")
    if command is not None:
        chosen.append(CommandMetric(command, find_program(command)))
    for metric in chosen:
        if not has_source:
            raise UsageError(f"{metric.command}: this metric needs the source text", "--src FILE")
    return chosen


def score_by_command(metric: CommandMetric, test_set: TestSet) -> tuple[str, durable.Json]:
    """The name of a metric, and its entry in scores.json for a test set that was `translated`.

    Raises:
        MtxError: if the program fails, or answers with anything but a number for each row.
    """
    rows = _rows(test_set)
    num_rows = len(rows)
    notes = ""
    if test_set.more_references:
        notes = " against the first reference"
    if metric.bytes_per_s:
        num_bytes = sum(len(row.encode()) + 1 for row in rows)
        notes += f"; without a GPU about {format_duration(num_bytes / metric.bytes_per_s)} on one core"
    logger.info("%s: scoring %s by %s%s", test_set.name, counted(num_rows, "sentence"), metric.command, notes)
    lines = list[str]()
    with (
        progress(metric.command, num_rows, "sentences") as update,
        run_on_lines(metric.command, metric.words, rows, _FIRST_ANSWER_S, _NEXT_ANSWER_S) as answers,
    ):
        for line in islice(answers, num_rows + 2):  # a signature, and one too many
            lines.append(line)
            update(1)
    signature = metric.command
    if lines and lines[0].startswith("#"):
        signature = lines.pop(0)[1:]
    if len(lines) != num_rows:
        extent = "more" if len(lines) > num_rows else f"{len(lines):,}"
        raise MtxError(f"{metric.command}: expected {counted(num_rows, 'number')}, got {extent}")
    numbers = list[float]()
    for line in lines:
        try:
            number = float(line)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise MtxError(f"{metric.command}: answer {len(numbers) + 1:,}: expected a number, got {line[:80]!r}")
        numbers.append(number)
    mean = SentenceMean(numbers, printable(signature.strip()))
    if mean.name in _TAKEN_NAMES:
        raise MtxError(f"{metric.command}: its name is {mean.name!r}; expected another name than those of mtx")
    return mean.name, {
        **score_with_interval(mean, ()),
        "command": metric.command,
        "text": _hash(rows),
        "sentences": numbers,
    }


def stored_entries(directory: Path, test_set: TestSet) -> Scores:
    """The entries of `score_by_command` that evaluation/NAME has for the same text, by the names of the metrics."""
    text = _hash(_rows(test_set))
    with suppress(MtxError):  # no such directory, or a damaged one
        durable.verify(directory, (SCORES,), only_needed=True)
        scores = durable.read_json(directory / SCORES).get(directory.name, {})
        return {name: entry for name, entry in scores.items() if entry.get("text") == text}
    return {}


def _rows(test_set: TestSet) -> list[str]:
    sources = map(clean_text, test_set.sources)
    rows = zip(sources, test_set.translations, test_set.references, strict=True)
    return [json.dumps({"src": src, "hyp": hyp, "ref": ref}, ensure_ascii=False) for src, hyp, ref in rows]


def _hash(rows: Sequence[str]) -> str:
    return hashlib.sha256("".join(f"{row}\n" for row in rows).encode(errors="replace")).hexdigest()
