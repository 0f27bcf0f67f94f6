"""Requests of many clients, translated together by one thread. Knows neither HTTP nor translators.

A job is what one request needs of one function: a list of items, such as sentences for `TextTranslator.decode_parts`.
Each batch takes items of all waiting jobs with the same function, one of each in turn, so that a large job does not
hold up a small one.
"""

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class QueueFullError(Exception):
    """More is waiting than the queue may hold."""


@dataclass(eq=False)
class _Job:
    """Items for one function, with their sizes in tokens.

    Attributes:
        num_taken: how many items, from the first, are in a batch or done.
        results: those of the items that are done.
    """

    function: Callable[[list[Any]], Sequence[Any]]
    items: Sequence[Any]
    sizes: Sequence[int]
    future: Future[list[Any]] = field(default_factory=Future)
    num_taken: int = 0
    results: list[Any] = field(default_factory=list)

    @property
    def waiting_tokens(self) -> int:
        """The size of the items that no batch has taken; none of a job that was cancelled or has failed."""
        return 0 if self.future.done() else sum(self.sizes[self.num_taken :])

    def finish(self, error: Exception | None = None) -> None:
        if self.future.done() or not self.future.set_running_or_notify_cancel():
            return
        if error is None:
            self.future.set_result(self.results)
        else:
            self.future.set_exception(error)


class TranslationQueue:
    """One thread that computes what is submitted, in batches. A context manager: at its end, all jobs are done.

    Args:
        batch_tokens: size of a batch; a single item may be larger.
        waiting_tokens: most tokens that wait.
    """

    def __init__(self, batch_tokens: int, waiting_tokens: int):
        self.num_batches, self.num_items = 0, 0
        self._batch_tokens, self._most_waiting = batch_tokens, waiting_tokens
        self._jobs = deque[_Job]()
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="translation", daemon=True)

    def __enter__(self) -> "TranslationQueue":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    @property
    def waiting_tokens(self) -> int:
        """How many tokens wait for translation."""
        with self._changed:
            return sum(job.waiting_tokens for job in self._jobs)

    def submit(
        self, function: Callable[[list[Item]], Sequence[Result]], items: Sequence[Item], sizes: Sequence[int]
    ) -> Future[list[Result]]:
        """Compute one result for each item; a future that is cancelled drops the items that no batch has taken.

        Args:
            function: gets the items of several jobs in one call.
            sizes: tokens of each item.

        Raises:
            QueueFullError: if too much is waiting; a queue that is empty takes a job of any size.
        """
        job = _Job(function, items, sizes)
        if not items:
            job.finish()
            return job.future
        with self._changed:
            waiting = sum(other.waiting_tokens for other in self._jobs)
            if waiting and waiting + job.waiting_tokens > self._most_waiting:
                raise QueueFullError
            self._jobs.append(job)
            self._changed.notify()
        return job.future

    def _run(self) -> None:
        while batch := self._next_batch():
            self.num_batches += 1
            self.num_items += len(batch)
            self._compute(batch)

    def _next_batch(self) -> list[_Job]:
        """The job of each item of the next batch, whose items are the next ones of each; empty at the end."""
        with self._changed:
            batch = list[_Job]()
            while not batch:
                while not self._jobs:
                    if self._is_closed:
                        return []
                    self._changed.wait()
                batch = self._take()
            return batch

    def _take(self) -> list[_Job]:
        """Take items of one function in turn; jobs of other functions go to the front, so that theirs is the next."""
        batch, others, room = list[_Job](), list[_Job](), self._batch_tokens
        while self._jobs and room > 0:
            job = self._jobs.popleft()
            if job.future.done():
                continue
            if batch and job.function != batch[0].function:
                others.append(job)
                continue
            batch.append(job)
            room -= job.sizes[job.num_taken]
            job.num_taken += 1
            if job.num_taken < len(job.items):
                self._jobs.append(job)
        self._jobs.extendleft(reversed(others))
        return batch

    def _compute(self, batch: list[_Job]) -> None:
        """Compute a batch; if that fails, each of its jobs alone, so that one fails for itself only."""
        places = {job: itertools.count(len(job.results)) for job in batch}
        items = [job.items[next(places[job])] for job in batch]
        try:
            results = batch[0].function(items)
        except Exception as error:
            if len(places) == 1:
                batch[0].finish(error)
                return
            for job in places:
                self._compute([job] * batch.count(job))
            return
        for job, result in zip(batch, results, strict=True):
            job.results.append(result)
            if len(job.results) == len(job.items):
                job.finish()
