"""`mtx doctor`: what this machine offers mtx, and what is missing."""

import platform
import time
from pathlib import Path
from typing import Any

from mtx.commands.command_line import AS_JSON, DEVICE, argument, print_result
from mtx.errors import MtxError
from mtx.formatting import counted, install_command
from mtx.machine import num_cores, package_version, total_bytes
from mtx.storage import disk

_PACKAGES = ["torch", "sentencepiece", "sacrebleu", "sentencex", "datasets", "safetensors", "numpy", "pyarrow"]
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
    names = [*_PACKAGES, *_OPTIONAL]
    versions = {"mtx": package_version() or "not installed"} | {
        name: package_version(name) or "missing" for name in names
    }
    hardware = _hardware(device)
    cpu, gpu, trial = (hardware[name] for name in ("cpu", "gpu", "device"))
    nearest = next(filter(Path.exists, (run_dir.absolute(), *run_dir.absolute().parents)))
    free_gb = round(disk.free_bytes(nearest) / 1e9, 1)
    facts = {"versions": versions, **hardware, "disk": {"path": str(run_dir), "free_gb": free_gb}}
    missing = ((name, use) for name, use in _OPTIONAL.items() if versions[name] == "missing")
    counts = f"{counted(cpu['cores'], 'core')}, {counted(cpu['threads'], 'thread')}"
    cuda = f"CUDA {gpu['cuda']}" if gpu["cuda"] else "CPUs"
    lines = [
        f"mtx:      {versions['mtx']}, Python {platform.python_version()}, {platform.platform()}",
        f"packages: {', '.join(f'{name} {versions[name]}' for name in names)}",
        *(f"missing:  {name}, for {use}: {install_command(name)}" for name, use in missing),
        f"CPU:      {cpu['name']}, {counts}, fast in {cpu['precision']}",
        f"GPU:      {', '.join(gpu['devices']) or 'none'}; driver {gpu['driver'] or 'none'}, torch for {cuda}",
        f"memory:   {hardware['memory_gb'] or 'unknown'} GB",
        f"disk:     {free_gb} GB free for {run_dir}",
        f"device:   {trial['name']}, {trial['precision']}: a matrix product reached {trial['gflops']:,} GFLOP/s",
    ]
    print_result(facts, lines, as_json)


def _hardware(device_name: str) -> dict[str, Any]:
    """The CPU, the GPUs, the memory, and the device that training would use, with the speed of a matrix product."""
    import torch

    from mtx.model.device import cpu_name, driver_version, fast_precision, find_device, num_threads

    device, cpu = find_device(device_name), torch.device("cpu")
    precision, help = fast_precision(device), "--device cpu avoids this device"
    ones = torch.ones(1024, 1024, device=device, dtype=torch.bfloat16 if precision == "bf16" else torch.float32)
    try:
        value = (ones @ ones)[0, 0].item()
        started = time.perf_counter()
        for _ in range(10):
            product = ones @ ones
        product[0, 0].item()  # waits for the device
        gflops = round(10 * 2 * 1024**3 / (time.perf_counter() - started) / 1e9)
    except RuntimeError as error:
        raise MtxError(f"{device}: {error}", help) from None
    if value != 1024:
        raise MtxError(f"{device}: a matrix product gave a wrong result", help)
    gpus = [
        f"{gpu.name} ({gpu.total_memory / 1e9:.0f} GB, capability {gpu.major}.{gpu.minor})"
        for gpu in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    ]
    memory = total_bytes()
    return {
        "cpu": {
            "name": cpu_name(),
            "cores": num_cores(),
            "threads": num_threads(),
            "precision": fast_precision(cpu),
        },
        "gpu": {"devices": gpus, "driver": driver_version(), "cuda": torch.version.cuda},
        "memory_gb": memory and round(memory / 1e9, 1),
        "device": {"name": str(device), "precision": precision, "gflops": gflops},
    }
