"""Translators as commands load them, and the options that say how: engine, precision, threads, samples."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtx.config.limits import MAX_TEMPERATURE
from mtx.errors import UsageError

if TYPE_CHECKING:
    from mtx.decoding.options import Sampling
    from mtx.decoding.text_translator import TextTranslator


class Engine(StrEnum):
    """The program that computes the translations; auto is the fastest one here."""

    auto = "auto"
    torch = "torch"
    ctranslate2 = "ctranslate2"


class Precision(StrEnum):
    """Number formats of the weights."""

    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"
    int8 = "int8"


class TorchPrecision(StrEnum):
    """Number formats of the weights that torch computes with."""

    fp32 = "fp32"
    bf16 = "bf16"


Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; all cores by default, and never more.")]
OneEngine = Annotated[
    Engine, typer.Option(help="auto: ctranslate2 on a CPU, torch on a GPU and for what ctranslate2 does not have.")
]
OnePrecision = Annotated[
    Precision | None, typer.Option(help="fp32 (default); with torch also bf16, with ctranslate2 also fp16 and int8.")
]
Temperature = Annotated[
    float | None, typer.Option(min=0.01, max=MAX_TEMPERATURE, help="Sample translations instead of searching.")
]
TopK = Annotated[int | None, typer.Option(min=1, help="Sample from the k most probable tokens.")]
TopP = Annotated[float | None, typer.Option(min=0.01, max=1, help="Sample from the nucleus of p.")]
Epsilon = Annotated[
    float | None, typer.Option(min=0, max=1, help="Sample only tokens of at least this probability; not ctranslate2.")
]
Seed = Annotated[
    int | None, typer.Option(min=0, help="Seed of the samples; 1 by default. ctranslate2: for the same FILE.")
]


def sampling_options(
    temperature: float | None, top_k: int | None, top_p: float | None, epsilon: float | None, seed: int | None,
    n_best: int, beam: int | None, mbr: int | None = None,
) -> "Sampling | None":  # fmt: skip
    """The sampling that the options ask for; None for a search."""
    from mtx.decoding.options import MBR_EPSILON, Sampling

    if all(option is None for option in (temperature, top_k, top_p, epsilon, mbr)):
        if seed is not None:
            raise UsageError("--seed is only for samples", "--temperature 1 samples")
        return None
    if beam is not None:
        sampling = "--temperature, --top-k, --top-p, --epsilon and --mbr"
        raise UsageError(f"--beam searches, {sampling} sample", "--n-best N draws N samples")
    if mbr is not None and n_best > 1:
        raise UsageError("--mbr takes one of its samples, so there is no --n-best", f"--mbr {max(mbr, n_best)}")
    if epsilon is None:
        epsilon = 0.0 if mbr is None else MBR_EPSILON
    return Sampling(
        mbr or n_best, 1.0 if temperature is None else temperature, top_k or 0, 1.0 if top_p is None else top_p,
        1 if seed is None else seed, epsilon, mbr is not None,
    )  # fmt: skip


def load_translator(
    model: str, engine: str = Engine.torch, precision: str | None = None, *, device: str = "auto",
    threads: int | None = None, split_sentences: bool | None = False, batch_tokens: int | None = None,
    glossary: Path | None = None, **options: Any,
) -> "TextTranslator":  # fmt: skip
    """Load a model for an engine; the libraries of the other engine are not imported.

    Args:
        split_sentences: see `TorchTranslator.load`; scores are those of whole lines.
        glossary: a file with terms that the translations use.
        options: beam_size, length_penalty, max_length, sampling; see `SearchOptions`.
    """
    from mtx.data.glossary import Glossary
    from mtx.interop.engines import load_fast
    from mtx.run.contents import require_models
    from mtx.run.machine import num_cores

    require_models(model)
    threads = None if threads is None else min(threads, num_cores())
    terms = None if glossary is None else Glossary.read(glossary)
    torch_options = [] if batch_tokens is None else ["--batch-tokens"]
    translator: TextTranslator | None = load_fast(
        model, str(engine), precision and str(precision), device, torch_options, threads=threads,
        split_sentences=split_sentences, **options,
    )  # fmt: skip
    if translator is None:
        settings = {
            "precision": str(precision or Precision.fp32), "threads": threads, "batch_tokens": batch_tokens,
            "split_sentences": split_sentences, **options,
        }  # fmt: skip
        translator = _torch_translator(model, device, settings)
    translator.use_glossary(terms)
    return translator


def _torch_translator(model: str, device: str, settings: dict[str, Any]) -> "TextTranslator":
    import torch

    from mtx.decoding.ensemble import load_torch
    from mtx.model.device import keep_freed_memory, num_threads

    threads = settings["threads"] = settings["threads"] or num_threads()
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)
    keep_freed_memory()
    return load_torch(model, device=device, **settings)
