"""Starts the ranks of a run on this machine, one process for each device as torchrun would, and ends with them.

It passes signals on, names a rank that was killed, and returns one exit code: that of the rank that failed first.
"""

import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from subprocess import Popen, TimeoutExpired
from types import FrameType

from mtx.machine import num_cores
from mtx.storage import streams
from mtx.training.signals import handled_signals, handling

_HOST = "127.0.0.1"
_POLL_S = 0.05
_GRACE_S = 30.0  # in which the other ranks end by themselves after one has failed


def launch(size: int, arguments: Sequence[str]) -> int:
    """Run `mtx ARGUMENTS` as `size` ranks on this machine; returns the exit code."""
    with socket.create_server((_HOST, 0)) as server:
        port = server.getsockname()[1]
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    defaults = {"OMP_NUM_THREADS": str(max(1, num_cores() // size)), "GLOO_SOCKET_IFNAME": loopback}
    world = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": _HOST, "MASTER_PORT": port}
    ranks = list["Popen[bytes]"]()

    def pass_on(number: int, frame: FrameType | None) -> None:
        for rank in ranks:
            rank.send_signal(number)

    with handling(pass_on, handled_signals()):
        for number in range(size):
            place = {name: str(value) for name, value in {**world, "RANK": number, "LOCAL_RANK": number}.items()}
            ranks.append(Popen([sys.executable, "-m", "mtx", *arguments], env={**defaults, **os.environ, **place}))
        while None in (codes := [rank.poll() for rank in ranks]) and not any(codes):
            time.sleep(_POLL_S)
        code, failed = min(((code, rank) for rank, code in enumerate(codes) if code), default=(0, 0))
        for rank in ranks:  # the others end by themselves when they have lost one
            try:
                rank.wait(_GRACE_S)
            except TimeoutExpired:
                rank.kill()
    if code < 0:
        killed = f"error: rank {failed} (process {ranks[failed].pid}) was killed by {signal.Signals(-code).name}"
        help = "help: possibly out of memory, if nothing above says why; rerun the same command to resume"
        streams.show([killed, help])
    return code if code >= 0 else 128 - code
