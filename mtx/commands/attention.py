"""`mtx attention`: what a model attends to while it translates, as an interactive page."""

import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from mtx.commands.options import Device, Model, default_page, open_output
from mtx.errors import UsageError

logger = logging.getLogger("mtx")


def attention(
    model: Model,
    sentences: Annotated[list[str], typer.Argument(metavar="SENTENCE...", help="Sentences to translate.")],
    target: Annotated[
        list[str] | None,
        typer.Option(help="Your translation, one for each sentence; the model's own by default."),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="The page; attention.html by default.")] = None,
    device: Device = "auto",
) -> None:
    """Draw the attention weights of every layer and head for one or several sentences."""
    output = output or default_page("attention.html")
    _check(sentences, target, output)
    from mtx.commands.translators import WHOLE_LINES, load_translator
    from mtx.decoding.options import Placement

    with open_output(output) as file:
        translator: Any = load_translator(model, WHOLE_LINES, Placement(device, engine="torch"))
        from mtx.report.html_page import attention_page

        maps = translator.attention_maps(sentences, target)
        file.write(attention_page(maps, translator.src, translator.tgt).encode())
    logger.info("attention: %s", output)


def _check(sentences: list[str], target: list[str] | None, output: Path) -> None:
    """Refuse what cannot be drawn before a model is loaded."""
    from mtx.data.cleaning import clean_text

    if output.suffix.lower() != ".html":
        raise UsageError(f"-o {output}: expected a name that ends in .html", "the page saves single maps as pictures")
    for number, sentence in enumerate(sentences, start=1):
        if not clean_text(sentence):
            raise UsageError(f"sentence {number} is empty")
    if target is not None and len(target) != len(sentences):
        raise UsageError(f"got {len(target)} --target for {len(sentences)} sentences, expected one for each")
