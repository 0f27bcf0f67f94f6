"""Checkpoints: written whole or not at all, verified before use, removed when nothing needs them any more."""

import json
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import numpy as np
import torch
from pydantic import AliasChoices, Field, TypeAdapter, ValidationError
from torch.nn import Module
from torch.optim import Optimizer

from mtx.config.schema import TrainingConfig
from mtx.data.sampler import SamplerState
from mtx.decoding.model_directory import Tensors, load_tensors, save_tensors
from mtx.errors import DamagedFileError, DeferredErrors, MtxError
from mtx.formatting import counted
from mtx.runs.run_directory import write_status
from mtx.storage import durable
from mtx.storage.run_files import (
    OPTIMIZER,
    STATE,
    WEIGHTS,
    RunLayout,
    checkpoint_step,
    checkpoint_steps,
    full_checkpoint_steps,
    is_full_checkpoint,
)

logger = logging.getLogger(__name__)

Record = TypeVar("Record")

START_AGAIN = "use another run_dir=DIR to start again"
_MOST_LOST = 4  # checkpoints in a row; a disk may be full for a while
_MOST_COPIED_BYTES = 1 << 30  # of host memory; writing as much takes a second or two
_RECENT = 0.75  # of the steps; docs/archive/decisions-2026.md (2026-11-22) has the figures


@dataclass(frozen=True)
class Cooldown:
    """The last steps of a training, in which the learning rate falls linearly to zero.

    Attributes:
        first, last: the first and the last of these steps.
        reason: the key in `training` that ends the training after them, such as max_steps.
        limit: the value of this key when the cooldown was planned.
    """

    first: int
    last: int
    reason: str
    limit: float

    def share(self, step: int) -> float:
        """The part of the usual learning rate that is left at `step`."""
        return min(1.0, max(0.0, (self.last + 1 - step) / (self.last + 2 - self.first)))


@dataclass(frozen=True)
class State:
    """The progress of a training, apart from its tensors.

    Attributes:
        position: the data position of the next step.
        best_score, best_step: those of the best validation so far, see `Validation.score`; None before it. Earlier
            versions called the score best_bleu.
        validated_step: the step of the last validation.
        bad_validations: validations since the best one.
        elapsed_s: seconds of training so far, over all starts.
        validation_s: seconds that a validation like the last will take, see `Validation.later_seconds`.
        init_sha256: the hash of the initial weights, if training started from a model.
        data_sha256: `PreparedData.sha256` of the data that `position` refers to.
        settings: the fixed settings that it was trained with; see `run_directory.load_config`.
        cooldown: the cooldown, once it is planned.
        warmup_steps: of a run with a time limit that an earlier version began; its peak is that of the settings.
    """

    step: int = 0
    position: SamplerState = SamplerState()
    best_score: Annotated[float | None, Field(validation_alias=AliasChoices("best_score", "best_bleu"))] = None
    best_step: int = 0
    validated_step: int = 0
    bad_validations: int = 0
    elapsed_s: float = 0.0
    validation_s: float = 0.0
    init_sha256: str | None = None
    data_sha256: str | None = None
    settings: durable.Json | None = None
    cooldown: Cooldown | None = None
    warmup_steps: int | None = None


class Snapshot(NamedTuple):
    """A model's weights and Adam's state, by name.

    Attributes:
        is_copy: whether training may continue while they are written.
    """

    weights: Tensors
    moments: Tensors
    is_copy: bool = True


def moments(model: Module, optimizer: Optimizer) -> Tensors:
    """Adam's state of all parameters, by names."""
    return {
        f"{name}.{key}": part
        for name, parameter in model.named_parameters()
        for key, part in optimizer.state[parameter].items()
    }


def snapshot(model: Module, optimizer: Optimizer) -> Snapshot:
    """Copy on the device what a checkpoint holds; on CUDA the copies may still be in progress on return.

    On a CPU that of a large model is no copy, which would take three quarters of the memory of training again.
    """
    weights: Tensors = model.state_dict()
    adam_moments = moments(model, optimizer)
    tensors = [*weights.values(), *adam_moments.values()]
    is_copy = tensors[0].is_cuda or sum(tensor.nbytes for tensor in tensors) <= _MOST_COPIED_BYTES

    def take(part: Tensors) -> Tensors:
        return {name: tensor.detach().clone() if is_copy else tensor.detach() for name, tensor in part.items()}

    return Snapshot(take(weights), take(adam_moments), is_copy)


def save(paths: RunLayout, tensors: Snapshot, state: State) -> None:
    """Write the full checkpoint of `state.step`; an existing one is replaced.

    Raises:
        MtxError: if a tensor is not finite.
        OSError: if it cannot be written; the existing one stays.
    """
    weights = {name: tensor.cpu() for name, tensor in tensors.weights.items()}
    adam_moments = {name: tensor.cpu() for name, tensor in tensors.moments.items()}
    for name, tensor in {**weights, **adam_moments}.items():
        # Numpy, because this runs on a thread next to training. For torch, OpenMP would start a second set of threads,
        # more than there are cores, and every step of training would take a third longer.
        if not np.isfinite(tensor.numpy()).all():
            raise MtxError(
                f"step {state.step}: {name} has numbers that are not finite; this state was not saved",
                "use a lower training.learning_rate in a new run_dir",
            )
    with durable.new_directory(paths.checkpoint(state.step)) as new:
        save_tensors(new / WEIGHTS, weights)
        save_tensors(new / OPTIMIZER, adam_moments)
        durable.write_json(new / STATE, asdict(state))


def check_space(paths: RunLayout, model: Module, num_saves: int, training: TrainingConfig) -> None:
    """Raise MtxError if the disk of a run lacks room for what it keeps (see `prune`) and for one more checkpoint.

    Args:
        num_saves: the largest number of checkpoints that are still to be written.
    """
    weights = sum(parameter.nbytes for parameter in model.parameters())
    existing = sum(path.stat().st_size for path in paths.checkpoints.glob("step-*/*"))
    most_bytes = (3 * 4 + training.average_last + 2) * weights - existing  # 2 for model/ and the one that it replaces
    needed = min(most_bytes, (3 * num_saves + 2) * weights)
    hint = "free some, or take a run_dir on a larger disk; a smaller training.average_last needs less"
    durable.require_space(paths.root, needed, "this run", hint)


def load_newest(paths: RunLayout, model: Module, optimizer: Optimizer) -> State:
    """Restore `model` and `optimizer` from the newest intact checkpoint; damaged newer ones are renamed.

    Raises:
        DamagedFileError: if no checkpoint is intact; names the file of the newest one.
    """
    damaged = {}
    for step in reversed(full_checkpoint_steps(paths)):
        try:
            state = load(paths.checkpoint(step), model, optimizer)
        except DamagedFileError as error:
            damaged[step] = error
            continue
        for damaged_step, problem in damaged.items():
            aside = durable.set_aside(paths.checkpoint(damaged_step))
            logger.warning(f"{problem}; resuming from step {step} instead, and {aside} keeps the damaged one")
        return state
    raise DamagedFileError(f"{next(iter(damaged.values()))}; all checkpoints of this run are damaged", START_AGAIN)


def load(path: Path, model: Module, optimizer: Optimizer) -> State:
    """Verify a full checkpoint and restore `model` and `optimizer` from it; a DamagedFileError names the file."""
    durable.verify(path, (WEIGHTS, OPTIMIZER, STATE))
    state = load_state(path / STATE)
    if state.step != checkpoint_step(path):
        raise DamagedFileError(f"{path / STATE}: belongs to step {state.step}")
    model.load_state_dict(load_tensors(path / WEIGHTS, model.state_dict()))
    current = moments(model, optimizer)
    for name, tensor in load_tensors(path / OPTIMIZER, current).items():
        current[name].copy_(tensor)
    return state


def load_state(path: Path) -> State:
    """Read a checkpoint's state.json; raises DamagedFileError if it does not hold a state."""
    return read_as(State, path)


def read_as(kind: type[Record], path: Path) -> Record:
    """Read a JSON file as a dataclass of this kind; raises DamagedFileError if it holds something else."""
    try:
        return TypeAdapter(kind).validate_json(json.dumps(durable.read_json(path)), strict=True)
    except ValidationError as error:
        problem = error.errors()[0]
        raise DamagedFileError(f"{path}: {'.'.join(map(str, problem['loc']))}: {problem['msg']}", START_AGAIN) from None


def prune(paths: RunLayout, state: State, training: TrainingConfig) -> None:
    """Remove all but the full state of the last two and the best, and the weights of those that will be averaged."""
    full = {*full_checkpoint_steps(paths)[-2:], state.best_step}
    weights = averaged_steps(paths, training)
    for step in sorted({*checkpoint_steps(paths)} - full):
        path = paths.checkpoint(step)
        if step not in weights:
            durable.remove_directory(path)
        elif is_full_checkpoint(path):
            durable.remove_member(path, OPTIMIZER)


def averaged_steps(paths: RunLayout, training: TrainingConfig) -> list[int]:
    """The steps of the checkpoints whose mean is the final model.

    They are the last `average_last` of the multiples of `checkpoint_every` and the newest one, which always counts; and
    none from the first three quarters of the training, whose weights would spoil the mean of a short run.
    """
    steps = checkpoint_steps(paths)
    regular = [step for step in steps if step % training.checkpoint_every == 0 or step == steps[-1]]
    return [step for step in regular if step >= _RECENT * steps[-1]][-training.average_last :]


@dataclass
class AsyncCheckpointer:
    """Writes the checkpoints of one start of a run: one at a time, on a thread, so that training waits for no disk.

    A failed write becomes a deferred error, and the checkpoint before it stays; more than `_MOST_LOST` failures in a
    row end training.

    Attributes:
        saved: the state that was written last, or is being written.
        thread: the caller ends it.
        writing: the last write, until its end is noticed.
    """

    paths: RunLayout
    training: TrainingConfig
    deferred_errors: DeferredErrors
    saved: State
    writing: Future[None] | None = None

    def __post_init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, "mtx-checkpoint")
        self._num_lost = 0  # checkpoints in a row
        self._stream: torch.cuda.Stream | None = None  # of this thread on CUDA, another one than that of training

    def require_few_losses(self, most_lost: int = _MOST_LOST) -> None:
        """Wait for the end of the last write, and refuse too many lost checkpoints.

        Raises:
            MtxError: if the state to write was not finite, or more than `most_lost` writes in a row have failed.
        """
        self.settle(wait=True)
        if self._num_lost > most_lost:
            raise MtxError(
                f"{counted(self._num_lost, 'checkpoint')} lost: {self.deferred_errors.messages[-1]}",
                "check the disk, and rerun the same command to resume from the last checkpoint",
            )

    def is_due(self, state: State) -> bool:
        """Whether a state has steps, and is neither written nor being written."""
        return state.step > 0 and state != self.saved

    def save(self, copies: Snapshot, state: State) -> None:
        """Start to write a checkpoint of `state`, and then remove the checkpoints no longer needed.

        Waits for the end if `copies` are none.
        """
        self.saved = state
        device = next(iter(copies.weights.values())).device
        if device.type == "cuda":
            self._stream = self._stream or torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._stream.wait_stream(torch.cuda.current_stream(device))  # until the copies are complete
        self.writing = self.thread.submit(self._write, copies, state)
        if not copies.is_copy:
            self.settle(wait=True)

    def _write(self, copies: Snapshot, state: State) -> None:
        with torch.cuda.stream(self._stream):
            save(self.paths, copies, state)
            prune(self.paths, state, self.training)
        write_status(self.paths, self.deferred_errors, state="running", stage="training", step=state.step)

    def settle(self, wait: bool = False) -> None:
        """Collect the outcome of the last write if it has ended."""
        writing = self.writing
        if not writing or not (wait or writing.done()):
            return
        self.writing = None
        try:
            writing.result()
            self._num_lost = 0
        except (OSError, DamagedFileError) as error:
            self.deferred_errors.add(f"the checkpoint of step {self.saved.step}", error)
            self.saved = State()
            self._num_lost += 1

    def finish(self) -> None:
        """Wait until the last state is written; raises MtxError if it could not be."""
        self.require_few_losses(most_lost=0)
