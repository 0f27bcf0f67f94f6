"""`mtx translate`, of lines (`translate_lines`) and of documents, and `mtx logprob`."""

import json
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtx.commands.options import (
    Alpha,
    AsJson,
    BatchTokens,
    Beam,
    Device,
    GlossaryFile,
    Model,
    Output,
    Shard,
    checked_output,
    open_input,
    open_output,
    refuse_own_output,
)
from mtx.commands.term_count import TermCount
from mtx.commands.translate_lines import LineWork, translate_file
from mtx.commands.translators import (
    Engine,
    Epsilon,
    OneEngine,
    OnePrecision,
    Seed,
    Temperature,
    Threads,
    TopK,
    TopP,
    TorchPrecision,
    load_translator,
    sampling_options,
)
from mtx.config.limits import MAX_LENGTH, MAX_SAMPLES
from mtx.documents.kinds import KINDS_WITH_TARGETS, kind_of_document
from mtx.errors import UsageError
from mtx.files.sizes import counted

if TYPE_CHECKING:
    from mtx.decoding.text_translator import TextTranslator

logger = logging.getLogger("mtx")

_SEGMENTS_AT_ONCE = 512
_SHOWN_CHARS = 80
_NO_TARGETS = "--overwrite is for documents with translations in them: XLIFF, TMX and PO"


def translate(
    model: Model,
    file: Annotated[Path | None, typer.Argument(help="Text to translate; stdin by default.")] = None,
    output: Output = None,
    beam: Beam = None,
    length_penalty: Alpha = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            min=1, max=MAX_LENGTH, help="Maximum tokens of a translation; those of the source + 50 by default."
        ),
    ] = None,
    n_best: Annotated[
        int, typer.Option(min=1, max=MAX_SAMPLES, help="Hypotheses for each line, as JSON; at most the beam size.")
    ] = 1,
    prefix: Annotated[
        Path | None, typer.Option(help="File with the words that each translation must begin with, line by line.")
    ] = None,
    glossary: GlossaryFile = None,
    split_sentences: Annotated[
        bool | None,
        typer.Option(
            "--split-sentences/--no-split-sentences",
            help="Translate the sentences of a line one by one; by default if the model learned from single ones.",
        ),
    ] = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    epsilon: Epsilon = None,
    mbr: Annotated[
        int | None,
        typer.Option(
            min=2,
            max=MAX_SAMPLES,
            help="Minimum Bayes risk: of so many samples (--epsilon 0.02), the one of the highest mean chrF.",
        ),
    ] = None,
    seed: Seed = None,
    engine: OneEngine = Engine.auto,
    precision: OnePrecision = None,
    threads: Threads = None,
    device: Device = "auto",
    batch_tokens: BatchTokens = None,
    shard: Shard = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew, where a killed command would go on.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Of a document, replace translations too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Translate stdin or FILE, one line for one line; XLIFF, TMX, PO, HTML and Markdown stay what they are."""
    from mtx.commands import line_blocks
    from mtx.config.value_types import FILE_ENDING

    sampling = sampling_options(temperature, top_k, top_p, epsilon, seed, n_best, beam, mbr)
    load = partial(
        load_translator, model, engine, precision, device=device, threads=threads, beam_size=beam,
        length_penalty=length_penalty, max_length=max_length, sampling=sampling, batch_tokens=batch_tokens,
        split_sentences=split_sentences, glossary=glossary,
    )  # fmt: skip
    if file is not None and file.is_dir():
        raise UsageError(f"{file}: is a directory, expected a file", "mtx translate MODEL FILE")
    if file is not None and file.is_file() and (kind := kind_of_document(file)):  # a pipe has lines
        if shard is not None or fresh:
            raise UsageError(f"{file}: is a document ({kind}); --shard and --fresh are for lines of text")
        if n_best > 1 or prefix is not None or as_json:
            raise UsageError(f"{file}: is a document ({kind}); --n-best, --prefix and --json are for lines of text")
        _translate_document(file, kind, output, overwrite, load, glossary)
        return
    if overwrite:
        raise UsageError(_NO_TARGETS)
    work = LineWork(load, n_best, as_json, prefix)
    if file is not None and file.is_file() and FILE_ENDING.search(file.name):
        logger.warning("%s: is a table by its name; each line is translated whole, with all of its columns", file)
    texts = [text for text in (file, prefix, glossary) if text is not None]  # a pipe is read once
    target = None if output is None else checked_output(output)
    is_file = target is not None and (target.is_file() or not target.exists())
    if file is not None and target is not None and is_file and all(text.is_file() for text in texts):
        about = {"n_best": n_best, "json": as_json, "engine": [engine, precision, device, split_sentences]}
        translate_file(work, file, target, shard, fresh, about, [prefix, glossary], model)
        return
    if shard is not None or fresh:
        raise UsageError("--shard and --fresh are for a FILE of lines and -o FILE")
    with open_input(file) as source, open_output(output) as sink:
        refuse_own_output(sink, output, source, prefix, glossary)
        translator, number = work.translator, 1
        lines = line_blocks.blocks(source, file, f"{translator.src}> ", "surrogateescape")
        for block, prefixes in line_blocks.paired(lines, prefix, "surrogateescape"):
            for row in work.rows(block, prefixes, number):
                sink.write(row.encode("utf-8") + b"\n")
            sink.flush()
            number += len(block)
    work.tell()


def _translate_document(
    file: Path, kind: str, output: Path | None, overwrite: bool, load: Callable[[], "TextTranslator"],
    glossary: Path | None,
) -> None:  # fmt: skip
    from tqdm import tqdm

    from mtx.decoding.suspicious import suspicion
    from mtx.documents.document import translate_document
    from mtx.documents.markup import Marked, bare
    from mtx.documents.translate import translate_segments

    if overwrite and kind not in KINDS_WITH_TARGETS:
        raise UsageError(f"{file}: {_NO_TARGETS}")
    num_segments, suspicious = 0, list[str]()
    with file.open("rb") as source, open_output(output) as sink:
        refuse_own_output(sink, output, source, glossary)
        translator = load()
        terms = TermCount(translator)

        def translate(segments: list[Marked]) -> list[Marked]:
            nonlocal num_segments
            num_segments += len(segments)
            results = list[Marked]()
            with tqdm(desc="translating", total=len(segments), unit=" segments", disable=None) as bar:
                for start in range(0, len(segments), _SEGMENTS_AT_ONCE):
                    some = segments[start : start + _SEGMENTS_AT_ONCE]
                    results += (new := translate_segments(translator, some))
                    sources, translations = ([bare(segment)[0] for segment in side] for side in (some, new))
                    terms.add(sources, translations)
                    pairs = zip(sources, translations, strict=True)
                    suspicious.extend(result for source, result in pairs if suspicion(source, result))
                    bar.update(len(some))
            return results

        sink.write(translate_document(file, kind, (translator.src, translator.tgt), overwrite, translate))
    logger.info("%s: %s translated", file, counted(num_segments, "segment"))
    if suspicious:
        what = "translation that repeats words or copies the source"
        several = f"{len(suspicious):,} translations that repeat words or copy the source"
        shown = suspicious[0][:_SHOWN_CHARS]
        logger.warning("%s: look at %s, such as: %s", file, f"1 {what}" if len(suspicious) == 1 else several, shown)
    terms.tell()


def logprob(
    model: Model,
    src: Annotated[Path, typer.Argument(metavar="SRC", help="Source text.")],
    tgt: Annotated[Path, typer.Argument(metavar="TGT", help="Its translations, one line for one line.")],
    output: Output = None,
    length_penalty: Alpha = None,
    precision: Annotated[TorchPrecision, typer.Option(help="fp32 or bf16.")] = TorchPrecision.fp32,
    threads: Threads = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Print the natural log-probability that the model gives to each translation; --json adds tokens and score."""
    from mtx.commands import line_blocks

    with open_input(src) as source, open_output(output) as sink:
        refuse_own_output(sink, output, source, tgt)
        translator: Any = load_translator(
            model, Engine.torch, precision, device=device, threads=threads, length_penalty=length_penalty
        )
        number = 1
        for block, translations in line_blocks.paired(line_blocks.blocks(source, src, ""), tgt):
            scores = translator.log_probs(block, translations, number, (f"{src}: line", f"{tgt}: line"))
            number += len(block)
            for score in scores:
                value = {"log_prob": score.log_prob, "tokens": score.num_tokens, "score": score.score}
                sink.write((json.dumps(value) if as_json else f"{score.log_prob:.6f}").encode() + b"\n")
