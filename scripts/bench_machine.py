"""What the benchmarks say of the machine that they ran on: its name, versions, and the memory a process took."""

import platform
import resource
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def machine(device: Any) -> dict[str, Any]:
    """The device and the machine, as a report names them."""
    from mtx.model.device import machine as machine_of

    about = machine_of(device)
    return {"device": str(device), "name": about["machine"], "platform": about["platform"], "num_cores": about["cores"]}


def versions(*names: str) -> dict[str, str | None]:
    """Of Python and of these distributions; None where one is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def peak_host_memory() -> int:
    """The most bytes of main memory that this process has had."""
    status = Path("/proc/self/status")
    if status.is_file():  # ru_maxrss counts the parent's memory too
        return next(int(line.split()[1]) * 1024 for line in status.read_text().split("\n") if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
