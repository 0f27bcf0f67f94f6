"""Shared by all commands: types of options, settings on a command line, opening input and output, printing scores."""

import contextlib
import itertools
import logging
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import typer

from mtx.errors import UsageError
from mtx.formatting import mtx_command
from mtx.storage import disk, durable, streams, text_files
from mtx.storage.run_files import RunLayout, is_run

if TYPE_CHECKING:
    from mtx.config.settings import Resolved
    from mtx.evaluation.protocols import Protocol

logger = logging.getLogger("mtx")
_ADAPT = "adapt"  # the recipe that starts from a model
_PLAN = "mtx.yaml"  # what a command takes that is given no text
PAGE_MARK = b'<meta name="generator" content="mtx">'  # in mtx/report/page.html
_PAGE_BEGINNING = 1000  # bytes that hold the mark


ProtocolName = Literal["aiayn", "multi30k-lc"]
Settings = Annotated[
    list[str] | None,
    typer.Argument(metavar="[CONFIG] [key=value]...", help="Recipe, file or run directory, then settings."),
]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="Run directory or model directory.")]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Where to write; stdout by default.")]
GlossaryFile = Annotated[
    Path | None,
    typer.Option("--glossary", help="Use these terms, one source TAB target a line; for models of data.terms."),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")]
Shard = Annotated[
    str | None,
    typer.Option(metavar="K/N", help="Translate the K-th of N equal parts of the text, as one of N jobs."),
]
Published = Annotated[ProtocolName | None, typer.Option(help="BLEU as a publication computed it, beside sacreBLEU's.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def resolve(arguments: list[str] | None) -> "Resolved":
    """The configuration that CONFIG and the overrides give, with what `training.init_from` and `sizes` bring."""
    from mtx.config import settings
    from mtx.config.schema import key_names
    from mtx.data.readers import FILE_ENDING
    from mtx.storage.run_files import load_config

    words = arguments or []
    names = list(itertools.takewhile(lambda word: not settings.is_override(word), words))
    overrides = words[len(names) :]
    if not names and settings.exists(_PLAN) and not any(word.startswith("data.") for word in words):
        names = [_PLAN]
        logger.info("no CONFIG and no data.KEY is given: taking %s of this folder", _PLAN)
    if names and all(map(_is_text, names)):
        names, overrides = ["own-text"], [*_settings_for(names, overrides), *overrides]
    for name in names:
        if name in key_names():
            raise UsageError(f"{name}: a setting needs its value after =", f"{name}=VALUE, without spaces")
        if FILE_ENDING.search(name) and not settings.exists(name):
            raise UsageError(f"{name}: no such file")
    if len(names) > 1:
        raise UsageError(
            f"expected one CONFIG, got {' and '.join(names)}", "settings are written key=value, without spaces"
        )
    resolved = settings.resolve(names[0] if names else None, overrides)
    if names == [_ADAPT] and resolved.config.training.init_from is None:
        help = mtx_command("train", _ADAPT, "training.init_from=MODEL", "data.train=my.tsv")
        raise UsageError(f"{_ADAPT}: adapts a trained model, and training.init_from does not name one", help)
    for paths in map(RunLayout, map(Path, {names[0], resolved.config.run_dir} if names else ())):
        if settings.exists(paths.config) and settings.find_config(names[0]).samefile(paths.config):
            load_config(paths)  # raises if the run's own configuration was changed
    if resolved.config.training.init_from is not None:
        from mtx.training.init_from import inherit

        resolved = inherit(resolved)
    if resolved.config.sizes == "corpus":
        from mtx.data.corpus_sizes import choose_sizes

        resolved = choose_sizes(resolved)
    return resolved


def _is_text(name: str) -> bool:
    """Whether the argument that stands for a configuration is a file of pairs instead."""
    from mtx.config.settings import exists, recipe_names
    from mtx.data.readers import FILE_ENDING

    path = Path(name)
    if name in recipe_names() or not exists(path) or not path.is_file():
        return False
    if FILE_ENDING.search(name) or text_files.bilingual_form(path) is not None:
        return True
    return path.suffix not in (".yaml", ".yml") and "\t" in next(text_files.read_lines(path), "")


def _settings_for(files: list[str], overrides: list[str]) -> list[str]:
    """The settings with which `own-text` trains on such files: the files, and their languages if they are not given."""
    from mtx.data.readers import FILE_ENDING

    given = dict(override.split("=", 1) for override in overrides)
    if "data.train" in given:
        raise UsageError(f"{files[0]} and data.train: expected one of them", f"data.train={','.join(files)},OTHER")
    settings = [f"data.train={','.join(files)}", *_languages_of(files[0], given)]
    if "run_dir" not in given:
        settings.append(f"run_dir=runs/{FILE_ENDING.sub('', Path(files[0]).name).removesuffix('.gz')}")
    logger.info("this is short for: %s", mtx_command("train", "own-text", *settings, *overrides))
    return settings


def _languages_of(file: str, given: dict[str, str]) -> list[str]:
    """The settings data.src and data.tgt by what a file says, without those that are given."""
    from mtx.data.bilingual import match_rank
    from mtx.data.language_detection import find_languages

    if {"data.src", "data.tgt"} <= given.keys():
        return []
    columns = given.get("data.columns", "")
    first, second, origin = find_languages(Path(file), tuple(columns.split(",")) if columns else ())
    languages = {"data.src": first, "data.tgt": second}
    other = {"data.src": second, "data.tgt": first}
    if any(match_rank(other[key], given[key]) is not None for key in other if key in given):
        languages = other
    for key, language in given.items():
        if key in languages and match_rank(languages[key], language) is None:
            help = "name both data.src and data.tgt, or data.columns=SRC,TGT"
            raise UsageError(f"{key}={language}: {file} has {first} and {second}, as {origin} says", help)
    src, tgt = (given.get(key, language) for key, language in languages.items())
    direction = f"{src} to {tgt}, as {origin} says"
    logger.info("%s: %s; data.src=%s data.tgt=%s is the other direction", file, direction, tgt, src)
    return [f"{key}={language}" for key, language in languages.items() if key not in given]


@contextlib.contextmanager
def open_input(path: Path | None) -> Iterator[IO[bytes]]:
    """stdin, or a file of text."""
    if path is None:
        if sys.stdin is None:
            raise UsageError("stdin is closed", "name a FILE, or < FILE")
        yield streams.standard_input()
    else:
        with text_files.open_binary(path) as file:
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
    """The file that `-o` names, behind all links: a link stays, and its target changes.

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
        UsageError: if that would replace a file that is no page of mtx.
    """
    path = Path(name)
    if path.exists() and not (path.is_file() and PAGE_MARK in path.read_bytes()[:_PAGE_BEGINNING]):
        raise UsageError(
            f"{name}: is no page that mtx made here, and it would be replaced",
            "-o FILE names another file, or this one",
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
                    "the output goes to the end of the text that is read", "-o FILE or > FILE, another file"
                )
            raise UsageError(f"-o {output}: is a text that is read, and it would be replaced", "name another file")


def _status(file: IO[bytes] | Path | None) -> os.stat_result | None:
    """What the system says about a file; None if there is none."""
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
        raise UsageError(f"-o {path}: is a file that mtx keeps there and reads again", "name another file")


def find_protocol(name: ProtocolName | None, tgt: str) -> "Protocol | None":
    """The protocol that `--protocol` names, for a target language; None if the option is absent."""
    from mtx.evaluation import protocols

    return None if name is None else protocols.find(name, tgt)
