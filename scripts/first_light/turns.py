"""What the probes share: their turn on the device, the peak of a GPU, and the rows that they write."""

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

EARLY_S = 1.0  # seconds of a measurement before the turn, next to other processes
READY = "ready to time"  # the line by which a probe asks for its turn
RESULTS = "FIRST_LIGHT_RESULTS"  # the environment variable that names the file of rows


def wait_for_turn(device: Any = None) -> None:
    """Gives back unused memory and waits until `first_light.py` lets this process time.

    It does not wait if the probe was started by hand, and ends it if `first_light.py` has ended.
    """
    if device is not None and device.type == "cuda":
        import torch

        torch.cuda.empty_cache()
    if RESULTS in os.environ:
        print(READY, flush=True)
        if not sys.stdin.readline():
            sys.exit("first light has ended")


def report(probe: str, **values: Any) -> None:
    """Writes a row at once, so that it is there whatever happens next."""
    row = json.dumps({"probe": probe, **values}, default=str)
    if path := os.environ.get(RESULTS):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(row + "\n")
    print(row, flush=True)


def rates(row: dict[str, Any], flops: float, peak: float | None) -> dict[str, Any]:
    """Returns the columns of a training speed, from what `train_worker.measure` returned.

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


# Dense bf16 TFLOP/s, summed in fp32, from the maker's data sheets and white papers.
_PEAK_TFLOPS = {
    "B200": 2250, "GB200": 2500, "H200": 989, "H200 NVL": 835, "GH200": 989, "H100": 989, "H100 PCIe": 756,
    "H100 NVL": 835, "H800": 989, "H20": 148, "A100": 312, "A800": 312, "A40": 150, "A30": 165, "A10": 125, "A10G": 70,
    "A2": 18, "L40S": 362, "L40": 181, "L4": 121,
    "RTX A6000": 155, "RTX A5000": 111, "RTX A4000": 77, "RTX A2000": 32, "RTX A1000": 27,
    "RTX 6000 Ada": 364, "RTX 5000 Ada": 261, "RTX 4000 Ada": 107,
    "RTX 5090": 209, "RTX 5080": 113, "RTX 5070 Ti": 88, "RTX 5070": 62,
    "RTX 4090": 165, "RTX 4080 SUPER": 104, "RTX 4080": 97, "RTX 4070 Ti SUPER": 88, "RTX 4070 Ti": 80,
    "RTX 4070 SUPER": 71, "RTX 4070": 58, "RTX 4060 Ti": 44, "RTX 4060": 30,
    "RTX 3090 Ti": 80, "RTX 3090": 71, "RTX 3080 Ti": 68, "RTX 3080": 60, "RTX 3070 Ti": 43, "RTX 3070": 41,
    "RTX 3060 Ti": 32, "RTX 3060": 25,
}  # fmt: skip
_SLOWER = {"Laptop", "Max", "D", "MIG"}  # words of the names of slower versions, and of a part of a GPU


def peak_flops(device: Any, precision: str) -> float | None:
    """Returns the peak FLOP/s of a GPU in bf16; None for a GPU that is not listed, and for other devices."""
    import torch

    if device.type != "cuda" or precision != "bf16":
        return None
    words = re.findall(r"\w+", torch.cuda.get_device_name(device))
    if _SLOWER.intersection(words):
        return None
    listed = [name for name in _PEAK_TFLOPS if f" {name} " in f" {' '.join(words)} "]
    return 1e12 * _PEAK_TFLOPS[max(listed, key=len)] if listed else None


@contextmanager
def errors_reported(probe: str, **values: Any) -> Iterator[None]:
    """Turns an exception into a row, so that the probe continues with what it measures next."""
    try:
        yield
    except Exception as error:
        report(probe, **values, error=" ".join(f"{type(error).__name__}: {error}".split())[:600])
