"""`mtx translate`, of lines (`translate_lines`) and of documents, and `mtx logprob`."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtx.commands.options import (
    AsJson,
    GlossaryFile,
    Model,
    Output,
    Shard,
    checked_output,
    open_input,
    open_output,
    refuse_own_output,
)
from mtx.commands.translate_lines import LineWork, TermCount, translate_file
from mtx.commands.translators import ALL, TorchPrecision, load_translator, takes
from mtx.decoding.options import Placement, SearchOptions
from mtx.errors import UsageError
from mtx.formatting import counted

if TYPE_CHECKING:
    from mtx.decoding.text_translator import TextTranslator

logger = logging.getLogger("mtx")

_SEGMENTS_AT_ONCE = 512
_SHOWN_CHARS = 80
_NO_TARGETS = "--overwrite is for documents with translations in them: XLIFF, TMX and PO"
_FOR_LINES = "--shard, --fresh, --n-best, --prefix and --json are for lines of text"


@takes(*ALL)
def translate(
    model: Model,
    file: Annotated[Path | None, typer.Argument(help="Text to translate; stdin by default.")] = None,
    output: Output = None,
    prefix: Annotated[
        Path | None, typer.Option(help="File with the words that each translation must begin with, line by line.")
    ] = None,
    glossary: GlossaryFile = None,
    shard: Shard = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start again, where a killed command would be continued.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Of a document, replace translations too.")] = False,
    as_json: AsJson = False,
    *,
    search: SearchOptions,
    place: Placement,
) -> None:
    """Translate stdin or FILE, one line for one line; XLIFF, TMX, PO, HTML and Markdown stay what they are."""
    from mtx.commands import line_blocks
    from mtx.config.value_types import FILE_ENDING

    load = partial(load_translator, model, search, place, glossary)
    is_file = file is not None and file.is_file()  # a pipe has lines
    if is_file:
        from mtx.documents.kinds import kind_of_document
    if file is not None and is_file and (kind := kind_of_document(file)):
        if shard or fresh or search.n_best > 1 or prefix or as_json:
            raise UsageError(f"{file}: is a document ({kind}); {_FOR_LINES}")
        _translate_document(file, kind, output, overwrite, load, glossary)
        return
    if overwrite:
        raise UsageError(_NO_TARGETS)
    work = LineWork(load, search.n_best, as_json, prefix)
    if file is not None and is_file and FILE_ENDING.search(file.name):
        logger.warning("%s: is a table by its name; each line is translated whole, with all of its columns", file)
    target = None if output is None else checked_output(output)
    if file is not None and target is not None and (target.is_file() or not target.exists()):
        others = [text for text in (prefix, glossary) if text is not None]
        if all(text.is_file() for text in (file, *others)):  # a pipe is read once
            about = {"model": model, "json": as_json, "engine": [place.engine, place.precision, place.device]}
            translate_file(work, file, target, shard, fresh, about, others)
            return
    if shard is not None or fresh:
        raise UsageError("--shard and --fresh are for a FILE of lines and -o FILE")
    with open_input(file) as source, open_output(output) as sink:
        refuse_own_output(sink, output, source, prefix, glossary)
        lines = line_blocks.blocks(source, file, f"{work.translator.src}> ", "surrogateescape")
        for block, prefixes in line_blocks.paired(lines, prefix, "surrogateescape"):
            sink.writelines(row.encode() + b"\n" for row in work.rows(block, prefixes))
            sink.flush()
    work.tell()


def _translate_document(
    file: Path,
    kind: str,
    output: Path | None,
    overwrite: bool,
    load: Callable[[], "TextTranslator"],
    glossary: Path | None,
) -> None:
    from mtx.commands.line_blocks import progress
    from mtx.decoding.suspicious import suspicion
    from mtx.documents.document import translate_document
    from mtx.documents.kinds import KINDS_WITH_TARGETS
    from mtx.documents.markup import Marked, bare
    from mtx.documents.translate import translate_segments

    if overwrite and kind not in KINDS_WITH_TARGETS:
        raise UsageError(f"{file}: {_NO_TARGETS}")
    pairs = list[tuple[str, str]]()
    with file.open("rb") as source, open_output(output) as sink:
        refuse_own_output(sink, output, source, glossary)
        translator = load()

        def translate(segments: list[Marked]) -> list[Marked]:
            results = list[Marked]()
            with progress(len(segments), unit=" segments") as bar:
                for start in range(0, len(segments), _SEGMENTS_AT_ONCE):
                    some = segments[start : start + _SEGMENTS_AT_ONCE]
                    results += translate_segments(translator, some)
                    bar.update(len(some))
            pairs.extend((bare(src)[0], bare(tgt)[0]) for src, tgt in zip(segments, results, strict=True))
            return results

        sink.write(translate_document(file, kind, (translator.src, translator.tgt), overwrite, translate))
    logger.info("%s: %s translated", file, counted(len(pairs), "segment"))
    if suspicious := [tgt for src, tgt in pairs if suspicion(src, tgt)]:
        what = f"{counted(len(suspicious), 'translation')} with repeated words or a copied source"
        logger.warning("%s: look at %s, such as: %s", file, what, suspicious[0][:_SHOWN_CHARS])
    terms = TermCount(translator)
    terms.add(pairs)
    terms.tell()


@takes("length_penalty", "threads", "device")
def logprob(
    model: Model,
    src: Annotated[Path, typer.Argument(metavar="SRC", help="Source text.")],
    tgt: Annotated[Path, typer.Argument(metavar="TGT", help="Its translations, one line for one line.")],
    output: Output = None,
    precision: TorchPrecision = "fp32",
    as_json: AsJson = False,
    *,
    search: SearchOptions,
    place: Placement,
) -> None:
    """Print the natural log-probability that the model gives to each translation; --json adds tokens and score."""
    from mtx.commands import line_blocks

    with open_input(src) as source, open_output(output) as sink:
        refuse_own_output(sink, output, source, tgt)
        translator: Any = load_translator(model, search, replace(place, precision=precision))
        number = 1
        for block, translations in line_blocks.paired(line_blocks.blocks(source, src, ""), tgt):
            scores = translator.log_probs(block, translations, number, (f"{src}: line", f"{tgt}: line"))
            number += len(block)
            for score in scores:
                value = {"log_prob": score.log_prob, "tokens": score.num_tokens, "score": score.score}
                sink.write((json.dumps(value) if as_json else f"{score.log_prob:.6f}").encode() + b"\n")
