"""Starts the ranks of a run on this machine with torch's own elastic launcher, as torchrun does, and ends with them.

It passes signals on, shows what another rank than 0 wrote only if that failed first, and returns one exit code.
"""

import contextlib
import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from mtx.errors import STOPPING_SIGNALS, TerminatedError
from mtx.machine import num_cores
from mtx.storage import streams
from mtx.training.signals import handled_signals, handling

_HOST = "127.0.0.1"
_MAX_LINES = 20  # of what a failed rank wrote


def launch(size: int, arguments: list[str]) -> int:
    """Run `mtx ARGUMENTS` as `size` ranks on this machine; returns the exit code."""
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, num_cores() // size)))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGQUIT" if hasattr(signal, "SIGQUIT") else "SIGTERM"
    logging.disable()  # the launcher's own messages; the ranks are other processes
    with tempfile.TemporaryDirectory(prefix="mtx-ranks-") as directory:
        logs = DefaultLogsSpecs(directory, redirects=dict.fromkeys(range(1, size), Std.ALL))
        parameters = RendezvousParameters("c10d", f"{_HOST}:0", uuid.uuid4().hex, 1, 1, _HOST)
        spec = WorkerSpec(
            role="mtx",
            local_world_size=size,
            rdzv_handler=get_rendezvous_handler(parameters),
            entrypoint=sys.executable,
            args=("-m", "mtx", *(word.replace("$", "$$") for word in arguments)),
            max_restarts=0,
            local_addr=_HOST,
        )
        agent = LocalElasticAgent(spec, logs)
        with _passing_signals_on(agent):
            failures = agent.run().failures
        if not failures:
            return 0
        first = min(failures.values(), key=lambda failure: failure.timestamp)
        _show(first, Path(directory))
        return int(first.exitcode if first.exitcode > 0 else 128 - first.exitcode)


@contextlib.contextmanager
def _passing_signals_on(agent: LocalElasticAgent) -> Iterator[None]:
    """In the block, a signal to this process goes to all ranks, which decide what it means."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        ranks = [worker.id for worker in agent.get_worker_group().workers if worker.id is not None]
        for process in ranks:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.kill(process, number)
        if not ranks and number in STOPPING_SIGNALS:
            raise TerminatedError(number)

    with handling(pass_on, handled_signals()):
        yield


def _show(failure: ProcessFailure, directory: Path) -> None:
    """Show what the rank that failed first wrote, unless it is rank 0, which all can read, and what killed it."""
    for path in directory.glob(f"**/{failure.local_rank}/stderr.log"):
        if text := path.read_text(encoding="utf-8", errors="replace").rstrip("\n"):
            streams.show(text.split("\n")[-_MAX_LINES:])
    if failure.exitcode < 0:
        name = signal.Signals(-failure.exitcode).name
        streams.show(
            [
                f"error: rank {failure.local_rank} (process {failure.pid}) was killed by {name}",
                "help: possibly out of memory, if nothing above says why; rerun the same command to resume",
            ]
        )
