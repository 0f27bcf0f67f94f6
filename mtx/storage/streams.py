"""The standard streams: every byte is written or an error names the stream, and messages are safe for terminals.

All output of mtx goes through here. Names and texts come from untrusted files, so control characters and marks that
change the writing direction are escaped for terminals. Translations are data, not messages: they go to
`sys.stdout.buffer` unchanged.

Another program that shares a stream may have made it non-blocking. Python then mistakes a pause of stdin for its end,
and bytes that a full pipe refuses for written ones, so the streams are made blocking first.
"""

import contextlib
import io
import json
import logging
import os
import sys
from collections.abc import Iterable
from typing import Any

from mtx.formatting import color_labels
from mtx.storage import disk
from mtx.storage.text_files import printable

_MAX_MESSAGE_CHARS = 5000  # of a line on stderr
_ESCAPED = "backslashreplace"  # characters that the locale's encoding lacks are escaped


def set_up() -> None:
    """Buffer `sys.stdout` and `sys.stderr` however Python was started, and put their names into errors."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            os.set_blocking(stream.fileno(), True)
    sys.stdout, sys.stderr = _wrap(sys.stdout, "standard output"), _wrap(sys.stderr, "standard error")


def _wrap(stream: Any, name: str) -> Any:
    if not isinstance(stream, io.TextIOWrapper):  # None if the stream is closed
        return stream
    stream.flush()
    is_prompt = stream.line_buffering or stream.write_through
    file = disk.File(stream.fileno(), "w", closefd=False)
    file.name = name
    buffer: Any = io.BufferedWriter(file)
    return io.TextIOWrapper(buffer, stream.encoding, _ESCAPED, newline=None, line_buffering=is_prompt)


def finish(stream: Any, is_stopped: bool = False) -> None:
    """Flush the buffer of a standard stream; if that is impossible, the interpreter discards it at exit.

    Args:
        is_stopped: a signal ends mtx, which then does not wait for a reader.
    """
    file = getattr(getattr(stream, "buffer", None), "raw", None)
    if isinstance(file, disk.File):
        with contextlib.suppress(OSError):
            if not is_stopped:
                stream.flush()
                return
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())


def print_lines(lines: Iterable[str]) -> None:
    """Print lines of a result; characters that are unsafe on a terminal are escaped, including line breaks."""
    print("\n".join(map(printable, lines)), flush=True)  # noqa: T201


def print_json(value: Any) -> None:
    """Print a result as one line of JSON in ASCII."""
    print(json.dumps(value), flush=True)  # noqa: T201


def show(lines: Iterable[str]) -> None:
    """Write lines to stderr, escaped as by `print_lines` and cut to a bounded length, if stderr can be written."""
    text = "".join(f"{color_labels(message_line(line), sys.stderr)}\n" for line in lines)
    with contextlib.suppress(OSError), above_bars():  # stderr may be gone: the same Ctrl-C ended a `tee`
        sys.stderr.write(text)


def above_bars() -> contextlib.AbstractContextManager[None]:
    """What is written to stderr within it takes the line of a progress bar, which is drawn again below."""
    bars: Any = getattr(sys.modules.get("tqdm"), "tqdm", None)
    is_drawn = bars and getattr(bars, "_instances", ())
    return bars.external_write_mode() if is_drawn else contextlib.nullcontext()


def shows_progress() -> bool:
    """Whether progress bars are drawn: on a terminal, and not with --quiet."""
    return sys.stderr.isatty() and logging.getLogger("mtx").isEnabledFor(logging.INFO)


def message_line(text: str) -> str:
    """A line of a message for display: of bounded length, with control characters escaped."""
    if len(text) > _MAX_MESSAGE_CHARS:
        text = f"{text[: _MAX_MESSAGE_CHARS // 2]} ... {text[-_MAX_MESSAGE_CHARS // 2 :]}"
    return printable(text)
