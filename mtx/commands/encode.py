"""`mtx encode`: the vectors of lines, and the training sentences that are nearest to them."""

import json
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtx.commands.options import Device, Model, open_input, open_output, refuse_own_output
from mtx.commands.translators import Engine, Threads, TorchPrecision, load_translator
from mtx.errors import UsageError
from mtx.files.text_files import InvalidLines, printable
from mtx.run.contents import is_prepared, is_run
from mtx.run.layout import RunLayout

if TYPE_CHECKING:
    from mtx.decoding.nearest import Neighbour, TrainingSentences
    from mtx.decoding.sentence_vectors import SentenceEncoder
    from mtx.files.arrays import Floats

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
    nearest: Annotated[
        int | None, typer.Option(metavar="K", min=1, help="Print the K nearest training sentences and translations.")
    ] = None,
    precision: Annotated[TorchPrecision, typer.Option(help="fp32 or bf16.")] = TorchPrecision.fp32,
    threads: Threads = None,
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, also with --nearest.")] = False,
) -> None:
    """Print the encoder's vector of each line as JSON, or with --nearest the training sentences most like it."""
    from mtx.commands import line_blocks

    is_matrix = output is not None and output.suffix.lower() == ".npy"
    _check(model, output, is_matrix, tokens, nearest, as_json)
    with open_input(file) as source, open_output(output) as sink:
        refuse_own_output(sink, output, source)
        translator: Any = load_translator(model, Engine.torch, precision, device=device, threads=threads)
        from mtx.decoding.nearest import TrainingSentences
        from mtx.decoding.sentence_vectors import SentenceEncoder
        from mtx.files.arrays import write_rows

        encoder, invalid = SentenceEncoder(translator), InvalidLines()
        sentences = None if nearest is None else TrainingSentences.open(RunLayout(Path(model)), encoder)
        blocks = line_blocks.blocks(source, file, f"{translator.src}> ", "surrogateescape", work="encoding")
        texts = (invalid.replace(block) for block in blocks)
        if is_matrix:
            write_rows(sink, map(encoder.means, texts), encoder.size)
        else:
            for block in texts:
                if sentences is None or nearest is None:
                    rows = _vector_rows(encoder, block, tokens)
                else:
                    rows = _nearest_rows(sentences, block, nearest, as_json)
                sink.writelines(row.encode() + b"\n" for row in rows)
                sink.flush()
    if message := invalid.message():
        logger.warning(message)


def _check(model: str, output: Path | None, is_matrix: bool, tokens: bool, nearest: int | None, as_json: bool) -> None:
    """Refuse options that do not go together before a model is loaded."""
    if is_matrix and (tokens or as_json):
        what = "--tokens gives each line as many vectors as it has pieces" if tokens else "--json prints JSON"
        raise UsageError(f"-o {output}: is a matrix of one vector a line, and {what}", "-o FILE.jsonl")
    if nearest is None:
        return
    if tokens or is_matrix:
        other = "--tokens" if tokens else f"-o {output}"
        raise UsageError(f"--nearest prints sentences, and {other} is for vectors", "leave out one of them")
    paths = RunLayout(Path(model))
    if not (is_run(paths.root) and is_prepared(paths.data)):
        raise UsageError(f"{model}: has no training text for --nearest to search in", "name a run directory")


def _vector_rows(encoder: "SentenceEncoder", lines: list[str], tokens: bool) -> Iterator[str]:
    if tokens:
        for line in encoder.of_pieces(lines):
            yield json.dumps({"pieces": line.pieces, "vectors": [*map(_numbers, line.vectors)]}, ensure_ascii=False)
    else:
        yield from (json.dumps({"vector": _numbers(vector)}) for vector in encoder.means(lines))


def _numbers(vector: "Floats") -> list[float]:
    """The shortest numbers that are these in float32."""
    return [float(text) for text in vector.astype(str)]


def _nearest_rows(sentences: "TrainingSentences", lines: list[str], count: int, as_json: bool) -> Iterator[str]:
    for line, neighbours in zip(lines, sentences.nearest(lines, count), strict=True):
        if as_json:
            yield json.dumps({"nearest": [vars(neighbour) for neighbour in neighbours]}, ensure_ascii=False)
        else:
            yield from map(printable, [line, *_shown(neighbours), ""])


def _shown(neighbours: "Iterable[Neighbour]") -> Iterator[str]:
    for neighbour in neighbours:
        yield f"  {neighbour.similarity:5.2f}  {neighbour.source}"
        yield from (f"         {translation}" for translation in neighbour.translations)
