"""Translators as commands load them, and the options that say what they search for and where they run."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from mtx.commands.options import Device
from mtx.config.limits import (
    MAX_BATCH_TOKENS,
    MAX_BEAM_SIZE,
    MAX_LENGTH,
    MAX_LENGTH_PENALTY,
    MAX_SAMPLES,
    MAX_TEMPERATURE,
)
from mtx.decoding.options import MBR_EPSILON, EngineName, Placement, Precision, Sampling, SearchOptions
from mtx.errors import UsageError

if TYPE_CHECKING:
    from mtx.decoding.translator import Translator

TorchPrecision = Annotated[Literal["fp32", "bf16"], Option(help="fp32 or bf16.")]
BEAM = ("beam", "length_penalty")
SAMPLES = ("temperature", "top_k", "top_p", "epsilon", "seed")
PLACEMENT = ("engine", "precision", "threads", "device", "batch_tokens")
_OPTIONS: dict[str, tuple[Any, Any]] = {
    "beam": (int | None, Option(None, min=1, max=MAX_BEAM_SIZE, help="Beam size; the run's own by default.")),
    "length_penalty": (
        float | None,
        Option(None, min=0, max=MAX_LENGTH_PENALTY, help="Length penalty; the run's own by default."),
    ),
    "max_length": (
        int | None,
        Option(
            None, min=1, max=MAX_LENGTH, help="Maximum tokens of a translation; those of the source + 50 by default."
        ),
    ),
    "n_best": (
        int,
        Option(1, min=1, max=MAX_SAMPLES, help="Hypotheses for each line, as JSON; at most the beam size."),
    ),
    "split_sentences": (
        bool | None,
        Option(
            None,
            "--split-sentences/--no-split-sentences",
            help="Translate the sentences of a line one by one; by default if the model learned from single ones.",
        ),
    ),
    "temperature": (
        float | None,
        Option(None, min=0.01, max=MAX_TEMPERATURE, help="Sample translations instead of searching."),
    ),
    "top_k": (int | None, Option(None, min=1, help="Sample from the k most probable tokens.")),
    "top_p": (float | None, Option(None, min=0.01, max=1, help="Sample from the nucleus of p.")),
    "epsilon": (float | None, Option(None, min=0, max=1, help="Sample only tokens of at least this probability.")),
    "mbr": (
        int | None,
        Option(
            None,
            min=2,
            max=MAX_SAMPLES,
            help="Minimum Bayes risk: of so many samples (--epsilon 0.02), the one of the highest mean chrF.",
        ),
    ),
    "seed": (int | None, Option(None, min=0, help="Seed of the samples; 1 by default.")),
    "engine": (
        EngineName,
        Option("auto", help="auto: ctranslate2 on a CPU, torch on a GPU and for what ctranslate2 does not have."),
    ),
    "precision": (
        Precision | None,
        Option(None, help="fp32 (default); with torch also bf16, with ctranslate2 also fp16 and int8."),
    ),
    "threads": (int | None, Option(None, min=1, help="CPU threads; all cores by default, and never more.")),
    "device": (Device, "auto"),
    "batch_tokens": (
        int | None,
        Option(
            None,
            min=1,
            max=MAX_BATCH_TOKENS,
            help="Source tokens that are decoded together; fewer take less memory. torch halves them when it runs out.",
        ),
    ),
}
ALL = (*_OPTIONS,)
WHOLE_LINES = SearchOptions(split_sentences=False)


def takes(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command these options, of which its parameters `search` and `place` are made.

    Without the option --engine torch translates, and without --split-sentences lines stay whole.
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
            place = {name: given.pop(name) for name in PLACEMENT if name in given}
            command(**values, search=search_options(**given), place=Placement(**{"engine": "torch", **place}))

        parameters = [*(each for each in own if each.name not in ("search", "place")), *options]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def search_options(
    beam: int | None = None,
    length_penalty: float | None = None,
    max_length: int | None = None,
    n_best: int = 1,
    split_sentences: bool | None = False,
    seed: int | None = None,
    mbr: int | None = None,
    **asked: float | None,
) -> SearchOptions:
    """The search that the options ask for; `asked` are those of `Sampling` with these names."""
    sampling: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    if not sampling and mbr is None:
        if seed is not None:
            raise UsageError("--seed is only for samples", "--temperature 1 samples")
        return SearchOptions(beam, length_penalty, max_length, None, split_sentences, n_best)
    if beam is not None:
        names = "--temperature, --top-k, --top-p, --epsilon and --mbr"
        raise UsageError(f"--beam searches, {names} sample", "--n-best N draws N samples")
    if mbr is not None:
        if n_best > 1:
            raise UsageError("--mbr takes one of its samples, so there is no --n-best", f"--mbr {max(mbr, n_best)}")
        sampling = {"epsilon": MBR_EPSILON, **sampling, "mbr": True}
    drawn = Sampling(mbr or n_best, seed=1 if seed is None else seed, **sampling)
    return SearchOptions(beam, length_penalty, max_length, drawn, split_sentences, n_best)


def load_translator(model: str, search: SearchOptions, place: Placement, glossary: Path | None = None) -> "Translator":
    """Load a model for this process; the libraries of the other engine are not imported.

    Args:
        glossary: a file with terms that the translations use.
    """
    from mtx.data.glossary import Glossary
    from mtx.decoding.load import load

    terms = None if glossary is None else Glossary.read(glossary)
    translator = load(model, search, place)
    n_best, num_beams = search.n_best, translator.options.num_beams
    if search.sampling is None and n_best > num_beams:
        help = f"--beam {n_best}" if n_best <= MAX_BEAM_SIZE else f"--n-best {num_beams}"
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
