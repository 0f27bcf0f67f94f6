"""Lines in, lines out for `mtx translate`: the work on blocks of lines; a file's translation continues after a kill."""

import functools
import itertools
import json
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import normalize

from mtx.commands.options import open_output, refuse_own_output
from mtx.errors import UsageError
from mtx.formatting import counted
from mtx.storage.text_files import InvalidLines

if TYPE_CHECKING:
    from mtx.decoding.translator import Hypothesis, Translator

logger = logging.getLogger("mtx")

_SHOWN_CHARS, _SHOWN_LINES = 80, 10


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

    def rows(self, block: list[str], prefixes: list[str] | None, num_before: int = 0) -> list[str]:
        """The output for the next lines, of a text that has `num_before` lines before the first of all."""
        prefixes = None if prefixes is None else self._invalid_prefixes.replace(prefixes)
        first, name = num_before + self._num_lines + 1, "line" if self.prefix is None else f"{self.prefix}: line"
        results = self.translator.hypotheses(self._invalid.replace(block), prefixes, first, name, self._n_best)
        self._num_lines += len(block)
        pairs = [(line, hypotheses[0].text) for line, hypotheses in zip(block, results, strict=True)]
        self._terms.add(pairs)
        self._num_empty += sum(not text and bool(line.strip()) for line, text in pairs)
        if self._n_best == 1 and not self._as_json:
            return [text for _, text in pairs]
        return [_as_json(line, found, self._n_best) for line, found in zip(block, results, strict=True)]

    def tell(self) -> None:
        """Log what was noticed."""
        is_empty = f"the translation of {self._num_empty:,} of {self._num_lines:,} lines is empty"
        for message in (self._invalid.message(), self._invalid_prefixes.message(), is_empty * bool(self._num_empty)):
            if message:
                logger.warning(message)
        self._terms.tell()


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
            usual, case = self._translator.usual_case(source)
            expected = [match.tgt for match in self._glossary.matches(normalize("NFC", clean_text(usual)))]
            if case is not None:  # the translation has it too
                expected = [in_case(tgt, case, self._translator.tgt) for tgt in expected]
            used = num_used(expected, clean_text(translation))
            self._num_terms += len(expected)
            self._num_used += used
            if used < len(expected):
                missing = [term for term in expected if not num_used([term], translation)]
                self._missed.append((", ".join(missing or expected), source[:_SHOWN_CHARS]))

    def tell(self) -> None:
        """Log the counts, with the first lines that lack a term."""
        if self._glossary is None:
            return
        used = f"{self._num_used:,} of {counted(self._num_terms, 'term')} of the glossary used"
        if not self._missed:
            logger.info(used)
            return
        logger.warning("%s; missing are:", used)
        for missed in self._missed[:_SHOWN_LINES]:
            logger.info("  %s in the translation of: %s", *missed)


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
    from mtx.commands import line_blocks
    from mtx.storage import durable
    from mtx.storage.resumable import ResumableRows, part_of
    from mtx.storage.run_contents import model_identity
    from mtx.storage.text_files import read_lines

    for written in (output, part_of(output)):
        refuse_own_output(None, written, file, *others)
    size = line_blocks.BLOCK_LINES
    counted_blocks = line_blocks.paired(line_blocks.in_blocks(read_lines(file), size), work.prefix, "surrogateescape")
    start, end = shard_bounds(shard, sum(len(block) for block, _ in counted_blocks))
    translator = work.translator
    about |= {
        "shard": [start, end],
        "search": repr(translator.options),
        "translator": translator.engine.name,
        "texts": [durable.sha256(text) for text in (file, *others)],
        "model": model_identity(about["model"]),
    }
    kept = ResumableRows.beside(output, about, size)
    with kept.held():
        if fresh:
            kept.remove()
        before = start + kept.resume()
        texts = (read_lines(text, "surrogateescape") for text in (file, work.prefix) if text)
        blocks = zip(
            *(line_blocks.in_blocks(itertools.islice(lines, before, end), size) for lines in texts), strict=True
        )
        with line_blocks.progress(end - start, before - start) as bar:
            for block, *prefixes in blocks:
                kept.append(work.rows(block, prefixes[0] if prefixes else None, before))
                bar.update(len(block))
        with open_output(output) as sink:
            sink.writelines(kept.rows())
        kept.remove()
    work.tell()


def shard_bounds(shard: str | None, num_lines: int) -> tuple[int, int]:
    """The lines of a shard, such as 3/16: the number of lines before its first and before its end."""
    if shard is None:
        return 0, num_lines
    number, total = (int(n) for n in shard.split("/")) if re.fullmatch(r"\d+/\d+", shard) else (0, 0)
    if not 1 <= number <= total:
        raise UsageError(f"--shard {shard}: expected K/N with K from 1 to N, such as 3/16")
    return num_lines * (number - 1) // total, num_lines * number // total


def _as_json(line: str, hypotheses: "list[Hypothesis]", n_best: int) -> str:
    """The translations of a line as one line of JSON."""
    from mtx.decoding.suspicious import suspicion

    values = [
        {"text": hypothesis.text, "score": hypothesis.score}
        | ({"suspicion": found} if (found := suspicion(line, hypothesis.text)) else {})
        for hypothesis in hypotheses[:n_best]
    ]
    return json.dumps({"hypotheses": values} if n_best > 1 else values[0], ensure_ascii=False)
