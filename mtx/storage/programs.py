"""Runs a program of the user's that reads lines and writes one line for each: a teacher, or a metric.

It reads its lines from a file and writes its messages to another one, so that neither side waits for the other.
"""

import contextlib
import os
import select
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

from mtx.errors import MtxError, UsageError, first_line
from mtx.storage.text_files import printable

_MAX_LINE_BYTES = 1 << 20
_MESSAGE_BYTES = 1 << 12  # of the end of stderr


def find_program(command: str) -> list[str]:
    """The words of a command line, as a shell divides them.

    Raises:
        UsageError: it has unclosed quotes, or there is no such program.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"{command}: {first_line(error)}", "close the quotation mark") from None
    if not words or not shutil.which(words[0]):
        raise UsageError(f"{command!r}: command not found", "sh -c '...' runs what only a shell understands")
    return words


@contextlib.contextmanager
def run_on_lines(
    name: str, words: Sequence[str], lines: Iterable[str], first_s: float | None = None, next_s: float | None = None
) -> Iterator[Iterator[str]]:
    """Starts a program on lines; at the end of the context its process group is killed.

    Args:
        name: for messages.
        words: the program and its arguments, see `find_program`.
        lines: its stdin. All are read before it starts.
        first_s: the longest time until it writes a line, in seconds; None for any.
        next_s: the longest time until it writes another one, or ends.

    Yields:
        The lines that it writes to stdout, as they arrive. Reading them raises an MtxError if it exits with another
        code than 0, takes too long, or writes a line of more than a megabyte.
    """
    with tempfile.TemporaryFile() as text, tempfile.TemporaryFile() as messages:
        text.writelines(line.encode(errors="replace") + b"\n" for line in lines)
        text.seek(0)
        process = subprocess.Popen(words, stdin=text, stdout=subprocess.PIPE, stderr=messages, start_new_session=True)
        try:
            yield _read_answers(process, printable(name), messages, first_s, next_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdout
            process.stdout.close()


def _read_answers(
    process: subprocess.Popen[bytes], name: str, messages: IO[bytes], first_s: float | None, next_s: float | None
) -> Iterator[str]:
    try:
        yield from _read_lines(process.stdout, first_s, next_s)
        code = process.wait(next_s)
    except (TimeoutError, subprocess.TimeoutExpired):
        raise MtxError(f"{name}: takes too long to answer{_last_message(messages)}") from None
    except OverflowError:
        raise MtxError(f"{name}: writes a line of more than {_MAX_LINE_BYTES:,} bytes") from None
    if code:
        reason = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        raise MtxError(f"{name}: {reason}{_last_message(messages)}")


def _read_lines(stream: IO[bytes] | None, first_s: float | None, next_s: float | None) -> Iterator[str]:
    """The lines of a pipe; TimeoutError if one does not come in time, OverflowError if it is too long."""
    assert stream
    unfinished_line = b""
    limit_s = first_s
    started = time.monotonic()
    while True:
        left_s = None if limit_s is None else max(0.0, started + limit_s - time.monotonic())
        if not select.select([stream], [], [], left_s)[0]:
            raise TimeoutError
        data = os.read(stream.fileno(), 1 << 16)
        *lines, unfinished_line = (unfinished_line + data).split(b"\n")
        if not data and unfinished_line:
            lines.append(unfinished_line)
        for line in lines:
            yield line.decode(errors="replace")
        if not data:
            return
        if len(unfinished_line) > _MAX_LINE_BYTES:
            raise OverflowError
        if lines:
            limit_s = next_s
            started = time.monotonic()


def _last_message(messages: IO[bytes]) -> str:
    """The last line that a program has written to stderr, after a colon; empty if there is none."""
    size = messages.seek(0, os.SEEK_END)
    messages.seek(max(0, size - _MESSAGE_BYTES))
    line = messages.read().decode(errors="replace").strip().rpartition("\n")[2]
    return f": {printable(line)[-300:]}" if line else ""
