"""Common to the commands that translate: their options, and loading a translator."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Option

from mtx.commands.command_line import DEVICE, logger, option
from mtx.config import limits
from mtx.decoding.options import MBR_EPSILON, EngineName, Precision, Sampling
from mtx.errors import UsageError

if TYPE_CHECKING:
    from mtx.decoding.translator import Translator


BEAM = ("beam_size", "length_penalty")
DIRECTION = ("to", "from_")
SAMPLES = ("temperature", "top_k", "top_p", "epsilon", "seed")
PLACE = ("engine", "precision", "device")
Command = Callable[..., None]
LoadOptions = dict[str, Any]  # what `Translator.load` takes
EXACT: LoadOptions = {"engine": "torch", "precision": "tf32"}  # for what is not searched: fp32 with TF32


@dataclass
class Options:
    """The options of a search, and of where it runs. A command takes some of them, see `takes`."""

    to: str | None = option("LANGUAGE", "Target language of a model with several directions.")
    from_: str | None = option("LANGUAGE", "Source language, where several translate into that target.", "--from")
    n_best: int | None = option(
        "INT",
        "Hypotheses for each line, as JSON; at most the beam size.  [default: 1]",
        min=1,
        max=limits.MAX_SAMPLES,
    )
    beam_size: int | None = option(
        "INT", "Beam size.  [default: as in the run]", "--beam", min=1, max=limits.MAX_BEAM_SIZE
    )
    length_penalty: float | None = option(
        "FLOAT", "Length penalty.  [default: as in the run]", min=0, max=limits.MAX_LENGTH_PENALTY
    )
    max_length: int | None = option(
        "INT", "Maximum tokens of a translation.  [default: source tokens + 50]", min=1, max=limits.MAX_LENGTH
    )
    temperature: float | None = option(
        "FLOAT", "Sample translations instead of searching.", min=0.01, max=limits.MAX_TEMPERATURE
    )
    top_k: int | None = option("INT", "Sample from the N most probable tokens.", min=1)
    top_p: float | None = option("FLOAT", "Sample from the nucleus of this probability.", min=0.01, max=1)
    epsilon: float | None = option("FLOAT", "Sample only from tokens with at least this probability.", min=0, max=1)
    mbr: int | None = option("INT", "Minimum Bayes risk decoding with N samples.", min=2, max=limits.MAX_SAMPLES)
    seed: int | None = option("INT", "Random seed of the samples.  [default: 1]", min=0)
    threads: int | None = option("INT", "CPU threads.  [default: all cores]", min=1)
    batch_tokens: int | None = option(
        "INT",
        "Source tokens of a batch; fewer need less memory. torch halves a batch that does not fit.",
        min=1,
        max=limits.MAX_BATCH_TOKENS,
    )
    split_sentences: bool | None = Option(
        None,
        "--split-sentences/--no-split-sentences",
        help="Translate the sentences of a line separately.  [default: if the model was trained on single sentences]",
    )
    engine: EngineName = option(
        "NAME", "ctranslate2, torch, or auto: ctranslate2 on a CPU if it can do what is asked.", default="auto"
    )
    precision: Precision | None = option(
        "NAME",
        "fp32; also tf32 and bf16 (torch), fp16 and int8 (ctranslate2).  [default: fp32, bf16 on a GPU, or as "
        "exported]",
    )
    device: str = DEVICE


_PARAMETERS = inspect.signature(Options, eval_str=True).parameters
ALL = (*_PARAMETERS,)


def takes(*names: str) -> Callable[[Command], Command]:
    """Gives a command these `Options`, of which its last parameter `options` is made."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(**values: Any) -> None:
            given_options = {name: value for name in ALL if (value := values.pop(name, None)) is not None}
            command(**values, options=load_options(given_options))

        *parameters, _ = inspect.signature(command, eval_str=True).parameters.values()
        parameters += [parameter for name, parameter in _PARAMETERS.items() if name in names]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return run

    return decorate


def load_options(options: dict[str, Any]) -> LoadOptions:
    """The options of loading for those on the command line; those of drawing become one."""
    if "from_" in options:
        options["src"] = options.pop("from_")
    sampling = {name: options.pop(name) for name in SAMPLES if name in options}
    if num_samples := options.pop("mbr", None):
        options["sampling"] = Sampling(num_samples, **{"epsilon": MBR_EPSILON, **sampling}, mbr=True)
    elif sampling.keys() - {"seed"}:
        options["sampling"] = Sampling(options.get("n_best", 1), **sampling)
    elif sampling:
        raise UsageError("--seed is only for sampling", "--temperature 1 samples")
    if {"sampling", "beam_size"} <= options.keys():
        raise UsageError(
            "--beam is for searching, but --temperature, --top-k, --top-p, --epsilon and --mbr sample",
            "--n-best N draws N samples",
        )
    return options


def resumed_with(options: LoadOptions) -> dict[str, Any]:
    """The options of loading that a translation must be resumed with."""
    return {"engine": [*map(options.get, PLACE)]} | {name: options[name] for name in options.keys() & {"to", "src"}}


def load_translator(model: str, glossary: Path | None = None, **options: Any) -> "Translator":
    """Loads a model for this process; the libraries of the other engine are not imported.

    Args:
        glossary: a file with terms that the translations use.
        options: those of `Translator.load`.
    """
    from mtx.data.glossary import Glossary
    from mtx.decoding.translator import Translator

    terms = Glossary.read(glossary) if glossary else None
    translator = Translator.load(model, **options)
    logger.debug("%s: translated with %s by %s", model, translator.engine.name, translator.options)
    n_best = translator.options.n_best
    num_beams = translator.options.num_beams
    if not translator.options.sampling and n_best > num_beams:
        raise UsageError(
            f"--n-best {n_best} is more than the beam size of {num_beams}", f"--beam {n_best}, or --n-best {num_beams}"
        )
    if translator.engine.name == "torch":  # a library may not do that for its process
        import torch

        from mtx.model.device import keep_freed_memory

        engine = translator.torch
        if engine.device.type == "cpu":
            torch.set_num_threads(engine.num_workers)
        keep_freed_memory()
    translator.use_glossary(terms)
    return translator
