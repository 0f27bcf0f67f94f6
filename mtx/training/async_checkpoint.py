"""Saving while training goes on: one checkpoint at a time, on a thread of its own, so that training waits for no disk.

A save that fails costs no more than itself: it is told at the next step and again at the end, and the one before stays.
"""

import contextlib
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from mtx.config.schema import TrainingConfig
from mtx.errors import DamagedFileError, MtxError
from mtx.run.contents import full_checkpoint_steps
from mtx.run.deferred_errors import DeferredErrors
from mtx.run.layout import RunLayout
from mtx.run.status import StatusFile
from mtx.training import checkpoint
from mtx.training.checkpoint import Snapshot, State


class AsyncCheckpointer:
    """Writes the checkpoints of one start of a run.

    Attributes:
        saved: the state that was written last, or is being written.
        status: is told of each checkpoint that is written.
    """

    def __init__(self, paths: RunLayout, training: TrainingConfig, deferred_errors: DeferredErrors, saved: State):
        self._paths, self._training, self._deferred_errors, self.saved = paths, training, deferred_errors, saved
        self.status = StatusFile(paths.status, deferred_errors)
        self._thread = ThreadPoolExecutor(1, "mtx-checkpoint")
        self._writing: Future[None] | None = None

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
        copies = checkpoint.snapshot(model, optimizer)
        in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        copied = torch.cuda.current_stream().record_event() if in_use else None
        self._writing = self._thread.submit(self._write, copies, written, copied)
        return True

    def _write(self, copies: Snapshot, state: State, copied: torch.cuda.Event | None) -> None:
        """Write on this thread; where there is CUDA, on a stream beside that of training, once the copies are made."""
        with contextlib.ExitStack() as beside:
            if copied is not None:
                stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
                stream.wait_event(copied)
                beside.enter_context(torch.cuda.stream(stream))
            checkpoint.save(self._paths, copies, state)
            checkpoint.prune(self._paths, state, self._training.checkpoint_every, self._training.average_last)
            self.status.write("running", "training", state.step)

    def settle(self, wait: bool = False) -> None:
        """See how the last save went, where it is done."""
        if self._writing is None or not (wait or self._writing.done()):
            return
        writing, self._writing = self._writing, None
        try:
            writing.result()
        except (OSError, DamagedFileError) as error:
            self._deferred_errors.add(f"the checkpoint of step {self.saved.step}", error)
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
            raise MtxError(f"step {state.step} could not be saved: {self._deferred_errors.messages[-1]}", older)

    def close(self) -> None:
        """End the thread when it is done."""
        self._thread.shutdown()
