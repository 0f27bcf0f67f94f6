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
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mtx.formatting import color_labels, format_duration
from mtx.storage import disk
from mtx.storage.text_files import printable

logger = logging.getLogger(__name__)

LINE_EVERY_S = 30.0  # between two log lines about progress without a terminal; the first one comes sooner
_is_showing = False  # whether `progress` shows one
_MAX_MESSAGE_CHARS = 5000  # of a line on stderr
_ESCAPED = "backslashreplace"  # characters that the locale's encoding lacks are escaped


def set_up() -> None:
    """Buffer `sys.stdout` and `sys.stderr` however Python was started, and put their names into errors."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            os.set_blocking(stream.fileno(), True)
    sys.stdout = _wrap(sys.stdout, "standard output")
    sys.stderr = _wrap(sys.stderr, "standard error")


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


@contextlib.contextmanager
def progress(
    description: str, total: int | None = None, unit: str = "lines", is_hidden: bool = False
) -> Iterator[Callable[[int], None]]:
    """Show how far some work is: a bar on a terminal, elsewhere a log line now and then. An inner one is not shown.

    Args:
        is_hidden: show no bar.

    Yields:
        What takes the number of units that are done since its last call. What it takes first, such as the lines of an
        interrupted command, says nothing about the speed.
    """
    from tqdm import tqdm

    global _is_showing
    if _is_showing:
        yield lambda number: None
        return
    timed_from = num_done = 0
    timed_since = time.monotonic()
    line_at = timed_since + LINE_EVERY_S / 3

    def update(number: int) -> None:
        nonlocal timed_from, num_done, timed_since, line_at
        num_done += number
        bar.update(number)
        now = time.monotonic()
        if num_done == number:
            timed_from = num_done
            timed_since = now
        elif number and now >= line_at and num_done < (total or math.inf) and not sys.stderr.isatty():
            line_at = now + LINE_EVERY_S
            extent = f" {unit}"
            if total:
                left_s = (total - num_done) * (now - timed_since) / (num_done - timed_from)
                extent = f" of {total:,} {unit}, about {format_duration(left_s)} left"
            logger.info(f"{description}: {num_done:,}{extent}")

    _is_showing = True
    try:
        with tqdm(
            desc=description, total=total, unit=f" {unit}", disable=is_hidden or not shows_progress(), leave=False
        ) as bar:
            yield update
    finally:
        _is_showing = False


def message_line(text: str) -> str:
    """A line of a message for display: of bounded length, with control characters escaped."""
    if len(text) > _MAX_MESSAGE_CHARS:
        text = f"{text[: _MAX_MESSAGE_CHARS // 2]} ... {text[-_MAX_MESSAGE_CHARS // 2 :]}"
    return printable(text)
