"""Shared by all commands: types of options, opening input and output, printing scores."""

import contextlib
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Annotated, Any, Literal

import typer

from mtx.errors import UsageError
from mtx.storage import disk, durable, text_files
from mtx.storage.run_files import RunLayout, is_run

PAGE_MARK = b'<meta name="generator" content="mtx">'  # in mtx/report/page.html
_PAGE_BEGINNING = 1000  # bytes that hold the mark


def option(metavar: str, help: str, *names: str, **about: Any) -> Any:
    """An option with a value; the help shows `metavar` for the value."""
    return typer.Option(*names, metavar=metavar, help=help, **about)


def argument(metavar: str, help: str, complete: Callable[..., list[str]] | None = None) -> Any:
    """An argument; `metavar` is how the usage line writes it, with brackets if it is optional."""
    return typer.Argument(metavar=metavar, help=help, autocompletion=complete)


def runs() -> list[Path]:
    """The runs in the folder runs/, the one that was worked on last first."""
    found = [path.parent for path in Path("runs").glob("*/config.yaml")]
    return sorted(found, key=last_change, reverse=True)


def last_change(run: Path) -> float:
    """When the state of a run changed last, in seconds since the epoch."""
    paths = RunLayout(run)
    return max(path.stat().st_mtime for path in (paths.config, paths.status, paths.metrics) if path.exists())


def complete_runs() -> list[str]:
    """The runs that a shell can complete a word to; it completes the names of files by itself."""
    return [str(run) for run in runs()]


ProtocolName = Literal["aiayn", "multi30k-lc"]
Model = Annotated[str, argument("MODEL", "Run directory or model directory.", complete_runs)]
Output = Annotated[
    Path | None,
    option("FILE", "Output file.  [default: stdout]", "-o", "--output"),
]
GlossaryFile = Annotated[
    Path | None,
    option(
        "FILE",
        "Use these terms, one source TAB target a line. The model must be trained with data.terms.",
        "--glossary",
    ),
]
Device = Annotated[str, option("DEVICE", "auto, cpu, cuda, cuda:1 or mps.")]
Shard = Annotated[
    str | None,
    option("K/N", "Translate only the Kth of N equal parts of the text."),
]
Published = Annotated[
    ProtocolName | None,
    option("NAME", "Also compute BLEU as a publication did: aiayn or multi30k-lc."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@contextlib.contextmanager
def open_input(path: Path | None) -> Iterator[IO[bytes]]:
    """stdin, or a file of text."""
    if path is None:
        if sys.stdin is None:
            raise UsageError("stdin is closed", "give a FILE, or < FILE")
        yield sys.stdin.buffer
    else:
        with text_files.open_bytes(path, is_plain=True) as file:
            yield file


@contextlib.contextmanager
def open_output(path: Path | None) -> Iterator[Any]:
    """stdout, or a file that appears whole when the block ends without an error."""
    if path is None:
        yield sys.stdout.buffer
        return
    path = checked_output(path)
    is_special = path.exists() and not path.is_file()  # mtx writes to a pipe or a device and never replaces it
    with disk.create(path) if is_special else durable.new_file(path) as file:
        yield file


def checked_output(path: Path) -> Path:
    """The file that `-o` names, with all links followed: a link is kept, and its target changes.

    Raises:
        UsageError: if there can be no such file, or mtx keeps it and reads it again.
    """
    path = Path(os.path.realpath(path))  # unlike `Path.resolve`, no error for links that lead in a circle
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"-o {path}: {'is a directory' if path.is_dir() else f'there is no directory {path.parent}'}")
    _refuse_own(path)
    return path


def default_page(name: str) -> Path:
    """The page `name` in the current folder, for a command without -o.

    Raises:
        UsageError: if that would overwrite a file that is not a page of mtx.
    """
    path = Path(name)
    if path.exists() and not (path.is_file() and PAGE_MARK in path.read_bytes()[:_PAGE_BEGINNING]):
        raise UsageError(
            f"{name}: was not written by mtx, and would be overwritten",
            f"-o FILE for another file, or -o {name} to overwrite it",
        )
    return path


def refuse_own_output(sink: IO[bytes] | None, output: Path | None, *texts: IO[bytes] | Path | None) -> None:
    """Refuse to write over a text that is read, or to its end (`FILE >> FILE`), which would be read without end.

    Args:
        sink: what is written to, for `output` a new file that will replace it.
    """
    target = _status(sink if output is None else output)
    for about in map(_status, texts):
        if target and about and stat.S_ISREG(about.st_mode) and os.path.samestat(about, target):
            if output is None:
                raise UsageError(
                    "the output would be appended to a file that is being read", "-o FILE or > FILE for another file"
                )
            raise UsageError(
                f"-o {output}: this command also reads the file, and would overwrite it", "choose another file"
            )


def _status(file: IO[bytes] | Path | None) -> os.stat_result | None:
    """The status of a file; None if there is no such file."""
    try:
        return None if file is None else file.stat() if isinstance(file, Path) else os.fstat(file.fileno())
    except OSError:  # no such file, or a stream of a test, which has no number
        return None


def _refuse_own(path: Path) -> None:
    """Refuse an output that would replace a file of a model, a run or an export; a run's report.html may be renewed."""
    directory, run = path.parent, RunLayout(path.parent)
    listed = {durable.MANIFEST, *durable.read_manifest(directory)} if durable.has_manifest(directory) else set()
    kept = (run.config, run.chosen, run.lock, run.status, run.metrics, run.sources) if is_run(directory) else ()
    if path.name in listed or path in kept:
        raise UsageError(f"-o {path}: mtx needs this file of the run or model", "choose another file")
