"""`mtx translate`: lines (an interrupted translation of a file resumes) and documents."""

import csv
import io
import json
import os
import stat
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import replace
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from mtx.commands.command_line import (
    AS_JSON,
    GLOSSARY,
    MODEL,
    OUTPUT,
    SHARD,
    argument,
    flag,
    logger,
    open_input,
    open_output,
    option,
    resolve_output,
)
from mtx.commands.translator_options import ALL, LoadOptions, load_translator, resumed_with, takes
from mtx.errors import DataError, MtxError, UsageError
from mtx.formatting import counted
from mtx.storage.streams import progress
from mtx.storage.text_files import (
    KINDS,
    FileKind,
    Invalid,
    InvalidLines,
    LineParts,
    decoded_lines,
    kind_of,
    kind_of_file,
    read_lines,
    require_content,
)

if TYPE_CHECKING:
    from mtx.decoding.translator import Hypothesis, Translator


T = TypeVar("T")
_SHOWN_CHARS = 80
BLOCK_LINES = 2048  # large enough to batch lines of similar length, small enough to show progress


@takes(*ALL)
def translate(
    model: str = MODEL,
    file: Path | None = argument("[FILE]", "Text or document to translate; stdin by default."),
    output: Path | None = OUTPUT,
    prefix: Path | None = option("FILE", "The beginning of each translation, line by line."),
    glossary: Path | None = GLOSSARY,
    shard: str | None = SHARD,
    overwrite: bool = flag("--overwrite", "Also replace existing translations (documents only)."),
    review: Path | None = option("FILE", "Also write a table of the segments by their expected quality, worst first."),
    look_below: float | None = option(
        "FLOAT", "Advise to look at translations below this expected quality.  [default: as fitted]", min=0, max=100
    ),
    as_lines: bool = flag("--lines", "Translate FILE line by line, whatever it is."),
    as_json: bool = AS_JSON,
    alignment: bool = flag("--alignment", "With --json: also which words belong together."),
    *,
    options: LoadOptions,
) -> None:
    """Translate text line by line, or a document.

    Documents are XLIFF, TMX, PO, HTML, Markdown, SRT and WebVTT files. Only their text changes.
    """
    if file and file.is_dir():
        raise UsageError(
            f"{file}: is a directory", 'for file in DIR/*; do mtx translate MODEL "$file" -o "OUT/${file##*/}"; done'
        )
    if alignment and not (as_json or options.get("n_best", 1) > 1):
        raise UsageError("--alignment is a field of JSON", "add --json")
    target = resolve_output(output, file, prefix, glossary)
    review_path = resolve_output(review, file, prefix, glossary)
    if review_path and review_path == target:
        raise UsageError(f"--review {review}: the translation is written to the same file", "choose another file")
    text = file if file and file.is_file() else None  # a pipe has lines, and is read once
    kind = kind_of_document(text) if text and not as_lines else None
    if kind:  # lines need no reader
        from mtx.data.readers import READERS
    if kind and (shard or options.get("n_best", 1) > 1 or prefix or as_json):
        raise UsageError(
            f"{text}: is a document ({kind}); --shard, --n-best, --prefix and --json are for lines of text"
        )
    if overwrite and not (kind and kind in READERS):
        raise UsageError("--overwrite is for documents with translations in them: XLIFF, TMX and PO")
    translator = load_translator(model, glossary, **options)
    if text and kind and kind in READERS and len(translator.directions) > 1 and not options.keys() & {"to", "src"}:
        from mtx.documents.document import find_direction

        try:
            src, tgt = find_direction(text, kind, translator.directions)
            translator = translator.to(tgt, src)
        except UsageError:
            if translator.is_multilingual:  # another one has a direction of its own
                raise
    if look_below is not None:
        translator.quality_maps = {
            name: quality_map.with_look_below(look_below) for name, quality_map in translator.quality_maps.items()
        }
    if review_path and not translator.quality_map:
        raise UsageError(
            f"--review: {model} has no estimate of quality for this search",
            "omit --glossary and --beam; a model without any: mtx evaluate MODEL --src FILE --ref FILE --fit-quality",
        )
    review_table = Review(review_path)
    if text and kind:
        translate_document(text, kind, target, overwrite, translator, review_table)
        return
    work = LineWork(translator, as_json, prefix, review_table, alignment)
    other_texts = [path for path in (prefix, glossary) if path]
    if text and target and (target.is_file() or not target.exists()) and all(map(Path.is_file, other_texts)):
        form = work.has_values if look_below is None else look_below
        identity = {"model": model, "json": form, **resumed_with(options)}
        if alignment:
            identity["alignment"] = True
        translate_file(work, text, target, shard, identity, other_texts)
    elif shard is not None:
        raise UsageError("--shard needs a FILE of lines, and -o FILE")
    else:
        with open_input(file) as source, open_output(target, source) as sink:
            if not (as_lines or source.isatty()):
                require_lines(file, kind_of(source.peek(), KINDS))  # type: ignore[attr-defined]
            for block in blocks(source, file, prefix):
                sink.writelines(map(work.output, block, work.rows(block)))
                sink.flush()
        review_table.write()
    work.log_summary()


def kind_of_document(path: Path) -> str | None:
    """What a file is: xliff, tmx, po, html, markdown or subtitles; None for lines of text.

    Raises:
        UsageError: if it is missing, or something else than text.
    """
    kind = kind_of_file(path)
    if kind and kind.form in ("", "tmx", "xliff"):  # others may be empty
        require_content(path)
    if not (kind and kind.form):
        require_lines(path, kind)
    return kind and kind.form


def require_lines(path: Path | None, kind: FileKind | None) -> None:
    """Raise a UsageError for a file, or stdin, of a kind that is not lines of text."""
    if kind:
        raise UsageError(f"{path or 'stdin'}: expected lines of text, got {kind.name}", f"{kind.hint}, or use --lines")


class LineWork:
    """Translates blocks of lines, and reports at the end what was wrong with them."""

    def __init__(
        self,
        translator: "Translator",
        as_json: bool,
        prefix: Path | None,
        review: "Review",
        is_aligned: bool = False,
    ):
        self.translator = translator
        self.prefix = prefix
        self.review = review
        self._is_aligned = is_aligned
        self._shows_more = as_json or translator.options.n_best > 1
        self.has_values = self._shows_more or bool(review.path)
        translator.options = replace(translator.options, has_scores=self.has_values)
        self._invalid = InvalidLines()
        self._invalid_prefixes = InvalidLines(" of --prefix")
        self._num_empty = 0
        self._findings = Findings(translator, "line")

    def rows(self, block: list[LineParts]) -> list[str]:
        """What is known of the next lines, see `pair_lines`: their translations, or JSON with more values."""
        n_best = self.translator.options.n_best
        lines, *prefixes = map(list, zip(*block, strict=True))
        prefix = self._invalid_prefixes.replace(prefixes[0]) if prefixes else None
        results = self.translator.hypotheses(self._invalid.replace(lines), prefix, n_best)
        if self.has_values:
            from mtx.scoring.suspicion import suspicion
        alignments: Sequence[str | None] = [None] * len(lines)
        if self._is_aligned:
            alignments = self.translator.align([hypotheses[:1] for hypotheses in results])
        rows = []
        for line, hypotheses, alignment in zip(lines, results, alignments, strict=True):
            best = hypotheses[0]
            row = best.text
            self._findings.add(line, row, best if self.has_values else None)
            if line.strip() and not row:
                self._num_empty += 1
            if self.has_values:
                values = [hypothesis_values(each, suspicion(line, each.text)) for each in hypotheses[:n_best]]
                if alignment is not None:
                    values[0]["alignment"] = alignment
                row = json.dumps({"hypotheses": values} if n_best > 1 else values[0], ensure_ascii=False)
            rows.append(row)
        return rows

    def output(self, line: LineParts, row: str) -> bytes:
        """The output for a line, of which `row` is known; adds it to the review."""
        if self.review.path:
            values = json.loads(row)
            best = values.get("hypotheses", [values])[0]
            self.review.add(line[0], best)
            if not self._shows_more:
                row = best["text"]
        return row.encode() + b"\n"

    def log_summary(self) -> None:
        """Log what was noticed."""
        self._invalid.log()
        self._invalid_prefixes.log()
        if self._num_empty:
            logger.warning("the translation of %s is empty", counted(self._num_empty, "line"))
        self._findings.log()


def hypothesis_values(hypothesis: "Hypothesis", reason: str | None) -> dict[str, Any]:
    """The values of a hypothesis for JSON; `reason` is why it is suspicious."""
    values = {
        "text": hypothesis.text,
        "score": hypothesis.score,
        "suspicion": reason,
        "is_cut": hypothesis.is_cut or None,
    }
    values = {name: value for name, value in values.items() if value is not None}
    if hypothesis.advice:
        values |= {"quality": hypothesis.quality, "advice": hypothesis.advice}
    return values


class Review:
    """A table of segments with the expected quality of their translations, without those that need no translation."""

    def __init__(self, path: Path | None):
        self.path = path
        self._rows = list[tuple[Any, ...]]()

    def add(self, source: str, values: dict[str, Any]) -> None:
        """Add a segment, with the `hypothesis_values` of its translation."""
        if "advice" in values:
            self._rows.append((*map(values.get, ("quality", "advice", "suspicion")), source, values["text"]))

    def write(self) -> None:
        """Write the file: first the segments without an estimate, then the lowest quality first."""
        if self.path:
            table = io.StringIO()
            self._rows.sort(key=lambda row: -1.0 if row[0] is None else row[0])
            rows = [("quality", "advice", "suspicion", "source", "translation"), *self._rows]
            csv.writer(table, "excel-tab", lineterminator="\n").writerows(rows)
            with open_output(self.path) as sink:
                sink.write(table.getvalue().encode(errors="replace"))


class Findings:
    """Counts what users should know of the translations of lines or segments.

    It counts those without an estimate of quality, because their text is unlike that of the estimate, and the terms of
    the glossary that they use, if there is one.
    """

    def __init__(self, translator: "Translator", unit: str):
        self._translator = translator
        self._unit = unit
        self._num_estimates = 0
        self._num_unlike = 0
        self._num_terms = 0
        self._num_used = 0
        self._missing = list[str]()  # the first terms that are missing, with their lines

    def add(self, source: str, translation: str, estimated: "Hypothesis | None") -> None:
        """Count a translation.

        Args:
            estimated: its hypothesis, if its quality is asked for.
        """
        if estimated and estimated.advice:
            self._num_estimates += 1
            if estimated.quality is None:
                self._num_unlike += 1
        if self._translator.glossary:
            num_terms, missing = self._translator.count_terms(source, translation)
            self._num_terms += num_terms
            self._num_used += num_terms - len(missing)
            if missing and len(self._missing) < 10:
                self._missing.append(f"{', '.join(missing)} in the translation of: {source[:_SHOWN_CHARS]}")

    def log(self) -> None:
        """Log the counts, with the first lines that lack a term."""
        if self._num_unlike:
            logger.warning(
                f"{self._num_unlike:,} of {counted(self._num_estimates, self._unit)} are unlike the validation text of "
                "this model, and have no estimate of quality"
            )
        if self._translator.glossary:
            usage = f"{self._num_used:,} of {counted(self._num_terms, 'term')} of the glossary used"
            if self._missing:
                logger.warning(f"{usage}; missing:")
            else:
                logger.info(usage)
        for missing in self._missing:
            logger.info("  %s", missing)


def blocks(source: IO[bytes], file: Path | None, prefix: Path | None = None) -> Iterator[list[LineParts]]:
    """The lines of `source` in blocks (see `pair_lines`): large ones from a file, else what has arrived.

    Args:
        file: its name; None for stdin.
    """
    if source.isatty():
        logger.info("type the text, then Ctrl-D")
    arriving: Any = None if stat.S_ISREG(os.fstat(source.fileno()).st_mode) else ArrivingLines(source)
    lines = decoded_lines(arriving or source, file or Path("/dev/stdin"), "surrogateescape")
    with progress("translating", is_hidden=sys.stdout.isatty()) as update:
        for block in in_blocks(pair_lines(lines, prefix), arriving and arriving.lines):
            yield block
            update(len(block))


class ArrivingLines:
    """The lines of a pipe or a terminal, with what `decoded_lines` needs of a file.

    Attributes:
        lines: those that have arrived and were not read.
    """

    def __init__(self, source: Any):
        self.peek = source.peek
        self.lines = deque[bytes]()
        self._source = source
        self._unfinished = b""  # the beginning of a line whose end has not arrived

    def readline(self, size: int) -> bytes:
        """The next line, or a part of it if it has more than `size` bytes; b"" at the end."""
        while not self.lines:
            data = b""
            if len(self._unfinished) < size:
                data = self._source.read1(1 << 16)
            if not data:
                part = self._unfinished
                self._unfinished = b""
                return part
            *lines, self._unfinished = (self._unfinished + data).split(b"\n")
            self.lines += (line + b"\n" for line in lines)
        return self.lines.popleft()


def translate_file(
    work: LineWork,
    file: Path,
    output: Path,
    shard: str | None,
    identity: dict[str, Any],
    other_texts: Sequence[Path],
) -> None:
    """Translate a file into another one; an interrupted command resumes where it was.

    Args:
        identity: what else makes it this translation: options, and the name of the model.
        other_texts: further texts that are read.
    """
    from mtx.storage import durable
    from mtx.storage.resumable import ResumableRows, Shard
    from mtx.storage.run_files import model_identity

    resolve_output(output, file, *other_texts)
    lines = Shard(lambda: pair_lines(read_lines(file, "surrogateescape"), work.prefix), shard)
    identity |= {
        "shard": lines.bounds,
        "search": repr(work.translator.options),
        "translator": work.translator.engine.name,
        "texts": [durable.sha256(text) for text in (file, *other_texts)],
        "model": model_identity(identity["model"]),
    }
    finished = ResumableRows(output, identity, BLOCK_LINES)
    with finished.completed(lines, partial(map, work.rows)):
        with open_output(output) as sink:
            sink.writelines(map(work.output, lines, finished.rows()))
        work.review.write()


def in_blocks(lines: Iterator[T], arrived: Sized | None = None) -> Iterator[list[T]]:
    """The lines, or segments, in blocks of `BLOCK_LINES`, or of all that have arrived when one is there.

    Those before an error of the text are still a block.
    """
    while True:
        block = list[T]()
        try:
            block += islice(lines, 1)
            block += islice(lines, BLOCK_LINES - 1 if arrived is None else len(arrived))
        except MtxError:
            if block:
                yield block
            raise
        if not block:
            return
        yield block


def pair_lines(lines: Iterable[str], path: Path | None, invalid: Invalid = "surrogateescape") -> Iterator[LineParts]:
    """Each line alone, or with the same line of another file.

    Args:
        invalid: see `read_lines`.

    Raises:
        DataError: if the file has fewer or more lines.
    """
    for row in zip_longest(lines, *([read_lines(path, invalid)] if path else [])):
        if None in row:
            raise DataError(f"{path} has {'more' if row[0] is None else 'fewer'} lines than the text")
        yield row


def translate_document(
    file: Path, kind: str, output: Path | None, overwrite: bool, translator: "Translator", review: Review
) -> None:
    """Translate a document; only its text changes."""
    from mtx.data.markup import Marked, bare, is_blank, raw
    from mtx.data.readers import READERS
    from mtx.documents import document
    from mtx.scoring.suspicion import suspicion

    findings = Findings(translator, "segment")
    suspicious = list[str]()

    def translate(segments: list[Marked]) -> "list[Hypothesis]":
        results = list["Hypothesis"]()
        with progress("translating", len(segments), "segments") as update:
            for block in in_blocks(iter(segments)):
                best = translator.translate_marked(block)
                for segment, hypothesis in zip(block, best, strict=True):
                    source = bare(segment)[0]
                    translation = bare(hypothesis.marked)[0]
                    reason = suspicion(source, translation)
                    if reason and not is_blank(hypothesis.marked):  # a blank one is counted as left
                        suspicious.append(translation)
                    is_estimated = review.path or kind in READERS  # those hold the quality
                    findings.add(source, translation, hypothesis if is_estimated else None)
                    if review.path:
                        review.add(raw(segment), hypothesis_values(hypothesis, reason))
                results += best
                update(len(block))
        return results

    with open_output(output) as sink:
        sink.write(document.translate_document(file, kind, (translator.src, translator.tgt), overwrite, translate))
    review.write()
    if suspicious:
        logger.warning(
            "%s: suspicious translations to check: %s, such as: %s",
            file,
            f"{len(suspicious):,}",
            suspicious[0][:_SHOWN_CHARS],
        )
    findings.log()
