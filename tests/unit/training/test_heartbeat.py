"""What a rank notices of the others' beats. Real processes are killed and stopped in integration/test_dead_ranks.py."""

import json
import logging
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from mtx.run.world import World
from mtx.training import heartbeat
from mtx.training.heartbeat import FAILURE, TRAINS, Heartbeat, Progress

WAITS = "waits until the other ranks are as far"


class Others:
    """Rank 0 of four, and the beats of all as they are in the store."""

    def __init__(self) -> None:
        self.store: Any = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=30))  # type: ignore[attr-defined]
        self.heartbeat = Heartbeat(World(0, 4), self.store, True, Progress(7, TRAINS))
        self.count = 0

    def beat(self, now: float, phases: dict[int, str]) -> None:
        """These ranks beat at a moment; the others do not."""
        self.count += 1
        for rank, phase in phases.items():
            beat = {"host": "here", "pid": 100 + rank, "step": 7, "phase": phase, "count": self.count}
            self.store.set(f"beat-{rank}", json.dumps(beat))
        self.heartbeat._read_beats(now)
        self.heartbeat._name_dead(now)

    def failure(self) -> str | None:
        return json.loads(self.store.get(FAILURE))["message"] if self.store.check([FAILURE]) else None


def test_a_silent_rank_is_named() -> None:
    others = Others()
    others.beat(0.0, dict.fromkeys(range(4), WAITS))
    others.beat(14.0, dict.fromkeys(range(3), WAITS))
    assert others.failure() is None
    others.beat(16.0, dict.fromkeys(range(3), WAITS))
    assert others.failure() == (
        f"rank 3 on here (process 103) has stopped answering in step 7, while it {WAITS}; all ranks end"
    )


def test_a_slow_rank_is_told_once_a_minute_and_a_stuck_one_ends_the_run(caplog: pytest.LogCaptureFixture) -> None:
    others, phases = Others(), {0: WAITS, 1: TRAINS, 2: WAITS, 3: WAITS}
    logging.getLogger("mtx").propagate = True
    with caplog.at_level(logging.WARNING, "mtx.training.heartbeat"):
        for now in range(0, 1801, 10):
            others.beat(float(now), phases)
    told = [record.getMessage() for record in caplog.records]
    assert told[0].startswith("other ranks wait for rank 1 on here (process 101): for ") and "in step 7" in told[0]
    assert 20 <= len(told) <= 30 and all("rank 1 " in text for text in told)
    assert others.failure() is None
    others.beat(1810.0, phases)
    assert "rank 1 on here (process 101) has made no progress for 30" in str(others.failure())


def test_waiting_for_rank_0_has_no_limit() -> None:
    others = Others()
    for now in range(0, 7200, 10):
        others.beat(float(now), {0: "validates", **dict.fromkeys(range(1, 4), "waits while rank 0 validates")})
    assert others.failure() is None


def test_a_watcher_that_was_stopped_itself_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now[0])
    clock = heartbeat._Clock()
    for moment, watched in ((102.0, 2.0), (1000.0, 6.0), (1001.0, 7.0)):
        now[0] = moment
        clock.tick()
        assert clock.now == watched
