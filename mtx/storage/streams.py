"""The standard streams: every byte is written or an error names the stream, and what is shown is safe.

All that mtx prints goes through here. Names and texts come from strangers' files, so control characters and marks that
turn the direction of writing are escaped before a terminal gets them. Translations are data, not messages: they go to
`sys.stdout.buffer` as they are.

Another program that shares a stream may have made it non-blocking. Python then takes a pause of stdin for its end, and
what a full pipe refuses for written, so the streams are made blocking first.
"""

import contextlib
import errno
import io
import json
import os
import sys
from collections.abc import Iterable
from typing import IO, Any

from mtx.storage.text_files import printable

_MAX_MESSAGE_CHARS = 5000  # of a line on stderr
_ESCAPED = "backslashreplace"  # what the locale's encoding lacks is shown by its number


class _Writer(io.RawIOBase):
    """A standard stream whose errors name it, and of which the rest can be discarded."""

    def __init__(self, stream: io.TextIOWrapper, name: str):
        buffer: Any = stream.buffer
        self._stream = getattr(buffer, "raw", buffer)  # Python that was started with -u has no buffer
        self._name, self._owner = name, stream  # the owner would close the file at its end
        self.is_discarding = False

    def write(self, data: Any) -> int:
        if self.is_discarding:
            return len(data)
        try:
            if (count := self._stream.write(data)) is None:  # somebody has made it non-blocking since, and it is full
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        except OSError as error:
            error.filename = self._name
            raise
        return int(count)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._owner.fileno()

    def isatty(self) -> bool:
        return self._owner.isatty()


def set_up() -> None:
    """Make `sys.stdout` and `sys.stderr` such streams, with buffers, however Python was started."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            os.set_blocking(stream.fileno(), True)
    sys.stdout, sys.stderr = _wrap(sys.stdout, "standard output"), _wrap(sys.stderr, "standard error")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # `typed_line` decodes what the locale cannot


def _wrap(stream: Any, name: str) -> Any:
    if not isinstance(stream, io.TextIOWrapper):  # None if the stream is closed
        return stream
    stream.flush()
    is_prompt = stream.line_buffering or stream.write_through
    buffer: Any = io.BufferedWriter(_Writer(stream, name))
    return io.TextIOWrapper(buffer, stream.encoding, _ESCAPED, newline=None, line_buffering=is_prompt)


def standard_input() -> IO[bytes]:
    """stdin in a buffer of its own: if a thread still waits in that of `sys.stdin`, the interpreter fails at exit."""
    return open(sys.stdin.fileno(), "rb", closefd=False)  # noqa: PTH123


def typed_line(prompt: str = "") -> str:
    """A line that a user types on a terminal, without its end; raises EOFError after Ctrl-D."""
    return input(printable(prompt)).encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def finish(stream: Any, is_stopped: bool = False) -> None:
    """Write what the buffer of a standard stream holds, if that is possible; the interpreter will not try it at exit.

    Args:
        is_stopped: a signal ends mtx, which then waits for no reader.
    """
    writer = getattr(getattr(stream, "buffer", None), "raw", None)
    if isinstance(writer, _Writer):
        writer.is_discarding = is_stopped
        try:
            stream.flush()
        except OSError:
            writer.is_discarding = True


def print_lines(lines: Iterable[str]) -> None:
    """Print lines of a result; what a line must not hold on a terminal is escaped, line breaks too."""
    print("\n".join(map(printable, lines)), flush=True)  # noqa: T201


def print_json(value: Any) -> None:
    """Print a result as one line of JSON in ASCII."""
    print(json.dumps(value), flush=True)  # noqa: T201


def show(lines: Iterable[str]) -> None:
    """Write lines to stderr, escaped as by `print_lines` and cut to a bounded length, if stderr can be written."""
    text = "".join(f"{message_line(line)}\n" for line in lines)
    with contextlib.suppress(OSError):  # stderr may be gone: the same Ctrl-C ended a `tee`
        sys.stderr.write(text)


def show_prompt(text: str) -> None:
    """Write the beginning of a line to stderr at once."""
    sys.stderr.write(printable(text))
    sys.stderr.flush()


def message_line(text: str) -> str:
    """A line of a message as it may be shown: of bounded length, with control characters escaped."""
    if len(text) > _MAX_MESSAGE_CHARS:
        text = f"{text[: _MAX_MESSAGE_CHARS // 2]} ... {text[-_MAX_MESSAGE_CHARS // 2 :]}"
    return printable(text)
