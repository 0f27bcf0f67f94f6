"""The device that a model runs on: found by name, with its fast precision, its attention kernel and its settings.

Training, translation and `mtx doctor` ask here what this machine can do; nothing here depends on a model's weights.
"""

import ctypes
import logging
import os
import platform
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mtx.errors import UsageError
from mtx.model.attention import Kernel
from mtx.run import system_memory
from mtx.run.machine import num_cores, package_version

logger = logging.getLogger(__name__)

_NVIDIA = Path("/proc/driver/nvidia/version")  # written by the driver, so it exists only if there is a GPU


def find_device(name: str) -> torch.device:
    """Returns the device with this name: `auto`, `cpu`, `cuda`, `cuda:1` or `mps`.

    Raises:
        UsageError: this machine has no such device; nothing falls back silently.
    """
    if name == "auto":
        if reason := unusable_gpu():
            logger.warning("%s; the CPU is used. mtx doctor tells more", reason)
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|mps|cuda(:[0-9]+)?", str(name)):
        raise UsageError(f"device={name}: expected auto, cpu, cuda, cuda:1 or mps")
    kind, _, number = name.partition(":")
    if kind == "cuda" and not torch.cuda.is_available():
        reason = unusable_gpu() or f"torch {torch.__version__} finds no CUDA device here"
        raise UsageError(f"device={name}: {reason}", "device=cpu, or device=auto")
    if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
        raise UsageError(f"device={name}: there are {torch.cuda.device_count()} CUDA devices, counted from 0")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UsageError(
            f"device={name}: torch {torch.__version__} finds no MPS device here", "device=cpu, or device=auto"
        )
    return torch.device(name)


def unusable_gpu() -> str | None:
    """Returns why torch cannot use this machine's NVIDIA GPU; None if it can, or if there is no driver."""
    if torch.cuda.is_available() or not _NVIDIA.exists():
        return None
    if torch.version.cuda is None:
        return f"this machine has an NVIDIA GPU, but torch {torch.__version__} is a build for CPUs"
    with warnings.catch_warnings(record=True) as caught:  # torch gives its reason in a warning
        warnings.simplefilter("always")
        torch.cuda.is_available()
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call]
            reason = ""
        except RuntimeError as error:
            reason = str(error)
    reason = reason or " ".join(str(warning.message) for warning in caught)
    return f"this machine has an NVIDIA GPU that torch {torch.__version__} cannot use: {' '.join(reason.split())[:300]}"


def total_bytes(device: torch.device) -> int | None:
    """Returns the total memory of a device; None if it is unknown."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return system_memory.total_bytes()


def available_bytes(device: torch.device) -> int | None:
    """Returns the memory of a device that this process can still use; None if it is unknown."""
    if device.type == "cuda":
        reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # torch reuses it
        return torch.cuda.mem_get_info(device)[0] + reserved
    return system_memory.available_bytes()


def cpu_name() -> str:
    """Returns the processor's name for itself."""
    return str(_cpu_capabilities().get("cpu_name") or platform.machine())


def machine(device: torch.device) -> dict[str, Any]:
    """Returns a description of this machine for a run's records: device, cores, system, versions."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()
    versions = {
        "mtx": package_version() or "unknown", "torch": torch.__version__, "python": platform.python_version(),
    }  # fmt: skip
    return {"machine": name, "cores": num_cores(), "platform": platform.platform(), **versions}


def num_threads(local_size: int = 1) -> int:
    """Returns torch's default number of CPU threads, but at most this process's cores: torch ignores cgroup quotas.

    Args:
        local_size: how many ranks of a training share this machine's cores. torchrun sets OMP_NUM_THREADS=1 for more
            than one of them, which says nothing about this machine.
    """
    return min(torch.get_num_threads(), num_cores()) if local_size == 1 else max(1, num_cores() // local_size)


def _cpu_capabilities() -> Mapping[str, Any]:
    return torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}


def fast_precision(device: torch.device) -> str:
    """Returns bf16 if the hardware multiplies it at least twice as fast as fp32, else fp32."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.get_device_capability(device) >= (8, 0) else "fp32"
    if device.type == "cpu":
        capabilities = _cpu_capabilities()
        return "bf16" if capabilities.get("amx_bf16") or capabilities.get("avx512_bf16") else "fp32"
    return "fp32"


# Dense bf16 FLOP/s from the makers' data sheets. A longer name stands before a name that it contains.
_PEAK_FLOPS = {
    "H200": 989e12, "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12, "A10": 125e12,
    "RTX 4090": 165e12, "RTX 3090": 71e12,
}  # fmt: skip


def peak_flops(device: torch.device, precision: str) -> float | None:
    """Returns the peak FLOP/s of a GPU in bf16; None for a GPU that is not listed, and for other devices."""
    if device.type != "cuda" or precision != "bf16":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in _PEAK_FLOPS.items() if part in name), None)


def repays_compiling(flops: float) -> bool:
    """Returns whether a CUDA run of this many FLOP is long enough to compile its step first.

    Compiling costs one to two minutes and may save a third of the time; 5e16 FLOP take about four minutes on an H200.
    """
    return flops > 5e16


def attention_kernel(device: torch.device, precision: str, head_size: int, deterministic: bool = False) -> Kernel:
    """Returns `varlen` for bf16 on CUDA from compute capability 8.0 with a head size that it supports, else `padded`.

    The backward pass of `varlen` sums in an undefined order, so it cannot be `deterministic`.
    """
    if deterministic or device.type != "cuda" or precision != "bf16" or head_size % 8 or head_size > 256:
        return "padded"
    return "varlen" if torch.cuda.get_device_capability(device) >= (8, 0) else "padded"


def make_deterministic() -> None:
    """Makes CUDA results repeatable bit for bit, else torch raises an error; call this before the first product."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


def keep_freed_memory() -> None:
    """Makes glibc keep freed memory for this process: mapping it again takes up to a quarter of a CPU step."""
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        # M_MMAP_THRESHOLD, at most 32 MB in glibc, and M_TRIM_THRESHOLD
        for option, value in ((-3, 1 << 25), (-1, (1 << 31) - 1)):
            libc.mallopt(option, value)
