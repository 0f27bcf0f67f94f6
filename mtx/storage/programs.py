"""Runs a program of the user's that reads lines and writes one line for each: a teacher, or a metric.

It reads its lines from a file and writes its messages to another one, so that neither side waits for the other.
"""

import contextlib
import os
import selectors
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO

from mtx.errors import MtxError, UsageError, first_line
from mtx.storage.text_files import printable

_MAX_LINE_BYTES = 1 << 20
_MESSAGE_BYTES = 1 << 12  # of the end of stderr


@contextlib.contextmanager
def run_on_lines(
    command: str, lines: Iterable[str], first_s: float | None = None, each_s: float | None = None
) -> Iterator[Iterator[str]]:
    """Starts a program on lines; at the end of the context it is killed, with all processes that it has started.

    Args:
        command: its words as in a shell, which is not used.
        lines: its stdin. All are read before it starts.
        first_s: the longest time until it writes, in seconds; None for any.
        each_s: the longest time until it writes again, or ends.

    Yields:
        The lines that it writes to stdout, as they arrive. Reading them raises an MtxError if it exits with another
        code than 0, takes too long, or writes a line of more than a megabyte.

    Raises:
        UsageError: it cannot be started.
    """
    with tempfile.TemporaryFile() as text, tempfile.TemporaryFile() as messages:
        text.writelines(line.encode(errors="replace") + b"\n" for line in lines)
        text.seek(0)
        try:
            words = shlex.split(command)
            process = subprocess.Popen(
                words, stdin=text, stdout=subprocess.PIPE, stderr=messages, start_new_session=True
            )
        except (OSError, ValueError, IndexError) as error:  # ValueError: quotes that are not closed
            raise UsageError(f"the command {command!r} cannot be started: {first_line(error)}") from None
        try:
            yield _read_answers(process, printable(words[0]), messages, first_s, each_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdout
            process.stdout.close()


def _read_answers(
    process: subprocess.Popen[bytes], program: str, messages: IO[bytes], first_s: float | None, each_s: float | None
) -> Iterator[str]:
    assert process.stdout
    unfinished_line = b""
    limit_s = first_s
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while selector.select(limit_s):
                limit_s = each_s
                data = os.read(process.stdout.fileno(), 1 << 16)
                *lines, unfinished_line = (unfinished_line + data).split(b"\n")
                for line in lines:
                    yield line.decode(errors="replace")
                if len(unfinished_line) > _MAX_LINE_BYTES:
                    raise MtxError(f"{program}: writes a line of more than {_MAX_LINE_BYTES:,} bytes")
                if not data:
                    break
            else:
                raise TimeoutError
        if unfinished_line:
            yield unfinished_line.decode(errors="replace")
        code = process.wait(each_s)
    except (TimeoutError, subprocess.TimeoutExpired):
        raise MtxError(f"{program}: no answer for {limit_s:.0f} seconds{_last_message(messages)}") from None
    if code:
        reason = f"was killed by signal {-code}" if code < 0 else f"failed with exit code {code}"
        raise MtxError(f"{program} {reason}{_last_message(messages)}")


def _last_message(messages: IO[bytes]) -> str:
    """The last line that a program has written to stderr, after a colon; empty if there is none."""
    size = messages.seek(0, os.SEEK_END)
    messages.seek(max(0, size - _MESSAGE_BYTES))
    lines = messages.read().decode(errors="replace").strip().splitlines()
    return f": {printable(lines[-1])[:300]}" if lines else ""
