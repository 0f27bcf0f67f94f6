"""What the probes share: their turn on the device, and the rows that they write."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

READY = "ready to time"  # the line by which a probe asks for its turn
RESULTS = "FIRST_LIGHT_RESULTS"  # the environment variable that names the file of rows


def wait_for_turn() -> None:
    """Waits until `first_light.py` lets this process time; returns at once if the probe was started by hand."""
    if RESULTS in os.environ:
        print(READY, flush=True)
        sys.stdin.readline()


def report(probe: str, **values: Any) -> None:
    """Writes a row at once, so that it is there whatever happens next."""
    row = json.dumps({"probe": probe, **values}, default=str)
    print(row, flush=True)
    if path := os.environ.get(RESULTS):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(row + "\n")


def rates(row: dict[str, Any], flops: float, peak: float | None) -> dict[str, Any]:
    """Returns the columns of a training speed, from what `bench_worker.measure` returned.

    Args:
        flops: floating-point operations for each target token.
        peak: floating-point operations a second that the device could do; None if that is unknown.
    """
    rate = row["tgt_tokens_per_s"]
    return {
        "tgt_tokens_per_s": round(rate), "slowest": round(row["slowest_window"]),
        "fastest": round(row["fastest_window"]), "mfu": peak and round(rate * flops / peak, 4),
        "peak_gb": round(row["peak_memory_bytes"] / 1e9, 2),
    }  # fmt: skip


@contextmanager
def errors_reported(probe: str, **values: Any) -> Iterator[None]:
    """Turns an exception into a row, so that the probe continues with what it measures next."""
    try:
        yield
    except Exception as error:
        report(probe, **values, error=" ".join(f"{type(error).__name__}: {error}".split())[:600])
