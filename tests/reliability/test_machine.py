"""Any sequence of steps, saves, kills, full disks, damage and resumes leaves a whole checkpoint, once one was saved."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mtx.errors import MtxError
from mtx.storage import disk, durable
from mtx.storage.run_files import OPTIMIZER, STATE, WEIGHTS, RunLayout, checkpoint_steps, full_checkpoint_steps
from mtx.training import checkpoint
from mtx.training.checkpoint import State
from tests.models import averaging_of
from tests.reliability.conftest import size
from tests.reliability.test_crashes import fresh

_OPERATIONS = ("make_directory", "sync", "rename", "unlink", "remove_directory", "write", "create")


class Killed(BaseException):
    """The process is no more: nothing that it would still do is done."""


@contextmanager
def dying(after: int) -> Iterator[None]:
    """Every operation on the disk is refused after so many."""
    left = [after]

    def wrap(real: Any) -> Any:
        def call(*arguments: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return real(*arguments)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in _OPERATIONS:
            patch.setattr(disk, name, wrap(getattr(disk, name)))
        yield


@contextmanager
def full(after: int) -> Iterator[None]:
    """The disk takes so many more writes."""
    left, real = [after], disk.write

    def write(fd: int, data: memoryview) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        return real(fd, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "write", write)
        yield


class Run(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.paths = RunLayout(self.root / "run")
        self.model, self.optimizer = fresh()
        self.step = 0
        self.saved: dict[int, list[torch.Tensor]] = {}  # what each step's checkpoint must hold
        self.damaged: set[int] = set()
        self.has_saved = False

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    @rule()
    def train(self) -> None:
        self.step += 1
        self.optimizer.zero_grad()
        self.model(torch.full((2,), float(self.step))).sum().backward()
        self.optimizer.step()

    def _write(self) -> None:
        self.saved[self.step] = [p.detach().clone() for p in self.model.parameters()]
        taken = checkpoint.snapshot(self.model, self.optimizer)
        checkpoint.save(self.paths, taken, State(self.step))
        self.has_saved = True
        self.damaged.discard(self.step)
        checkpoint.prune(self.paths, State(self.step), averaging_of(2, 2))

    @precondition(lambda self: self.step > 0)
    @rule()
    def save(self) -> None:
        self._write()

    @precondition(lambda self: self.step > 0)
    @rule(after=st.integers(0, 60))
    def killed_while_saving(self, after: int) -> None:
        self._try_to_write(dying(after), Killed)
        self.resume()

    @precondition(lambda self: self.step > 0)
    @rule(after=st.integers(0, 12))
    def save_on_a_full_disk(self, after: int) -> None:
        self._try_to_write(full(after), OSError)
        assert not self.has_saved or checkpoint_steps(self.paths)

    def _try_to_write(self, fault: AbstractContextManager[None], error: type[BaseException]) -> None:
        try:
            with fault:
                self._write()
        except error:
            self._look_at_damage()

    @precondition(lambda self: len(self._whole()) > 1)
    @rule(name=st.sampled_from([WEIGHTS, OPTIMIZER, STATE]), place=st.integers(0, 10_000))
    def damage_the_newest(self, name: str, place: int) -> None:
        newest = self._whole()[-1]
        path = self.paths.checkpoint(newest) / name
        data = bytearray(path.read_bytes())
        data[place % len(data)] ^= 1 << place % 8
        path.write_bytes(data)
        self.damaged.add(newest)

    def _look_at_damage(self) -> None:
        """A damaged checkpoint may have been replaced before a save came to its end."""
        durable.remove_temporaries(self.paths.checkpoints)
        for step in list(self.damaged):
            with suppress(MtxError):
                checkpoint.load(self.paths.checkpoint(step), *fresh())
                self.damaged.discard(step)

    def _whole(self) -> list[int]:
        return [step for step in full_checkpoint_steps(self.paths) if step not in self.damaged]

    @rule()
    def resume(self) -> None:
        durable.remove_temporaries(self.paths.checkpoints)
        self.model, self.optimizer = fresh()
        whole = self._whole()
        if not full_checkpoint_steps(self.paths):
            assert not self.has_saved
            self.step = 0
            return
        state = checkpoint.load_newest(self.paths, self.model, self.optimizer)
        assert state.step == whole[-1]
        for parameter, expected in zip(self.model.parameters(), self.saved[state.step], strict=True):
            assert torch.equal(parameter, expected)
        self.damaged -= {step for step in self.damaged if step > state.step}  # they are set aside
        self.step = state.step

    @invariant()
    def a_whole_checkpoint_exists(self) -> None:
        if getattr(self, "has_saved", False):
            for step in reversed(full_checkpoint_steps(self.paths)):
                try:
                    checkpoint.load(self.paths.checkpoint(step), *fresh())
                    return
                except MtxError:
                    assert step in self.damaged
            raise AssertionError("no checkpoint is whole")


Run.TestCase.settings = settings(
    max_examples=size(20, 1000), stateful_step_count=30, deadline=None, derandomize=size(1, 0) == 1,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
TestRun = Run.TestCase
