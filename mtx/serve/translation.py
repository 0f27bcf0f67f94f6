"""Translates the texts of requests, plain or HTML: a queue for all requests, and the language pairs with their models.

A text of several lines keeps its line breaks: lines are translated one by one, and each may have several sentences.
"""

import asyncio
import itertools
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from starlette.exceptions import HTTPException

from mtx.data.language_detection import is_surely_in, rank_languages
from mtx.data.languages import code_of, name_of
from mtx.data.markup import Marked, needs_no_translation
from mtx.decoding.translator import Hypothesis, Part, Translator
from mtx.documents import html
from mtx.documents.edits import apply
from mtx.errors import UsageError
from mtx.formatting import divide_up
from mtx.scoring.suspicion import Suspicion, suspicion

Value = TypeVar("Value")
Result = TypeVar("Result")

_MEMORY = 0.95  # the weight of earlier batches in the speed, which is that of about 20
_LINE_END = re.compile("\r\n|\r|\n")


@dataclass(eq=False)
class _Item:
    """Something to compute, such as the translation of a sentence.

    Attributes:
        turn: items of all requests are taken in the order of their turns.
        size: in tokens.
    """

    turn: int
    function: Callable[[list[Any]], Sequence[Any]]
    value: Any
    size: int
    future: Future[Any] = field(default_factory=Future)


class TranslationQueue:
    """Threads that compute submitted items in batches. A context manager: at its end, everything is computed.

    Each batch has items of all waiting requests for the same function. Requests get equal numbers of tokens
    (self-clocked fair queueing, Golestani 1994), so that a large request does not block a small one. While one thread
    handles Python objects, the others keep the engine busy.

    Args:
        batch_tokens: size of a batch; a single item may be larger.
        waiting_s: maximum time until a job is done, at the speed of the last large batches. Before the first one, a
            batch is expected to take two seconds.
        num_threads: number of batches computed at once. Idle threads share the waiting items.
    """

    def __init__(self, batch_tokens: int, waiting_s: float, num_threads: int = 1):
        self._batch_tokens = batch_tokens
        self._waiting_s = waiting_s
        # Of the last large batches, for the measured speed
        self._tokens = float(batch_tokens)
        self._seconds = 2.0
        self._turn = 0  # of the last item that was taken
        self._waiting = list[_Item]()
        self._num_threads = num_threads
        self._num_idle = num_threads
        self._lock = threading.RLock()
        self._threads = ThreadPoolExecutor(num_threads, "translation")

    def __enter__(self) -> "TranslationQueue":
        return self

    def __exit__(self, *error: object) -> None:
        self._threads.shutdown()

    def waiting_tokens(self, turn: float = math.inf) -> int:
        """The number of tokens waiting for translation, up to a turn."""
        with self._lock:
            return sum(item.size for item in self._waiting if item.turn <= turn and not item.future.cancelled())

    def require_room(self, size: int) -> None:
        """Raise HTTPException if a job of this many tokens would be done too late; an empty queue has always room."""
        tokens_ahead = self.waiting_tokens(self._turn + size)
        speed = self._num_threads * self._tokens / self._seconds
        if tokens_ahead and tokens_ahead + size > speed * self._waiting_s:
            raise HTTPException(503, "the server is overloaded; try again later", {"retry-after": "5"})

    def submit(
        self,
        function: Callable[[list[Value]], Sequence[Result]],
        values: Sequence[Value],
        sizes: Sequence[int],
        is_admitted: bool = False,
    ) -> list[Future[Result]]:
        """Compute a result for each value; values whose futures are cancelled before their batch are dropped.

        Args:
            function: is called with the values of several requests.
            sizes: tokens of each value, at least one.
            is_admitted: whether there is room for them, since an earlier part of their request was accepted.

        Raises:
            HTTPException: see `require_room`.
        """
        with self._lock:
            if not is_admitted:
                self.require_room(sum(sizes))
            parts = zip(itertools.accumulate(sizes), values, sizes, strict=True)
            items = [_Item(self._turn + end_tokens, function, value, size) for end_tokens, value, size in parts]
            self._waiting = sorted([*self._waiting, *items], key=lambda item: item.turn)
            for _ in range(min(self._num_threads, len(items))):
                self._threads.submit(self._run)
        return [item.future for item in items]

    def _run(self) -> None:
        """Compute batches until nothing is waiting."""
        with self._lock:
            self._num_idle -= 1
        while batch := self._take():
            self._compute(batch)

    def _take(self) -> list[_Item]:
        """Take the next items for one function; without items the thread is idle."""
        with self._lock:
            batch = list[_Item]()
            items_left = list[_Item]()
            room = min(self._batch_tokens, divide_up(self.waiting_tokens(), self._num_idle + 1))
            for item in self._waiting:
                if room <= 0 or (batch and item.function != batch[0].function):
                    items_left.append(item)
                elif item.future.set_running_or_notify_cancel():
                    batch.append(item)
                    room -= item.size
                    self._turn = max(self._turn, item.turn)
            self._waiting = items_left
            if not batch:
                self._num_idle += 1
            return batch

    def _compute(self, batch: list[_Item]) -> None:
        """Compute a batch; if that fails, compute its items one by one, so that only faulty ones fail."""
        started = time.monotonic()
        try:
            results = batch[0].function([item.value for item in batch])
            computed = list(zip(batch, results, strict=True))
        except Exception as error:
            if len(batch) == 1:
                batch[0].future.set_exception(error)
            else:
                for item in batch:
                    self._compute([item])
        else:
            size = sum(item.size for item in batch)
            if size > self._batch_tokens / 2:  # a smaller one is slower for its size
                with self._lock:
                    self._tokens = _MEMORY * self._tokens + size
                    self._seconds = _MEMORY * self._seconds + time.monotonic() - started
            for item, result in computed:
                item.future.set_result(result)


class Pair:
    """A translator and its functions for `TranslationQueue`, which batches items of the same function.

    Lines are submitted in the parts in which the translator translates them, so that no item takes long.
    """

    def __init__(self, translator: Translator):
        self.translator = translator
        self.decode_best = partial(translator.decode_parts, n_best=1)


class Pairs:
    """The pairs by their languages, named as in the models.

    Attributes:
        first_languages: the languages of the first pair.

    Raises:
        UsageError: if two models translate the same pair.
    """

    def __init__(self, translators: Iterable[Translator]):
        self._pairs = dict[tuple[str, str], Pair]()
        for translator in translators:
            if (languages := translator.languages) in self._pairs:
                raise UsageError(f"two models translate {languages[0]} to {languages[1]}", "give only one of them")
            self._pairs[languages] = Pair(translator)
        self.first_languages = next(iter(self._pairs))
        self._codes = [*dict.fromkeys(itertools.chain(*self._pairs))]
        self._code_of_name = {
            name.lower().replace("_", "-"): code for code in reversed(self._codes) for name in (code_of(code), code)
        }

    def get(self, source: str, target: str) -> Pair | None:
        """The pair of two languages; None if both are the same, which needs no translation.

        Raises:
            UsageError: no model translates between them.
        """
        src = self._code(source)
        tgt = self._code(target)
        pair = self._pairs.get((src, tgt))
        if pair is None and src != tgt:
            raise UsageError(f"{_name_and_code(tgt)} is not available as a target language from {_name_and_code(src)}")
        return pair

    def languages(self) -> list[dict[str, object]]:
        """The response of /languages."""
        return [
            {"code": code, "name": name_of(code) or code, "targets": [tgt for src, tgt in self._pairs if src == code]}
            for code in self._codes
        ]

    def detect(self, text: str, target: str | None = None) -> list[dict[str, object]]:
        """The response of /detect: the most likely language first, with confidences in per cent.

        Args:
            target: only languages that can be translated to this one (UsageError if there are none), or this language
                itself, if the text is certainly in it.
        """
        codes = self._codes
        if target is not None:
            tgt = self._code(target)
            codes = [pair[0] for pair in self._pairs if pair[1] == tgt]
            if not codes:
                raise UsageError(f"{_name_and_code(tgt)} is not available as a target language")
            codes = [tgt] if is_surely_in(text, tgt, codes) else codes
        return [
            {"confidence": confidence, "language": code}
            for code, confidence in rank_languages(text, self._codes)
            if code in codes
        ]

    def _code(self, language: str) -> str:
        """The model's code for a client's code, also with another region (en for en-GB) or case."""
        name = language.lower().replace("_", "-")
        code = self._code_of_name.get(name) or self._code_of_name.get(name.partition("-")[0])
        if code is None:
            raise UsageError(f"{language[:40]} is not supported")
        return code


def _name_and_code(code: str) -> str:
    return f"{name_of(code) or code} ({code})"


@dataclass(frozen=True)
class Translation:
    """The translation of a text, its alternatives, best first, and why it is suspicious.

    Attributes:
        best_hypotheses: those of its lines, or of its segments.
        alignment: which of its words belong together.
    """

    text: str
    alternatives: Sequence[str] = ()
    suspicion: Suspicion | None = None
    best_hypotheses: Sequence[Hypothesis] = ()
    alignment: str = ""

    def estimates(self) -> list[dict[str, object]]:
        """The quality and the advice of each line, as in the response of /translate."""
        return [{"quality": best.quality, "advice": best.advice} for best in self.best_hypotheses]


async def translate_plain(
    queue: TranslationQueue, pair: Pair, texts: Sequence[str], num_alternatives: int, is_admitted: bool
) -> list[Translation]:
    """The translations of plain texts.

    Args:
        num_alternatives: maximum number of alternatives; the search may find fewer.
        is_admitted: see `TranslationQueue.submit`.

    Raises:
        HTTPException: see `TranslationQueue.submit`.
    """
    lines = [line for text in texts for line in _LINE_END.split(text)]
    function = pair.translator.decode_parts if num_alternatives else pair.decode_best
    hypotheses = iter(await _search(queue, pair, function, lines, is_admitted))
    return await asyncio.to_thread(lambda: [_join_lines(text, hypotheses, num_alternatives) for text in texts])


def _join_lines(text: str, hypotheses: Iterator[list[Hypothesis]], num_alternatives: int) -> Translation:
    """The translation of a text, joined from its lines; a line with fewer hypotheses than another repeats its last."""
    sources = _LINE_END.split(text)
    lines = [next(hypotheses) for _ in sources]
    if needs_no_translation(text):
        return Translation(text)
    num_ranks = max(map(len, lines))
    texts = ("\n".join(ranked[min(rank, len(ranked) - 1)].text for ranked in lines) for rank in range(num_ranks))
    best_text, *alternatives = dict.fromkeys(texts)
    best = [ranked[0] for ranked in lines]
    suspicions = map(suspicion, sources, [hypothesis.text for hypothesis in best])
    return Translation(best_text, alternatives[:num_alternatives], next(filter(None, suspicions), None), best)


async def align(queue: TranslationQueue, pair: Pair, translations: Sequence[Translation]) -> list[Translation]:
    """The translations of plain texts with their alignments; a text that came back unchanged has none."""
    texts = [[*translation.best_hypotheses] for translation in translations]
    sizes = [1 + sum(len(line.pieces) for line in text) for text in texts]
    futures = queue.submit(pair.translator.align, texts, sizes, is_admitted=True)
    alignments = await asyncio.gather(*map(asyncio.wrap_future, futures))
    return [
        replace(translation, alignment=alignment)
        for translation, alignment in zip(translations, alignments, strict=True)
    ]


async def translate_html(
    queue: TranslationQueue, pair: Pair, texts: Sequence[str], num_alternatives: int, is_admitted: bool
) -> list[Translation]:
    """The translations of HTML texts, each with all of its tags; without alternatives. See `translate_plain`.

    Raises:
        DataError: a text has unclosed tags.
        HTTPException: see `TranslationQueue.submit`.
    """
    texts = list(texts)
    hypotheses = [list[Hypothesis]() for _ in texts]
    for read_edits in (partial(html.read_blocks, Path("q")), html.read_attributes):
        pages = [await asyncio.to_thread(list, read_edits(text)) for text in texts]
        marked = [edit.segment for edits in pages for edit in edits if edit.segment]
        ranked = iter(await _search(queue, pair, pair.decode_best, marked, is_admitted))
        for number, edits in enumerate(pages):
            best = [next(ranked)[0] for edit in edits if edit.segment]
            texts[number] = apply(texts[number], edits, (hypothesis.marked for hypothesis in best))
            hypotheses[number] += best
        is_admitted = True  # the attributes, which are few
    return [Translation(text, best_hypotheses=best) for text, best in zip(texts, hypotheses, strict=True)]


async def _search(
    queue: TranslationQueue,
    pair: Pair,
    function: Callable[[list[Part]], list[list[Hypothesis]]],
    lines: Sequence[str | Marked],
    is_admitted: bool,
) -> list[list[Hypothesis]]:
    """The hypotheses of lines or segments, found by a function of the pair in the parts that the translator makes."""
    parts_of_lines = await asyncio.to_thread(pair.translator.split, lines)
    parts = [part for line in parts_of_lines for part in line]
    futures = queue.submit(function, parts, [max(1, len(part.ids)) for part in parts], is_admitted)
    hypotheses_of_parts = await asyncio.gather(*map(asyncio.wrap_future, futures))
    return await asyncio.to_thread(pair.translator.join_parts, parts_of_lines, hypotheses_of_parts)
