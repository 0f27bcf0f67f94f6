"""The figures of metrics.jsonl for TensorBoard, under the same names: `train/loss`, `validation/bleu`. An extra."""

import importlib.util
from pathlib import Path
from typing import Any

from mtx.errors import UsageError


def require() -> None:
    """Refuse `training.tensorboard` where the package is not there.

    Raises:
        UsageError: naming the extra.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise UsageError(
            "training.tensorboard: the package tensorboard is not installed", 'pip install "mtx-translate[tensorboard]"'
        )


class Board:
    """Writes event files that TensorBoard shows while training goes on.

    Args:
        done: steps that earlier starts did; what those told of later ones is no longer shown.
    """

    def __init__(self, directory: Path, done: int):
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(directory), purge_step=done + 1, flush_secs=10)

    def event(self, name: str, values: dict[str, Any]) -> None:
        """Write the numbers of one event as scalars at its step."""
        for key, value in values.items():
            if key != "step" and isinstance(value, int | float) and not isinstance(value, bool):
                self._writer.add_scalar(f"{name}/{key}", value, values["step"])

    def close(self) -> None:
        self._writer.close()
