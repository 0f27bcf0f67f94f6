"""The device that a model runs on: found by name, with its fast precision, its attention kernel and its settings.

Training, translation and `mtx doctor` ask here what this machine can do; nothing here depends on a model's weights.
"""

import contextlib
import ctypes
import gc
import logging
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch

from mtx.config.schema import ModelConfig
from mtx.errors import UsageError
from mtx.machine import num_cores, package_version
from mtx.model.attention import Kernel

logger = logging.getLogger(__name__)

_DRIVER = Path("/sys/module/nvidia/version")
_NVIDIA = Path("/proc/driver/nvidia/version")  # written by the driver, so it exists only if there is a GPU


def find_device(name: str) -> torch.device:
    """Returns the device with this name: `auto`, `cpu`, `cuda`, `cuda:1` or `mps`.

    This opens no GPU: a launcher and the other ranks of a run ask too.

    Raises:
        UsageError: this machine has no such device; nothing falls back silently.
    """
    if name == "auto":
        reason = _gpu_fault(0)
        if reason:
            logger.warning(f"{reason}; using the CPU. mtx doctor reports more")
        return torch.device("cuda" if torch.cuda.is_available() and not reason else "cpu")
    if not re.fullmatch(r"cpu|mps|cuda(:[0-9]+)?", str(name)):
        raise UsageError(f"device={name}: expected auto, cpu, cuda, cuda:1 or mps")
    kind, _, digits = name.partition(":")
    reason = _gpu_fault(int(digits or 0)) if kind == "cuda" else None
    if not reason and not torch.get_device_module(kind).is_available():
        reason = f"torch {torch.__version__} finds no {kind.upper()} device here"
    if reason:
        raise UsageError(f"device={name}: {reason}", "--device cpu, or --device auto")
    return torch.device(name)


def num_devices(text: str, device: str) -> int:
    """Returns how many processes `--device N` or `--device all` asks for, on a device of this name.

    Raises:
        UsageError: if it is 0, or more than this machine has.
    """
    kind = find_device(device).type
    available = torch.cuda.device_count() if kind == "cuda" else 0
    size = available if text == "all" else int(text)
    if text == "all" and not available:
        raise UsageError(
            f"--device all: means all CUDA devices, but the device here is {kind}",
            "--device 2 starts two processes on a CPU",
        )
    if size == 0:
        raise UsageError("--device 0: expected a number from 1", "--device cuda:0 is the first CUDA device")
    if 0 < available < size:
        raise UsageError(f"--device {text}: there are {available} CUDA devices", "--device all, or device=cpu")
    return size


def _gpu_fault(number: int) -> str | None:
    """Returns why torch cannot use this machine's NVIDIA GPU of this number; None if it can, or if there is no driver.

    A kernel `sm_86` runs on 8.6 and later 8.x. From `compute_90` the driver makes kernels for 9.0 and everything later.
    Other names, such as those of ROCm, are accepted.
    """
    if torch.cuda.is_available():
        if number >= torch.cuda.device_count():
            return f"there are {torch.cuda.device_count()} CUDA devices, counted from 0"
        name = torch.cuda.get_device_name(number)
        capability = torch.cuda.get_device_capability(number)
        architectures = torch.cuda.get_arch_list()
        if not architectures or any(_has_kernels(architecture, capability) for architecture in architectures):
            return None
        return (
            f"{name} has compute capability {capability[0]}.{capability[1]}, and torch {torch.__version__} is built "
            f"for {', '.join(architectures)}"
        )
    if not _NVIDIA.exists():
        return None
    if torch.version.cuda is None:
        return f"this machine has an NVIDIA GPU, but torch {torch.__version__} is a build for CPUs"
    reason = "it finds no device"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
    return f"this machine has an NVIDIA GPU that torch {torch.__version__} cannot use: {reason}"


def _has_kernels(architecture: str, capability: tuple[int, int]) -> bool:
    match = re.match(r"(sm|compute)_(\d+)(\d)", architecture)
    if match is None:
        return True
    major = int(match[2])
    minor = int(match[3])
    return capability >= (major, minor) and (match[1] == "compute" or capability[0] == major)


def expand_segments(device: torch.device) -> None:
    """Lets torch's blocks of GPU memory grow, so that freed memory is not lost between blocks of other sizes.

    A setting of the user is kept. Some virtual GPUs cannot do this, which only the first allocation shows.
    """
    is_set = any(name in os.environ for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"))
    if device.type != "cuda" or is_set or torch.cuda.memory_reserved(device):
        return
    change: Any = torch._C._accelerator_setAllocatorSettings
    change("expandable_segments:True")
    try:
        torch.empty(1, device=device)
    except RuntimeError as error:
        logger.debug(f"this GPU has no expandable segments: {error}")
        change("expandable_segments:False")


def use_device(device: torch.device) -> None:
    """Makes a CUDA device that of this thread, which has cuda:0 whatever its parent has, and sets up its memory."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    expand_segments(device)


def free_unused_memory(device: torch.device) -> None:
    """Frees tensors that only cycles of references hold, and on CUDA the memory that torch keeps for later."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def driver_version() -> str | None:
    """Returns the version of NVIDIA's driver; None without one."""
    return _DRIVER.read_text("ascii", "replace").strip() if _DRIVER.is_file() else None


def cpu_name() -> str:
    """Returns the processor's name for itself."""
    return str(torch.cpu.get_capabilities().get("cpu_name") or platform.machine())


def machine(device: torch.device) -> dict[str, Any]:
    """Returns a description of this machine for a run's records: device, cores, system, versions."""
    return {
        "machine": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name(),
        "cores": num_cores(),
        "platform": platform.platform(),
        "mtx": package_version() or "unknown",
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def num_threads(local_size: int = 1) -> int:
    """Returns torch's default number of CPU threads, but at most this process's cores: torch ignores cgroup quotas.

    Args:
        local_size: how many ranks of a training share this machine's cores. torchrun sets OMP_NUM_THREADS=1 for more
            than one of them, which says nothing about this machine.
    """
    return min(torch.get_num_threads(), num_cores()) if local_size == 1 else max(1, num_cores() // local_size)


def fast_precision(device: torch.device) -> Literal["fp32", "bf16"]:
    """Returns bf16 if the hardware multiplies it at least twice as fast as fp32, else fp32."""
    if device.type == "cuda":
        is_fast = torch.cuda.get_device_capability(device) >= (8, 0)
    else:
        is_fast = device.type == "cpu" and any(map(torch.cpu.get_capabilities().get, ("amx_bf16", "avx512_bf16")))
    return "bf16" if is_fast else "fp32"


def onednn(dtype: torch.dtype) -> Any:
    """Returns torch's oneDNN operations, or None if this torch has none, or none for this type on this processor."""
    ops: Any = torch.ops.mkldnn
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    has_type = dtype == torch.float32 or (dtype == torch.bfloat16 and ops._is_mkldnn_bf16_supported())
    return ops if has_type else None


def attention_kernel(config: ModelConfig, device: torch.device, precision: str) -> Kernel:
    """Returns `varlen` for a Transformer in bf16 on CUDA from compute capability 8.0, else `padded`.

    Its heads must have a size that the kernel supports. With `deterministic` its backward pass sums in a defined order.
    """
    head_size = config.d_model // config.num_heads
    is_supported = config.architecture == "transformer" and head_size % 8 == 0 and head_size <= 256
    is_fast = device.type == "cuda" and precision == fast_precision(device) == "bf16"
    return "varlen" if is_supported and is_fast else "padded"


def prepare_device(device: torch.device, deterministic: bool) -> None:
    """Prepares this process to train on a device; call this before the first product.

    Args:
        deterministic: whether CUDA results must be repeatable bit for bit, else torch raises an error.
    """
    use_device(device)
    if device.type == "cpu":
        keep_freed_memory()
    if device.type == "cuda" and deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextlib.contextmanager
def allow_tf32(device: torch.device) -> Iterator[None]:
    """Rounds the factors of fp32 products to TF32 in the block, which makes them several times as fast on CUDA."""
    matmul: Any = torch.backends.cuda.matmul
    usual_precision = matmul.fp32_precision
    if device.type == "cuda":
        matmul.fp32_precision = "tf32"
    try:
        yield
    finally:
        matmul.fp32_precision = usual_precision


def keep_freed_memory() -> None:
    """Makes glibc keep freed memory for this process: mapping it again takes up to a quarter of a CPU step."""
    if platform.libc_ver()[0] == "glibc":
        # M_MMAP_THRESHOLD, at most 32 MB in glibc, and M_TRIM_THRESHOLD
        for option, value in ((-3, 1 << 25), (-1, (1 << 31) - 1)):
            ctypes.CDLL(None).mallopt(option, value)
