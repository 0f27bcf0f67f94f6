"""How much memory this machine has, and how much of it is free for this process. No torch here.

Linux tells both, and the limits of control groups, which containers and job schedulers set.
"""

import os
from collections.abc import Iterator
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_OWN_GROUPS = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def total_bytes() -> int | None:
    """The memory of this machine; None where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def available_bytes() -> int | None:
    """What this process can still take, by the machine and by its control groups; None where the system does not tell.

    Where the system tells only how much there is in all, that is the answer.
    """
    try:
        machine: int | None = _table(_MEMINFO)["MemAvailable:"] * 1024
    except (OSError, KeyError):
        machine = total_bytes()
    return min([*([] if machine is None else [machine]), *_free_in_groups()], default=None)


def _free_in_groups() -> Iterator[int]:
    """What the memory limit of each control group leaves that this process is in, in versions 1 and 2 of cgroups."""
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
    except (OSError, ValueError):  # there is no such group here, or no limit, which reads "max"
        return
    # Pages of files count as used, and are given up when memory is short.
    yield max(0, most - used + sum(statistics.get(f"{prefix}{name}", 0) for name in ("active_file", "inactive_file")))


def _table(path: Path) -> dict[str, int]:
    """A file of the kernel with a name and a number on each line."""
    rows = (line.split() for line in path.read_text(encoding="ascii").split("\n")[:-1])
    return {row[0]: int(row[1]) for row in rows}
