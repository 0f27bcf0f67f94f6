"""The standard streams: every byte is written or an error names the stream, and what is shown is safe.

All that mtx prints goes through here. Names and texts come from strangers' files, so control characters and marks that
turn the direction of writing are escaped before a terminal gets them. Translations are data, not messages: they go to
`sys.stdout.buffer` as they are.

Another program that shares a stream may have made it non-blocking. Python then takes a pause of stdin for its end, and
what a full pipe refuses for written, so the streams are made blocking first.
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
_ESCAPED = "backslashreplace"  # what the locale's encoding lacks is shown by its number


def set_up() -> None:
    """Buffer `sys.stdout` and `sys.stderr` however Python was started, and let their errors name them."""
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
    """Write what the buffer of a standard stream holds; if that is impossible, the interpreter discards it at its end.

    Args:
        is_stopped: a signal ends mtx, which then waits for no reader.
    """
    file = getattr(getattr(stream, "buffer", None), "raw", None)
    if isinstance(file, disk.File):
        with contextlib.suppress(OSError):
            if not is_stopped:
                stream.flush()
                return
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())


def print_lines(lines: Iterable[str]) -> None:
    """Print lines of a result; what a line must not hold on a terminal is escaped, line breaks too."""
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
    """A line of a message as it may be shown: of bounded length, with control characters escaped."""
    if len(text) > _MAX_MESSAGE_CHARS:
        text = f"{text[: _MAX_MESSAGE_CHARS // 2]} ... {text[-_MAX_MESSAGE_CHARS // 2 :]}"
    return printable(text)
