"""Input lines in blocks: large blocks from a file, small ones at once from a program, single lines from a terminal."""

import itertools
import os
import queue
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from mtx.errors import DataError
from mtx.formatting import counted
from mtx.storage import streams, text_files

BLOCK_LINES = 2048  # large enough to batch lines of similar length, small enough to show progress
_PAUSE_S = 0.01  # a program that sends nothing for this time waits for an answer


def blocks(
    source: IO[bytes],
    file: Path | None,
    prompt: str,
    invalid: text_files.Invalid = "strict",
    work: str = "translating",
) -> Iterator[list[str]]:
    """The lines of `source` in blocks that are translated together.

    Args:
        file: its name; None for stdin.
        prompt: the prompt on a terminal.
        invalid: see `read_lines`.
        work: what the progress bar calls the work.
    """
    from tqdm import tqdm

    if file is None and source.isatty():
        yield from ([line] for line in _typed(prompt))
        return
    is_whole = stat.S_ISREG(os.fstat(source.fileno()).st_mode)
    lines = text_files.decoded_lines(source, file or Path("/dev/stdin"), invalid)
    hidden = not sys.stderr.isatty() or sys.stdout.isatty()
    with tqdm(desc=work, unit=" lines", disable=hidden) as bar:
        for block in in_blocks(lines, BLOCK_LINES) if is_whole else _as_they_come(lines):
            yield block
            bar.update(len(block))


def progress(total: int, num_done: int = 0, unit: str = " lines") -> Any:
    """A progress bar of a translation, on a terminal."""
    from tqdm import tqdm

    return tqdm(desc="translating", total=total, initial=num_done, unit=unit, disable=None)


def paired(
    lines: Iterator[list[str]], path: Path | None, invalid: text_files.Invalid = "strict"
) -> Iterator[tuple[list[str], list[str] | None]]:
    """Blocks of lines, each with the corresponding lines of another file, or with None if there is no file.

    Args:
        invalid: see `read_lines`.

    Raises:
        DataError: if the file has fewer or more lines.
    """
    if path is None:
        yield from ((block, None) for block in lines)
        return
    others, total = text_files.read_lines(path, invalid), 0
    for block in lines:
        partners = list(itertools.islice(others, len(block)))
        if len(partners) < len(block):
            raise DataError(f"{path} has {counted(total + len(partners), 'line')}, the text has more")
        total += len(block)
        yield block, partners
    if next(others, None) is not None:
        raise DataError(f"{path} has more lines than the text, which has {total}")


def _typed(prompt: str) -> Iterator[str]:
    """The lines that a user types, until Ctrl-D; the prompt never goes to the output of the translations."""
    import contextlib

    with contextlib.suppress(ImportError):  # importing it gives `input` a history and line editing
        import readline  # noqa: F401
    on_terminal = sys.stdout.isatty()
    while True:
        try:
            if on_terminal:
                yield streams.typed_line(prompt)
            else:
                streams.show_prompt(prompt)
                yield streams.typed_line()
        except EOFError:
            streams.show([""])
            return


def in_blocks(lines: Iterator[str], size: int) -> Iterator[list[str]]:
    """The lines in blocks of `size`; the last one may be smaller."""
    while block := list(itertools.islice(lines, size)):
        yield block


def _as_they_come(lines: Iterator[str]) -> Iterator[list[str]]:
    """Blocks of the lines that have arrived: a block ends when no line follows at once. A thread reads ahead."""
    ready: queue.Queue[str | BaseException | None] = queue.Queue(4 * BLOCK_LINES)

    def read() -> None:
        try:
            for line in lines:
                ready.put(line)
            ready.put(None)
        except BaseException as error:  # the consuming thread raises it again
            ready.put(error)

    threading.Thread(target=read, name="mtx-reader", daemon=True).start()
    item: str | BaseException | None = ""
    while item is not None:
        block: list[str] = []
        item = ready.get()
        while isinstance(item, str):
            block.append(item)
            if len(block) == BLOCK_LINES:
                break
            try:
                item = ready.get(timeout=_PAUSE_S)
            except queue.Empty:
                break
        if block:
            yield block
        if isinstance(item, BaseException):
            raise item
