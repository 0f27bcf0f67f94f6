"""The CPU cores and the memory available to this process. No torch here, for workers and CTranslate2."""

import contextlib
import importlib.metadata
import os
import re
from pathlib import Path

_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # "MICROSECONDS PERIOD", in a container under cgroup v2
_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")  # in bytes, or "max"
_MEMINFO = Path("/proc/meminfo")
_LOAD = Path("/proc/loadavg")  # "LOAD LOAD LOAD RUNNING/THREADS PID"


def num_cores() -> int:
    """The number of cores that this process may run on, but no more than the quota of its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # no such file, or no quota ("max")
        quota, period = map(int, _CPU_QUOTA.read_text(encoding="ascii").split())
        cores = min(cores, max(1, quota // period))
    return cores


def num_idle_cores() -> int:
    """The number of idle cores of this machine; all cores if the system does not report it."""
    cores = os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError, IndexError):
        num_running = int(_LOAD.read_text(encoding="ascii").split()[3].partition("/")[0])
        return cores - max(0, num_running - 1)  # this thread runs too
    return cores


def total_bytes() -> int | None:
    """The memory of this machine; None if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def available_bytes() -> int | None:
    """The free memory of this machine, at most the limit of its container; None if unknown.

    If the system reports only the total memory, all of it counts as free.
    """
    sizes = [total_bytes()]
    with contextlib.suppress(OSError):
        sizes += [1024 * int(kb) for kb in re.findall(r"MemAvailable: +(\d+)", _MEMINFO.read_text(encoding="ascii"))]
    with contextlib.suppress(OSError, ValueError):
        sizes.append(int(_MEMORY_LIMIT.read_text(encoding="ascii")))
    return min((size for size in sizes if size is not None), default=None)


def package_version(distribution: str = "mtx-translate") -> str | None:
    """The version of an installed package, by default mtx's own; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
