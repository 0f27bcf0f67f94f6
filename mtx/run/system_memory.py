"""How much memory this machine has, and how much of it is free for this process. No torch here.

Linux reports both. Containers and job schedulers limit memory by control groups, and shells the address space of a
process (`ulimit -v`); both count as well.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from mtx.errors import MtxError
from mtx.files.sizes import readable

_MEMINFO = Path("/proc/meminfo")
_OWN_GROUPS = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
_STATM = Path("/proc/self/statm")  # in pages; the first number is the size of the address space
_TO_LOAD, _TO_TRAIN = 900_000_000, 4_000_000_000  # bytes of addresses: torch with a tiny model; a tiny training


def total_bytes() -> int | None:
    """The memory of this machine; None if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def available_bytes() -> int | None:
    """The memory that the machine, the control groups and the limit of its address space leave to this process.

    None if it is unknown.

    If the system reports only the total memory of the machine, that counts as free.
    """
    try:
        machine: int | None = _table(_MEMINFO)["MemAvailable:"] * 1024
    except (OSError, KeyError):
        machine = total_bytes()
    limits = [*_free_in_groups(), free_address_space()]
    return min((size for size in (machine, *limits) if size is not None), default=None)


def free_address_space() -> int | None:
    """The bytes that `ulimit -v` leaves to this process; None if there is no such limit, or no such system call."""
    try:
        import resource  # not on Windows
    except ImportError:
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        used = int(_STATM.read_text(encoding="ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        used = 0
    return max(0, limit - used)


def check_address_space(is_training: bool = False) -> None:
    """Refuse to start where libraries would find no addresses: some end the process then without a message, or hang.

    Raises:
        MtxError: naming the limit and what is needed.
    """
    free, least = free_address_space(), _TO_TRAIN if is_training else _TO_LOAD
    if free is not None and free < least:
        left, expected = readable(free, least)
        raise MtxError(
            f"the address space of this process is limited (ulimit -v): {left} are left, expected at least {expected}",
            "ulimit -v unlimited; control groups limit memory without limiting addresses",
        )


def _free_in_groups() -> Iterator[int]:
    """The memory below the limit of each control group of this process, in versions 1 and 2 of cgroups."""
    try:
        lines = _OWN_GROUPS.read_text(encoding="utf-8").split("\n")[:-1]
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, limit, usage, prefix = _GROUPS, "memory.max", "memory.current", ""
        elif "memory" in controllers.split(","):
            root, limit, usage, prefix = _GROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
        else:
            continue
        group = root / path.strip("/")
        for directory in (group, *group.parents):  # a container may see only the root, under another name
            if directory.is_relative_to(root):
                yield from _free_in_group(directory, limit, usage, prefix)


def _free_in_group(directory: Path, limit: str, usage: str, prefix: str) -> Iterator[int]:
    try:
        most, used = (int((directory / name).read_text(encoding="ascii")) for name in (limit, usage))
        statistics = _table(directory / "memory.stat")
    except (OSError, ValueError):  # no such group here, or no limit, which is written as "max"
        return
    # Cached pages of files count as used, but the kernel frees them when memory is short.
    yield max(0, most - used + sum(statistics.get(f"{prefix}{name}", 0) for name in ("active_file", "inactive_file")))


def _table(path: Path) -> dict[str, int]:
    """Read a kernel file that has a name and a number on each line."""
    rows = (line.split() for line in path.read_text(encoding="ascii").split("\n")[:-1])
    return {row[0]: int(row[1]) for row in rows}
