"""A crash or a power cut at any moment of a save leaves the new checkpoint or the one before, whole."""

import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from mtx.errors import MtxError
from mtx.runs.run_directory import clean_up
from mtx.storage import durable
from mtx.storage.run_files import RunLayout, full_checkpoint_steps
from mtx.training import checkpoint
from mtx.training.checkpoint import State
from tests.models import adam, averaging_of
from tests.reliability import journal
from tests.reliability.conftest import size
from tests.reliability.journal import Op, Recorder

Tally = Callable[[str, int, int], None]
STEPS = [1, 2, 3, 3, 4, 5]  # step 3 is saved twice; from the third save on, old checkpoints are removed


def fresh() -> tuple[torch.nn.Linear, torch.optim.Adam]:
    model = torch.nn.Linear(2, 1)
    return model, adam(model)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[Op]:
    """The operations of several saves, and of the removal of old checkpoints after each."""
    root = tmp_path_factory.mktemp("disk")
    with pytest.MonkeyPatch.context() as patch:
        recorder = Recorder(root, patch)
        paths = RunLayout(root / "run")
        for number, step in enumerate(STEPS):
            recorder.mark("begin", number)
            save(paths, number, step)
            recorder.mark("done", number)
            checkpoint.prune(paths, State(step, best_step=1), averaging_of(1, 3))
    return recorder.ops


def save(paths: RunLayout, number: int, step: int) -> None:
    """Save a checkpoint in which every number is the number of the save."""
    model, optimizer = fresh()
    model(torch.full((2,), number + 1.0)).sum().backward()
    optimizer.step()
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, float(number))
    checkpoint.save(paths, checkpoint.snapshot(model, optimizer), State(step, bad_validations=number))


def restored(root: Path) -> int | None:
    """The number of the save that a start restores after it has cleaned up; None if there is none."""
    paths = RunLayout(root / "run")
    clean_up(paths)
    if not full_checkpoint_steps(paths):
        return None
    model, optimizer = fresh()
    state = checkpoint.load_newest(paths, model, optimizer)
    assert not list(paths.checkpoints.glob("damaged-*")), "every checkpoint is whole"
    assert not list(paths.checkpoints.glob(".tmp-*"))
    for path in filter(durable.has_manifest, paths.checkpoints.iterdir()):
        assert not durable.foreign_entries(path), "nothing is taken for the user's"
    for parameter in model.parameters():
        assert bool((parameter == state.bad_validations).all())
    assert state.step == STEPS[state.bad_validations]
    return state.bad_validations


def is_right(number: int | None, ops: list[Op]) -> bool:
    """Whether a start restored the newest finished save, or the one that was under way."""
    done = max((int(op.path.name) for op in ops if op.kind == "done"), default=None)
    begun = max((int(op.path.name) for op in ops if op.kind == "begin"), default=None)
    return number in (done, begun)


Restored = dict[Any, int | None]  # the number of the save that a start restores from a disk, by what is on it
FAILED = -1  # instead of the number, where the start ends with an error


def holds(write: Callable[[Path], Any], ops: list[Op], path: Path, so_far: Restored) -> bool:
    write(path)
    content = journal.content_of(path)
    if content not in so_far:
        try:
            so_far[content] = restored(path)
        except (MtxError, AssertionError):
            so_far[content] = FAILED
    shutil.rmtree(path)
    return is_right(so_far[content], ops)


def test_killed_before_in_the_middle_of_and_after_every_operation(
    recorded: list[Op], tmp_path: Path, tally: Tally
) -> None:
    tried = held = 0
    so_far = Restored()
    for end in range(len(recorded) + 1):
        for left in journal.killed(recorded[:end]):
            tried += 1
            write = partial(journal.write_out, left)
            held += holds(write, recorded[:end], tmp_path / "disk", so_far)
    tally("killed at an operation of a save", tried, held)


def outcomes(ops: list[Op], most: int, path: Path, seed: int = 1) -> Iterator[bool]:
    """For power cuts after each of the operations: whether a start then restores the right save."""
    rng = random.Random(seed)
    so_far = Restored()
    for end in range(len(ops) + 1):
        for left in journal.cut(ops[:end], most, rng):
            yield holds(left, ops[:end], path, so_far)


def test_power_cut_at_every_operation(recorded: list[Op], tmp_path: Path, tally: Tally) -> None:
    results = list(outcomes(recorded, size(8, 300), tmp_path / "disk"))
    tally("power cut at an operation of a save", len(results), sum(results))


def test_each_sync_is_needed(recorded: list[Op], tmp_path: Path, tally: Tally) -> None:
    """If the syncs of any one place in the code are left out, a power cut does damage."""
    sites = sorted({op.site for op in recorded if op.kind == "sync"})
    assert {"new_file", "replace_directory", "write_manifest", "make_directories"} == {
        site.split(":")[0] for site in sites
    }
    caught = 0
    for site in sites:
        without = [op for op in recorded if op.kind != "sync" or op.site != site]
        caught += any(not right for right in outcomes(without, 16, tmp_path / "disk"))
    tally("places in the code that sync, each left out and noticed", len(sites), caught)
