"""`mtx doctor`: what this machine offers mtx, and what is missing."""

import platform
import time
from pathlib import Path
from typing import Any

from mtx.commands.command_line import AS_JSON, DEVICE, argument
from mtx.errors import MtxError
from mtx.formatting import counted, install_command
from mtx.machine import num_cores, package_version, total_bytes
from mtx.storage import disk
from mtx.storage.streams import print_json, print_lines

_PACKAGES = (
    "torch",
    "sentencepiece",
    "sacrebleu",
    "sentencex",
    "datasets",
    "safetensors",
    "numpy",
    "pyarrow",
)
_OPTIONAL = {
    "ctranslate2": "--to ctranslate2 and --engine ctranslate2",
    "sacremoses": "--protocol",
    "tensorboard": "training.tensorboard",
    "starlette": "mtx serve",
    "uvicorn": "mtx serve",
    "fastchrf": "--mbr",
    "transformers": "the comparison of --to huggingface",
}


def doctor(
    run_dir: Path = argument("[DIR]", "Folder whose disk is checked; runs by default.", default=Path("runs")),
    as_json: bool = AS_JSON,
    device: str = DEVICE,
) -> None:
    """Check this machine and the installed packages.

    This reports packages, CPU, GPU, memory, disk, and the speed of a matrix product on the device.
    """
    versions = _versions()
    cpu = _cpu()
    gpu = _gpu()
    trial = _device(device)
    memory_gb = _gigabytes(total_bytes())
    free_gb = _gigabytes(disk.free_bytes(_nearest_directory(run_dir)))
    if as_json:
        facts = {"versions": versions, "cpu": cpu, "gpu": gpu, "memory_gb": memory_gb}
        space = {"path": str(run_dir), "free_gb": free_gb}
        print_json({**facts, "disk": space, "device": trial})
        return
    cuda = f"CUDA {gpu['cuda']}" if gpu["cuda"] else "CPUs"
    counts = f"{counted(cpu['cores'], 'core')}, {counted(cpu['threads'], 'thread')}"
    lines = [
        f"mtx:      {versions.pop('mtx')}, Python {platform.python_version()}, {platform.platform()}",
        f"packages: {', '.join(f'{name} {version}' for name, version in versions.items())}",
        *_missing(versions),
        f"CPU:      {cpu['name']}, {counts}, fast in {cpu['precision']}",
        f"GPU:      {', '.join(gpu['devices']) or 'none'}; driver {gpu['driver'] or 'none'}, torch for {cuda}",
        f"memory:   {memory_gb or 'unknown'} GB",
        f"disk:     {free_gb} GB free for {run_dir}",
        f"device:   {trial['name']}, {trial['precision']}: a matrix product reached {trial['gflops']:,} GFLOP/s",
    ]
    print_lines(lines)


def _versions() -> dict[str, str]:
    packages = {name: package_version(name) or "missing" for name in [*_PACKAGES, *_OPTIONAL]}
    return {"mtx": package_version() or "not installed", **packages}


def _missing(versions: dict[str, str]) -> list[str]:
    """A line for each optional package that is not installed: what needs it, and how to install it."""
    names = [name for name in _OPTIONAL if versions[name] == "missing"]
    return [f"missing:  {name}, for {_OPTIONAL[name]}: {install_command(name)}" for name in names]


def _cpu() -> dict[str, Any]:
    import torch

    from mtx.model.device import cpu_name, fast_precision, num_threads

    precision = fast_precision(torch.device("cpu"))
    return {"name": cpu_name(), "cores": num_cores(), "threads": num_threads(), "precision": precision}


def _gpu() -> dict[str, Any]:
    import torch

    from mtx.model.device import driver_version

    devices = []
    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        devices.append(f"{about.name} ({about.total_memory / 1e9:.0f} GB, capability {about.major}.{about.minor})")
    return {"devices": devices, "driver": driver_version(), "cuda": torch.version.cuda}


def _gigabytes(number: int | None) -> float | None:
    return None if number is None else round(number / 1e9, 1)


def _device(name: str) -> dict[str, Any]:
    """The device that training would use, with the speed of a matrix product on it."""
    import torch

    from mtx.model.device import fast_precision, find_device

    device = find_device(name)
    precision = fast_precision(device)
    a = torch.ones(1024, 1024, device=device, dtype=torch.bfloat16 if precision == "bf16" else torch.float32)
    try:
        if float((a @ a)[0, 0]) != 1024:
            raise MtxError(f"{device}: a matrix product gave a wrong result", "--device cpu avoids this device")
        started = time.perf_counter()
        for _ in range(10):
            product = a @ a
        assert float(product[0, 0]) == 1024  # waits for the device
    except RuntimeError as error:
        raise MtxError(f"{device}: {error}", "--device cpu avoids this device") from None
    gflops = round(10 * 2 * 1024**3 / (time.perf_counter() - started) / 1e9)
    return {"name": str(device), "precision": precision, "gflops": gflops}


def _nearest_directory(path: Path) -> Path:
    """The path itself if it exists, otherwise the nearest of its parents that does."""
    absolute = path.absolute()
    return next(candidate for candidate in (absolute, *absolute.parents) if candidate.exists())
