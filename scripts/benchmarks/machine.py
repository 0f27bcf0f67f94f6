"""What benchmarks share: processes with a time limit, reports, and facts about the machine.

A report is written again after each row, so that a benchmark that is cut off keeps what it has measured.
"""

import json
import os
import platform
import re
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PIP_TRANSFORMERS = "pip install -c constraints.txt 'transformers>=4.48'"
ERROR_LINE = re.compile(r"^[\w.]*(?:Error|Exception|Exit|Interrupt)\b.*")
# Environment variables by which glibc keeps freed memory in the process, as mtx asks of it. If it was mapped again for
# each large tensor, that took up to a third of a bf16 step of other implementations.
KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1),
    "MALLOC_TOP_PAD_": str(1 << 26),
    "THP_MEM_ALLOC_ENABLE": "1",
}


def run_worker(module: str, job: Mapping[str, Any], environment: Mapping[str, str], limit_s: float) -> dict[str, Any]:
    """Runs `python -m MODULE --worker JOB`; returns the figures that it prints last, or the `reason` for none."""
    printed, reason = run_limited([sys.executable, "-m", module, "--worker", json.dumps(job)], limit_s, environment)
    figures: dict[str, Any] = {"reason": reason} if reason else json.loads(printed.splitlines()[-1])
    return figures


def run_limited(
    command: Sequence[str], limit_s: float, environment: Mapping[str, str] | None = None
) -> tuple[str, str | None]:
    """Runs a command, and kills it after `limit_s` seconds.

    Returns:
        Its standard output, and in one line why it failed; None if it did not.
    """
    variables = {**os.environ, **(environment or {})}
    try:
        result = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return "", f"killed at its limit of {limit_s:g} s"
    return result.stdout, _failure(result.returncode, result.stderr) if result.returncode else None


def _failure(code: int, stderr: str) -> str:
    """Returns the last line of an error output that names an exception, or how the process ended."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    named = [line for line in lines if ERROR_LINE.match(line)]
    if code < 0 or not lines:
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return (named or lines)[-1].strip()[:300]


def write_report(path: Path | None, report: Mapping[str, Any]) -> None:
    """Replaces the JSON file, if one was asked for; whoever reads it never sees a part."""
    if path is not None:
        part = path.with_name(f"{path.name}.part")
        part.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        part.replace(path)


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
