"""`mtx translate`: of lines, where a file's translation continues after a kill, and of documents."""

import contextlib
import functools
import itertools
import json
import logging
import os
import queue
import re
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any
from unicodedata import normalize

import typer

from mtx.commands import translator_options
from mtx.commands.command_line import (
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
from mtx.commands.translator_options import ALL, in_blocks, load_translator, paired, progress, takes
from mtx.decoding.options import Placement, SearchOptions
from mtx.errors import UsageError
from mtx.formatting import counted
from mtx.storage import streams
from mtx.storage.text_files import InvalidLines, decoded_lines

if TYPE_CHECKING:
    from mtx.decoding.translator import Translator

logger = logging.getLogger("mtx")

_BY_ENDING = {**dict.fromkeys(["html", "htm", "xhtml", "xht"], "html"), "md": "markdown", "markdown": "markdown"}

_SEGMENTS_AT_ONCE = 512
_PAUSE_S = 0.01  # a program that sends nothing for this time waits for an answer
_SHOWN_CHARS, _SHOWN_LINES = 80, 10
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
    fresh: Annotated[bool, typer.Option("--fresh", help="Start again instead of resuming a killed command.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Of a document, replace translations too.")] = False,
    as_json: AsJson = False,
    *,
    search: SearchOptions,
    place: Placement,
) -> None:
    """Translate stdin or FILE, one line for one line; XLIFF, TMX, PO, HTML and Markdown stay what they are."""
    from mtx.data.readers import FILE_ENDING

    load = functools.partial(load_translator, model, search, place, glossary)
    text = file if file is not None and file.is_file() else None  # a pipe has lines, and is read once
    if text and (kind := kind_of_document(text)):
        if shard or fresh or search.n_best > 1 or prefix or as_json:
            raise UsageError(f"{text}: is a document ({kind}); {_FOR_LINES}")
        translate_document(text, kind, output, overwrite, load, glossary)
        return
    if overwrite:
        raise UsageError(_NO_TARGETS)
    if text and FILE_ENDING.search(text.name):
        logger.warning("%s: is a table by its name; each line is translated whole, with all of its columns", text)
    work = LineWork(load, search.n_best, as_json, prefix)
    target = None if output is None else checked_output(output)
    others = [other for other in (prefix, glossary) if other]
    is_resumable = target and (target.is_file() or not target.exists()) and all(map(Path.is_file, others))
    if text and target and is_resumable:
        about = {"model": model, "json": as_json, "engine": [place.engine, place.precision, place.device]}
        translate_file(work, text, target, shard, fresh, about, others)
        return
    if shard is not None or fresh:
        raise UsageError("--shard and --fresh are for a FILE of lines and -o FILE")
    with open_input(file) as source, open_output(output) as sink:
        refuse_own_output(sink, output, source, prefix, glossary)
        lines = blocks(source, file, f"{work.translator.src}> ")
        for block, prefixes in paired(lines, prefix, "surrogateescape"):
            sink.writelines(row.encode() + b"\n" for row in work.rows(block, prefixes))
            sink.flush()
    work.log_summary()


def kind_of_document(path: Path) -> str | None:
    """What a file is: xliff, tmx, po, html or markdown; None for lines of text.

    Raises:
        UsageError: if it is missing, or something else.
    """
    from mtx.data.bilingual import BilingualReader
    from mtx.data.readers import READERS
    from mtx.storage.text_files import bilingual_form

    ending = Path(path.name.lower().removesuffix(".gz")).suffix[1:]
    reader = READERS.get(ending)
    named = reader.form if isinstance(reader, BilingualReader) else _BY_ENDING.get(ending)
    return named if named == "html" else bilingual_form(path) or named


class LineWork:
    """Translates blocks of lines, and reports at the end what was wrong with them.

    Args:
        load: loads the translator, when it is first used.
    """

    def __init__(self, load: "Callable[[], Translator]", n_best: int, as_json: bool, prefix: Path | None):
        self._load, self._n_best = load, n_best
        self._as_json, self.prefix = as_json, prefix
        self._invalid, self._invalid_prefixes = InvalidLines(), InvalidLines(" of --prefix")
        self._num_lines = self._num_empty = 0

    @functools.cached_property
    def translator(self) -> "Translator":
        return self._load()

    @functools.cached_property
    def _terms(self) -> "TermCount":
        return TermCount(self.translator)

    def rows(self, block: list[str], prefixes: list[str] | None) -> list[str]:
        """The output for the next lines."""
        prefixes = None if prefixes is None else self._invalid_prefixes.replace(prefixes)
        results = self.translator.hypotheses(self._invalid.replace(block), prefixes, self._n_best)
        self._num_lines += len(block)
        pairs = [(line, hypotheses[0].text) for line, hypotheses in zip(block, results, strict=True)]
        self._terms.add(pairs)
        self._num_empty += sum(not text and bool(line.strip()) for line, text in pairs)
        if self._n_best == 1 and not self._as_json:
            return [text for _, text in pairs]
        from mtx.evaluation.suspicion import suspicion

        rows = list[Any]()
        for line, hypotheses in zip(block, results, strict=True):
            values = [
                {"text": hypothesis.text, "score": hypothesis.score}
                | ({"suspicion": found} if (found := suspicion(line, hypothesis.text)) else {})
                for hypothesis in hypotheses[: self._n_best]
            ]
            rows.append({"hypotheses": values} if self._n_best > 1 else values[0])
        return [json.dumps(row, ensure_ascii=False) for row in rows]

    def log_summary(self) -> None:
        """Log what was noticed."""
        is_empty = f"the translation of {self._num_empty:,} of {self._num_lines:,} lines is empty"
        for message in (self._invalid.message(), self._invalid_prefixes.message(), is_empty * bool(self._num_empty)):
            if message:
                logger.warning(message)
        self._terms.log_summary()


class TermCount:
    """Counts the terms of the glossary that translations use; without a glossary it does nothing."""

    def __init__(self, translator: "Translator"):
        self._translator, self._glossary = translator, translator.glossary
        self._num_terms = self._num_used = 0
        self._missed = list[tuple[str, str]]()  # terms that are not used, and their lines

    def add(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Count the terms of these lines and their translations."""
        if self._glossary is None:
            return
        from mtx.data.cleaning import clean_text
        from mtx.data.glossary import num_used
        from mtx.data.letter_case import in_case

        for source, translation in pairs:
            usual, case = self._translator.truecase(source)
            expected = [match.tgt for match in self._glossary.matches(normalize("NFC", clean_text(usual)))]
            if case is not None:  # the translation has it too
                expected = [in_case(tgt, case, self._translator.tgt) for tgt in expected]
            used = num_used(expected, clean_text(translation))
            self._num_terms += len(expected)
            self._num_used += used
            if used < len(expected):
                missing = [term for term in expected if not num_used([term], translation)]
                self._missed.append((", ".join(missing or expected), source[:_SHOWN_CHARS]))

    def log_summary(self) -> None:
        """Log the counts, with the first lines that lack a term."""
        if self._glossary is None:
            return
        used = f"{self._num_used:,} of {counted(self._num_terms, 'term')} of the glossary used"
        logger.log(logging.WARNING if self._missed else logging.INFO, used + "; missing are:" * bool(self._missed))
        for missed in self._missed[:_SHOWN_LINES]:
            logger.info("  %s in the translation of: %s", *missed)


def blocks(source: IO[bytes], file: Path | None, prompt: str) -> Iterator[list[str]]:
    """The lines of `source` in blocks: of a file large ones, of a pipe what has arrived, of a terminal each line.

    Args:
        file: its name; None for stdin.
        prompt: the prompt on a terminal.
    """
    if file is None and source.isatty():
        yield from ([line] for line in _typed_lines(prompt))
        return
    is_whole = stat.S_ISREG(os.fstat(source.fileno()).st_mode)
    lines = decoded_lines(source, file or Path("/dev/stdin"), "surrogateescape")
    with progress() as bar:
        for block in in_blocks(lines) if is_whole else _arriving_blocks(lines):
            yield block
            bar.update(len(block))


def _typed_lines(prompt: str) -> Iterator[str]:
    """The lines that a user types, until Ctrl-D; the prompt never goes to the output of the translations."""
    with contextlib.suppress(ImportError):  # importing it gives `input` a history and line editing
        import readline  # noqa: F401
    on_terminal = sys.stdout.isatty()
    with contextlib.suppress(EOFError):
        while True:
            if not on_terminal:
                streams.show_prompt(prompt)
            yield streams.typed_line(prompt if on_terminal else "")
    streams.show([""])


def _arriving_blocks(lines: Iterator[str]) -> Iterator[list[str]]:
    """Blocks of the lines that have arrived: a block ends when no line follows at once. A thread reads ahead."""
    ready: queue.Queue[str | BaseException | None] = queue.Queue(4 * translator_options.BLOCK_LINES)

    def read() -> None:
        try:
            for line in lines:
                ready.put(line)
            ready.put(None)
        except BaseException as error:  # the consuming thread raises it again
            ready.put(error)

    threading.Thread(target=read, name="mtx-reader", daemon=True).start()
    item: str | BaseException | None = ""
    while item is not None:
        block, item = list[str](), ready.get()
        with contextlib.suppress(queue.Empty):
            while isinstance(item, str):
                block.append(item)
                if len(block) == translator_options.BLOCK_LINES:
                    break
                item = ready.get(timeout=_PAUSE_S)
        if block:
            yield block
        if isinstance(item, BaseException):
            raise item


def translate_file(
    work: LineWork,
    file: Path,
    output: Path,
    shard: str | None,
    fresh: bool,
    about: dict[str, Any],
    others: Sequence[Path],
) -> None:
    """Translate a file into another one; a killed command continues where it was.

    Args:
        about: what else makes it this translation: options, and the name of the model.
        others: further texts that are read.
    """
    from mtx.storage import durable
    from mtx.storage.resumable import ResumableRows, part_of
    from mtx.storage.run_files import model_identity
    from mtx.storage.text_files import read_lines

    for written in (output, part_of(output)):
        refuse_own_output(None, written, file, *others)
    counted_blocks = paired(in_blocks(read_lines(file)), work.prefix, "surrogateescape")
    start, end = shard_bounds(shard, sum(len(block) for block, _ in counted_blocks))
    about |= {
        "shard": [start, end],
        "search": repr(work.translator.options),
        "translator": work.translator.engine.name,
        "texts": [durable.sha256(text) for text in (file, *others)],
        "model": model_identity(about["model"]),
    }
    kept = ResumableRows.for_output(output, about, translator_options.BLOCK_LINES)
    with kept.lock():
        if fresh:
            kept.remove()
        before = start + kept.resume()
        texts = (read_lines(text, "surrogateescape") for text in (file, work.prefix) if text)
        blocks = zip(*(in_blocks(itertools.islice(lines, before, end)) for lines in texts), strict=True)
        with progress(end - start, before - start) as bar:
            for block, *prefixes in blocks:
                kept.append(work.rows(block, prefixes[0] if prefixes else None))
                bar.update(len(block))
        with open_output(output) as sink:
            sink.writelines(kept.rows())
        kept.remove()
    work.log_summary()


def shard_bounds(shard: str | None, num_lines: int) -> tuple[int, int]:
    """The lines of a shard, such as 3/16: the number of lines before its first and before its end."""
    if shard is None:
        return 0, num_lines
    number, total = (int(n) for n in shard.split("/")) if re.fullmatch(r"\d+/\d+", shard) else (0, 0)
    if not 1 <= number <= total:
        raise UsageError(f"--shard {shard}: expected K/N with K from 1 to N, such as 3/16")
    return num_lines * (number - 1) // total, num_lines * number // total


def translate_document(
    file: Path,
    kind: str,
    output: Path | None,
    overwrite: bool,
    load: "Callable[[], Translator]",
    glossary: Path | None,
) -> None:
    """Translate a document; all but its text stays as it is."""
    from mtx.documents import document
    from mtx.documents.markup import Marked, bare
    from mtx.documents.tagged_segments import translate_segments
    from mtx.evaluation.suspicion import suspicion

    if overwrite and kind not in document.BILINGUAL:
        raise UsageError(f"{file}: {_NO_TARGETS}")
    pairs = list[tuple[str, str]]()
    with file.open("rb") as source, open_output(output) as sink:
        refuse_own_output(sink, output, source, glossary)
        translator = load()

        def translate(segments: list[Marked]) -> list[Marked]:
            results = list[Marked]()
            with progress(len(segments), unit=" segments") as bar:
                for start in range(0, len(segments), _SEGMENTS_AT_ONCE):
                    results += translate_segments(translator, segments[start : start + _SEGMENTS_AT_ONCE])
                    bar.update(len(results) - start)
            pairs.extend((bare(src)[0], bare(tgt)[0]) for src, tgt in zip(segments, results, strict=True))
            return results

        languages = translator.src, translator.tgt
        sink.write(document.translate_document(file, kind, languages, overwrite, translate))
    logger.info("%s: %s translated", file, counted(len(pairs), "segment"))
    if suspicious := [tgt for src, tgt in pairs if suspicion(src, tgt)]:
        what = f"{counted(len(suspicious), 'translation')} with repeated words or a copied source"
        logger.warning("%s: look at %s, such as: %s", file, what, suspicious[0][:_SHOWN_CHARS])
    terms = TermCount(translator)
    terms.add(pairs)
    terms.log_summary()
