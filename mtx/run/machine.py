"""The CPU cores that this process may use. No torch here, because workers and the CTranslate2 engine need this."""

import contextlib
import importlib.metadata
import os
from pathlib import Path

_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # "MICROSECONDS PERIOD", in a container under cgroup v2


def num_cores() -> int:
    """The number of cores that this process may run on, but no more than the quota of its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # no such file, or no quota ("max")
        quota, period = map(int, _CPU_QUOTA.read_text(encoding="ascii").split())
        cores = min(cores, max(1, quota // period))
    return cores


def package_version(distribution: str = "mtx-translate") -> str | None:
    """The version of an installed package, by default mtx's own; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
