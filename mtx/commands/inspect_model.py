"""What a model computes besides translations, on torch: `mtx logprob`, `mtx encode` and `mtx attention`."""

import json
import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from mtx.commands.command_line import (
    AsJson,
    Device,
    Model,
    Output,
    default_page,
    open_input,
    open_output,
    refuse_own_output,
)
from mtx.commands.translate import blocks
from mtx.commands.translator_options import WHOLE_LINES, in_blocks, load_translator, paired, takes
from mtx.decoding.options import Placement, SearchOptions
from mtx.errors import UsageError
from mtx.storage.text_files import InvalidLines, read_lines

logger = logging.getLogger("mtx")


@takes("length_penalty", "precision", "threads", "device")
def logprob(
    model: Model,
    src: Annotated[Path, typer.Argument(metavar="SRC", help="Source text.")],
    tgt: Annotated[Path, typer.Argument(metavar="TGT", help="Its translations, one line for one line.")],
    output: Output = None,
    as_json: AsJson = False,
    *,
    search: SearchOptions,
    place: Placement,
) -> None:
    """Print the natural log-probability that the model gives to each translation; --json adds tokens and score."""
    with open_output(output) as sink:
        refuse_own_output(sink, output, src, tgt)
        translator: Any = load_translator(model, search, place)
        number = 1
        for block, translations in paired(in_blocks(read_lines(src, "strict")), tgt, "strict"):
            scores = translator.log_probs(block, translations, number, (f"{src}: line", f"{tgt}: line"))
            number += len(block)
            for score in scores:
                value = {"log_prob": score.log_prob, "tokens": score.num_tokens, "score": score.score}
                sink.write((json.dumps(value) if as_json else f"{score.log_prob:.6f}").encode() + b"\n")


@takes("precision", "threads", "device")
def encode(
    model: Model,
    file: Annotated[Path | None, typer.Argument(help="Text to encode; stdin by default.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Where to write; FILE.npy is a matrix for numpy; stdout by default."),
    ] = None,
    *,
    search: SearchOptions,
    place: Placement,
) -> None:
    """Print the encoder's vector of each line as JSON."""
    with open_input(file) as source, open_output(output) as sink:
        refuse_own_output(sink, output, source)
        translator = load_translator(model, search, place)
        invalid = InvalidLines()
        vectors = (translator.sentence_vectors(invalid.replace(block)) for block in blocks(source, file))
        if output is not None and output.suffix.lower() == ".npy":
            import numpy as np

            np.save(sink, np.concatenate([translator.sentence_vectors([]), *vectors]))
        else:
            for block in vectors:
                texts = block.astype(str).tolist()  # the shortest numbers that are these in float32
                rows = ({"vector": [float(text) for text in row]} for row in texts)
                sink.writelines(json.dumps(row).encode() + b"\n" for row in rows)
                sink.flush()
    invalid.log()


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
    if output.suffix.lower() != ".html":
        raise UsageError(f"-o {output}: expected a name that ends in .html", "the page saves single maps as pictures")
    if target is not None and len(target) != len(sentences):
        raise UsageError(f"got {len(target)} --target for {len(sentences)} sentences, expected one for each")
    with open_output(output) as file:
        translator = load_translator(model, WHOLE_LINES, Placement(device, engine="torch"))
        from mtx.report.html_page import attention_page

        maps = translator.attention_maps(sentences, target)
        file.write(attention_page(maps, translator.src, translator.tgt).encode())
    logger.info("attention: %s", output)
