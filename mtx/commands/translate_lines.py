"""Lines in, lines out for `mtx translate`: the work on blocks of lines; a file's translation goes on after a kill."""

import functools
import itertools
import json
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtx.commands.options import open_output, refuse_own_output
from mtx.commands.term_count import TermCount
from mtx.config.limits import MAX_BEAM_SIZE
from mtx.errors import UsageError
from mtx.files.text_files import InvalidLines

if TYPE_CHECKING:
    from mtx.decoding.text_translator import Hypothesis, TextTranslator

logger = logging.getLogger("mtx")


class LineWork:
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
        name = "line" if self._prefix is None else f"{self._prefix}: line"
        results = self.translator.hypotheses(lines, prefixes, first, name, self._n_best)
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


def translate_file(
    work: LineWork, file: Path, output: Path, shard: str | None, fresh: bool, about: dict[str, Any],
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
    start, end = shard_bounds(shard, num_lines := sum(1 for _ in read_lines(file)))
    if prefix is not None:
        line_blocks.require_as_many(prefix, num_lines)
    translator = work.translator
    size = line_blocks.BLOCK_LINES
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


def shard_bounds(shard: str | None, num_lines: int) -> tuple[int, int]:
    """The lines of a shard, such as 3/16: the number of lines before its first and before its end."""
    if shard is None:
        return 0, num_lines
    number, total = (int(n) for n in shard.split("/")) if re.fullmatch(r"\d+/\d+", shard) else (0, 0)
    if not 1 <= number <= total:
        raise UsageError(f"--shard {shard}: expected K/N with K from 1 to N, such as 3/16")
    return num_lines * (number - 1) // total, num_lines * number // total


def _check_n_best(n_best: int, translator: "TextTranslator") -> None:
    """Refuse to search for more hypotheses than a beam holds; samples have no such limit."""
    options = translator.options
    if options.sampling is None and n_best > options.beam_size:
        help = f"--beam {n_best}" if n_best <= MAX_BEAM_SIZE else f"--n-best {options.beam_size}"
        raise UsageError(f"--n-best {n_best} is more than the beam size of {options.beam_size}", help)


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
