"""The hook that shows the figures of a run in TensorBoard (`training.tensorboard`)."""

import importlib.util
from typing import Any

from mtx.config.schema import Config
from mtx.errors import UsageError
from mtx.formatting import install_command
from mtx.training.hooks import Hook, Run, Values


def require_tensorboard(config: Config) -> None:
    """Raise UsageError if `training.tensorboard` is set and its package is not installed."""
    if config.training.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise UsageError(
            "training.tensorboard: the package tensorboard is not installed", install_command("tensorboard")
        )


class TensorBoard(Hook):
    """With `training.tensorboard`, shows the numbers of metrics.jsonl under the same names, such as `train/loss`."""

    _writer: Any = None

    def on_start(self, run: Run) -> None:
        if not run.config.training.tensorboard:
            return
        from torch.utils.tensorboard import SummaryWriter

        errors, directory = run.deferred_errors, str(run.paths.tensorboard)
        with errors.defer(directory):  # purging hides later steps of earlier starts
            self._writer = SummaryWriter(directory, purge_step=run.state.step + 1, flush_secs=10)
            run.cleanup.enter_context(errors.defer(directory))
            run.cleanup.callback(self._writer.close)

    def on_event(self, run: Run, name: str, values: Values) -> None:
        if self._writer is not None and "step" in values:
            with run.deferred_errors.defer(f"{run.paths.tensorboard}: an event"):
                for key, value in values.items():
                    if key != "step" and isinstance(value, int | float):
                        self._writer.add_scalar(f"{name}/{key}", value, values["step"])
