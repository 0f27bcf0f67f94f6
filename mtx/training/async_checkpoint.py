"""Writes checkpoints while training goes on: one at a time, on its own thread, so that training never waits for a disk.

A failed write does not end training: it becomes a deferred error, and the checkpoint before it stays.
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
        status: status.json, updated after each checkpoint.
    """

    def __init__(self, paths: RunLayout, training: TrainingConfig, deferred_errors: DeferredErrors, saved: State):
        self._paths, self._training, self._deferred_errors, self.saved = paths, training, deferred_errors, saved
        self.status = StatusFile(paths.status, deferred_errors)
        self._thread = ThreadPoolExecutor(1, "mtx-checkpoint")
        self._writing: Future[None] | None = None

    def is_due(self, now: State) -> bool:
        """Whether there is anything to save; waits for the end of the last write.

        Args:
            now: False if this is the state saved last.

        Raises:
            MtxError: if the previous checkpoint was not finite.
        """
        self.settle(wait=True)
        return bool(now.step) and now != self.saved

    def save(self, copies: Snapshot, written: State) -> None:
        """Start to write a checkpoint as `written`, and then remove the checkpoints no longer needed."""
        self.saved = written
        in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        copied = torch.cuda.current_stream().record_event() if in_use else None
        self._writing = self._thread.submit(self._write, copies, written, copied)

    def _write(self, copies: Snapshot, state: State, copied: torch.cuda.Event | None) -> None:
        """Write on this thread; with CUDA, on a second stream, which waits until the copies are complete."""
        with contextlib.ExitStack() as stack:
            if copied is not None:
                stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
                stream.wait_event(copied)
                stack.enter_context(torch.cuda.stream(stream))
            checkpoint.save(self._paths, copies, state)
            checkpoint.prune(self._paths, state, self._training.checkpoint_every, self._training.average_last)
            self.status.write("running", "training", state.step)

    def settle(self, wait: bool = False) -> None:
        """Collect the outcome of the last write if it has ended."""
        if self._writing is None or not (wait or self._writing.done()):
            return
        writing, self._writing = self._writing, None
        try:
            writing.result()
        except (OSError, DamagedFileError) as error:
            self._deferred_errors.add(f"the checkpoint of step {self.saved.step}", error)
            self.saved = State()

    def finish(self, state: State) -> None:
        """Wait until `state` is written; raises MtxError if it could not be."""
        self.settle(wait=True)
        if state.step and state != self.saved:
            steps = full_checkpoint_steps(self._paths)
            help = f"the same command goes on from step {steps[-1]}" if steps else "the same command starts anew"
            raise MtxError(f"step {state.step} could not be saved: {self._deferred_errors.messages[-1]}", help)

    def close(self) -> None:
        """End the thread after its last write."""
        self._thread.shutdown()
