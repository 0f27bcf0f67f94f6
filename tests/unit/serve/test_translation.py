"""Requests are translated together, in turn, and none can hold up or spoil another."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from functools import partial

import pytest

pytest.importorskip("starlette")

from starlette.exceptions import HTTPException

from mtx.serve.translation import TranslationQueue
from tests.rig import PATIENCE_S


class Gate:
    """Doubles numbers; keeps each batch; the first one waits until `open`, so that the rest can be submitted."""

    def __init__(self) -> None:
        self.batches = list[list[int]]()
        self.open, self.has_begun = threading.Event(), threading.Event()

    def double(self, numbers: list[int]) -> list[int]:
        self.batches.append(numbers)
        self.has_begun.set()
        assert self.open.wait(PATIENCE_S)
        if 13 in numbers:
            raise ValueError("thirteen")
        return [2 * number for number in numbers]

    def negate(self, numbers: list[int]) -> list[int]:
        self.batches.append(numbers)
        return [-number for number in numbers]


def submit(queue: TranslationQueue, gate: Gate, numbers: Sequence[int], size: int = 1) -> list[Future[int]]:
    return queue.submit(gate.double, numbers, [size] * len(numbers))


def results(futures: Sequence[Future[int]]) -> list[int]:
    return [future.result(PATIENCE_S) for future in futures]


def started(queue: TranslationQueue, gate: Gate) -> list[Future[int]]:
    """An item that has begun, and holds up those behind it until the gate opens."""
    first = submit(queue, gate, [0])
    assert gate.has_begun.wait(PATIENCE_S)
    return first


def test_what_waits_is_computed_together_and_each_gets_its_own() -> None:
    gate = Gate()
    with TranslationQueue(100, 1000) as queue:
        first = started(queue, gate)
        jobs = [submit(queue, gate, numbers) for numbers in ([1, 2], [3], [4, 5, 6])]
        gate.open.set()
        assert [results(job) for job in (first, *jobs)] == [[0], [2, 4], [6], [8, 10, 12]]
    assert gate.batches == [[0], [1, 3, 4, 2, 5, 6]], "one of each in turn"


def test_a_large_job_does_not_hold_up_small_ones() -> None:
    gate = Gate()
    with TranslationQueue(4, 1000) as queue:
        started(queue, gate)
        large = submit(queue, gate, range(100, 120))
        small = [submit(queue, gate, [number]) for number in (1, 2)]
        gate.open.set()
        wait([*small[0], *small[1]], 10)
        assert results(large) == list(range(200, 240, 2)), "in order"
    assert gate.batches[1] == [100, 1, 2, 101]
    assert list(map(len, gate.batches)) == [1, 4, 4, 4, 4, 4, 2]


def test_a_batch_has_a_size_but_an_item_may_be_larger() -> None:
    gate = Gate()
    with TranslationQueue(10, 1000) as queue:
        started(queue, gate)
        jobs = [submit(queue, gate, [1, 2], 50), submit(queue, gate, [3, 4, 5], 4)]
        gate.open.set()
        wait([*jobs[0], *jobs[1]], 10)
    assert gate.batches[1:] == [[3, 4, 5], [1], [2]]


def test_another_function_has_the_next_batch() -> None:
    gate = Gate()
    with TranslationQueue(2, 1000) as queue:
        started(queue, gate)
        double, negate = submit(queue, gate, [1, 2, 3, 4, 5]), queue.submit(gate.negate, [7, 8], [1, 1])
        gate.open.set()
        assert (results(double), results(negate)) == ([2, 4, 6, 8, 10], [-7, -8])
    assert gate.batches[1:] == [[1, 2], [7, 8], [3, 4], [5]]


def test_a_job_that_fails_spoils_no_other() -> None:
    gate = Gate()
    with TranslationQueue(3, 1000) as queue:
        started(queue, gate)
        bad, good = submit(queue, gate, [13, 1, 1, 1]), submit(queue, gate, [2, 3, 4])
        gate.open.set()
        assert results(good) == [4, 6, 8] and results(bad[1:]) == [2, 2, 2]
        with pytest.raises(ValueError, match="thirteen"):
            bad[0].result(PATIENCE_S)
        assert results(submit(queue, gate, [5])) == [10], "it goes on"


def test_a_function_that_returns_too_little_fails_its_jobs_and_no_thread() -> None:
    with TranslationQueue(100, 1000) as queue:
        with pytest.raises(ValueError, match="shorter"):
            results(queue.submit(lambda numbers: numbers[1:], [1, 2], [1, 1]))
        assert results(queue.submit(list, [3], [1])) == [3], "it goes on"


def test_a_cancelled_job_is_dropped() -> None:
    gate = Gate()
    with TranslationQueue(100, 1000) as queue:
        first = started(queue, gate)
        gone, kept = submit(queue, gate, [1, 2]), submit(queue, gate, [3])
        assert queue.waiting_tokens() == 3
        assert all(future.cancel() for future in gone) and not first[0].cancel(), "a batch that has begun ends"
        assert queue.waiting_tokens() == 1
        gate.open.set()
        assert results(kept) == [6] and results(first) == [0]
    assert gate.batches == [[0], [3]]


def test_a_small_job_waits_for_one_batch_however_large_the_items_of_others() -> None:
    gate = Gate()
    with TranslationQueue(50, 1000) as queue:
        started(queue, gate)
        large = [submit(queue, gate, [number] * 4, 50) for number in (1, 2, 3)]
        small = submit(queue, gate, [4], 5)
        gate.open.set()
        assert results(small) == [8] and list(map(results, large)) == [[2] * 4, [4] * 4, [6] * 4]
    assert gate.batches[1][0] == 4 and gate.batches[2:5] == [[2], [3], [1]], "and the others in turn"


def test_small_jobs_do_not_hold_up_a_large_one_for_good() -> None:
    gate, order = Gate(), list[str]()

    def small(numbers: list[int]) -> list[int]:
        order.append("small")
        if len(order) < 50:
            queue.submit(small, [0], [10])
        return numbers

    def large(numbers: list[int]) -> list[int]:
        order.append("large")
        return numbers

    with TranslationQueue(10, 1000) as queue:
        started(queue, gate)
        queue.submit(large, [0], [30])
        queue.submit(small, [0], [10])
        gate.open.set()
    assert order.index("large") == 2, "after about as many tokens as it has"


@pytest.mark.parametrize("num_threads", [1, 2])
def test_what_would_wait_too_long_at_the_speed_so_far_is_refused(
    num_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("mtx.serve.translation.time.monotonic", lambda: now)

    def take(seconds: list[float]) -> list[float]:
        nonlocal now
        now += sum(seconds)
        return seconds

    with TranslationQueue(100, 2.0, num_threads) as queue:
        for seconds in (0.0, 1.0, 4.0):  # for a batch of 100 tokens; before the first one, two are expected
            gate, limit = Gate(), round(0.99 * 2 * num_threads * 100 / (seconds or 2.0))
            for _ in range(200 if seconds else 0):
                queue.submit(take, [seconds], [100])[0].result(PATIENCE_S)
                queue.submit(take, [seconds], [1])[0].result(PATIENCE_S)  # says nothing about a large one
            for number in range(num_threads):
                submit(queue, gate, [0])
                while len(gate.batches) == number:
                    time.sleep(0.001)
            submit(queue, gate, [1], 10**6)[0].cancel()
            kept = [*submit(queue, gate, [1], limit // 2), *submit(queue, gate, [2], limit // 2)]
            for refused in (partial(submit, queue, gate, [3]), queue.require_room):
                with pytest.raises(HTTPException, match="503: the server is overloaded"):
                    refused(limit // 2)
            kept += submit(queue, gate, [5], limit // 4)  # done before the others
            gate.open.set()
            assert results(kept) == [2, 4, 10]


def test_an_empty_queue_takes_a_job_of_any_size() -> None:
    gate = Gate()
    with TranslationQueue(100, 1) as queue:
        started(queue, gate)
        large = submit(queue, gate, [1], 10**6)
        gate.open.set()
        assert results(large) == [2]


def test_nothing_to_compute_is_done_at_once() -> None:
    with TranslationQueue(100, 10) as queue:
        assert queue.submit(list, [], []) == []


def test_at_the_end_what_was_submitted_is_done() -> None:
    gate = Gate()
    with TranslationQueue(1, 100) as queue:
        jobs = [started(queue, gate), submit(queue, gate, [1, 2, 3])]
        gate.open.set()
    assert [[future.result(0) for future in job] for job in jobs] == [[0], [2, 4, 6]]


def test_threads_compute_at_once_and_results_stay_in_order() -> None:
    first_waits = threading.Event()

    def double(numbers: list[int]) -> list[int]:
        if numbers[0] == 1:
            assert first_waits.wait(PATIENCE_S), "another thread computes the second batch"
        first_waits.set()
        return [2 * number for number in numbers]

    with TranslationQueue(2, 1000, num_threads=2) as queue:
        assert results(queue.submit(double, [1, 2, 3, 4, 5], [1] * 5)) == [2, 4, 6, 8, 10]


def test_idle_threads_share_what_waits() -> None:
    batches, deadline = list[list[int]](), time.monotonic() + PATIENCE_S

    def keep(numbers: list[int]) -> list[int]:
        batches.append(numbers)
        return numbers

    with TranslationQueue(100, 1000, num_threads=3) as queue:
        while [1, 2] not in batches and time.monotonic() < deadline:  # until all three have begun to wait
            assert results(queue.submit(keep, [1, 2, 3, 4, 5, 6], [1] * 6)) == [1, 2, 3, 4, 5, 6]
    assert [1, 2] in batches
