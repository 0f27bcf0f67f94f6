"""Worker processes give what one process gives, in order; they are few, they end, and when they die one hears of it."""

import contextlib
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
from mtx.data.workers import map_in_workers
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

    for number, result in enumerate(map_in_workers(slowest_first, items(), num_workers)):
        assert result == number and len(read) <= number + 1 + num_workers
    assert number == 39
    assert list(map_in_workers(operator.neg, [], num_workers)) == []


def test_few_items_need_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEW_ITEMS", 3)
    assert set(map_in_workers(process_of, range(3), 2)) == {os.getpid()}
    many = list(map_in_workers(process_of, range(9), 2))
    assert many[:3] == [os.getpid()] * 3 and len(set(many[3:])) == 2 and os.getpid() not in many[3:]
    [only] = map_in_workers(process_of, [0], 2, few_items=0)
    assert only != os.getpid()


def test_workers_end_with_the_iterator() -> None:
    pids = list(map_in_workers(process_of, range(4), 2))
    assert len(set(pids)) == 2 and not any(map(is_running, pids))
    with pytest.raises(KeyboardInterrupt), contextlib.closing(map_in_workers(process_of, range(100), 2)) as results:
        pids = [next(results), next(results)]
        assert all(map(is_running, pids))
        raise KeyboardInterrupt
    assert not any(map(is_running, pids))


def test_what_a_function_raises_comes_out_as_it_is() -> None:
    for num_workers in (1, 2):
        with pytest.raises(DataError, match=r"^text:3: is bad$") as error:
            list(map_in_workers(refuse, ["text"], num_workers))
        assert error.value.help == "mend it"


def test_an_error_between_the_items_comes_out() -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise DataError("line 6")

    with pytest.raises(DataError, match="line 6"):
        list(map_in_workers(operator.neg, items(), 2))


@pytest.mark.parametrize("num_items", [1, 2, 9])
def test_a_killed_worker_is_an_error_and_no_hang(num_items: int) -> None:
    with pytest.raises(MtxError, match="^a worker process was killed by SIGKILL$") as error:
        list(map_in_workers(signal.raise_signal, [signal.SIGKILL] * num_items, 2))
    assert error.value.exit_code == 1 and "memory" in (error.value.help or "")
    with pytest.raises(MtxError, match="^a worker process ended with exit code 3$"):
        list(map_in_workers(os._exit, [3], 2))


def pid_and_much_text(text: str) -> tuple[int, str]:
    return os.getpid(), text or "x" * 10_000_000


def test_a_worker_killed_between_two_items_is_an_error() -> None:
    results = map_in_workers(pid_and_much_text, ["short", "short", *["y" * 10_000_000] * 5], 2)
    pid, _ = next(results)
    os.kill(pid, signal.SIGKILL)
    wait_until_gone([pid])
    with pytest.raises(MtxError, match="killed by SIGKILL"):
        list(results)


def test_a_worker_killed_while_it_sends_a_result_is_an_error_and_no_hang() -> None:
    results = map_in_workers(pid_and_much_text, [""] * 9, 2)
    pid, _ = next(results)
    next(results)
    time.sleep(0.5)  # by now the worker waits for this process to read the rest of its next result
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(MtxError, match="killed by SIGKILL"):
        list(results)


def test_signals_are_for_the_program_alone() -> None:
    results = map_in_workers(process_of, range(9), 2)
    pids = [next(results), next(results)]
    for pid in pids:
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
        assert os.getsid(pid) == pid
    assert set(results) == set(pids)


def test_workers_end_with_a_killed_program() -> None:
    code = (
        "import time; from mtx.data.workers import Worker; pool = [Worker(), Worker()]\n"
        "for worker in pool: worker.send(abs, 1); worker.receive()\n"
        "print(*(worker._process.pid for worker in pool), flush=True)\n"
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
    assert list(map_in_workers(imported_by_a_worker, range(2), 2)) == [set(), set()]


def test_partial_functions_and_large_items_travel() -> None:
    texts = ["ä" * 2_000_000] * 5
    assert list(map_in_workers(partial(operator.add, "x"), texts, 2)) == ["x" + text for text in texts]
