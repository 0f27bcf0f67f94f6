"""Translates the texts of a request, plain or HTML, through the queue.

A text of several lines keeps its line breaks: its lines are translated one by one, and each may have several sentences.
"""

import asyncio
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from starlette.concurrency import run_in_threadpool

from mtx.decoding.suspicious import Suspicion, suspicion
from mtx.decoding.translator import Hypothesis
from mtx.documents import html
from mtx.documents.edits import Edit, apply, segments
from mtx.documents.markup import Marked
from mtx.documents.translate import Alignment
from mtx.errors import DataError
from mtx.serve.pairs import Pair
from mtx.serve.queue import TranslationQueue

_TAG = re.compile("<[^<>]*>")
_LINE_END = re.compile("\r\n|\r|\n")
_PAGE = Path("q")  # how messages call a text that is HTML


@dataclass(frozen=True)
class Translation:
    """The translation of a text, others that differ from it, the next best first, and what is suspicious of it."""

    text: str
    alternatives: list[str]
    suspicion: Suspicion | None = None


async def translate_plain(
    queue: TranslationQueue, pair: Pair, texts: Sequence[str], num_alternatives: int
) -> list[Translation]:
    """The translations of plain texts.

    Args:
        num_alternatives: most alternatives; there are fewer if the search finds fewer.

    Raises:
        QueueFullError: see `TranslationQueue.submit`.
    """
    by_text = [_LINE_END.split(text) for text in texts]
    lines = [line for some in by_text for line in some]
    by_line = pair.translator.split(lines)
    parts = [part for some in by_line for part in some]
    function = pair.translator.decode_parts if num_alternatives else pair.best
    found = await asyncio.wrap_future(queue.submit(function, parts, [len(part.ids) for part in parts]))
    hypotheses = iter(pair.translator.join_parts(by_line, found))
    return [_joined(some, list(itertools.islice(hypotheses, len(some))), num_alternatives) for some in by_text]


def _joined(lines: Sequence[str], hypotheses: Sequence[list[Hypothesis]], num_alternatives: int) -> Translation:
    """The translation of a text from those of its lines; a line with fewer hypotheses than another repeats its last."""
    most = max(map(len, hypotheses))
    texts = dict.fromkeys("\n".join(some[min(n, len(some) - 1)].text for some in hypotheses) for n in range(most))
    best, *others = texts
    suspicions = (suspicion(line, some[0].text) for line, some in zip(lines, hypotheses, strict=True))
    return Translation(best, others[:num_alternatives], next(filter(None, suspicions), None))


async def translate_html(
    queue: TranslationQueue, pair: Pair, texts: Sequence[str], segment_tokens: int
) -> list[Translation]:
    """The translations of texts that are HTML, each with all of its tags; without alternatives.

    Args:
        segment_tokens: most tokens of a segment, such as a paragraph.

    Raises:
        DataError: a text has tags that do not end, or a segment that is too long.
        QueueFullError: see `TranslationQueue.submit`.
    """
    results = list(texts)
    for read in (partial(html.read_attributes, _PAGE), html.read_blocks):
        pages = [await run_in_threadpool(_edits, read, text) for text in results]
        some = [segment for edits in pages for segment in segments(edits)]
        sizes = pair.num_tokens(map(_text, some))
        if max(sizes, default=0) > segment_tokens:
            raise DataError(
                f"q: a paragraph has {max(sizes):,} tokens, more than the limit of {segment_tokens:,} for HTML"
            )
        translated = await asyncio.wrap_future(queue.submit(pair.segments, some, sizes))
        rest = iter(translated)
        results = [apply(text, edits, rest) for text, edits in zip(results, pages, strict=True)]
    return [Translation(text, []) for text in results]


async def align(queue: TranslationQueue, pair: Pair, text: str, translation: str) -> list[Alignment]:
    """The alignment of each line of a text and of its translation, which has as many.

    Raises:
        DataError: it has not.
        QueueFullError: see `TranslationQueue.submit`.
    """
    sides = _LINE_END.split(text), _LINE_END.split(translation)
    if len(sides[0]) != len(sides[1]):
        raise DataError("translation: expected as many lines as q has")
    lines = list(zip(*sides, strict=True))
    return await asyncio.wrap_future(queue.submit(pair.alignments, lines, pair.num_tokens(map("".join, lines))))


def without_tags(text: str) -> str:
    """The text of HTML, roughly: enough to guess its language."""
    return _TAG.sub(" ", text)


def _edits(read: Callable[[str], Iterable[Edit]], text: str) -> list[Edit]:
    return list(read(text))


def _text(segment: Marked) -> str:
    return "".join(part for part in segment if isinstance(part, str))
