"""How far the longest kernels of a compiled step use the GPU's units and memory, by the counters that ncu reads.

It runs `probe_step.py` under ncu (Nsight Compute), for the kernels that the last profile in the results names. Where
ncu is missing or may not read the counters, one row says so.
"""

import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from probe_step import NUM_LONGEST
from turns import RESULTS, errors_reported, report

LIMIT_S = 45  # what ncu has written by then is reported
MAX_LAUNCHES = 200  # that are profiled; each is repeated several times
NS = "gpu__time_duration.sum"
COMPUTE = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args(arguments)
    ncu = shutil.which("ncu") or shutil.which("/usr/local/cuda/bin/ncu")
    functions = longest_kernels(Path(os.environ.get(RESULTS, "results.jsonl")))
    if options.device == "cpu":
        report("ncu", function="", note="needs CUDA, not cpu")
    elif ncu is None:
        report("ncu", function="", note="there is no ncu on this machine")
    elif not functions:
        report("ncu", function="", note="the results have no profile of a compiled step")
    else:
        output = run_ncu(ncu, functions)
        rows = list[dict[str, Any]]()
        with errors_reported("ncu", function=""):  # such as a figure that this GPU does not have
            rows += read_rows(output)
        for row in rows:
            report("ncu", **row)
        if not rows:
            report("ncu", function="", note=f"ncu has no figures: {' '.join(output[-300:].split())}")


def longest_kernels(results: Path) -> list[str]:
    """Returns the functions of the longest kernels, which `probe_step.py` reported last."""
    if not results.is_file():
        return []
    rows = map(json.loads, results.read_text(encoding="utf-8").splitlines())
    return [row["function"] for row in rows if row["probe"] == "kernel"][-NUM_LONGEST:]


def run_ncu(ncu: str, functions: list[str]) -> str:
    """Returns what ncu writes about one step: messages, and a table whose second line has the units."""
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory, "ncu.csv")
        command = [
            ncu, "--clock-control", "none", "--section", "SpeedOfLight", "--graph-profiling", "node",
            "--profile-from-start", "off", "--target-processes", "application-only",
            "--kernel-name-base", "function", "--kernel-name", f"regex:^({'|'.join(functions)})$",
            "--launch-count", str(MAX_LAUNCHES), "--csv", "--page", "raw", "--print-units", "base",
            "--print-kernel-base", "function", "--log-file", str(log),
            sys.executable, str(Path(__file__).with_name("probe_step.py")), "--in-range",
        ]  # fmt: skip
        try:
            subprocess.run(command, check=False, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            print(f"ncu took more than {LIMIT_S} s", flush=True)
        return log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""


def read_rows(output: str) -> Iterator[dict[str, Any]]:
    """Returns a row for each function, the longest first: means over its launches, and percentages of the peaks."""
    lines = [line for line in output.splitlines() if line.startswith('"')]
    launches = [row for row in csv.DictReader(lines) if row["ID"]]  # the line of the units has none
    by_function = dict[str, list[dict[str, str]]]()
    for row in launches:
        by_function.setdefault(row["Kernel Name"], []).append(row)

    def total_ns(function: str) -> float:
        return sum(value_of(row, NS) for row in by_function[function])

    for function in sorted(by_function, key=total_ns, reverse=True):
        rows = by_function[function]
        compute, memory = (statistics.fmean(value_of(row, key) for row in rows) for key in (COMPUTE, MEMORY))
        yield {
            "function": function, "launches": len(rows), "us": round(total_ns(function) / len(rows) / 1e3, 2),
            "compute_percent": round(compute, 1), "memory_percent": round(memory, 1),
        }  # fmt: skip


def value_of(row: dict[str, str], metric: str) -> float:
    """Returns a figure that ncu writes with commas between thousands."""
    return float(row[metric].replace(",", ""))


if __name__ == "__main__":
    main(sys.argv[1:])
