"""Tells the other ranks that this one lives and what it does, names a rank that no longer does, and ends this one then.

A thread of each rank writes a beat into the ranks' store every two seconds and reads others': rank 0 those of all, the
others that of rank 0. Ranks of one machine also see at once when a process there ends. Who notices first leaves the
failure in the store, as a rank that fails leaves its own; then all end. A main thread that hangs in a collective
operation hears nothing: its process ends without it. A second thread watches whether the store still answers.
Flow: `Ranks` keeps its `Progress` up to date -> `Heartbeat` -> the store -> the heartbeats of other ranks.
"""

import contextlib
import json
import logging
import os
import select
import signal
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtx.files import streams
from mtx.files.durations import format_duration
from mtx.run.world import World

logger = logging.getLogger(__name__)

END, FAILURE = "end", "failure"  # keys of the store: the exit code of rank 0, and the first failure of a rank
SILENT_S = 15.0  # a rank or a store that says nothing for longer is dead
LEAVE_S = 6.0  # for the main thread to end by itself
START_S = 300.0  # until all ranks have started
HELP = "the same command goes on from the last checkpoint"
_BEAT_S = 2.0
_SLOW_S = 60.0  # without any progress, while others wait
_STUCK_S = 1800.0  # in one step
TRAINS, FINISHES = "trains", "finishes the run"  # phases
_HAS_ENDED = "has ended without an error of its own"  # killed, perhaps


@dataclass
class Progress:
    """What a rank does now.

    Attributes:
        step: 0 before the first.
        phase: a verb and what belongs to it. `TRAINS` is a step and nothing else, which has a time limit; a phase that
            begins with `waits` is for other ranks.
    """

    step: int = 0
    phase: str = "prepares the run"


class _Clock:
    """Seconds that this thread has watched: if the process was stopped or starved meanwhile, others are not blamed."""

    def __init__(self) -> None:
        self._last, self.now = time.monotonic(), 0.0

    def tick(self) -> None:
        now = time.monotonic()
        self.now += min(now - self._last, 2 * _BEAT_S)
        self._last = now


class _Seen:
    """What a watcher knows of another rank: its last beat, and when that and what the rank does have changed."""

    def __init__(self) -> None:
        self.raw, self.beat = b"", dict[str, Any]()
        self.changed_at = self.moved_at = self.told_at = 0.0

    def update(self, raw: bytes, now: float) -> None:
        if raw == self.raw:
            return
        beat = json.loads(raw)
        if [beat[key] for key in ("step", "phase")] != [self.beat.get(key) for key in ("step", "phase")]:
            self.moved_at = self.told_at = now
        self.raw, self.beat, self.changed_at = raw, beat, now


class Heartbeat:
    """The beats of one rank, from `start` to `stop`.

    Args:
        store: of the ranks; the heartbeat uses a connection of its own.
        is_held_by_first: whether the store is part of rank 0's process, and not of the launcher's.
        progress: of this rank; it changes meanwhile.
    """

    def __init__(self, world: World, store: Any, is_held_by_first: bool, progress: Progress):
        self._world, self._store, self._is_held_by_first = world, store.clone(), is_held_by_first
        self._progress = progress
        self._lost: dict[str, Any] | None = None
        self._host, self._machine = socket.gethostname(), _machine()
        self._clock, self._answered_at, self._is_stopped = _Clock(), 0.0, False
        watched = range(world.size) if world.rank == 0 else [0]
        self._seen = {rank: _Seen() for rank in watched}
        self._processes = dict[int, int]()  # by rank: a file descriptor of a process of this machine

    def start(self) -> None:
        if self._machine is not None:
            self._store.append(self._machine, f"{self._world.rank} {os.getpid()}\n")
        self._beat(0)
        for target in (self._watch_ranks, self._watch_store):
            threading.Thread(target=target, name="mtx-heartbeat", daemon=True).start()

    def stop(self) -> None:
        """Let the threads end; nothing is watched any more."""
        self._is_stopped = True

    def store_lost(self) -> dict[str, Any]:
        """The failure to report when the store does not answer, or is gone."""
        if self._lost is None:
            how = _HAS_ENDED if 0 in self._ended(_BEAT_S / 2) else "has stopped answering"
            self._lost = self._failure(0, how) if self._is_held_by_first else self._failure(None, "does not answer")
        return self._lost

    def _watch_ranks(self) -> None:
        count, clock = 0, _Clock()
        try:
            while not self._is_stopped:
                clock.tick()
                count += 1
                self._beat(count)
                if (failure := ending(self._store)) is not None:
                    self._lost = failure  # also what follows when the store has gone with rank 0
                    self._leave(failure)
                    return
                self._find_processes()
                self._read_beats(clock.now)
                self._name_dead(clock.now)
                self._answered_at = self._clock.now
                are_known = all(seen.raw for seen in self._seen.values())
                for rank in self._ended(_BEAT_S if are_known else _BEAT_S / 10):
                    self._name(rank, _HAS_ENDED)
        except RuntimeError:
            if not self._is_stopped:
                self._exit(self.store_lost(), LEAVE_S)

    def _beat(self, count: int) -> None:
        beat = {"host": self._host, "pid": os.getpid(), **vars(self._progress), "count": count}
        self._store.set(f"beat-{self._world.rank}", json.dumps(beat))

    def _find_processes(self) -> None:
        """Open the other ranks' processes on this machine."""
        if self._machine is None or len(self._processes) >= self._world.local_size - 1:
            return
        for line in filter(None, self._store.get(self._machine).decode().split("\n")):
            rank, pid = map(int, line.split())
            if rank != self._world.rank and rank not in self._processes:
                try:
                    self._processes[rank] = os.pidfd_open(pid)
                except ProcessLookupError:
                    self._name(rank, _HAS_ENDED)
                except OSError:  # a container may forbid it
                    self._machine = None
                    return

    def _ended(self, wait_s: float) -> list[int]:
        """The ranks of this machine whose processes have ended, as soon as there is one."""
        if not self._processes:
            time.sleep(wait_s)
            return []
        poll = select.poll()
        for fd in self._processes.values():
            poll.register(fd, select.POLLIN)
        ended = {fd for fd, _ in poll.poll(1000 * wait_s)}
        return [rank for rank, fd in self._processes.items() if fd in ended]

    def _read_beats(self, now: float) -> None:
        keys = {rank: f"beat-{rank}" for rank in self._seen}
        ranks = [rank for rank, seen in self._seen.items() if seen.raw or self._store.check([keys[rank]])]
        for rank, raw in zip(ranks, self._store.multi_get([keys[rank] for rank in ranks]), strict=True):
            self._seen[rank].update(raw, now)

    def _name_dead(self, now: float) -> None:
        for rank, seen in self._seen.items():
            if now - seen.changed_at > (SILENT_S if seen.raw else START_S):
                self._name(rank, "has stopped answering" if seen.raw else f"has not started within {START_S:.0f} s")
            elif seen.beat.get("phase") == TRAINS and now - seen.moved_at > _STUCK_S:
                self._name(rank, f"has made no progress for {format_duration(_STUCK_S)}")
        if self._world.rank == 0:
            self._tell_slow(now)

    def _tell_slow(self, now: float) -> None:
        """Log once a minute which ranks the others wait for; what comes before the first step has its own messages."""
        waiting = [seen for seen in self._seen.values() if seen.beat.get("phase", "").startswith("waits")]
        for rank, seen in self._seen.items():
            is_slow = seen not in waiting and seen.beat.get("step") and seen.beat["phase"] != FINISHES
            if waiting and is_slow and now - seen.told_at > _SLOW_S:
                seen.told_at = now
                logger.warning(
                    "other ranks wait for %s: for %s it has not moved %s",
                    self.name_of(rank), format_duration(now - seen.moved_at), _doing(seen.beat),
                )  # fmt: skip

    def _name(self, rank: int, how: str) -> None:
        """Leave it to all ranks that one of them is dead, unless the run has ended, or another failure came first."""
        if not self._is_stopped and not self._store.check([END]):
            self._store.compare_set(FAILURE, "", json.dumps(self._failure(rank, how)))
            self._kill(rank)

    def name_of(self, rank: int) -> str:
        """How messages name another rank: with its host and process, once it has told them."""
        beat = self._beat_of(rank)
        return f"rank {rank} on {beat['host']} (process {beat['pid']})" if beat else f"rank {rank}"

    def _beat_of(self, rank: int) -> dict[str, Any]:
        if rank in self._seen:
            return self._seen[rank].beat
        key = f"beat-{rank}"
        return json.loads(self._store.get(key)) if self._store.check([key]) else {}

    def _failure(self, rank: int | None, how: str) -> dict[str, Any]:
        """What the store holds of a failure, and `Ranks` reports.

        Args:
            rank: that is dead; None for the process of the launcher that holds the store.
        """
        if rank is None:
            name = f"the launcher on {os.environ.get('MASTER_ADDR')}"
            where = f"; rank {self._world.rank} ends {_doing(vars(self._progress))}"
        else:
            name, beat = self.name_of(rank), self._beat_of(rank)
            if beat and self._progress.step > beat["step"]:  # ranks take steps together, and a beat may be 2 s old
                beat = {**beat, "step": self._progress.step, "phase": TRAINS}
            where = f" {_doing(beat)}; all ranks end" if beat else "; all ranks end"
        by = self._world.rank
        return {"message": f"{name} {how}{where}", "help": HELP, "exit_code": 1, "rank": rank, "by": by}

    def _leave(self, failure: dict[str, Any]) -> None:
        """After a failure or the end of the run: end this process if its main thread does not, and a dead one here."""
        self._kill(failure.get("rank"))
        is_first = self._world.rank == 0
        ends = time.monotonic() + LEAVE_S + 2 * _BEAT_S * (not is_first)
        is_ended = False
        while not self._is_stopped and time.monotonic() < ends:
            self._answered_at = self._clock.now
            is_ended = is_ended or self._store.check([END])
            time.sleep(_BEAT_S / 10)
        if self._is_stopped:
            return
        if is_first:
            self._store.set(END, json.dumps(failure["exit_code"]))
        # The store may end with rank 0, so it lets the others read the end first.
        self._exit({**failure, "by": None} if is_ended else failure, _BEAT_S / 2 if is_first else 0.0)

    def _watch_store(self) -> None:
        """End this process if the store does not answer."""
        while not self._is_stopped:
            self._clock.tick()
            if self._clock.now - self._answered_at > SILENT_S + _BEAT_S:
                failure = self.store_lost()
                self._kill(failure["rank"])
                self._exit(failure, LEAVE_S)
            time.sleep(_BEAT_S / 4)

    def _kill(self, rank: int | None) -> None:
        """End a dead rank's process if it is on this machine: a stopped one would stay, and keep its device."""
        if rank in self._processes:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._processes[rank], signal.SIGKILL)

    def _exit(self, failure: dict[str, Any], wait_s: float = 0.0) -> None:
        """End this process unless `stop` is called in so many seconds; rank 0 and who noticed a failure tell it."""
        ends = time.monotonic() + wait_s
        while time.monotonic() < ends and not self._is_stopped:
            time.sleep(_BEAT_S / 10)
        if self._is_stopped:
            return
        if failure["message"] and self._world.rank in (0, failure.get("by")):
            streams.show([f"error: {failure['message']}", f"help: {failure['help']}"])
        os._exit(failure["exit_code"])


def ending(store: Any) -> dict[str, Any] | None:
    """The failure of a rank, or the end of the run as one without a message; None while neither is in the store."""
    for key in (FAILURE, END):
        if store.check([key]):
            value = json.loads(store.get(key))
            return value if key == FAILURE else {"message": "", "help": None, "exit_code": value}
    return None


def _doing(beat: dict[str, Any]) -> str:
    step = f"in step {beat['step']}, " if beat["step"] else ""
    return f"{step}while it {beat['phase']}"


def _machine() -> str | None:
    """A name that only processes of this machine have which see each other's ids; None where they cannot be opened."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"processes of {boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None
