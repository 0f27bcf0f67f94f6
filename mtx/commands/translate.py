"""`mtx translate` and `mtx logprob`: lines in, lines out."""

import functools
import itertools
import json
import logging
import re
from collections.abc import Callable, Sequence
from enum import StrEnum
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
    Devices,
    GlossaryFile,
    Model,
    Output,
    checked_output,
    open_input,
    open_output,
    refuse_own_output,
)
from mtx.commands.term_count import TermCount
from mtx.config.limits import MAX_TEMPERATURE
from mtx.errors import UsageError
from mtx.files.sizes import counted
from mtx.files.text_files import InvalidLines
from mtx.run.system_memory import check_address_space

if TYPE_CHECKING:
    from mtx.decoding.options import Sampling
    from mtx.decoding.text_translator import Hypothesis, TextTranslator

logger = logging.getLogger("mtx")

_SEGMENTS_AT_ONCE = 512
_SHOWN_CHARS = 80
_NO_TARGETS = "--overwrite is for documents with translations in them: XLIFF, TMX and PO"


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


def translate(
    model: Model,
    file: Annotated[Path | None, typer.Argument(help="Text to translate; stdin by default.")] = None,
    output: Output = None,
    beam: Beam = None,
    length_penalty: Alpha = None,
    max_length: Annotated[
        int | None, typer.Option(min=1, help="Maximum tokens of a translation; those of the source + 50 by default.")
    ] = None,
    n_best: Annotated[int, typer.Option(min=1, help="Hypotheses for each line, as JSON; at most the beam size.")] = 1,
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
            min=2, help="Minimum Bayes risk: of so many samples (--epsilon 0.02), the one of the highest mean chrF."
        ),
    ] = None,
    seed: Seed = None,
    engine: OneEngine = Engine.auto,
    precision: OnePrecision = None,
    threads: Threads = None,
    device: Device = "auto",
    devices: Devices = None,
    batch_tokens: BatchTokens = None,
    shard: Annotated[
        str | None, typer.Option(metavar="K/N", help="Translate the K-th of N equal parts of FILE, for arrays of jobs.")
    ] = None,
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
        split_sentences=split_sentences, devices=devices, glossary=glossary,
    )  # fmt: skip
    if file is not None and (kind := _kind_of_document(file)):
        if shard is not None or fresh:
            raise UsageError(f"{file}: is a document ({kind}); --shard and --fresh are for lines of text")
        if n_best > 1 or prefix is not None or as_json:
            raise UsageError(f"{file}: is a document ({kind}); --n-best, --prefix and --json are for lines of text")
        _translate_document(file, kind, output, overwrite, load, glossary)
        return
    if overwrite:
        raise UsageError(_NO_TARGETS)
    work = _Work(load, n_best, as_json, prefix)
    if file is not None and file.is_file() and FILE_ENDING.search(file.name):
        logger.warning("%s: is a table by its name; each line is translated whole, with all of its columns", file)
    texts = [text for text in (file, prefix, glossary) if text is not None]  # a pipe is read once
    target = None if output is None else checked_output(output)
    is_file = target is not None and (target.is_file() or not target.exists())
    if file is not None and target is not None and is_file and all(text.is_file() for text in texts):
        about = {"n_best": n_best, "json": as_json, "engine": [engine, precision, device, devices, split_sentences]}
        _translate_file(work, file, target, shard, fresh, about, [prefix, glossary], model)
        return
    if shard is not None or fresh:
        raise UsageError("--shard and --fresh are for a FILE of lines and -o FILE")
    with open_input(file) as source, open_output(output) as sink:
        refuse_own_output(sink, output, source, prefix, glossary)
        translator, number = work.translator, 1
        lines = line_blocks.blocks(source, file, f"{translator.src}> ", "surrogateescape", translator.num_devices)
        for block, prefixes in line_blocks.paired(lines, prefix, "surrogateescape"):
            for row in work.rows(block, prefixes, number):
                sink.write(row.encode("utf-8") + b"\n")
            sink.flush()
            number += len(block)
    work.tell()


class _Work:
    """Translates blocks of lines, and tells at the end what was wrong with them.

    Args:
        load: loads the translator, when it is first used.
    """

    def __init__(self, load: "Callable[[], TextTranslator]", n_best: int, as_json: bool, prefix: Path | None):
        self._load, self._n_best, self._as_json, self._prefix = load, n_best, as_json, prefix
        self._invalid, self._invalid_prefixes = InvalidLines(), InvalidLines(" of --prefix")
        self._num_lines = self._num_empty = 0

    @functools.cached_property
    def translator(self) -> "TextTranslator":
        translator = self._load()
        _check_n_best(self._n_best, translator)
        return translator

    @functools.cached_property
    def _terms(self) -> TermCount:
        return TermCount(self.translator)

    def rows(self, block: list[str], prefixes: list[str] | None, first: int) -> list[str]:
        """The output for some lines, of which the first one has the number `first`."""
        prefixes = None if prefixes is None else self._invalid_prefixes.replace(prefixes)
        lines = self._invalid.replace(block)
        results = self.translator.hypotheses(lines, prefixes, first, f"{self._prefix}: line")
        self._terms.add(block, [hypotheses[0].text for hypotheses in results])
        self._num_lines += len(block)
        pairs = list(zip(block, results, strict=True))
        self._num_empty += sum(bool(line.strip()) and not hypotheses[0].text for line, hypotheses in pairs)
        return [_written(line, hypotheses, self._n_best, self._as_json) for line, hypotheses in pairs]

    def tell(self) -> None:
        """Log what was noticed."""
        is_empty = f"the translation of {self._num_empty:,} of {self._num_lines:,} lines is empty"
        for message in (self._invalid.message(), self._invalid_prefixes.message(), is_empty * bool(self._num_empty)):
            if message:
                logger.warning(message)
        self._terms.tell()


def _translate_file(
    work: _Work, file: Path, output: Path, shard: str | None, fresh: bool, about: dict[str, Any],
    others: Sequence[Path | None], model: str,
) -> None:  # fmt: skip
    """Translate a file into another one; a killed command goes on where it was."""
    from tqdm import tqdm

    from mtx.commands import line_blocks
    from mtx.files import durable
    from mtx.files.resumable import ResumableRows, part_of
    from mtx.files.text_files import read_lines
    from mtx.run.contents import model_identity

    prefix, _ = others
    for written in (output, part_of(output)):
        refuse_own_output(None, written, file, *others)
    start, end = _bounds(shard, num_lines := sum(1 for _ in read_lines(file)))
    if prefix is not None:
        line_blocks.require_as_many(prefix, num_lines)
    translator = work.translator
    size = line_blocks.BLOCK_LINES * translator.num_devices
    about |= {
        "shard": [start, end], "search": repr(translator.options), "translator": type(translator).__name__,
        "texts": [durable.sha256(text) for text in (file, *others) if text],
        "model": model_identity(model),
    }  # fmt: skip
    kept = ResumableRows.beside(output, about, size)
    with kept.held():
        if fresh or not translator.is_repeatable:
            kept.remove()
        done = start + kept.resume()
        texts = (read_lines(text, "surrogateescape") for text in (file, prefix) if text)
        blocks = zip(*(line_blocks.in_blocks(itertools.islice(lines, done, end), size) for lines in texts), strict=True)
        with tqdm(desc="translating", total=end - start, initial=done - start, unit=" lines", disable=None) as bar:
            for block, *prefixes in blocks:
                kept.append(work.rows(block, prefixes[0] if prefixes else None, done + 1))
                done += len(block)
                bar.update(len(block))
        with open_output(output) as sink:
            sink.writelines(kept.rows())
        kept.remove()
    work.tell()


def _bounds(shard: str | None, num_lines: int) -> tuple[int, int]:
    """The lines of a shard, such as 3/16: the number of lines before its first and before its end."""
    if shard is None:
        return 0, num_lines
    number, total = (int(n) for n in shard.split("/")) if re.fullmatch(r"\d+/\d+", shard) else (0, 0)
    if not 1 <= number <= total:
        raise UsageError(f"--shard {shard}: expected K/N with K from 1 to N, such as 3/16")
    return num_lines * (number - 1) // total, num_lines * number // total


def _kind_of_document(file: Path) -> str | None:
    """See `mtx.documents.document`, whose parsers are not loaded for standard input; None for a pipe."""
    from mtx.documents.document import kind_of_document

    return kind_of_document(file) if file.is_file() else None


def _translate_document(
    file: Path, kind: str, output: Path | None, overwrite: bool, load: Callable[[], "TextTranslator"],
    glossary: Path | None,
) -> None:  # fmt: skip
    from tqdm import tqdm

    from mtx.decoding.suspicious import suspicion
    from mtx.documents.document import KINDS_WITH_TARGETS, translate_document
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


def _check_n_best(n_best: int, translator: "TextTranslator") -> None:
    """Refuse to search for more hypotheses than a beam holds; samples have no such limit."""
    options = translator.options
    if options.sampling is None and n_best > options.beam_size:
        is_possible = n_best <= translator.tokenizer.num_ids
        help = f"--beam {n_best}" if is_possible else f"--n-best {options.beam_size}"
        raise UsageError(f"--n-best {n_best} is more than the beam size of {options.beam_size}", help)


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


def _written(line: str, hypotheses: "list[Hypothesis]", n_best: int, as_json: bool) -> str:
    """The translation of a line as text or as one line of JSON."""
    from mtx.decoding.suspicious import suspicion

    if n_best == 1 and not as_json:
        return hypotheses[0].text
    values = [
        {"text": hypothesis.text, "score": hypothesis.score}
        | ({"suspicion": found} if (found := suspicion(line, hypothesis.text)) else {})
        for hypothesis in hypotheses[:n_best]
    ]
    return json.dumps({"hypotheses": values} if n_best > 1 else values[0], ensure_ascii=False)


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


def load_translator(
    model: str, engine: str = Engine.torch, precision: str | None = None, *, device: str = "auto",
    devices: str | None = None, threads: int | None = None, split_sentences: bool | None = False,
    batch_tokens: int | None = None, glossary: Path | None = None, **options: Any,
) -> "TextTranslator":  # fmt: skip
    """Load a model for an engine; the libraries of the other engine are not imported.

    Args:
        devices: a number, or all; None means one.
        split_sentences: see `TorchTranslator.load`; scores are those of whole lines.
        glossary: a file with terms that the translations use.
        options: beam_size, length_penalty, max_length, sampling; see `SearchOptions`.
    """
    from mtx.data.glossary import Glossary
    from mtx.decoding.memory_check import ORDINARY, check_beam
    from mtx.interop.engines import load_fast
    from mtx.run.contents import require_models
    from mtx.run.machine import num_cores

    require_models(model)
    threads = None if threads is None else min(threads, num_cores())
    terms = None if glossary is None else Glossary.read(glossary)
    check_address_space()
    asked = {"--devices": devices, "--batch-tokens": batch_tokens}
    torch_options = [name for name, value in asked.items() if value is not None]
    translator: TextTranslator | None = load_fast(
        model, str(engine), precision and str(precision), device, torch_options, threads=threads,
        split_sentences=split_sentences, **options,
    )  # fmt: skip
    if translator is None:
        settings = {
            "precision": str(precision or Precision.fp32), "threads": threads, "batch_tokens": batch_tokens,
            "split_sentences": split_sentences, **options,
        }  # fmt: skip
        translator = _torch_translator(model, device, devices, settings)
    check_beam("--beam", options.get("beam_size") or 1, translator.tokenizer.num_ids)
    values = [options.get(name) for name in ("beam_size", "max_length", "sampling")]
    translator.is_checked = any(values) or (batch_tokens or 0) > ORDINARY["--batch-tokens"]
    translator.use_glossary(terms)
    return translator


def _torch_translator(model: str, device: str, devices: str | None, settings: dict[str, Any]) -> "TextTranslator":
    import torch

    from mtx.decoding.ensemble import load_torch
    from mtx.decoding.many_devices import ManyDevices
    from mtx.model.device import device_names, keep_freed_memory, num_threads

    names = [device] if devices is None else device_names(devices, device)
    threads = settings["threads"] = max(1, (settings["threads"] or num_threads()) // len(names))
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)
    keep_freed_memory()
    own = load_torch(model, device=names[0], **settings)
    return own if len(names) == 1 else ManyDevices(own, names, model, settings)
