"""The memory that training takes: what follows from the model's size, and the peak that its steps were seen to have.

On CUDA torch counts what it hands out; on Linux the kernel tells what the process holds, and elsewhere nobody does.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from mtx.model.device import total_bytes

_PROCESS = Path("/proc/self/status")


@dataclass(frozen=True)
class Memory:
    """Bytes on the device that trains.

    Attributes:
        program: what the process held before there was a model; nothing on a GPU.
        weights, gradients, adam: fp32, for the whole run.
        checkpoint_copy: of weights and Adam's moments, while one is written.
        activations: what the measured steps had beside these at their peak; None where it cannot be told.
        device: all that the device has; None where it cannot be told.
    """

    program: int
    weights: int
    gradients: int
    adam: int
    checkpoint_copy: int
    activations: int | None
    device: int | None

    @property
    def needed(self) -> int:
        """All of it together."""
        model = self.weights + self.gradients + self.adam + self.checkpoint_copy
        return self.program + model + (self.activations or 0)


class MemoryGauge:
    """Notes what a device holds when it is made, which is to be before the model is."""

    def __init__(self, device: torch.device):
        self._device = device
        self._before, self._peak_before = _held(device)

    def begin_steps(self) -> None:
        """Forget how much was held at most, now that the model is made; to find what fits a GPU is filled."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        _, self._peak_before = _held(self._device)

    def read(self, model: nn.Module) -> Memory:
        """The memory of a model of which steps were taken, and of these."""
        weights = sum(parameter.nbytes for parameter in model.parameters())
        now, peak = _held(self._device)
        activations = None
        if now is not None and peak is not None and self._before is not None:
            # A peak that is not higher than before was one of preparing the data: then what is held now is nearest.
            highest = peak if self._device.type == "cuda" or peak != self._peak_before else now
            activations = max(0, highest - self._before - 4 * weights)
        program = 0 if self._device.type == "cuda" else self._before or 0
        return Memory(program, weights, weights, 2 * weights, 3 * weights, activations, total_bytes(self._device))


def _held(device: torch.device) -> tuple[int | None, int | None]:
    """What is held now, and what was held at most."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
    if device.type != "cpu" or not _PROCESS.is_file():
        return None, None
    lines = _PROCESS.read_bytes().decode("ascii", errors="replace").split("\n")
    values = {name: value for name, _, value in (line.partition(":") for line in lines)}
    now, peak = (int(values[key].split()[0]) * 1024 if key in values else None for key in ("VmRSS", "VmHWM"))
    return now, peak
