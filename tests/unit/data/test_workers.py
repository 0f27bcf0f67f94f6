"""Worker processes give what one process gives, in order; they are few, they end, and when they die one hears of it."""

import operator
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from mtx.data import workers as module
from mtx.data.workers import Workers
from mtx.errors import DataError, MtxError
from tests.rig import PATIENCE_S

pytestmark = [
    pytest.mark.seconds,
    pytest.mark.skipif(os.name != "posix", reason="without POSIX all work is done in one process"),
]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEW_ITEMS", 0)


def abort(_: object) -> None:
    os.abort()


def process_of(_: object) -> int:
    return os.getpid()


def refuse(text: str) -> None:
    raise DataError(f"{text}:3: is bad", "mend it")


def slowest_first(item: int) -> int:
    time.sleep(0.002 * (9 - item % 10))
    return item


def imported_by_a_worker(_: object) -> set[str]:
    import mtx.data.prepare  # noqa: F401

    return {"torch", "datasets", "mtx.cli", "typer"} & set(sys.modules)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")  # where nobody reaps orphans they stay, as zombies
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_until_gone(pids: list[int]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while any(map(is_running, pids)):
        assert time.monotonic() < ends, f"still running: {pids}"
        time.sleep(0.01)


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_results_come_in_order_and_no_item_is_read_far_ahead(num_workers: int) -> None:
    read = []

    def items() -> Iterator[int]:
        for number in range(40):
            read.append(number)
            yield number

    with Workers(num_workers) as workers:
        for number, result in enumerate(workers.map(slowest_first, items())):
            assert result == number and len(read) <= number + 1 + num_workers
        assert number == 39 and workers.are_started == (num_workers > 1)
        assert list(workers.map(operator.neg, range(5))) == [0, -1, -2, -3, -4]
        assert list(workers.map(operator.neg, [])) == []


def test_few_items_need_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEW_ITEMS", 3)
    with Workers(2) as workers:
        assert set(workers.map(process_of, range(3))) == {os.getpid()}
        assert workers.run(process_of, 0) == os.getpid() and not workers.are_started
        many = list(workers.map(process_of, range(9)))
        assert many[:3] == [os.getpid()] * 3 and len(set(many[3:])) == 2 and os.getpid() not in many[3:]
        assert os.getpid() not in workers.map(process_of, range(3))


def test_one_function_has_a_process_for_itself() -> None:
    with Workers(2) as workers:
        pids = set(workers.map(process_of, range(4)))
        once = workers.run(process_of, 0)
        assert not any(map(is_running, [*pids, once])) and once not in pids
        again = set(workers.map(process_of, range(4)))
        assert len(again) == 2 and not again & {*pids, once}


def test_workers_end_with_the_context() -> None:
    with pytest.raises(KeyboardInterrupt), Workers(2) as workers:
        pids = list(workers.map(process_of, range(2)))
        for number, _ in enumerate(workers.map(slowest_first, range(100))):
            if number == 3:
                raise KeyboardInterrupt
    assert not any(map(is_running, pids))


def test_what_a_function_raises_comes_out_as_it_is() -> None:
    for num_workers in (1, 2):
        with Workers(num_workers) as workers, pytest.raises(DataError, match=r"^text:3: is bad$") as error:
            list(workers.map(refuse, ["text"]))
        assert error.value.help == "mend it"
        with Workers(num_workers) as workers, pytest.raises(DataError, match=r"^text:3: is bad$"):
            list(workers.map(operator.neg, [1]))
            workers.run(refuse, "text")


def test_an_error_between_the_items_comes_out() -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise DataError("line 6")

    with Workers(2) as workers, pytest.raises(DataError, match="line 6"):
        list(workers.map(operator.neg, items()))


@pytest.mark.parametrize("num_items", [1, 2, 9])
def test_a_killed_worker_is_an_error_and_no_hang(num_items: int) -> None:
    with Workers(2) as workers, pytest.raises(MtxError, match="^a worker process was killed by SIGKILL$") as error:
        list(workers.map(signal.raise_signal, [signal.SIGKILL] * num_items))
    assert error.value.exit_code == 1 and "memory" in (error.value.help or "")
    with Workers(2) as workers, pytest.raises(MtxError, match="^a worker process ended with exit code 3$"):
        list(workers.map(os._exit, [3]))


def test_a_worker_killed_between_two_items_is_an_error() -> None:
    with Workers(2) as workers:
        pids = list(workers.map(process_of, range(2)))
        os.kill(pids[0], signal.SIGKILL)
        wait_until_gone([pids[0]])
        with pytest.raises(MtxError, match="killed by SIGKILL"):
            list(workers.map(operator.add, ["x" * 10_000_000] * 3))


def pid_and_much_text(_: object) -> tuple[int, str]:
    return os.getpid(), "x" * 10_000_000


def test_a_worker_killed_while_it_sends_a_result_is_an_error_and_no_hang() -> None:
    with Workers(2) as workers:
        results = workers.map(pid_and_much_text, range(9))
        pid, _ = next(results)
        next(results)
        time.sleep(0.5)  # by now the worker waits for this process to read the rest of its next result
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(MtxError, match="killed by SIGKILL"):
            list(results)


def test_signals_are_for_the_program_alone() -> None:
    with Workers(2) as workers:
        pids = list(workers.map(process_of, range(2)))
        for pid in pids:
            os.kill(pid, signal.SIGINT)
            os.kill(pid, signal.SIGTERM)
            assert os.getsid(pid) == pid
        assert list(workers.map(process_of, range(2))) == pids


def test_workers_end_with_a_killed_program() -> None:
    code = (
        "import time; from mtx.data import workers; workers.FEW_ITEMS = 0; pool = workers.Workers(2)\n"
        "list(pool.map(abs, range(2))); print(*(worker._process.pid for worker in pool._workers), flush=True)\n"
        "time.sleep(600)\n"
    )
    pipes, root = subprocess.PIPE, Path(__file__).parents[3]
    process = subprocess.Popen([sys.executable, "-c", code], stdout=pipes, stderr=pipes, cwd=root)
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2 and all(map(is_running, pids))
    process.kill()
    assert process.communicate(timeout=PATIENCE_S) == (b"", b"")
    wait_until_gone(pids)


def test_a_worker_imports_no_more_than_it_needs() -> None:
    with Workers(2) as workers:
        assert list(workers.map(imported_by_a_worker, range(2))) == [set(), set()]


def test_partial_functions_and_large_items_travel() -> None:
    texts = ["ä" * 2_000_000] * 5
    with Workers(2) as workers:
        assert list(workers.map(partial(operator.add, "x"), texts)) == ["x" + text for text in texts]
