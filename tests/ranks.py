"""Runs of several ranks on this machine's CPU: one forked process each, as a launcher would start them."""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.integration.commands import rig
from tests.rig import Prepare, Start


@dataclass
class Team:
    """The ranks of one start of a run."""

    starts: list[Start]

    def wait(self, timeout_s: float = 120.0) -> list[int]:
        """The exit codes of all ranks."""
        return [start.wait(timeout_s) for start in self.starts]

    def err(self) -> str:
        """What all ranks wrote to stderr, rank 0 first."""
        return "".join(start.err() for start in self.starts)

    def wait_until(self, done: Callable[[], object]) -> bool:
        return self.starts[0].wait_until(done)


def start_ranks(size: int, *arguments: Any, first: Callable[[int], Prepare | None] | None = None) -> Team:
    """Start `mtx train ARGUMENTS` as so many ranks; one is no rank but a process alone.

    Args:
        first: for a rank, what is called in its process before the command.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    def start(rank: int) -> Start:
        prepare = partial(_be_rank, rank, size, port, first(rank) if first else None)
        return rig().start("train", *arguments, first=prepare)

    return Team([start(rank) for rank in range(size)])


def _be_rank(rank: int, size: int, port: int, prepare: Prepare | None) -> None:
    if size > 1:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        values = (rank, size, rank, size, "127.0.0.1", port)
        os.environ.update(zip(names, map(str, values), strict=True))
    if prepare is not None:
        prepare()
