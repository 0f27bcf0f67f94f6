"""What this machine is, and which packages it lacks.

python probe_machine.py cuda
"""

import importlib.metadata
import platform
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from turns import peak_flops, report

ROOT = Path(__file__).parents[2]
NOT_IMPORTED = {"ctranslate2", "datasets", "tabulate"}  # dependencies of mtx that no stage imports
OF_THE_STAGES = ["pytest>=8.0", "pytest-xdist>=3.5"]


def required() -> list[Requirement]:
    """Returns what the stages import, as `pyproject.toml` states it."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        dependencies = tomllib.load(file)["project"]["dependencies"]
    requirements = map(Requirement, [*dependencies, *OF_THE_STAGES])
    return [requirement for requirement in requirements if requirement.name not in NOT_IMPORTED]


def missing() -> list[str]:
    """Returns the required packages that are not here, or only in another version."""
    return [str(requirement) for requirement in required() if not _is_here(requirement)]


def _is_here(requirement: Requirement) -> bool:
    try:
        return requirement.specifier.contains(importlib.metadata.version(requirement.name), prereleases=True)
    except importlib.metadata.PackageNotFoundError:
        return False


def main(arguments: list[str]) -> None:
    if packages := missing():
        print(f"missing with Python {platform.python_version()}: prepare.sh DIR {' '.join(packages)}", flush=True)
    import torch

    import mtx.training.run  # noqa: F401  all that a training imports
    from mtx.model import device

    gpu = device.find_device(arguments[0])
    device.use_device(gpu)
    torch.ones(8, device=gpu).sum().item()
    peak = peak_flops(gpu, "bf16")
    report(
        "machine", **device.machine(gpu), driver=device.driver_version(),
        precision=device.fast_precision(gpu), peak_tflops=peak and round(peak / 1e12),
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
