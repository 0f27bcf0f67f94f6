"""Saving while training goes on: one checkpoint at a time, on a thread of its own, so that training waits for no disk.

A save that fails costs no more than itself: it is told at the next step and again at the end, and the one before stays.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import torch

from mtx.config import TrainingConfig
from mtx.errors import DamagedFileError, MtxError
from mtx.paths import RunPaths
from mtx.run_layout import full_checkpoint_steps
from mtx.training import checkpoint
from mtx.training.checkpoint import State
from mtx.training.lost import Lost
from mtx.training.status import StatusFile


class Saver:
    """Writes the checkpoints of one start of a run.

    Attributes:
        saved: the state that was written last, or is being written.
        status: is told of each checkpoint that is written.
    """

    def __init__(self, paths: RunPaths, training: TrainingConfig, lost: Lost):
        self._paths, self._training, self._lost = paths, training, lost
        self._writer = _Writer()
        self.saved = State()
        self.status = StatusFile(paths.status, lost)

    def save(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, now: State, written: State) -> bool:
        """Have the checkpoint of this step written as `written`, and what is no longer needed removed.

        Args:
            now: nothing is done, and False returned, where this is what was saved last.

        Raises:
            MtxError: where the one before was not finite.
        """
        self.settle(wait=True)
        if not now.step or now == self.saved:
            return False
        self.saved = written
        every, last = self._training.checkpoint_every, self._training.average_last
        self._writer.write(
            partial(checkpoint.save, self._paths, checkpoint.snapshot(model, optimizer), written),
            partial(checkpoint.prune, self._paths, written, every, last),
            partial(self.status.write, "running", "training", written.step),
        )
        return True

    def settle(self, wait: bool = False) -> None:
        """See how the last save went, where it is done."""
        try:
            self._writer.wait() if wait else self._writer.check()
        except (OSError, DamagedFileError) as error:
            self._lost.add(f"the checkpoint of step {self.saved.step}", error)
            self.saved = State()

    def finish(self, state: State) -> None:
        """Return when `state` is safe.

        Raises:
            MtxError: where it is not.
        """
        self.settle(wait=True)
        if state.step and state != self.saved:
            steps = full_checkpoint_steps(self._paths)
            older = f"the same command goes on from step {steps[-1]}" if steps else "the same command starts anew"
            raise MtxError(f"step {state.step} could not be saved: {self._lost.told[-1]}", older)

    def close(self) -> None:
        """End the thread when it is done."""
        self._writer.close()


class _Writer:
    """Writes on a thread of its own, one checkpoint at a time, so that training does not wait for the disk."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "mtx-checkpoint")
        self._last: Future[None] | None = None

    def write(self, *calls: Callable[[], None]) -> None:
        """Make these calls in order, after the ones before are done; raises what those raised."""
        self.wait()
        in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        on_cuda = torch.cuda.current_stream().record_event() if in_use else None
        self._last = self._thread.submit(_make, calls, on_cuda)

    def check(self) -> None:
        """Raise what a finished write raised."""
        if self._last is not None and self._last.done():
            self.wait()

    def wait(self) -> None:
        """Return when everything is written; raises what the write raised."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def close(self) -> None:
        """End the thread when it is done."""
        self._thread.shutdown()


def _make(calls: tuple[Callable[[], None], ...], on_cuda: torch.cuda.Event | None) -> None:
    """Make the calls; where there is CUDA, on a stream beside that of training, after the event."""
    if on_cuda is None:
        for call in calls:
            call()
        return
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_event(on_cuda)
    with torch.cuda.stream(stream):
        _make(calls, None)
