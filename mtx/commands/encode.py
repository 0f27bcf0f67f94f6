"""`mtx encode`: the vectors of lines."""

import json
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from mtx.commands.options import Device, Model, open_input, open_output, refuse_own_output
from mtx.commands.translators import Engine, Threads, TorchPrecision, load_translator
from mtx.errors import UsageError
from mtx.files.text_files import InvalidLines

if TYPE_CHECKING:
    from mtx.decoding.sentence_vectors import Floats, SentenceEncoder

logger = logging.getLogger("mtx")


def encode(
    model: Model,
    file: Annotated[Path | None, typer.Argument(help="Text to encode; stdin by default.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Where to write; FILE.npy is a matrix for numpy; stdout by default."),
    ] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="A vector for each piece of a line, not their mean.")
    ] = False,
    precision: Annotated[TorchPrecision, typer.Option(help="fp32 or bf16.")] = TorchPrecision.fp32,
    threads: Threads = None,
    device: Device = "auto",
) -> None:
    """Print the encoder's vector of each line as JSON."""
    from mtx.commands import line_blocks

    is_matrix = output is not None and output.suffix.lower() == ".npy"
    if is_matrix and tokens:
        what = "is a matrix of one vector a line, and --tokens gives each line as many vectors as it has pieces"
        raise UsageError(f"-o {output}: {what}", "-o FILE.jsonl")
    with open_input(file) as source, open_output(output) as sink:
        refuse_own_output(sink, output, source)
        translator: Any = load_translator(model, Engine.torch, precision, device=device, threads=threads)
        from mtx.decoding.sentence_vectors import SentenceEncoder

        encoder, invalid = SentenceEncoder(translator), InvalidLines()
        blocks = line_blocks.blocks(source, file, f"{translator.src}> ", "surrogateescape", work="encoding")
        texts = (invalid.replace(block) for block in blocks)
        if is_matrix:
            _write_matrix(sink, map(encoder.means, texts), encoder.size)
        else:
            for block in texts:
                sink.writelines(row.encode() + b"\n" for row in _rows(encoder, block, tokens))
                sink.flush()
    if message := invalid.message():
        logger.warning(message)


def _rows(encoder: "SentenceEncoder", lines: list[str], tokens: bool) -> Iterator[str]:
    if tokens:
        for line in encoder.of_pieces(lines):
            yield json.dumps({"pieces": line.pieces, "vectors": [*map(_numbers, line.vectors)]}, ensure_ascii=False)
    else:
        yield from (json.dumps({"vector": _numbers(vector)}) for vector in encoder.means(lines))


def _numbers(vector: "Floats") -> list[float]:
    """The shortest numbers that are these in float32."""
    return [float(text) for text in vector.astype(str)]


def _write_matrix(file: IO[bytes], blocks: "Iterable[Floats]", num_columns: int) -> None:
    """Write blocks of rows as one matrix: numpy leaves room in the header of a file for any number of rows."""
    import numpy as np
    from numpy.lib import format as npy

    def write_header(num_rows: int) -> None:
        npy.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (num_rows, num_columns)})

    num_rows = 0
    write_header(num_rows)
    for block in blocks:
        file.write(np.ascontiguousarray(block, np.dtype("<f4")).data)
        num_rows += len(block)
    file.seek(0)
    write_header(num_rows)
