"""Worker processes: one function over many items, on all cores, in order, with few items in memory at a time.

For: work in Python, of which one process does no more than one core can. Not for: work with state; a worker keeps
nothing from one item to the next. Used by `prepare`, whose items are blocks of pairs.
A worker is a new interpreter that imports only what its function needs. It is not forked, for torch's threads do not
survive that, and it does not import the program's `__main__`, as multiprocessing's own would. Signals do not reach it:
it ends when its connection closes, which it does however this process ends. `ProcessPoolExecutor` is not used, because
it can wait for ever after a worker was killed; docs/decisions.md has the measurements.
"""

import contextlib
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

from mtx.errors import MtxError
from mtx.run.machine import num_cores

MAX_WORKERS = 16  # a few more, and what this process does itself (reading, writing) takes as long as their work
FEW_ITEMS = 6  # so many are done here first: blocks of fewer are ready sooner than the workers that would share them

Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers:
    """As many processes as there are cores, started when there is enough work for them. A context manager.

    Args:
        num_workers: None for one a core; with 1 all work is done in this process.
    """

    def __init__(self, num_workers: int | None = None):
        wanted = min(num_cores(), MAX_WORKERS) if num_workers is None else num_workers
        self._num_workers = wanted if os.name == "posix" else 1  # elsewhere a child cannot be given a connection so
        self._workers: list[_Worker] = []

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def are_started(self) -> bool:
        """Whether work is done in other processes by now."""
        return bool(self._workers)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """The function's results in the order of the items, of which one a worker is read ahead.

        After an error nothing more can be asked of these workers.

        Args:
            function: one of a module, or a `partial` of one; it and the items must be picklable.
            items: any number; the first few are done in this process where no workers run yet.

        Raises:
            Exception: what the function raised.
            MtxError: where a worker was killed.
        """
        busy: deque[_Worker] = deque()
        for number, item in enumerate(items):
            if not self._workers and (self._num_workers == 1 or number < FEW_ITEMS):
                yield function(item)
                continue
            if not self._workers:
                self._start(self._num_workers)
            if len(busy) < self._num_workers:
                busy.append(self._workers[len(busy)])
                busy[-1].send(function, item)
            else:
                busy.rotate(-1)
                result = busy[-1].receive()
                busy[-1].send(function, item)  # first: the worker need not wait for what is done with the result
                yield result
        for worker in busy:
            yield worker.receive()

    def run(self, function: Callable[[Item], Result], item: Item) -> Result:
        """One function of one item; where workers run, they make room for a process of its own, which ends after it."""
        if not self._workers:
            return function(item)
        self._end()
        self._start(1)
        self._workers[0].send(function, item)
        result: Result = self._workers[0].receive()
        self._end()
        self._start(self._num_workers)
        return result

    def _start(self, num_workers: int) -> None:
        self._workers = [_Worker() for _ in range(num_workers)]

    def _end(self) -> None:
        for worker in self._workers:
            worker.end()


@dataclass(frozen=True)
class _Done(Generic[Result]):
    result: Result


class _Worker:
    """One process, which works on one item at a time; so neither side ever waits to send while the other does."""

    def __init__(self) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        path = [str(entry) for entry in sys.path]
        code = f"import sys; sys.path[:] = {path!r}; from mtx.data.workers import serve; serve({theirs.fileno()})"
        with theirs:  # closed here, so that it is closed everywhere when the worker ends
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C in a terminal is for this process
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )

    def send(self, function: Callable[[Any], Any], item: Any) -> None:
        try:
            self._connection.send((function, item))
        except OSError:
            raise self._ended() from None

    def receive(self) -> Any:
        try:
            answer = self._connection.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        if isinstance(answer, _Done):
            return answer.result
        raise answer

    def _ended(self) -> MtxError:
        code = self._process.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return MtxError(f"a worker process {how}", "perhaps memory ran out; the same command starts again")

    def end(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.wait()


def serve(fd: int) -> None:
    """Be a worker: answer what comes through the connection `fd` until it is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    gc.disable()  # millions of short lists of ids in no cycle: looking for cycles took a seventh of the time
    connection: Connection[Any, Any] = Connection(fd)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            function, item = connection.recv()
            connection.send(_answer(function, item))


def _answer(function: Callable[[Any], Any], item: Any) -> Any:
    try:
        return _Done(function(item))
    except Exception as error:
        return error
