"""`mtx attention`: what a model attends to while it translates, as an interactive page or as a picture."""

import logging
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from mtx.commands.options import Device, Model, default_page, open_output
from mtx.errors import UsageError

logger = logging.getLogger("mtx")
_LARGE = 20_000_000  # bytes; a browser takes seconds to open such a page


class Kind(StrEnum):
    """Which attention."""

    cross = "cross"
    encoder = "encoder"
    decoder = "decoder"


def attention(
    model: Model,
    sentences: Annotated[list[str], typer.Argument(metavar="SENTENCE...", help="Sentences to translate.")],
    target: Annotated[
        list[str] | None,
        typer.Option(help="Your translation, one for each sentence; the model's own by default."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="An .html page or a .png picture; attention.html by default.")
    ] = None,
    kind: Annotated[Kind | None, typer.Option(help="Attention of the map in a .png; cross by default.")] = None,
    layer: Annotated[int | None, typer.Option(min=1, help="Draw one map in the .png: its layer.")] = None,
    head: Annotated[int | None, typer.Option(min=1, help="Draw one map in the .png: its head.")] = None,
    device: Device = "auto",
) -> None:
    """Draw the attention weights of every layer and head for one or several sentences."""
    output = output or default_page("attention.html")
    _check(sentences, target, output, kind, layer, head)
    from mtx.commands.translators import load_translator

    with open_output(output) as file:
        translator: Any = load_translator(model, device=device)
        maps = translator.attention_maps(sentences, target)
        if output.suffix.lower() == ".png":
            from mtx.report.attention_drawing import draw_map, draw_overview

            kind_name = kind.value if kind else "cross"
            file.write(draw_map(maps[0], kind_name, layer, head) if layer and head else draw_overview(maps[0]))
        else:
            from mtx.report.attention_page import attention_page

            page = attention_page(maps, translator.src, translator.tgt).encode()
            file.write(page)
            if len(page) > _LARGE:
                logger.warning("%s has %.0f MB; a browser takes long to open it", output, len(page) / 1e6)
    logger.info("attention: %s", output)


def _check(
    sentences: list[str], target: list[str] | None, output: Path, kind: Kind | None, layer: int | None, head: int | None
) -> None:
    """Refuse options that do not go together before a model is loaded."""
    from mtx.data.cleaning import clean_text

    is_picture = output.suffix.lower() == ".png"
    if not is_picture and output.suffix.lower() != ".html":
        raise UsageError(f"-o {output}: expected a name that ends in .html or .png")
    for number, sentence in enumerate(sentences, start=1):
        if not clean_text(sentence):
            raise UsageError(f"sentence {number} is empty")
    if target is not None and len(target) != len(sentences):
        raise UsageError(f"got {len(target)} --target for {len(sentences)} sentences, expected one for each")
    if (layer is None) != (head is None) or (kind is not None and layer is None):
        name = (kind or Kind.cross).value
        raise UsageError("one map needs --layer and --head together", f"--kind {name} --layer 1 --head 1")
    if layer is not None and not is_picture:
        raise UsageError(f"--layer and --head choose the map of a .png, got -o {output}", "the page shows them all")
    if is_picture and len(sentences) > 1:
        raise UsageError(f"a .png shows one sentence, got {len(sentences)}", "-o attention.html shows several")
