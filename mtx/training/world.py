"""The place of this process among those that train one run together, as torch's launcher tells it. No torch here.

torchrun, and `mtx train --devices`, start one process for each device and describe it in environment variables.
"""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from mtx.errors import UsageError

_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@dataclass(frozen=True)
class World:
    """The processes of a run, called ranks; by default one process alone.

    Attributes:
        rank: the number of this process, from 0; rank 0 alone writes files.
        size: how many ranks there are, on all machines.
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


def this_world(environment: Mapping[str, str] | None = None) -> World:
    """The world that the environment describes; one process alone unless both RANK and WORLD_SIZE are set.

    Raises:
        UsageError: if a number is missing or impossible.
    """
    values = os.environ if environment is None else environment
    if not {"RANK", "WORLD_SIZE"} <= values.keys() or values["WORLD_SIZE"] == "1":
        return World()
    try:
        rank, size, local_rank, local_size = (int(values[name]) for name in _NAMES)
    except (KeyError, ValueError):
        rank = size = local_rank = local_size = -1
    if not (0 <= rank < size and 0 <= local_rank < local_size <= size):
        given = ", ".join(f"{name}={values.get(name, '')}" for name in _NAMES)
        raise UsageError(f"{given}: expected numbers that belong together", "torchrun sets them; unset RANK alone")
    return World(rank, size, local_rank, local_size)
