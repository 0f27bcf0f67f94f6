"""Translates the texts of a request, plain or HTML, through the queue.

A text of several lines keeps its line breaks: its lines are translated one by one, and each may have several sentences.
"""

import asyncio
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from starlette.concurrency import run_in_threadpool

from mtx.decoding.suspicious import Suspicion, suspicion
from mtx.decoding.text_translator import Hypothesis
from mtx.documents import html
from mtx.documents.edits import apply
from mtx.documents.markup import Marked
from mtx.documents.translate import Alignment
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
    found = await asyncio.wrap_future(queue.submit(pair.hypotheses, lines, _sizes(lines)))
    hypotheses = iter(found)
    return [_joined(some, list(itertools.islice(hypotheses, len(some))), num_alternatives) for some in by_text]


def _joined(lines: Sequence[str], hypotheses: Sequence[list[Hypothesis]], num_alternatives: int) -> Translation:
    """The translation of a text from those of its lines; a line with fewer hypotheses than another repeats its last."""
    most = max(map(len, hypotheses))
    texts = dict.fromkeys("\n".join(some[min(n, len(some) - 1)].text for some in hypotheses) for n in range(most))
    best, *others = texts
    suspicions = (suspicion(line, some[0].text) for line, some in zip(lines, hypotheses, strict=True))
    return Translation(best, others[:num_alternatives], next(filter(None, suspicions), None))


async def translate_html(queue: TranslationQueue, pair: Pair, texts: Sequence[str]) -> list[Translation]:
    """The translations of texts that are HTML, each with all of its tags; without alternatives.

    Raises:
        DataError: a text has tags that do not end.
        QueueFullError: see `TranslationQueue.submit`.
    """
    results = list(texts)
    for read in (partial(html.read_attributes, _PAGE), html.read_blocks):
        pages = [await run_in_threadpool(read, text) for text in results]
        segments = [segment for some, _ in pages for segment in some]
        found = await asyncio.wrap_future(queue.submit(pair.segments, segments, _sizes(map(_text, segments))))
        translated = iter(found)
        results = [
            apply(text, write(list(itertools.islice(translated, len(some)))))
            for text, (some, write) in zip(results, pages, strict=True)
        ]
    return [Translation(text, []) for text in results]


async def align(queue: TranslationQueue, pair: Pair, text: str, translation: str) -> list[Alignment]:
    """The alignment of each line of a text and of its translation, which has as many.

    Raises:
        ValueError: it has not.
        QueueFullError: see `TranslationQueue.submit`.
    """
    lines = list(zip(_LINE_END.split(text), _LINE_END.split(translation), strict=True))
    return await asyncio.wrap_future(queue.submit(pair.alignments, lines, _sizes(map("".join, lines))))


def without_tags(text: str) -> str:
    """The text of HTML, roughly: enough to guess its language."""
    return _TAG.sub(" ", text)


def _text(segment: Marked) -> str:
    return "".join(part for part in segment if isinstance(part, str))


def _sizes(lines: Iterable[str]) -> list[int]:
    return [len(line) + 1 for line in lines]  # an empty line, too, takes some time
