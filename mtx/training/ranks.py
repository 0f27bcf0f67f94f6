"""The processes that train one run together, called ranks: what they tell each other, and how they end together.

Rank 0 alone writes files and messages. All ranks take the same path, because they decide only from numbers that they
have agreed on, and from what rank 0 shares. torch.distributed carries both: its store the shared values, which are
few and may take long to come, and its process group the numbers of each step. One process alone needs neither.
Flow: the launcher's environment -> `join` -> `Ranks` -> pipeline and trainer.
"""

import contextlib
import faulthandler
import json
import logging
import math
import os
import signal
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mtx.errors import (
    STOPPING_SIGNALS,
    MtxError,
    ReportedError,
    StoppedError,
    TerminatedError,
    UsageError,
    exit_code,
    first_line,
    is_out_of_memory,
)
from mtx.model.device import find_device
from mtx.run.world import World
from mtx.training import heartbeat
from mtx.training.heartbeat import Heartbeat, Progress

_SHORT_S = 5.0  # for an answer of a rank that has nothing else to do
_NAMED_S = heartbeat.SILENT_S + _SHORT_S  # until a heartbeat has named a dead rank
_MAX_PAUSE_S = 0.1  # between two looks into the store
_MAX_VALUE = 1 << 20  # bytes; the store takes no value of more than 8 MB
_END, _FAILURE, _NUM_READY, _NUM_ENDED = heartbeat.END, heartbeat.FAILURE, "ready", "ended"  # keys of the store


class _HeardError(MtxError):
    """Another rank has failed; the text is its error with its name."""

    def __init__(self, failure: dict[str, Any]):
        super().__init__(failure["message"], failure["help"])
        self.exit_code = failure["exit_code"]
        self.dead_rank, self.named_by = failure.get("rank"), failure.get("by")


class Ranks:
    """This process and the others of its run; `Ranks()` is one process alone, for which everything here is free.

    Args:
        store: where ranks leave values for each other; None for one process alone.

    Attributes:
        number, size: of this rank, from 0, and of all.
        is_first: whether this is rank 0.
        progress: what this rank does now.
    """

    def __init__(self, world: World | None = None, store: Any = None):
        self.world = world or World()
        self.number, self.size = self.world.rank, self.world.size
        self.is_first = self.number == 0
        self.progress = Progress()
        self._store, self._num_shared, self._num_gathered = store, 0, 0
        self._heartbeat = Heartbeat(self.world, store, _is_held_by_first(), self.progress) if store else None
        self._host_group: dist.ProcessGroup | None = None  # of the ranks' processes, by gloo

    def connect(self, device: torch.device) -> None:
        """Connect to the other ranks: by gloo, and by NCCL too for CUDA devices. All ranks call this together."""
        if self.size == 1:
            return
        store = dist.PrefixStore("group", self._store)  # type: ignore[attr-defined]
        with self._talking(), self._waiting("until all ranks have read the data"):
            self._store.add(_NUM_READY, 1)
            self._poll(lambda: self._store.add(_NUM_READY, 0) == self.size)
            if device.type == "cuda":
                # Otherwise torch ends this process at an error, before the heartbeat can name the rank that is dead.
                os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # torch's launcher has set it to 1
                torch.cuda.set_device(device)
                dist.init_process_group("nccl", store=store, rank=self.number, world_size=self.size, device_id=device)
                self._host_group = dist.new_group(backend="gloo")
            else:
                dist.init_process_group("gloo", store=store, rank=self.number, world_size=self.size)
                self._host_group = dist.group.WORLD

    @contextlib.contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Name what this rank does in the block: a verb and what belongs to it."""
        before, self.progress.phase = self.progress.phase, what
        try:
            yield
        finally:
            self.progress.phase = before

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """In the block this rank takes steps, but for what it names by `doing`."""
        self.progress.phase = heartbeat.TRAINS
        try:
            yield
        finally:
            self.progress.phase = heartbeat.FINISHES

    def _waiting(self, what: str) -> contextlib.AbstractContextManager[None]:
        return self.doing(f"waits {what}")

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Tell the other ranks in the block that this one lives, and learn when one of them no longer does."""
        assert self._heartbeat is not None
        self._heartbeat.start()
        try:
            yield
        finally:
            self._heartbeat.stop()

    def name_of(self, rank: int) -> str:
        """How messages name another rank."""
        assert self._heartbeat is not None
        return self._heartbeat.name_of(rank)

    def named(self, error: BaseException) -> BaseException:
        """The error of the rank that caused this error, if it is of a connection that was lost."""
        if isinstance(error, dist.DistError):  # the store does not answer
            assert self._heartbeat is not None
            return _HeardError(self._heartbeat.store_lost())
        is_connection = isinstance(error, RuntimeError) and any(name in str(error) for name in ("gloo", "NCCL"))
        return self._why_lost(error) if is_connection and not is_out_of_memory(error) else error

    def share(self, what: str, work: Callable[[], Any]) -> Any:
        """The result of `work`, which only rank 0 does, and which JSON can hold; it may take however long.

        Args:
            what: the verb and the object of a sentence about rank 0.

        Raises:
            MtxError: on the other ranks, if rank 0 or another rank has failed meanwhile.
        """
        if self.size == 1:
            return work()
        self._num_shared += 1
        key = f"shared-{self._num_shared}"
        if self.is_first:
            with self.doing(what):
                value = work()
            self._store.set(key, json.dumps(value))
            return value
        with self._waiting(f"while rank 0 {what}"):
            return self._await(key)

    def gather(self, what: str, value: Any) -> list[Any]:
        """The values of all ranks, in their order, on rank 0; nothing on the others, which do not wait.

        Args:
            what: what the other ranks do meanwhile, as a verb and its object.
            value: of this rank; JSON can hold it.

        Raises:
            MtxError: on rank 0, if another rank has failed meanwhile.
        """
        if self.size == 1:
            return [value]
        self._num_gathered += 1
        key = f"gathered-{self._num_gathered}"
        if not self.is_first:
            text = json.dumps(value)
            parts = [text[i : i + _MAX_VALUE] for i in range(0, len(text), _MAX_VALUE)]
            for number, part in enumerate(parts):
                self._store.set(f"{key}-{self.number}-{number}", part)
            self._store.set(f"{key}-{self.number}", json.dumps(len(parts)))
            return []
        with self._waiting(f"while the other ranks {what}"):
            return [value, *(self._take(f"{key}-{number}") for number in range(1, self.size))]

    def _take(self, key: str) -> Any:
        """Remove a gathered value from the store, as soon as it is there."""
        parts = [f"{key}-{number}" for number in range(self._await(key))]
        text = b"".join(self._store.get(part) for part in parts)
        for part in (key, *parts):
            self._store.delete_key(part)
        return json.loads(text)

    def agree(self, numbers: Sequence[float]) -> list[float]:
        """The largest value of each of these numbers on any rank. All ranks call this together.

        In each of log2(size) rounds a rank hears the one that is 1, 2, 4, ... places before it; gloo's own reduction
        is a ring of 2 (size - 1) messages one after another.
        """
        if self.size == 1:
            return list(numbers)
        values = torch.tensor(numbers, dtype=torch.float64)
        with self._talking():
            for distance in (1 << i for i in range((self.size - 1).bit_length())):
                heard = torch.empty_like(values)
                sent = dist.isend(values, (self.number + distance) % self.size, self._host_group)
                assert sent is not None
                dist.recv(heard, (self.number - distance) % self.size, self._host_group)
                sent.wait()
                values = torch.maximum(values, heard)
        return list(values.tolist())

    def sum(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all ranks; the same bits on each, and each time. All call this together."""
        if self.size > 1:
            with self._talking():
                dist.all_reduce(tensor)

    def copy_from_first(self, tensors: Iterable[Tensor]) -> None:
        """Give tensors the values that they have on rank 0. All ranks call this together."""
        if self.size > 1:
            with self._talking():
                for tensor in tensors:
                    dist.broadcast(tensor, 0)

    @contextlib.contextmanager
    def _talking(self) -> Iterator[None]:
        """Turn the error of a collective operation, which says little, into that of the rank that caused it."""
        try:
            with self._waiting("until the other ranks are as far"):
                yield
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            raise self._why_lost(error) from error

    def _why_lost(self, error: BaseException) -> MtxError:
        """The error of the rank whose connection was lost, which it leaves before it ends; else one that says so."""
        try:
            self._poll(lambda: False, _NAMED_S)
        except MtxError as heard:
            return heard
        return MtxError(f"the connection to the other ranks is lost: {first_line(error)}", heartbeat.HELP)

    def _await(self, key: str) -> Any:
        """The value of a key, as soon as a rank sets it.

        Raises:
            MtxError: if the run has ended instead, or the process that holds the store has.
        """
        self._poll(lambda: self._store.check([key]))
        return json.loads(self._store.get(key))

    def _poll(self, is_done: Callable[[], bool], limit_s: float = math.inf) -> bool:
        """Look until `is_done`, which asks the store; False after the limit. Raises as `_await` does."""
        ends, pause_s = time.monotonic() + limit_s, 0.001
        try:
            while not is_done():
                if (heard := self._heard()) is not None:
                    raise heard
                if time.monotonic() > ends:
                    return False
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)
            return True
        except RuntimeError:
            assert self._heartbeat is not None
            raise _HeardError(self._heartbeat.store_lost()) from None

    def _heard(self) -> _HeardError | None:
        """The failure of a rank, if there is one."""
        failure = heartbeat.ending(self._store)
        return _HeardError(failure) if failure else None

    def _end_first(self, error: BaseException | None) -> BaseException | None:
        """On rank 0: let the others end with the exit code of this rank; returns the error to end with."""
        with contextlib.suppress(RuntimeError):
            if isinstance(error, StoppedError | TerminatedError) and self._store.check([_FAILURE]):
                error = self._heard()  # the launcher ends all ranks after one that has failed
        for number in STOPPING_SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # the launcher sends them as soon as another rank has ended
        with contextlib.suppress(RuntimeError):
            self._store.set(_END, json.dumps(0 if error is None else exit_code(error)))
            self._disconnect()
            ends = time.monotonic() + _SHORT_S
            num_others = self.size - 1 - (getattr(error, "dead_rank", None) is not None)
            while _is_held_by_first() and self._store.add(_NUM_ENDED, 0) < num_others and time.monotonic() < ends:
                time.sleep(_MAX_PAUSE_S / 10)
        return error

    def _end_other(self, error: BaseException | None) -> BaseException | None:
        """On another rank: end with the exit code of rank 0, which reports all; returns the error to end with."""
        code = None
        if error is None or isinstance(error, StoppedError):
            with self._waiting("while rank 0 finishes the run"):
                try:
                    code = self._await(_END)
                except MtxError as heard:
                    error = heard
        if code is None:
            assert error is not None
            for number in STOPPING_SIGNALS:
                signal.signal(number, signal.SIG_IGN)  # as rank 0 does
            self._report(error)
            code = self._end_code() if getattr(error, "dead_rank", None) != 0 else None
        if code is None:
            if isinstance(error, _HeardError):
                return error if error.named_by == self.number else ReportedError(error.exit_code)
            if os.environ.get("MTX_DEBUG"):
                return error
            return _HeardError(self._failure(error)) if isinstance(error, Exception) else error
        with contextlib.suppress(RuntimeError):
            self._store.add(_NUM_ENDED, 1)
        return ReportedError(code) if code else None

    def _report(self, error: BaseException) -> None:
        """Leave an error of this rank to rank 0, and disconnect."""
        with contextlib.suppress(RuntimeError):
            if not isinstance(error, _HeardError):
                self._store.compare_set(_FAILURE, "", json.dumps(self._failure(error)))
        self._disconnect()

    def _failure(self, error: BaseException) -> dict[str, Any]:
        text = str(error) if isinstance(error, MtxError) else f"{type(error).__name__}: {error}"[:500]
        help = error.help if isinstance(error, MtxError) else None
        step = f" in step {self.progress.step}" if self.progress.step and not isinstance(error, MtxError) else ""
        return {"message": f"{self.world.name}{step}: {text}", "help": help, "exit_code": exit_code(error)}

    def _end_code(self) -> int | None:
        """The exit code of rank 0, if it ends within a few seconds."""
        ends = time.monotonic() + heartbeat.LEAVE_S + _SHORT_S
        with contextlib.suppress(RuntimeError):
            while time.monotonic() < ends:
                if self._store.check([_END]):
                    return int(json.loads(self._store.get(_END)))
                time.sleep(_MAX_PAUSE_S / 10)
        return None

    def _disconnect(self) -> None:
        """Close the connections by gloo, so that no rank waits for this one; NCCL's could wait for work for ever."""
        if self._host_group is not None:
            dist.destroy_process_group(self._host_group)
            self._host_group = None


@contextlib.contextmanager
def join(world: World) -> Iterator[Ranks]:
    """Be a rank of the run in the block. When it ends, all ranks end, with one exit code and one report of an error.

    Raises:
        ReportedError: on any rank but 0, instead of an error that rank 0 reports.
        MtxError: if not all ranks started within `heartbeat.START_S`.
    """
    if world.rank:
        logging.getLogger("mtx").setLevel(logging.CRITICAL)  # rank 0 speaks for all
    ranks = Ranks(world, _open_store(world))
    ended = ranks._end_first if ranks.is_first else ranks._end_other
    try:
        with ranks.watched():
            try:
                yield ranks
            except BaseException as error:
                own = ended(ranks.named(error))
                if isinstance(error, StoppedError) and dist.is_initialized():  # all ranks stop together
                    dist.destroy_process_group()
                if own is None or own is error:
                    raise
                raise own from error
            if (failure := ended(None)) is not None:
                raise failure
            if dist.is_initialized():
                dist.destroy_process_group()
    except BaseException:
        # NCCL may wait for dead ranks at the interpreter's end, where no thread of Python runs any more.
        faulthandler.dump_traceback_later(2 * _SHORT_S, exit=True, file=Path(os.devnull).open("w"))  # noqa: SIM115
        raise


def _open_store(world: World) -> Any:
    """The ranks' store.

    Raises:
        MtxError: if not all ranks started within `heartbeat.START_S`.
    """
    limit = timedelta(seconds=heartbeat.START_S)
    try:
        if not _is_held_by_first():
            address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            store = dist.TCPStore(address, port, is_master=False, timeout=limit)  # type: ignore[attr-defined]
            return dist.PrefixStore(_new_round(store, world), store)  # type: ignore[attr-defined]
        store, _, _ = next(dist.rendezvous("env://", timeout=limit))  # type: ignore[attr-defined]
        return dist.PrefixStore("mtx", store)  # type: ignore[attr-defined]
    except (RuntimeError, ValueError) as error:
        raise MtxError(f"the ranks did not find each other: {first_line(error)}") from None


def _new_round(store: Any, world: World) -> str:
    """A prefix that the ranks of this start agree on, as the launcher's store still holds what earlier ones have left.

    Launchers of several machines count restarts differently, so their numbers cannot tell the starts apart. Rank 0
    draws the prefix, and names those who have answered it; a rank that is not among them has read an older one.
    """
    own, drawn, ends = uuid.uuid4().hex, "", time.monotonic() + heartbeat.START_S
    others = range(1, world.size)
    while time.monotonic() < ends:
        if world.rank == 0:
            if not drawn:
                drawn = own
                store.set("mtx-round", drawn)
            if store.check([f"{drawn}/here-{rank}" for rank in others]):
                store.set(f"{drawn}/all", b" ".join(store.get(f"{drawn}/here-{rank}") for rank in others))
                return drawn
        elif store.check(["mtx-round"]):
            if (now := store.get("mtx-round").decode()) != drawn:
                drawn = now
                store.set(f"{drawn}/here-{world.rank}", own)
            if store.check([f"{drawn}/all"]) and own.encode() in store.get(f"{drawn}/all"):
                return drawn
        time.sleep(_MAX_PAUSE_S)
    missing = [rank for rank in others if not store.check([f"{drawn}/here-{rank}"])] if world.rank == 0 else [0]
    names = ", ".join(f"rank {rank}" for rank in missing)
    raise MtxError(f"{names} has not started within {heartbeat.START_S:.0f} s", heartbeat.HELP)


def _is_held_by_first() -> bool:
    """Whether rank 0's process holds the ranks' store, and not the launcher's."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"


def rank_device(name: str, world: World) -> torch.device:
    """The device of this rank: `find_device`, and with several ranks a CUDA device for each of this machine.

    Raises:
        UsageError: this machine has no such device, or too few.
    """
    if world.size == 1:
        return find_device(name)
    if ":" in name:
        raise UsageError(f"device={name} names one device, and {world.size} processes train this run", "device=cuda")
    device = find_device(name)
    if device.type == "mps":
        raise UsageError(f"device={name}: an MPS device cannot train with others", "device=cpu, or one process")
    if device.type != "cuda":
        return device
    if world.local_size > torch.cuda.device_count():
        raise UsageError(
            f"{world.local_size} processes on {socket.gethostname()} need a CUDA device each, and there are "
            f"{torch.cuda.device_count()}", "as many processes as devices, or device=cpu"
        )  # fmt: skip
    return torch.device("cuda", world.local_rank)
