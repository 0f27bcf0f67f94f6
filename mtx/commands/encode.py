"""`mtx encode`: the vectors of lines."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from mtx.commands.options import Model, open_input, open_output, refuse_own_output
from mtx.commands.translators import TorchPrecision, load_translator, takes
from mtx.decoding.options import Placement, SearchOptions
from mtx.storage.text_files import InvalidLines

logger = logging.getLogger("mtx")


@takes("threads", "device")
def encode(
    model: Model,
    file: Annotated[Path | None, typer.Argument(help="Text to encode; stdin by default.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Where to write; FILE.npy is a matrix for numpy; stdout by default."),
    ] = None,
    precision: TorchPrecision = "fp32",
    *,
    search: SearchOptions,
    place: Placement,
) -> None:
    """Print the encoder's vector of each line as JSON."""
    from mtx.commands import line_blocks

    with open_input(file) as source, open_output(output) as sink:
        refuse_own_output(sink, output, source)
        translator: Any = load_translator(model, search, replace(place, precision=precision))
        invalid = InvalidLines()
        blocks = line_blocks.blocks(source, file, f"{translator.src}> ", "surrogateescape", work="encoding")
        vectors = (translator.sentence_vectors(invalid.replace(block)) for block in blocks)
        if output is not None and output.suffix.lower() == ".npy":
            import numpy as np

            np.save(sink, np.concatenate([translator.sentence_vectors([]), *vectors]))
        else:
            for block in vectors:
                sink.writelines(json.dumps({"vector": _numbers(vector)}).encode() + b"\n" for vector in block)
                sink.flush()
    if message := invalid.message():
        logger.warning(message)


def _numbers(vector: Any) -> list[float]:
    """The shortest numbers that are these in float32."""
    return [float(text) for text in vector.astype(str)]
