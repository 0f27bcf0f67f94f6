"""A checkpoint gives back what was saved, bit for bit, or is refused by name."""

import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from mtx.config.schema import TrainingConfig
from mtx.data.sampler import SamplerState
from mtx.errors import DamagedFileError, DeferredErrors, MtxError
from mtx.model.transformer import Transformer
from mtx.storage import disk, durable
from mtx.storage.durable import MANIFEST
from mtx.storage.run_files import OPTIMIZER, STATE, WEIGHTS, RunLayout, checkpoint_steps, full_checkpoint_steps
from mtx.training import checkpoint
from mtx.training.checkpoint import AsyncCheckpointer, State
from mtx.training.loss import smoothed_loss
from tests.models import adam, averaging_of, random_batch, tiny_model

NUM_IDS = 13
STATE_30 = State(30, SamplerState(2, 17), 12.25, 20, 30, 1, 61.5)


def train(model: Transformer, optimizer: torch.optim.Optimizer, num_steps: int) -> None:
    batch = random_batch([5, 3], [4, 6], NUM_IDS)
    for _ in range(num_steps):
        hidden = model.decode(batch, model.encode(batch))
        smoothed_loss(hidden, model.output_weight, None, batch.tgt_out_ids, 0.1).loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()


def fresh(seed: int) -> tuple[Transformer, torch.optim.Adam]:
    model = tiny_model(NUM_IDS, seed, torch.float32)
    return model, adam(model)


def same_weights(a: Transformer, b: Transformer) -> None:
    for (name, x), (_, y) in zip(a.state_dict().items(), b.state_dict().items(), strict=True):
        assert torch.equal(x, y), name


@pytest.fixture
def paths(tmp_path: Path) -> RunLayout:
    return RunLayout(tmp_path / "run")


def save_steps(paths: RunLayout, *steps: int) -> None:
    model, optimizer = fresh(1)
    train(model, optimizer, 1)
    for step in steps:
        checkpoint.save(paths, checkpoint.snapshot(model, optimizer), State(step))


# --- round trip ---


def test_training_goes_on_from_a_checkpoint_bit_for_bit(paths: RunLayout) -> None:
    model, optimizer = fresh(1)
    train(model, optimizer, 3)
    checkpoint.save(paths, checkpoint.snapshot(model, optimizer), STATE_30)
    train(model, optimizer, 3)

    other, other_optimizer = fresh(2)
    assert checkpoint.load(paths.checkpoint(30), other, other_optimizer) == STATE_30
    train(other, other_optimizer, 3)
    same_weights(model, other)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        for key in ("step", "exp_avg", "exp_avg_sq"):
            assert torch.equal(optimizer.state[a][key], other_optimizer.state[b][key])


@pytest.mark.parametrize("state", [State(), STATE_30, State(best_score=0.0, best_step=5)])
def test_a_state_survives_as_json(tmp_path: Path, state: State) -> None:
    durable.write_json(tmp_path / STATE, asdict(state))
    assert checkpoint.load_state(tmp_path / STATE) == state


def test_a_checkpoint_of_the_same_step_is_replaced(paths: RunLayout) -> None:
    model, optimizer = fresh(1)
    train(model, optimizer, 1)
    checkpoint.save(paths, checkpoint.snapshot(model, optimizer), STATE_30)
    train(model, optimizer, 1)
    checkpoint.save(paths, checkpoint.snapshot(model, optimizer), STATE_30)
    other, other_optimizer = fresh(2)
    checkpoint.load(paths.checkpoint(30), other, other_optimizer)
    same_weights(model, other)
    assert [path.name for path in paths.checkpoints.iterdir()] == ["step-00000030"]


# --- which are kept ---


def kept(paths: RunLayout) -> tuple[list[int], list[int]]:
    """Steps with the full state, and steps with the weights alone."""
    full = full_checkpoint_steps(paths)
    return full, [step for step in checkpoint_steps(paths) if step not in full]


def test_prune_keeps_the_last_two_the_best_and_what_is_averaged(paths: RunLayout) -> None:
    save_steps(paths, 1100, 1200, 1250, 1300, 1400, 1500, 1600)
    checkpoint.prune(paths, State(1600, best_step=1250), averaging_of(100, 4))
    assert kept(paths) == ([1250, 1500, 1600], [1300, 1400])
    for step in (1250, 1300, 1400, 1500, 1600):
        durable.verify(paths.checkpoint(step), (WEIGHTS, STATE))
    assert checkpoint.averaged_steps(paths, averaging_of(100, 4)) == [1300, 1400, 1500, 1600], (
        "1250 is none of the regular ones"
    )


def test_the_newest_is_averaged_though_it_is_not_regular(paths: RunLayout) -> None:
    save_steps(paths, 1100, 1200, 1300, 1333)
    checkpoint.prune(paths, State(1333), averaging_of(100, 3))
    assert kept(paths) == ([1300, 1333], [1200])
    assert checkpoint.averaged_steps(paths, averaging_of(100, 3)) == [1200, 1300, 1333]
    save_steps(paths, 1400)
    checkpoint.prune(paths, State(1400), averaging_of(100, 3))
    assert checkpoint.averaged_steps(paths, averaging_of(100, 3)) == [1200, 1300, 1400]
    assert kept(paths) == ([1333, 1400], [1200, 1300])


def test_the_first_three_quarters_of_a_short_run_are_not_averaged(paths: RunLayout) -> None:
    save_steps(paths, 100, 200, 300, 400, 500, 600, 645)
    assert checkpoint.averaged_steps(paths, averaging_of(100, 8)) == [500, 600, 645]


def test_pruning_step_by_step_never_loses_what_the_end_averages(paths: RunLayout) -> None:
    for step in range(110, 191, 10):
        save_steps(paths, step)
        checkpoint.prune(paths, State(step, best_step=120), averaging_of(10, 5))
    assert kept(paths) == ([120, 180, 190], [150, 160, 170])
    assert checkpoint.averaged_steps(paths, averaging_of(10, 5)) == [150, 160, 170, 180, 190]


def test_without_checkpoints_there_is_nothing(paths: RunLayout) -> None:
    assert full_checkpoint_steps(paths) == checkpoint.averaged_steps(paths, averaging_of(10, 5)) == []


# --- damage ---


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", [WEIGHTS, OPTIMIZER, STATE])
@pytest.mark.parametrize("damage", ["flipped", "short", "missing"])
def test_a_damaged_checkpoint_is_refused_by_name_and_an_older_one_taken(
    paths: RunLayout, name: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    save_steps(paths, 10, 20)
    path = paths.checkpoint(20) / name
    if damage == "flipped":
        flip(path, -2)
    elif damage == "short":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    model, optimizer = fresh(2)
    with pytest.raises(DamagedFileError, match=name) as error:
        checkpoint.load(paths.checkpoint(20), model, optimizer)
    assert str(path) in str(error.value)
    same_weights(model, fresh(2)[0])
    assert checkpoint.load_newest(paths, model, optimizer) == State(10)
    assert f"{path}: " in caplog.text and "resuming from step 10 instead" in caplog.text
    assert checkpoint_steps(paths) == [10]
    assert (paths.checkpoints / "damaged-step-00000020" / MANIFEST).exists(), "it is kept, under another name"


def test_no_whole_checkpoint_is_never_a_new_start(paths: RunLayout) -> None:
    save_steps(paths, 10, 20)
    for step in (10, 20):
        flip(paths.checkpoint(step) / WEIGHTS, -2)
    before = sorted(paths.checkpoints.rglob("*"))
    with pytest.raises(
        DamagedFileError, match="step-00000020/model.safetensors: .*all checkpoints of this run are damaged"
    ):
        checkpoint.load_newest(paths, *fresh(2))
    assert sorted(paths.checkpoints.rglob("*")) == before


def test_a_checkpoint_under_the_name_of_another_is_refused(paths: RunLayout) -> None:
    save_steps(paths, 10)
    paths.checkpoint(10).rename(paths.checkpoint(20))
    with pytest.raises(DamagedFileError, match="step-00000020/state.json: belongs to step 10"):
        checkpoint.load(paths.checkpoint(20), *fresh(2))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("which", ["weights", "moments"])
def test_what_is_not_finite_is_never_written(paths: RunLayout, which: str, value: float) -> None:
    save_steps(paths, 10)
    model, optimizer = fresh(1)
    train(model, optimizer, 1)
    snapshot = checkpoint.snapshot(model, optimizer)
    name, tensor = next(iter(getattr(snapshot, which).items()))
    tensor.view(-1)[-1] = value
    with pytest.raises(MtxError, match=f"step 20: {name} has numbers that are not finite"):
        checkpoint.save(paths, snapshot, State(20))
    assert checkpoint_steps(paths) == [10]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads as Linux tells them")
def test_saving_on_a_thread_starts_no_others(paths: RunLayout) -> None:
    model = torch.nn.Linear(1000, 1000)
    snapshot = checkpoint.Snapshot({name: tensor.detach() for name, tensor in model.state_dict().items()}, {})
    torch.set_num_threads(2)
    try:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(int).result()
            before = len(list(Path("/proc/self/task").iterdir()))
            pool.submit(checkpoint.save, paths, snapshot, State(20)).result()
            assert len(list(Path("/proc/self/task").iterdir())) == before
    finally:
        torch.set_num_threads(1)


def test_without_room_nothing_is_begun(paths: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = fresh(1)
    train(model, optimizer, 1)
    paths.root.mkdir()
    monkeypatch.setattr(disk, "free_bytes", lambda path: 1_000_000)
    with pytest.raises(MtxError, match="its disk has 1 MB free, but this run needs 7 MB"):
        checkpoint.check_space(paths, torch.nn.Linear(300, 300), 10, averaging_of(1, 5))
    checkpoint.check_space(paths, model, 10, averaging_of(1, 5))


def test_a_checkpoint_of_another_model_is_refused(paths: RunLayout) -> None:
    save_steps(paths, 10)
    model = tiny_model(NUM_IDS, dtype=torch.float32, d_ff=48)
    with pytest.raises(DamagedFileError, match=r"inner\.bias is torch\.float32 \[32\], expected torch\.float32 \[48\]"):
        checkpoint.load(paths.checkpoint(10), model, adam(model))


@pytest.fixture
def checkpointer(paths: RunLayout) -> Iterator[AsyncCheckpointer]:
    checkpointer = AsyncCheckpointer(paths, TrainingConfig(), DeferredErrors(), State())
    with checkpointer.thread:
        yield checkpointer


def test_a_failed_write_is_told_once_and_the_next_is_made(
    paths: RunLayout, checkpointer: AsyncCheckpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", fail)
        assert checkpointer.is_due(State(10))
        checkpointer.save(checkpoint.snapshot(*fresh(1)), State(10))
        with pytest.raises(MtxError, match="1 checkpoint lost: .* step 10 could not be written: No space.*"):
            checkpointer.finish()
    assert checkpointer.is_due(State(20))
    checkpointer.save(checkpoint.snapshot(*fresh(1)), State(20))
    assert not checkpointer.is_due(State(20))
    checkpointer.finish()
    assert checkpointer.deferred_errors.messages == [
        "the checkpoint of step 10 could not be written: No space left on device"
    ]
    assert checkpoint_steps(paths) == [20]


def test_checkpoints_that_are_lost_one_after_the_other_end_training(
    checkpointer: AsyncCheckpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_full, save = True, checkpoint.save

    def write(*arguments: Any) -> None:
        if is_full:
            raise OSError(28, "No space left on device")
        save(*arguments)

    monkeypatch.setattr(checkpoint, "save", write)
    for step in range(10, 110, 10):
        checkpointer.require_few_losses()
        assert checkpointer.is_due(State(step))
        is_full = step != 50  # after four that are lost
        checkpointer.save(checkpoint.snapshot(*fresh(1)), State(step))
    with pytest.raises(MtxError, match="5 checkpoints lost: .* step 100 .*: No space left on device"):
        checkpointer.require_few_losses()


def test_training_goes_on_while_a_checkpoint_is_written(
    paths: RunLayout, checkpointer: AsyncCheckpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = fresh(1)
    train(model, optimizer, 3)
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    may_write, save = threading.Event(), checkpoint.save
    monkeypatch.setattr(checkpoint, "save", lambda *args: (assert_in_time(may_write), save(*args)))
    checkpointer.save(checkpoint.snapshot(model, optimizer), STATE_30)
    train(model, optimizer, 3)
    checkpointer.settle()  # not done, no error
    may_write.set()
    checkpointer.finish()
    restored, optimizer = fresh(2)
    checkpoint.load(paths.checkpoint(30), restored, optimizer)
    for name, tensor in restored.state_dict().items():
        assert torch.equal(tensor, expected[name])


def assert_in_time(event: threading.Event) -> None:
    assert event.wait(10)


def test_a_large_model_is_written_before_training_continues(paths: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = fresh(1)
    train(model, optimizer, 1)
    size = sum(12 * parameter.numel() + 4 for parameter in model.parameters())
    monkeypatch.setattr(checkpoint, "_MOST_COPIED_BYTES", size)
    assert checkpoint.snapshot(model, optimizer).is_copy
    monkeypatch.setattr(checkpoint, "_MOST_COPIED_BYTES", size - 1)
    taken = checkpoint.snapshot(model, optimizer)
    assert not taken.is_copy and taken.weights["embedding"].data_ptr() == model.embedding.data_ptr()
    checkpointer = AsyncCheckpointer(paths, averaging_of(1, 5), DeferredErrors(), State())
    started, write = threading.Event(), checkpointer._write

    def write_late(*args: Any) -> None:
        started.wait(0.5)  # what does not wait for it has trained by then
        write(*args)

    monkeypatch.setattr(checkpointer, "_write", write_late)
    checkpointer.save(taken, State(20))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    train(model, optimizer, 1)
    started.set()
    checkpointer.thread.shutdown()
    loaded, of_loaded = fresh(2)
    checkpoint.load(paths.checkpoint(20), loaded, of_loaded)
    assert all(torch.equal(before[name], tensor) for name, tensor in loaded.state_dict().items())
