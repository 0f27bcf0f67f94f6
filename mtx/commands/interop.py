"""`mtx export` and `mtx import`: models for other programs, and models from them."""

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from mtx.commands.command_line import AsJson, Model
from mtx.storage.streams import print_json, print_lines

logger = logging.getLogger("mtx")


def export(
    model: Model,
    to: Annotated[str, typer.Option(help="ctranslate2, huggingface or argos.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="DIR", help="Where to write; beside MODEL by default. For argos a file."
        ),
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp32 (default); for ctranslate2 and argos (int8 by default) also fp16 and int8.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a model for CTranslate2, transformers or Argos Translate, and verify that it translates as mtx does."""
    from mtx.interop import export as exchange

    path, precision = Path(model), precision or ("int8" if to == "argos" else "fp32")
    directory = output or exchange.default_directory(path, to, precision)
    exported = exchange.export(path, to, directory, precision)
    print_json(asdict(exported)) if as_json else print_lines([exported.line()])


def import_(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A MarianMT directory, such as an OPUS-MT model.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="MODEL", help="The model directory to write.")],
) -> None:
    """Make a model directory from a published MarianMT model, to translate, evaluate or train on with."""
    from mtx.interop.huggingface import import_marian

    import_marian(directory, output)
    logger.info("model: %s", output)
