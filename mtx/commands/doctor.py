"""`mtx doctor`: what this machine offers mtx, and what is missing."""

import platform
import time
from pathlib import Path

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
    directory: Path | None = argument("[DIR]", "Folder whose disk is checked; runs by default."),
    as_json: bool = AS_JSON,
    device: str = DEVICE,
) -> None:
    """Check this machine and the installed packages.

    This reports packages, CPU, GPU, memory, disk, and the speed of a matrix product on the device.
    """
    packages = {name: package_version(name) or "missing" for name in (*_PACKAGES, *_OPTIONAL)}
    versions = {"mtx": package_version() or "not installed"} | packages
    run_dir = directory or Path("runs")
    nearest = next(filter(Path.exists, (run_dir, *run_dir.absolute().parents)))
    free_gb = round(disk.free_bytes(nearest) / 1e9, 1)
    memory_bytes = total_bytes()
    memory_gb = round(memory_bytes / 1e9, 1) if memory_bytes else None
    import torch

    from mtx.model.device import cpu_name, driver_version, fast_precision, find_device, num_threads

    used = find_device(device)
    precision = fast_precision(used)
    hint = "--device cpu avoids this device"
    ones = torch.ones(1024, 1024, device=used, dtype=torch.bfloat16 if precision == "bf16" else torch.float32)
    try:
        value = (ones @ ones)[0, 0].item()
        started = time.perf_counter()
        for _ in range(10):
            product = ones @ ones
        product[0, 0].item()  # waits for the device
        gflops = round(10 * 2 * 1024**3 / (time.perf_counter() - started) / 1e9)
    except RuntimeError as error:
        raise MtxError(f"{used}: {error}", hint) from None
    if value != 1024:
        raise MtxError(f"{used}: a matrix product gave a wrong result", hint)
    gpus = [
        f"{gpu.name} ({gpu.total_memory / 1e9:.0f} GB, capability {gpu.major}.{gpu.minor})"
        for gpu in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    ]
    cores = num_cores()
    threads = num_threads()
    cpu_precision = fast_precision(torch.device("cpu"))
    driver = driver_version()
    cuda = torch.version.cuda
    build = f"CUDA {cuda}" if cuda else "CPUs"
    facts = {
        "versions": versions,
        "cpu": {"name": cpu_name(), "cores": cores, "threads": threads, "precision": cpu_precision},
        "gpu": {"devices": gpus, "driver": driver, "cuda": cuda},
        "memory_gb": memory_gb,
        "disk": {"path": str(run_dir), "free_gb": free_gb},
        "device": {"name": str(used), "precision": precision, "gflops": gflops},
    }
    missing = ((name, use) for name, use in _OPTIONAL.items() if versions[name] == "missing")
    lines = [
        f"mtx:      {versions['mtx']}, Python {platform.python_version()}, {platform.platform()}",
        f"packages: {', '.join(map(' '.join, packages.items()))}",
        *(f"missing:  {name}, for {use}: {install_command(name)}" for name, use in missing),
        f"CPU:      {cpu_name()}, {counted(cores, 'core')}, {counted(threads, 'thread')}, fast in {cpu_precision}",
        f"GPU:      {', '.join(gpus) or 'none'}; driver {driver or 'none'}, torch for {build}",
        f"memory:   {memory_gb or 'unknown'} GB",
        f"disk:     {free_gb} GB free for {run_dir}",
        f"device:   {used}, {precision}: a matrix product reached {gflops:,} GFLOP/s",
    ]
    print_result(facts, lines, as_json)
