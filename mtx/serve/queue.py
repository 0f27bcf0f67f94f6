"""Requests of many clients, translated together by a few threads. Knows neither HTTP nor translators.

A job is what one request needs of one function: a list of items, such as sentences for `Translator.decode_parts`.
Each batch takes items of all waiting jobs with the same function, one of each in turn, so that a large job does not
hold up a small one.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from dataclasses import dataclass, field
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
        results: those of the items that are done, by their numbers.
    """

    function: Callable[[list[Any]], Sequence[Any]]
    items: Sequence[Any]
    sizes: Sequence[int]
    future: Future[list[Any]] = field(default_factory=Future)
    num_taken: int = 0
    results: dict[int, Any] = field(default_factory=dict)

    @property
    def waiting_tokens(self) -> int:
        """The size of the items that no batch has taken; none of a job that was cancelled or has failed."""
        return 0 if self.future.done() else sum(self.sizes[self.num_taken :])

    def finish(self, error: Exception | None = None) -> None:
        """Give the results, or why there are none, unless the job was cancelled or has failed before."""
        with contextlib.suppress(InvalidStateError):
            if error is None:
                self.future.set_result([self.results[number] for number in range(len(self.items))])
            else:
                self.future.set_exception(error)


_Batch = list[tuple[_Job, int]]  # jobs, each with the number of its item


class TranslationQueue:
    """Threads that compute what is submitted, in batches. A context manager: at its end, all jobs are done.

    While one of them handles Python objects, the others keep the engine busy.

    Args:
        batch_tokens: size of a batch; a single item may be larger.
        waiting_tokens: most tokens that wait.
        num_threads: how many batches are computed at once. Those that have nothing to do share what waits.
    """

    def __init__(self, batch_tokens: int, waiting_tokens: int, num_threads: int = 1):
        self._batch_tokens = batch_tokens
        self._most_waiting = waiting_tokens
        self._jobs = deque[_Job]()
        self._num_idle = num_threads
        self._num_threads = num_threads
        self._lock = threading.RLock()
        self._threads = ThreadPoolExecutor(num_threads, "translation")

    def __enter__(self) -> "TranslationQueue":
        return self

    def __exit__(self, *error: object) -> None:
        self._threads.shutdown()

    @property
    def waiting_tokens(self) -> int:
        """How many tokens wait for translation."""
        with self._lock:
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
        with self._lock:
            waiting = self.waiting_tokens
            if waiting and waiting + job.waiting_tokens > self._most_waiting:
                raise QueueFullError
            self._jobs.append(job)
            for _ in range(min(self._num_threads, len(items))):
                self._threads.submit(self._run)
        return job.future

    def _run(self) -> None:
        """Compute batches until nothing is waiting."""
        with self._lock:
            self._num_idle -= 1
        while batch := self._take():
            self._compute(batch)

    def _take(self) -> _Batch:
        """Take items of one function in turn; jobs of other functions go to the front, so that theirs is the next.

        Without any the thread is idle.
        """
        with self._lock:
            batch, others = _Batch(), list[_Job]()
            room = min(self._batch_tokens, -(-self.waiting_tokens // (self._num_idle + 1)))
            while self._jobs and room > 0:
                job = self._jobs.popleft()
                if job.future.done():
                    continue
                if batch and job.function != batch[0][0].function:
                    others.append(job)
                    continue
                batch.append((job, job.num_taken))
                room -= job.sizes[job.num_taken]
                job.num_taken += 1
                if job.num_taken < len(job.items):
                    self._jobs.append(job)
            self._jobs.extendleft(reversed(others))
            self._num_idle += not batch
            return batch

    def _compute(self, batch: _Batch) -> None:
        """Compute a batch; if that fails, each of its jobs alone, so that one fails for itself only."""
        jobs = dict.fromkeys(job for job, _ in batch)
        try:
            results = batch[0][0].function([job.items[number] for job, number in batch])
            done = list(zip(batch, results, strict=True))
        except Exception as error:
            if len(jobs) == 1:
                batch[0][0].finish(error)
                return
            for one in jobs:
                self._compute([(job, number) for job, number in batch if job is one])
            return
        with self._lock:
            for (job, number), result in done:
                job.results[number] = result
            for job in jobs:
                if len(job.results) == len(job.items):
                    job.finish()
