"""Shared by all commands: parameters for Typer, opening input and output, printing results."""

import logging
import os
import stat
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any

import typer

from mtx.errors import UsageError
from mtx.storage import disk, durable, text_files
from mtx.storage.run_files import RunLayout, is_run
from mtx.storage.streams import print_json, print_lines

logger = logging.getLogger("mtx")


def option(metavar: str, description: str, *names: str, default: Any = None, **attributes: Any) -> Any:
    """An option with a value; the help shows `metavar` for the value. `...` as its default: it must be given."""
    return typer.Option(default, *names, metavar=metavar, help=description, **attributes)


def flag(name: str, description: str, **attributes: Any) -> Any:
    """An option without a value, which is True if it is given."""
    return typer.Option(False, name, help=description, **attributes)


def argument(metavar: str, description: str, complete: Callable[..., list[str]] | None = None) -> Any:
    """An argument; `metavar` is how the usage line writes it, with brackets if it is optional."""
    default = None if metavar.startswith("[") else ...
    return typer.Argument(default, metavar=metavar, help=description, autocompletion=complete)


def runs() -> list[Path]:
    """The runs in the folder runs/, the one that was worked on last first."""
    return sorted((path.parent for path in Path("runs").glob("*/config.yaml")), key=last_change, reverse=True)


def last_change(run: Path) -> float:
    """When the state of a run changed last, in seconds since the epoch."""
    paths = RunLayout(run)
    return max(path.stat().st_mtime for path in (paths.config, paths.status, paths.metrics) if path.exists())


def complete_runs() -> list[str]:
    """The runs that a shell can complete a word to; it completes the names of files by itself."""
    return list(map(str, runs()))


# Parameters of several commands
MODEL = argument("MODEL", "Run directory or model directory.", complete_runs)
OUTPUT = option("FILE", "Output file.  [default: stdout]", "-o", "--output")
GLOSSARY = option(
    "FILE", "Use these terms, one source TAB target a line. The model must be trained with data.terms.", "--glossary"
)
DEVICE = option("DEVICE", "auto, cpu, cuda, cuda:1 or mps.", default="auto")
SHARD = option("K/N", "Translate only the Kth of N equal parts of the text.")
AS_JSON = flag("--json", "Print JSON.")


def print_result(value: Any, lines: Iterable[str], as_json: bool) -> None:
    """Print a result as JSON, or in words."""
    if as_json:
        print_json(value)
    else:
        print_lines(lines)


def table(*rows: list[str]) -> list[str]:
    """The lines of a table; its first row is the header."""
    from tabulate import tabulate

    return str(tabulate(rows, tablefmt="plain", disable_numparse=True)).split("\n")


def open_input(path: Path | None) -> AbstractContextManager[IO[bytes]]:
    """stdin, or a file of text."""
    if path:
        return text_files.open_bytes(path, is_plain=True)
    if sys.stdin is None:
        raise UsageError("stdin is closed", "give a FILE, or < FILE")
    return nullcontext(sys.stdin.buffer)


def open_output(
    path: Path | None, *texts: IO[bytes] | Path | None, is_page: bool = False
) -> AbstractContextManager[IO[bytes]]:
    """stdout, or a file that appears whole when the block ends without an error; see `resolve_output`."""
    path = resolve_output(path, *texts, is_page=is_page)
    if not path:
        return nullcontext(sys.stdout.buffer)
    is_special = path.exists() and not path.is_file()  # mtx writes to a pipe or a device and never replaces it
    return disk.create(path) if is_special else durable.new_file(path)


def resolve_output(path: Path | None, *texts: IO[bytes] | Path | None, is_page: bool = False) -> Path | None:
    """The file that `-o` names, with all links followed: a link is kept, and its target changes. None is stdout.

    Args:
        texts: what the command reads: it is not written over, nor to its end (`FILE >> FILE`), which has no end then.
        is_page: whether nobody named the file, so that only a page of mtx is replaced.

    Raises:
        UsageError: if there can be no such file, or it must stay as it is: a text, a part of a run, a model or an
            export (a run's report.html may be renewed), or somebody's page.
    """
    for text in [text for text in texts if text]:
        with suppress(OSError):  # no such file, or a stream of a test, which has no number
            status = _status(text)
            if stat.S_ISREG(status.st_mode) and os.path.samestat(status, _status(path or sys.stdout)):
                raise UsageError(
                    f"-o {path}: this command also reads the file, and would overwrite it"
                    if path
                    else "the output would be appended to a file that is being read",
                    "choose another file: -o FILE or > FILE",
                )
    if not path:
        return None
    path = Path(os.path.realpath(path))  # unlike `Path.resolve`, no error for links that lead in a circle
    directory = path.parent
    run = RunLayout(directory)
    if path.is_dir() or not directory.is_dir():
        raise UsageError(f"-o {path}: {'is a directory' if path.is_dir() else f'there is no directory {directory}'}")
    mark = b'name="generator" content="mtx"'
    if is_page and path.exists() and not (path.is_file() and mark in path.read_bytes()[:1000]):
        raise UsageError(
            f"{path}: was not written by mtx, and would be overwritten",
            "-o FILE names another file, or this one to overwrite it",
        )
    protected_files = set[Path]()
    if is_run(directory):
        protected_files = {run.config, run.chosen, run.lock, run.status, run.metrics, run.sources}
    if durable.has_manifest(directory):
        protected_files |= {directory / name for name in (durable.MANIFEST, *durable.read_manifest(directory))}
    if path in protected_files:
        raise UsageError(f"-o {path}: mtx needs this file of the run or model", "choose another file")
    return path


def _status(file: IO[Any] | Path) -> os.stat_result:
    return file.stat() if isinstance(file, Path) else os.fstat(file.fileno())
