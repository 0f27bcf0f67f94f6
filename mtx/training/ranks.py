"""The processes that train one run together, called ranks: `launch` or torchrun starts them; and signals to them.

All ranks run the same program, and torch.distributed connects them. Rank 0 alone writes files and messages, and the
others take from it what it has found. Objects go over a group of gloo whose limit is a day, since rank 0 may prepare
data or score for hours; the numbers of each step go over groups whose limit ends all ranks when one of them hangs.
One process alone needs none of this.
SIGTERM, SIGINT and SIGHUP save and stop; a second one stops at once. SIGUSR1 only saves. The trainer checks for them
between micro-steps; a validation is interrupted at once.
Flow: the launcher's environment -> `join` -> `Ranks` -> `mtx.training.run`, strategy and trainer.
"""

import logging
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from types import FrameType
from typing import Any, TypeVar

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
from mtx.machine import num_cores
from mtx.model.device import find_device
from mtx.storage import disk

Value = TypeVar("Value")

logger = logging.getLogger(__name__)

SAVE = getattr(signal, "SIGUSR1", None)
_DOUBLED_S = 3.0  # between a signal and its double from a launcher
TIMEOUT_S = 120.0  # until a rank that does not answer within a step ends all of them
_START = timedelta(minutes=5)  # until all ranks have started
_PATIENCE = timedelta(days=1)
_GIVE_WAY_S = 1.0  # so that the launcher sees the rank that has died before those that lost their connection to it
_HOST = "127.0.0.1"
_POLL_S = 0.05  # between two looks of the launcher at its ranks
_GRACE_S = 30.0  # in which the other ranks end by themselves after one has failed


class InterruptedTrainingError(KeyboardInterrupt):
    """Interrupts a step or a validation after a signal to stop; the state that would be saved is unchanged."""


@dataclass
class Signals:
    """What signals have requested, if `handle` handles them.

    Attributes:
        status: status.json, which a second signal removes: nobody is left who could write that the run has ended.
        may_double: a launcher forwards the signals that it gets, and this process may get the same ones itself. A
            signal soon after another one then does not stop at once.
        stop: the number of the signal that asked to stop, or 0.
    """

    status: Path
    may_double: bool
    stop: int = 0
    save_requested: bool = False
    _may_raise: bool = False
    _single_until: float = 0.0

    @contextmanager
    def interrupt(self) -> Iterator[None]:
        """A signal to stop raises `InterruptedTrainingError` in the block, also one that arrived before it."""
        try:
            self._may_raise = True
            if self.stop:
                raise InterruptedTrainingError
            yield
        finally:
            self._may_raise = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal to stop or to save."""
        if number == SAVE:
            self.save_requested = True
            logger.info(f"signal {number}: saving after this step")
            return
        now = time.monotonic()
        if self.stop:
            if now < self._single_until:
                return
            with suppress(OSError):
                disk.unlink(self.status)
            os._exit(128 + number)
        self.stop = number
        self._single_until = now + _DOUBLED_S if self.may_double else now
        logger.info(f"signal {number}: saving, then stopping (a second one stops at once)")
        if self._may_raise:
            self._may_raise = False
            raise InterruptedTrainingError


@contextmanager
def handle_signals(handler: Callable[[int, FrameType | None], object], numbers: Iterable[int]) -> Iterator[None]:
    """In the block, `handler` handles these signals."""
    previous_handlers = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous_handler in previous_handlers.items():
            signal.signal(number, previous_handler)


def handled_signals() -> list[int]:
    """The signals that stop or save a training, without an ignored SIGHUP: `nohup` started this process."""
    numbers = filter(None, (*STOPPING_SIGNALS, SAVE))
    return [
        number
        for number in numbers
        if number != getattr(signal, "SIGHUP", None) or signal.getsignal(number) != signal.SIG_IGN
    ]


@dataclass
class Ranks:
    """This process and the others of its run; `Ranks()` is one process alone, for which everything here is free.

    All ranks call each method together, but for those of one process alone.

    Attributes:
        rank, size: the number of this rank, from 0, and how many there are, on all machines.
        local_rank, local_size: the same among the ranks of this machine.
        is_rank_zero: whether this rank writes files and messages.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    def __post_init__(self) -> None:
        self.is_rank_zero = self.rank == 0
        self._where = ""
        self._end_together = False
        self._has_met = False
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
        self._host = dist.new_group(backend="gloo", timeout=limit)
        self._patient = dist.new_group(backend="gloo", timeout=_PATIENCE)

    def begin_step(self, step: int) -> None:
        """Note for messages the step that this rank takes now; 0 after the last one."""
        self._where = f" in step {step}" if step else ""

    def run_on_rank_zero(self, work: Callable[..., Value], *arguments: Any) -> Value:
        """What `work` returns on rank 0, which alone does it and may take however long.

        Raises:
            ReportedError: on the other ranks, if it fails on rank 0.
        """
        return self.gather(lambda: work(*arguments) if self.is_rank_zero else None)[0]  # type: ignore[return-value]

    def gather(self, work: Callable[..., Value], *arguments: Any) -> list[Value]:
        """What `work` returns on each rank, in their order, on all of them.

        Raises:
            MtxError: on rank 0, if it fails on one of them; on the others a `ReportedError`.
        """
        if self.size == 1:
            return [work(*arguments)]
        value: Value | None = None
        problem: BaseException | None = None
        try:
            value = work(*arguments)
        except BaseException as error:
            problem = error
        with _hold_signals():
            values, reports = zip(*self.all_gather_object((value, problem and self._describe(problem))), strict=True)
            if failure := next(filter(None, reports), None):
                self._end_together = True
                if not self.is_rank_zero:
                    raise ReportedError(failure.exit_code) from problem
                raise problem or failure
        return list(values)

    def all_gather_object(self, value: Any) -> list[Any]:
        """The values of all ranks, in their order."""
        values = [value] * self.size
        if self.size > 1:
            with _hold_signals():
                dist.all_gather_object(values, value, self._patient)
        return values

    def maximum(self, *numbers: float) -> list[float]:
        """The largest of each number on any rank."""
        values = torch.tensor(numbers, dtype=torch.float64)
        if self.size > 1:
            dist.all_reduce(values, dist.ReduceOp.MAX, group=self._host)
        return values.tolist()

    def all_reduce(self, *tensors: Tensor) -> None:
        """Replace tensors by their sums over all ranks, in one exchange; the same bits on each, and each time."""
        if self.size > 1:
            if not self._has_met:  # in the first step, compiling may take one rank minutes longer than another
                self.all_gather_object(None)
                self._has_met = True
            flat = torch.cat([tensor.flatten() for tensor in tensors])
            dist.all_reduce(flat)
            for tensor, part in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Give tensors the values that they have on rank 0."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def _describe(self, error: BaseException) -> MtxError:
        """An error of this rank as all ranks may report it: named, and without what cannot be sent."""
        text = f": {error}"
        if not isinstance(error, MtxError):
            text = f"{self._where}: {type(error).__name__}{text}"[:500]
        described = MtxError(f"{_rank_name(self.rank)}{text}", getattr(error, "help", None))
        described.exit_code = exit_code(error)
        return described

    def _leave(self, error: BaseException) -> BaseException:
        """Before this rank ends with an error: what to end with. If all ranks know of it, they leave together."""
        for number in STOPPING_SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # the launcher sends them as soon as another rank has ended
        if isinstance(error, RuntimeError) and not is_out_of_memory(error) and re.search("gloo|NCCL", str(error)):
            time.sleep(_GIVE_WAY_S)
            reason = first_line(error).split("] ", 1)[-1].split(". ")[0]  # without gloo's source file and advice
            error = MtxError(
                f"lost the connection to another rank{self._where}: {reason}",
                "rerun the same command to resume from the last checkpoint",
            )
        elif self._end_together or isinstance(error, StoppedError):
            with suppress(RuntimeError):
                self.all_gather_object(None)
        if isinstance(error, ReportedError):
            return error
        if not self.is_rank_zero and isinstance(error, StoppedError | KeyboardInterrupt):
            return ReportedError(exit_code(error))
        return error if self.is_rank_zero or os.environ.get("MTX_DEBUG") else self._describe(error)


def _rank_name(rank: int) -> str:
    return f"rank {rank} on {socket.gethostname()}"


@contextmanager
def _hold_signals() -> Iterator[None]:
    """Deliver the signals that stop mtx after the block: a rank that leaves an exchange halfway ends the others.

    None is delivered after an error, with which this rank ends anyway.
    """
    noted = list[int]()
    with handle_signals(lambda number, _: noted.append(number), STOPPING_SIGNALS):
        yield
    for number in noted:
        signal.raise_signal(number)


@contextmanager
def join() -> Iterator[Ranks]:
    """Join the process group in the block, as the rank in the launcher's environment. If one rank fails, all end.

    Raises:
        ReportedError: on any rank but 0, instead of an error that rank 0 reports.
        MtxError: if not all ranks have started within five minutes.
    """
    rank, size, local_rank, local_size = (
        int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    )
    if rank:
        logging.getLogger("mtx").setLevel(logging.CRITICAL)  # rank 0 speaks for all
    try:
        ranks = Ranks(rank, size, local_rank, local_size)
    except (RuntimeError, ValueError) as error:
        raise MtxError(
            f"{_rank_name(rank)}: the ranks could not connect: {first_line(error)}",
            "torchrun --max-restarts needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",
        ) from None
    try:
        yield ranks
    except BaseException as error:
        final_error = ranks._leave(error)
        if final_error is error:
            raise
        raise final_error from error
    dist.destroy_process_group()


def find_rank_device(name: str, ranks: Ranks) -> torch.device:
    """The device of this rank: `find_device`, and with several ranks a CUDA device for each of a machine.

    Raises:
        UsageError: this machine has no such device.
    """

    def find() -> torch.device:
        if ranks.size > 1 and ":" in name:
            raise UsageError(
                f"device={name} names one device, and {ranks.size} processes train this run", "device=cuda"
            )
        return find_device(name)

    device = ranks.run_on_rank_zero(find)
    return torch.device("cuda", ranks.local_rank) if ranks.size > 1 and device.type == "cuda" else device


def launch(size: int, arguments: Sequence[str]) -> int:
    """Run `mtx ARGUMENTS` as `size` ranks on this machine, one process for each device as torchrun would.

    It passes signals on, names a rank that was killed, and ends with all of them.

    Returns:
        one exit code, that of the rank that failed first.

    Raises:
        StoppedError: if that rank was killed.
    """
    with socket.create_server((_HOST, 0)) as server:
        port = server.getsockname()[1]
    environment = {
        "OMP_NUM_THREADS": str(max(1, num_cores() // size)),
        "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
        **os.environ,
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": _HOST,
        "MASTER_PORT": str(port),
    }
    processes = list["Popen[bytes]"]()

    def pass_on(number: int, frame: FrameType | None) -> None:
        for process in processes:
            process.send_signal(number)

    with handle_signals(pass_on, handled_signals()):
        for rank in range(size):
            environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes.append(Popen([sys.executable, "-m", "mtx", *arguments], env=environment))
        while None in (codes := [process.poll() for process in processes]) and not any(codes):
            time.sleep(_POLL_S)
        code, failed = min(((code, rank) for rank, code in enumerate(codes) if code), default=(0, 0))
        for process in processes:  # the others end by themselves when they have lost one
            try:
                process.wait(_GRACE_S)
            except TimeoutExpired:
                process.kill()
    if code < 0:
        raise StoppedError(
            f"rank {failed} (process {processes[failed].pid}) was killed by {signal.Signals(-code).name}",
            -code,
            "possibly out of memory, if nothing above says why; rerun the same command to resume",
        )
    return code
