"""Metrics that a program outside mtx computes in a process of its own: COMET, or any command.

The program reads rows from stdin, a JSON object with `src`, `hyp` and `ref` a line, and prints a number for each; a
higher one is better. If its first line begins with `#`, that is the metric's signature, otherwise the command is. What
is before the first `|` of the signature is the name of the metric.

Flow: options -> `choose_commands`; `TestSet` with translations -> `score_by_command` -> an entry of scores.json, which
`stored_entries` reads again. stdin is a file, so that neither side waits for the other. The answers are bounded in
time, number and length.
"""

import hashlib
import json
import logging
import math
import os
import select
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtx.data.markup import clean_text
from mtx.errors import MtxError, UsageError
from mtx.evaluation.protocols import LANGUAGES
from mtx.evaluation.significance import SentenceMean, score_with_interval
from mtx.formatting import counted, format_duration
from mtx.machine import num_cores
from mtx.scoring.metrics import METRICS, Scores, TestSet
from mtx.storage import durable
from mtx.storage.run_files import SCORES
from mtx.storage.streams import progress
from mtx.storage.text_files import printable

logger = logging.getLogger(__name__)

_COMET_MODEL = "Unbabel/wmt22-comet-da"
_COMET_BYTES_PER_S = 450  # on one core, see docs/benchmarks.md
_INSTALL_COMET = "python3.11 -m venv comet; comet/bin/pip install unbabel-comet 'setuptools<81'"
_FIRST_ANSWER_S = 600.0  # a program may load or download a model before it
_NEXT_ANSWER_S = 120.0
_MAX_LINE_BYTES = 1 << 12
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
    metrics: Sequence[str], comet_python: Path | None, command: str | None, has_source: bool
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
            words = [str(comet_python), "-I", str(Path(__file__).with_name("comet_metric.py")), model]
            chosen.append(CommandMetric(f"comet:{model}", words, _COMET_BYTES_PER_S))
        elif name not in METRICS:
            raise UsageError(f"-m {name}: expected {', '.join(METRICS)}, comet or comet:MODEL")
    if command is not None:
        try:
            chosen.append(CommandMetric(command, shlex.split(command)))
        except ValueError as error:
            raise UsageError(f"--metric-command {command}: {error}") from None
    for metric in chosen:
        if not shutil.which("".join(metric.words[:1])):
            raise UsageError(f"{metric.command!r}: there is no such program")
        if not has_source:
            raise UsageError(f"{metric.command}: this metric needs the source text", "--src FILE")
    return chosen


def score_by_command(metric: CommandMetric, test_set: TestSet) -> tuple[str, durable.Json]:
    """The name of a metric, and its entry in scores.json for a test set that was `translated`.

    Raises:
        MtxError: if the program fails, or answers with anything but a number for each row.
    """
    rows = _rows(test_set)
    num_rows = len(test_set.references)
    notes = ""
    if test_set.more_references:
        notes = " against the first reference"
    if metric.bytes_per_s:
        notes += f"; without a GPU about {format_duration(len(rows) / metric.bytes_per_s)} on one core"
    logger.info("%s: scoring %s by %s%s", test_set.name, counted(num_rows, "sentence"), metric.command, notes)
    lines = _run(metric, rows, num_rows)
    signature = metric.command
    if lines and lines[0].startswith("#"):
        signature = lines.pop(0)[1:]
    if len(lines) != num_rows:
        raise MtxError(f"{metric.command}: expected {num_rows:,} numbers, got {len(lines):,}")
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
        "text": hashlib.sha256(rows).hexdigest(),
        "sentences": numbers,
    }


def stored_entries(directory: Path, test_set: TestSet) -> Scores:
    """The entries of `score_by_command` that evaluation/NAME has for the same text, by the names of the metrics."""
    text = hashlib.sha256(_rows(test_set)).hexdigest()
    with suppress(MtxError):  # no such directory, or a damaged one
        durable.verify(directory, (SCORES,), only_needed=True)
        scores = durable.read_json(directory / SCORES).get(directory.name, {})
        return {name: entry for name, entry in scores.items() if entry.get("text") == text}
    return {}


def _rows(test_set: TestSet) -> bytes:
    sources = map(clean_text, test_set.sources)
    rows = zip(sources, test_set.translations, test_set.references, strict=True)
    objects = ({"src": src, "hyp": hyp, "ref": ref} for src, hyp, ref in rows)
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in objects).encode()


def _run(metric: CommandMetric, rows: bytes, num_rows: int) -> list[str]:
    """The lines that a program prints for these rows. At the end nothing that it has started is left."""
    problem = ""
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stderr:
        stdin.write(rows)
        stdin.seek(0)
        with subprocess.Popen(
            metric.words,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={"OMP_NUM_THREADS": str(num_cores()), **os.environ},
            start_new_session=True,  # it leads a process group
        ) as process:
            try:
                with progress(metric.command, num_rows, "sentences") as update:
                    text = _read(process.stdout, num_rows, update)
                if code := process.wait(_NEXT_ANSWER_S):
                    problem = f"ended with exit code {code}"
            except (TimeoutError, subprocess.TimeoutExpired):
                problem = "takes too long to answer"
            except OverflowError:
                problem = f"prints more than {num_rows:,} numbers"
            finally:
                with suppress(OSError):  # all have ended
                    os.killpg(process.pid, signal.SIGKILL)
        if problem:
            stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - _MAX_LINE_BYTES))
            message = stderr.read().decode(errors="replace").strip().split("\n")[-1]
            raise MtxError(": ".join(filter(None, (metric.command, problem, printable(message)[-300:]))))
    *lines, rest = text.decode(errors="replace").split("\n")
    return [*lines, rest] if rest else lines


def _read(stdout: Any, num_rows: int, update: Callable[[int], None]) -> bytearray:
    """What a program prints until it closes `stdout`.

    Raises:
        TimeoutError: if a line does not come in time.
        OverflowError: if there are two lines more than rows, or one is too long.
    """
    text = bytearray()
    num_lines = 0
    deadline = time.monotonic() + _FIRST_ANSWER_S
    while select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
        data = os.read(stdout.fileno(), 1 << 16)
        if not data:
            return text
        text += data
        if num_new := data.count(b"\n"):
            num_lines += num_new
            update(num_new)
            deadline = time.monotonic() + _NEXT_ANSWER_S
        if num_lines > num_rows + 1 or len(text) - text.rfind(b"\n") > _MAX_LINE_BYTES:
            raise OverflowError
    raise TimeoutError
