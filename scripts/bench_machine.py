"""Facts about a benchmark: the name of the machine, versions of packages, and the peak memory of a process."""

import platform
import resource
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

# Environment variables by which glibc keeps freed memory in the process, as mtx asks of it. If it was mapped anew for
# each large tensor, that took up to a third of a bf16 step of other implementations.
KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1),
    "MALLOC_TOP_PAD_": str(1 << 26),
}


def machine(device: Any) -> dict[str, Any]:
    """Returns the device and the machine, named as in a report of a run."""
    from mtx.model.device import machine as machine_of

    about = machine_of(device)
    return {"device": str(device), "name": about["machine"], "platform": about["platform"], "num_cores": about["cores"]}


def versions(*names: str) -> dict[str, str | None]:
    """Returns the versions of Python and of these distributions; None for one that is not installed."""
    by_name: dict[str, str | None] = {"python": platform.python_version()}
    for name in names:
        try:
            by_name[name] = version(name)
        except PackageNotFoundError:
            by_name[name] = None
    return by_name


def require_figures(rows: Sequence[Mapping[str, Any]]) -> None:
    """Ends the process with an error if no system was measured, or if a system of mtx was not."""
    failed = [row for row in rows if "reason" in row]
    lost = [row for row in failed if row["system"].startswith("mtx")] or (failed if len(failed) == len(rows) else [])
    if lost or not rows:
        sys.exit("error: " + "; ".join(f"{row['system']} was not measured: {row['reason']}" for row in lost))


def peak_host_memory() -> int:
    """Returns the peak memory of this process in bytes."""
    status = Path("/proc/self/status")
    if status.is_file():  # ru_maxrss would include the parent's memory
        return next(int(line.split()[1]) * 1024 for line in status.read_text().split("\n") if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
