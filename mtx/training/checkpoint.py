"""Checkpoints: written whole or not at all, verified before use, pruned by what resume and averaging still need."""

import math
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mtx import bundle, files
from mtx.data.packing import Position
from mtx.errors import DamagedFileError
from mtx.paths import OPTIMIZER, STATE, WEIGHTS, RunPaths, checkpoint_step

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")  # what Adam keeps of each parameter


@dataclass(frozen=True)
class State:
    """Where training stands, apart from the tensors.

    Attributes:
        position: the data position of the next step.
        best_bleu, best_step: of the best validation so far.
        validated_step: the last step after which a validation was done.
        bad_validations: validations since the best one.
        elapsed_s: seconds of training so far, over all starts.
        validation_s: seconds that the last validation took.
        init_sha256: of the weights that training started from, where these were a model's.
    """

    step: int = 0
    position: Position = Position()
    best_bleu: float = -math.inf
    best_step: int = 0
    validated_step: int = 0
    bad_validations: int = 0
    elapsed_s: float = 0.0
    validation_s: float = 0.0
    init_sha256: str | None = None

    def as_dict(self) -> dict[str, Any]:
        best = self.best_bleu if math.isfinite(self.best_bleu) else None
        return {**asdict(self), "best_bleu": best}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "State":
        """What `as_dict` gave; raises KeyError or TypeError where it is something else."""
        value = {"init_sha256": None, **value}  # runs of mtx 0.1 do not have it
        fields = {name: value[name] for name in cls.__dataclass_fields__}
        best = -math.inf if fields["best_bleu"] is None else fields["best_bleu"]
        return replace(cls(**fields), position=Position(**fields["position"]), best_bleu=best)


@dataclass(frozen=True)
class Snapshot:
    """Copies of a model's weights and of what Adam keeps, by name; training may go on while they are written."""

    weights: dict[str, torch.Tensor]
    moments: dict[str, torch.Tensor]


def snapshot(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Snapshot:
    """Copy what a checkpoint holds, on the device; of what is on CUDA the copies may still be under way on return."""
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    moments = {
        f"{names[parameter]}.{key}": value.clone()
        for parameter, values in optimizer.state.items()
        for key, value in values.items()
    }
    return Snapshot({name: tensor.detach().clone() for name, tensor in model.state_dict().items()}, moments)


def save(paths: RunPaths, taken: Snapshot, state: State) -> None:
    """Write the full checkpoint of `state.step`; one that is there is replaced."""
    with files.new_directory(paths.checkpoint(state.step), replace=True) as new:
        bundle.save_tensors(new / WEIGHTS, taken.weights)
        bundle.save_tensors(new / OPTIMIZER, taken.moments)
        files.write_json(new / STATE, state.as_dict())


class Writer:
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


def load(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> State:
    """Verify a full checkpoint and restore `model` and `optimizer` from it.

    Raises:
        DamagedFileError: naming the file, with what to do about it.
    """
    try:
        files.verify(path, (WEIGHTS, OPTIMIZER, STATE))
        bundle.load_weights(model, path / WEIGHTS)
        moments = _load_moments(path / OPTIMIZER, model)
        state = _load_state(path / STATE)
    except DamagedFileError as error:
        others = [other for other in full_steps(path.parent) if other != checkpoint_step(path)]
        older = f"to go on from step {others[-1]} instead" if others else "to start anew"
        raise DamagedFileError(str(error), f"remove the directory {path} {older}") from None
    for name, parameter in model.named_parameters():
        optimizer.state[parameter] = {key: moments[f"{name}.{key}"].to(parameter.device) for key in _MOMENTS}
    return state


def _load_moments(path: Path, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    moments = bundle.load_tensors(path)
    wanted = {f"{name}.{key}" for name, _ in model.named_parameters() for key in _MOMENTS}
    if different := sorted(wanted ^ set(moments)):
        raise DamagedFileError(
            f"{path}: {'lacks' if different[0] in wanted else 'holds an unknown tensor'} {different[0]}"
        )
    return moments


def _load_state(path: Path) -> State:
    try:
        return State.from_dict(files.read_json(path))
    except (KeyError, TypeError) as error:
        raise DamagedFileError(f"{path}: is not the state of a training: {error}") from None


def all_steps(checkpoints: Path) -> list[int]:
    """The steps of which there is a checkpoint, full or of the weights alone."""
    steps = [checkpoint_step(path) for path in checkpoints.glob("step-*")]
    return sorted(step for step in steps if step is not None)


def full_steps(checkpoints: Path) -> list[int]:
    """The steps from which training can go on."""
    return [step for step in all_steps(checkpoints) if (checkpoints / f"step-{step:08d}" / OPTIMIZER).exists()]


def prune(paths: RunPaths, state: State, checkpoint_every: int, average_last: int) -> None:
    """Keep the full state of the last two and the best, and the weights of the last `average_last` to average."""
    steps = all_steps(paths.checkpoints)
    full = {*full_steps(paths.checkpoints)[-2:], state.best_step}
    weights = averaged_steps(paths, checkpoint_every, average_last)
    for step in steps:
        path = paths.checkpoint(step)
        if step in full:
            continue
        if step not in weights:
            files.remove_directory(path)
        elif (path / OPTIMIZER).exists():
            files.remove_member(path, OPTIMIZER)


def averaged_steps(paths: RunPaths, checkpoint_every: int, average_last: int) -> list[int]:
    """The checkpoints that the final model is the mean of: the newest at regular distance, and the newest of all."""
    steps = all_steps(paths.checkpoints)
    regular = [step for step in steps if step % checkpoint_every == 0 or step == steps[-1]]
    return regular[-average_last:]


def average(paths: RunPaths, steps: list[int]) -> dict[str, torch.Tensor]:
    """The mean of the weights of several checkpoints (6.1), accumulated in fp64."""
    total: dict[str, torch.Tensor] = {}
    for step in steps:
        path = paths.checkpoint(step)
        files.verify(path, (WEIGHTS,))
        for name, tensor in bundle.load_tensors(path / WEIGHTS).items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / len(steps)).float() for name, tensor in total.items()}
