"""Common to the commands that translate: their options, loading a translator, and lines in blocks."""

import functools
import inspect
import itertools
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Option

from mtx.commands.command_line import Device
from mtx.config.limits import (
    MAX_BATCH_TOKENS,
    MAX_BEAM_SIZE,
    MAX_LENGTH,
    MAX_LENGTH_PENALTY,
    MAX_SAMPLES,
    MAX_TEMPERATURE,
)
from mtx.decoding.options import MBR_EPSILON, EngineName, Placement, Precision, Sampling, SearchOptions
from mtx.errors import DataError, UsageError
from mtx.storage import text_files
from mtx.storage.streams import shows_progress

if TYPE_CHECKING:
    from mtx.decoding.translator import Translator

logger = logging.getLogger("mtx")

BLOCK_LINES = 2048  # large enough to batch lines of similar length, small enough to show progress
BEAM = ("beam", "length_penalty")
SAMPLES = ("temperature", "top_k", "top_p", "epsilon", "seed")
PLACEMENT = ("engine", "precision", "threads", "device", "batch_tokens")
# Options that are numbers: their type, the least and the largest value, and their help. None is given by default.
_NUMBERS: dict[str, tuple[Any, float, float | None, str]] = {
    "n_best": (int, 1, MAX_SAMPLES, "Hypotheses for each line, as JSON; at most the beam size.  [default: 1]"),
    "beam": (int, 1, MAX_BEAM_SIZE, "Beam size.  [default: as in the run]"),
    "length_penalty": (float, 0, MAX_LENGTH_PENALTY, "Length penalty.  [default: as in the run]"),
    "max_length": (int, 1, MAX_LENGTH, "Maximum tokens of a translation.  [default: source tokens + 50]"),
    "temperature": (float, 0.01, MAX_TEMPERATURE, "Sample translations instead of searching."),
    "top_k": (int, 1, None, "Sample from the N most probable tokens."),
    "top_p": (float, 0.01, 1, "Sample from the nucleus of this probability."),
    "epsilon": (float, 0, 1, "Sample only from tokens with at least this probability."),
    "mbr": (int, 2, MAX_SAMPLES, "Minimum Bayes risk decoding with N samples."),
    "seed": (int, 0, None, "Random seed of the samples.  [default: 1]"),
    "threads": (int, 1, None, "CPU threads.  [default: all cores]"),
    "batch_tokens": (
        int,
        1,
        MAX_BATCH_TOKENS,
        "Source tokens of a batch; fewer need less memory. torch halves a batch that does not fit.",
    ),
}
_ENGINE_HELP = "ctranslate2, torch, or auto: ctranslate2 on a CPU if it can do what is asked."
_PRECISION_HELP = (
    "fp32; also tf32 and bf16 (torch), fp16 and int8 (ctranslate2).  [default: fp32, bf16 on a GPU, or as exported]"
)
_SPLIT_HELP = "Translate the sentences of a line separately.  [default: if the model was trained on single sentences]"
_OPTIONS: dict[str, tuple[Any, Any]] = {
    **{
        name: (kind | None, Option(None, min=least, max=most, metavar=kind.__name__.upper(), help=help))
        for name, (kind, least, most, help) in _NUMBERS.items()
    },
    "split_sentences": (bool | None, Option(None, "--split-sentences/--no-split-sentences", help=_SPLIT_HELP)),
    "engine": (EngineName, Option("auto", metavar="NAME", help=_ENGINE_HELP)),
    "precision": (Precision | None, Option(None, metavar="NAME", help=_PRECISION_HELP)),
    "device": (Device, "auto"),
}
ALL = (*_OPTIONS,)


def takes(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command these options, of which its parameters `search` and `place` are made.

    In a command that does not search, torch computes, in fp32 with TF32.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters.values()
        options = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind)
            for name, (kind, option) in _OPTIONS.items()
            if name in names
        ]

        @functools.wraps(command)
        def run(**values: Any) -> None:
            given = {name: values.pop(name) for name in names}
            asked = {name: given.pop(name) for name in PLACEMENT if name in given}
            place: dict[str, Any] = {} if {"engine", "beam"} & {*names} else {"engine": "torch", "precision": "tf32"}
            place |= {name: value for name, value in asked.items() if value is not None}
            command(**values, search=search_options(**given), place=Placement(**place))

        parameters = [*(each for each in own if each.name not in ("search", "place")), *options]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def search_options(
    beam: int | None = None,
    length_penalty: float | None = None,
    max_length: int | None = None,
    n_best: int | None = None,
    split_sentences: bool | None = None,
    mbr: int | None = None,
    **asked: Any,
) -> SearchOptions:
    """The search that the options ask for; `asked` are those of `Sampling` with these names."""
    given = {name: value for name, value in asked.items() if value is not None}
    sampling = None
    if mbr is not None:
        sampling = Sampling(mbr, **{"epsilon": MBR_EPSILON, **given}, mbr=True)
    elif given.keys() - {"seed"}:
        sampling = Sampling(n_best or 1, **given)
    elif given:
        raise UsageError("--seed is only for sampling", "--temperature 1 samples")
    if sampling is not None and beam is not None:
        names = "--temperature, --top-k, --top-p, --epsilon and --mbr"
        raise UsageError(f"--beam is for searching, but {names} sample", "--n-best N draws N samples")
    return SearchOptions(beam, length_penalty, max_length, sampling, split_sentences, n_best or 1)


def load_translator(model: str, search: SearchOptions, place: Placement, glossary: Path | None = None) -> "Translator":
    """Loads a model for this process; the libraries of the other engine are not imported.

    Args:
        glossary: a file with terms that the translations use.
    """
    from mtx.data.glossary import Glossary
    from mtx.decoding.translator import Translator

    terms = None if glossary is None else Glossary.read(glossary)
    translator = Translator.load(model, **vars(search), **vars(place))
    logger.debug("%s: translated with %s by %s", model, translator.engine.name, translator.options)
    n_best, num_beams = search.n_best, translator.options.num_beams
    if search.sampling is None and n_best > num_beams:
        help = f"--beam {n_best}, or --n-best {num_beams}"
        raise UsageError(f"--n-best {n_best} is more than the beam size of {num_beams}", help)
    if translator.engine.name == "torch":  # a library may not do that for its process
        import torch

        from mtx.model.device import keep_freed_memory

        engine = translator.torch
        if engine.device.type == "cpu" and engine.num_workers != torch.get_num_threads():
            torch.set_num_threads(engine.num_workers)
        keep_freed_memory()
    translator.use_glossary(terms)
    return translator


def progress(total: int | None = None, num_done: int = 0, unit: str = " lines") -> Any:
    """A progress bar on a terminal, unless the text itself, of unknown length, is shown there."""
    from tqdm import tqdm

    hidden = not shows_progress() or (total is None and sys.stdout.isatty())
    return tqdm(desc="translating", total=total, initial=num_done, unit=unit, disable=hidden)


def in_blocks(lines: Iterator[str]) -> Iterator[list[str]]:
    """The lines in blocks of `BLOCK_LINES`; the last one may be smaller."""
    while block := list(itertools.islice(lines, BLOCK_LINES)):
        yield block


def paired(
    lines: Iterator[list[str]], path: Path | None, invalid: text_files.Invalid = "strict"
) -> Iterator[tuple[list[str], list[str] | None]]:
    """Blocks of lines, each with the corresponding lines of another file, or with None if there is no file.

    Args:
        invalid: see `read_lines`.

    Raises:
        DataError: if the file has fewer or more lines.
    """
    others = None if path is None else text_files.read_lines(path, invalid)
    for block in lines:
        partners = None if others is None else list(itertools.islice(others, len(block)))
        if partners is not None and len(partners) < len(block):
            raise DataError(f"{path} has fewer lines than the text")
        yield block, partners
    if others is not None and next(others, None) is not None:
        raise DataError(f"{path} has more lines than the text")
