"""The processes that train one run together, called ranks: `launch` or torchrun starts them.

All ranks run the same program, and torch.distributed connects them. Rank 0 alone writes files and messages, and the
others take from it what it has found. Objects go over a group of gloo whose limit is a day, since rank 0 may prepare
data or score for hours; the numbers of each step go over groups whose limit ends all
ranks when one of them hangs. One process alone needs none of this.
Flow: the launcher's environment -> `this_world` -> `join` -> `Ranks` -> `mtx.training.run`, strategy and trainer.
"""

import contextlib
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from subprocess import Popen, TimeoutExpired
from types import FrameType
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from mtx.errors import (
    STOPPING_SIGNALS,
    MtxError,
    ReportedError,
    StoppedError,
    UsageError,
    exit_code,
    first_line,
    is_out_of_memory,
)
from mtx.formatting import format_duration
from mtx.machine import num_cores
from mtx.model.device import find_device
from mtx.storage import streams
from mtx.training.signals import handle_signals, handled_signals

Value = TypeVar("Value")

TIMEOUT_S = 120.0  # until a rank that does not answer within a step ends all of them
_START = timedelta(minutes=5)  # until all ranks have started
_PATIENCE = timedelta(days=1)
_ROLL_CALL = timedelta(seconds=10)
_GIVE_WAY_S = 1.0  # so that the launcher sees the rank that has died before those that lost their connection to it
_HOST = "127.0.0.1"
_POLL_S = 0.05  # between two looks of the launcher at its ranks
_GRACE_S = 30.0  # in which the other ranks end by themselves after one has failed
_HELP = "the same command resumes from the last checkpoint"


@dataclass(frozen=True)
class World:
    """The place of this process among the ranks of a run; by default one process alone.

    Attributes:
        rank, size: the number of this rank, from 0, and how many there are, on all machines.
        local_rank, local_size: the same among the ranks of this machine.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def name(self) -> str:
        """How messages name this process."""
        return f"rank {self.rank} on {socket.gethostname()}"


def this_world(environment: Mapping[str, str] = os.environ) -> World:
    """The place that the launcher's environment gives this process."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    return World(*(int(environment[name]) for name in names))


class Ranks:
    """This process and the others of its run; `Ranks()` is one process alone, for which everything here is free.

    All ranks call each method together, but for those of one process alone.

    Attributes:
        rank, size: the number of this rank, from 0, and how many there are.
        is_rank_zero: whether this rank writes files and messages.
        step: the one that this rank takes, for messages; 0 before the first and after the last.
    """

    def __init__(self, world: World | None = None):
        self.world = world or World()
        self.rank, self.size = self.world.rank, self.world.size
        self.is_rank_zero = self.rank == 0
        self.step, self._step_began = 0, time.monotonic()
        self._end_together = False
        self._told: tuple[Tensor, Any] | None = None
        if self.size == 1:
            return
        store, _, _ = next(dist.rendezvous("env://", timeout=_START))  # type: ignore[attr-defined]
        limit = timedelta(seconds=TIMEOUT_S)
        has_nccl = torch.cuda.is_available() and dist.is_nccl_available()
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if has_nccl else "gloo",
            store=store,
            rank=self.rank,
            world_size=self.size,
            timeout=1.5 * limit if has_nccl else limit,  # NCCL ends the process, so gloo has to notice before it
        )
        self._host, self._patient, self._roll_call = (
            dist.new_group(backend="gloo", timeout=timeout) for timeout in (limit, _PATIENCE, _ROLL_CALL)
        )

    def begin_step(self, step: int) -> None:
        """Note the step that this rank takes now; 0 after the last one."""
        self.step, self._step_began = step, time.monotonic()

    def _where(self) -> str:
        return f" in step {self.step}" if self.step else ""

    def run_on_rank_zero(self, work: Callable[[], Value]) -> Value:
        """What `work` returns on rank 0, which alone does it and may take however long.

        Raises:
            ReportedError: on the other ranks, if it fails on rank 0.
        """
        return cast(Value, self.gather(work if self.is_rank_zero else lambda: None)[0])

    def gather(self, work: Callable[[], Value]) -> list[Value]:
        """What `work` returns on each rank, in their order, on all of them.

        Raises:
            MtxError: on rank 0, if it fails on one of them; on the others a `ReportedError`.
        """
        if self.size == 1:
            return [work()]
        value: Value | None = None
        own: BaseException | None = None
        try:
            value = work()
        except BaseException as error:
            own = error
        with _hold_signals():
            outcomes = self.all_gather_object((value, own and self._describe(own)))
            failure = next((failure for _, failure in outcomes if failure is not None), None)
            if failure is not None:
                self._end_together = True
                if not self.is_rank_zero:
                    raise ReportedError(failure.exit_code) from own
                raise own or failure
        return [found for found, _ in outcomes]

    def all_gather_object(self, value: Any) -> list[Any]:
        """The values of all ranks, in their order."""
        values = [value] * self.size
        if self.size > 1:
            with _hold_signals():
                dist.all_gather_object(values, value, self._patient)
        return values

    def exchange(self, numbers: Sequence[float]) -> list[float]:
        """The largest of each number on any rank, of those of the call before, so that no rank waits; zeros first."""
        told, values = self._told, torch.tensor(numbers, dtype=torch.float64)
        self._told = values, dist.all_reduce(values, dist.ReduceOp.MAX, group=self._host, async_op=True)
        if told is None:
            return [0.0] * len(numbers)
        told[1].wait()
        return list(told[0].tolist())

    def all_reduce(self, *tensors: Tensor) -> None:
        """Replace tensors by their sums over all ranks, in one exchange; the same bits on each, and each time."""
        if self.size > 1:
            flat = torch.cat([tensor.flatten() for tensor in tensors])
            dist.all_reduce(flat)
            for tensor, part in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Give tensors the values that they have on rank 0."""
        for tensor in tensors if self.size > 1 else ():
            dist.broadcast(tensor, 0)

    def _describe(self, error: BaseException) -> MtxError:
        """An error of this rank as all ranks may report it: named, and without what cannot be sent."""
        text, help = f"{self.world.name}: {error}", error.help if isinstance(error, MtxError) else None
        if not isinstance(error, MtxError):
            text = f"{self.world.name}{self._where()}: {type(error).__name__}: {error}"[:500]
        described = MtxError(text, help)
        described.exit_code = exit_code(error)
        return described

    def _leave(self, error: BaseException) -> BaseException:
        """Before this rank ends with an error: what to end with. If all ranks know of it, they leave together."""
        for number in STOPPING_SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # the launcher sends them as soon as another rank has ended
        if isinstance(error, RuntimeError) and not is_out_of_memory(error) and re.search("gloo|NCCL", str(error)):
            error = self._explain_lost_connection(error)
        elif self._end_together or isinstance(error, StoppedError):
            with contextlib.suppress(RuntimeError):
                self.all_gather_object(None)
        if isinstance(error, ReportedError):
            return error
        if not self.is_rank_zero and isinstance(error, StoppedError | KeyboardInterrupt):
            return ReportedError(exit_code(error))
        return error if self.is_rank_zero or os.environ.get("MTX_DEBUG") else self._describe(error)

    def _explain_lost_connection(self, error: RuntimeError) -> MtxError:
        """The error of a connection that is lost, which names those that hang.

        A rank that has died is named by its launcher. Its neighbours notice at once, and the others when these end, so
        only at the limit do all ranks answer at the same time.
        """
        has_waited = self.step > 0 and time.monotonic() - self._step_began > 0.9 * TIMEOUT_S
        is_hanging = has_waited or "imed out" in str(error)
        silent = self._find_silent_ranks() if is_hanging else None
        if silent is not None:
            where = f"for {format_duration(TIMEOUT_S)}{self._where()}"
            return MtxError(f"{silent} has not answered {where}; the other ranks have", _HELP)
        time.sleep(_GIVE_WAY_S)
        why = first_line(error).split("] ", 1)[-1].split(". ")[0]  # without gloo's source file and advice
        return MtxError(f"the connection to another rank is lost{self._where()}: {why}", _HELP)

    def _find_silent_ranks(self) -> str | None:
        """The ranks that do not answer; only rank 0 knows which, and the others name it, as it may be the one."""
        try:
            dist.monitored_barrier(self._roll_call, _ROLL_CALL, wait_all_ranks=True)
        except RuntimeError as error:
            if not self.is_rank_zero:
                return "rank 0, or a rank that it names,"
            found = re.search(r"Ranks? ([\d, ]+) failed", str(error))
            return f"rank {found[1]}" if found else None
        return None


@contextlib.contextmanager
def _hold_signals() -> Iterator[None]:
    """Deliver the signals that stop mtx after the block: a rank that leaves an exchange halfway ends the others.

    None is delivered after an error, with which this rank ends anyway.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted = list[int]()
    with handle_signals(lambda number, _: noted.append(number), STOPPING_SIGNALS):
        yield
    for number in noted:
        signal.raise_signal(number)


@contextlib.contextmanager
def join(world: World) -> Iterator[Ranks]:
    """Be a rank of the run in the block. When one rank ends with an error, all end.

    Raises:
        ReportedError: on any rank but 0, instead of an error that rank 0 reports.
        MtxError: if not all ranks have started within five minutes.
    """
    if world.rank:
        logging.getLogger("mtx").setLevel(logging.CRITICAL)  # rank 0 speaks for all
    try:
        ranks = Ranks(world)
    except (RuntimeError, ValueError) as error:
        text = f"{world.name}: the ranks did not find each other: {first_line(error)}"
        raise MtxError(text, "torchrun --max-restarts needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1") from None
    try:
        yield ranks
    except BaseException as error:
        own = ranks._leave(error)
        if own is error:
            raise
        raise own from error
    dist.destroy_process_group()


def find_rank_device(name: str, ranks: Ranks) -> torch.device:
    """The device of this rank: `find_device`, and with several ranks a CUDA device for each of a machine.

    Raises:
        UsageError: this machine has no such device.
    """
    if ranks.size == 1:
        return find_device(name)

    def find() -> str:
        if ":" in name:
            text = f"device={name} names one device, and {ranks.size} processes train this run"
            raise UsageError(text, "device=cuda")
        return find_device(name).type

    kind = ranks.gather(find)[ranks.rank]
    return torch.device("cuda", ranks.world.local_rank) if kind == "cuda" else torch.device(kind)


def launch(size: int, arguments: Sequence[str]) -> int:
    """Run `mtx ARGUMENTS` as `size` ranks on this machine, one process for each device as torchrun would.

    It passes signals on, names a rank that was killed, and ends with all of them.

    Returns:
        one exit code, that of the rank that failed first.
    """
    with socket.create_server((_HOST, 0)) as server:
        port = server.getsockname()[1]
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    defaults = {"OMP_NUM_THREADS": str(max(1, num_cores() // size)), "GLOO_SOCKET_IFNAME": loopback}
    shared = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": _HOST, "MASTER_PORT": str(port)}
    processes = list["Popen[bytes]"]()

    def pass_on(number: int, frame: FrameType | None) -> None:
        for process in processes:
            process.send_signal(number)

    with handle_signals(pass_on, handled_signals()):
        for rank in range(size):
            environment = {**defaults, **os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes.append(Popen([sys.executable, "-m", "mtx", *arguments], env=environment))
        while None in (codes := [process.poll() for process in processes]) and not any(codes):
            time.sleep(_POLL_S)
        code, failed = min(((code, rank) for rank, code in enumerate(codes) if code), default=(0, 0))
        for process in processes:  # the others end by themselves when they have lost one
            try:
                process.wait(_GRACE_S)
            except TimeoutExpired:
                process.kill()
    if code >= 0:
        return code
    killed = f"error: rank {failed} (process {processes[failed].pid}) was killed by {signal.Signals(-code).name}"
    help = "help: possibly out of memory, if nothing above says why; rerun the same command to resume"
    streams.show([killed, help])
    return 128 - code
