"""Translates the texts of a request, plain or HTML, through the queue.

A text of several lines keeps its line breaks: its lines are translated one by one, and each may have several sentences.
"""

import asyncio
import itertools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, NonNegativeInt, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request

from mtx.decoding.metrics import Suspicion, suspicion
from mtx.decoding.translator import Hypothesis
from mtx.documents import html
from mtx.documents.edits import Edit, apply, segments
from mtx.documents.markup import Marked
from mtx.errors import DataError
from mtx.serve.pairs import Pair
from mtx.serve.queue import TranslationQueue
from mtx.storage.text_files import replace_surrogates

_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
_MAX_FIELDS = 100


def _without_surrogates(value: object) -> object:
    return replace_surrogates(value) if isinstance(value, str) else value


Text = Annotated[str, BeforeValidator(_without_surrogates)]


class Detected(BaseModel):
    """The fields of /detect."""

    q: Text | Annotated[list[Text], Field(fail_fast=True)]

    @property
    def texts(self) -> list[str]:
        """The texts, also of a single one."""
        return [self.q] if isinstance(self.q, str) else self.q


class Translated(Detected):
    """The fields of /translate."""

    source: Text
    target: Text
    format: Literal["text", "html"] = "text"
    alternatives: NonNegativeInt = 0


Checked = TypeVar("Checked", bound=BaseModel)


async def read_fields(request: Request) -> dict[str, Any]:
    """The fields of a request's body, if that is JSON; otherwise of its address and of its form, as in LibreTranslate.

    Raises:
        HTTPException: 400 if there is no field, or the body is neither a JSON object nor a form.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in _FORMS:
        async with request.form(max_files=0, max_fields=_MAX_FIELDS) as form:
            return {**form, **request.query_params}
    if not kind and request.query_params:
        return dict(request.query_params)
    if kind != "application/json":
        raise HTTPException(400, f"expected a body of the type application/json or {_FORMS[0]}")
    try:
        fields = json.loads(await request.body())
    except (ValueError, RecursionError):  # of json, or of the encoding
        raise HTTPException(400, "the body is not valid JSON") from None
    if not isinstance(fields, dict):
        raise HTTPException(400, 'expected a JSON object, such as {"q": "text", "source": "en", "target": "de"}')
    return fields


def check_fields(model: type[Checked], fields: dict[str, Any]) -> Checked:
    """The fields of a request as a model of pydantic.

    Raises:
        HTTPException: 400, naming the first field that is missing or wrong.
    """
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise HTTPException(400, f"{first['loc'][0]}: {first['msg']}") from None


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


def without_tags(text: str) -> str:
    """The text of HTML, roughly: enough to guess its language."""
    return _TAG.sub(" ", text)


def _edits(read: Callable[[str], Iterable[Edit]], text: str) -> list[Edit]:
    return list(read(text))


def _text(segment: Marked) -> str:
    return "".join(part for part in segment if isinstance(part, str))
