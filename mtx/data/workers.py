"""Worker processes: apply a function to many items on all cores, in order, with few items in memory at a time.

They are for Python code, which uses only one core per process. They keep no state between items. `prepare` uses them
for blocks of pairs.
A worker is a new interpreter that imports only what its function needs. It is not forked, because torch's threads do
not survive a fork, and unlike multiprocessing's own workers it does not import the program's `__main__`. It ignores
signals and ends when its connection closes, however this process ends. `ProcessPoolExecutor` is not used, because it
can wait forever after a worker was killed; docs/archive/decisions-2026.md (2026-11-21) has the measurements.
"""

import contextlib
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from mtx.errors import STOPPING_SIGNALS, MtxError
from mtx.machine import num_cores

MAX_WORKERS = 16  # with a few more, this process, which reads and writes, would be the bottleneck
FEW_ITEMS = 6  # this process does the first items; workers are worth starting only for more

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_workers(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    num_workers: int | None = None,
    few_items: int | None = None,
) -> Generator[Result, None, None]:
    """The function's results in the order of the items; reads ahead one item per worker.

    The workers end with the iterator; use `contextlib.closing` to end them at once.

    Args:
        function: a function of a module, or a `partial` of one; it and the items must be picklable.
        num_workers: None: one per core; 1: all work is done in this process.
        few_items: the number of first items that are done in this process; None: FEW_ITEMS.

    Raises:
        Exception: the function's own.
        MtxError: if a worker was killed.
    """
    num_workers = num_workers or min(num_cores(), MAX_WORKERS)
    few_items = FEW_ITEMS if few_items is None else few_items
    busy_workers: deque[Worker] = deque()
    try:
        for number, item in enumerate(items):
            if number < few_items or num_workers == 1 or os.name != "posix":  # others cannot pass a connection this way
                yield function(item)
            elif len(busy_workers) < num_workers:
                busy_workers.append(Worker())
                busy_workers[-1].send(function, item)
            else:
                busy_workers.rotate(-1)
                result = busy_workers[-1].receive()
                # Before the yield, so that the worker does not wait for the caller
                busy_workers[-1].send(function, item)
                yield result
        for worker in busy_workers:
            yield worker.receive()
    finally:
        for worker in busy_workers:
            worker.stop()


class Worker:
    """One process, which works on one item at a time, so that both sides never wait to send at once.

    It leads its own process group; when it ends, the connection breaks.
    """

    def __init__(self) -> None:
        self._connection, worker_end = multiprocessing.Pipe()
        path = list(map(str, sys.path))
        code = f"import sys; sys.path[:] = {path!r}; from {__name__} import serve; serve({worker_end.fileno()})"
        with worker_end:  # closed in this process
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[worker_end.fileno()],
                start_new_session=True,  # so that Ctrl-C in a terminal reaches this process only
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            )

    def send(self, function: Callable[[Any], Any], item: Any) -> None:
        """Send it an item; its function is a module's function, or a `partial` of one."""
        try:
            self._connection.send((function, item))
        except OSError:
            raise self._ended() from None

    def receive(self) -> Any:
        """The function's result; raises its exception."""
        try:
            result, error = self._connection.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        if error:
            raise error
        return result

    def _ended(self) -> MtxError:
        code = self._process.wait()
        ending = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return MtxError(f"a worker process {ending}", "possibly out of memory; rerun the same command to retry")

    def stop(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.wait()


def serve(fd: int) -> None:
    """Worker entry point: apply functions to items from the connection with file descriptor `fd` until it closes."""
    for number in STOPPING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    gc.disable()  # Python's search for reference cycles took a seventh of the time, and lists of ids have none
    connection: Connection[Any, Any] = Connection(fd)
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            function, item = connection.recv()
            try:
                connection.send((function(item), None))
            except Exception as error:
                connection.send((None, error))
