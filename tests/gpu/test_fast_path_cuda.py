"""The fast step of this GPU has no fault; threads use the device of the run, and captures survive other threads."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mtx.config import settings
from mtx.config.schema import ModelConfig, TrainingConfig
from mtx.data.token_store import load_prepared
from mtx.errors import DeferredErrors
from mtx.model.cuda_graphs import CudaGraph, HostCopy
from mtx.model.device import use_device
from mtx.storage.run_files import RunLayout
from mtx.training.build import check_fast_step, read_runtime
from mtx.training.checkpoint import AsyncCheckpointer, State
from mtx.training.micro_batch import RecordedStep, RuntimeChoices, take_step
from mtx.training.run import prepare_only, train
from scripts.first_light.candidates.step import replaced
from tests.fast_steps import GRADIENT_LIMIT, LOSS_LIMIT, REPEATED, make_steps, worst_gradient
from tests.integration.commands import TINY, write_tsv
from tests.models import adam, random_batch, tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]

LAST = f"cuda:{torch.cuda.device_count() - 1}"  # cuda:1 where there are two
SMALL: dict[str, Any] = {
    "d_model": 64, "d_ff": 128, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1, "dropout": 0.1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def first_device() -> Any:
    """Begins and ends with the device that a new thread has."""
    torch.cuda.set_device(0)
    yield
    torch.cuda.set_device(0)


def config() -> ModelConfig:
    return ModelConfig.model_validate({**SMALL, "preset": "tiny"})


@pytest.mark.parametrize("compiled", [False, True])
def test_this_gpu_has_no_fault(compiled: bool) -> None:
    plain, fast = make_steps(config(), 500, torch.device(LAST), compiled)
    expected, found, again = plain(), fast(), fast()
    assert abs(found.loss / expected.loss - 1) <= LOSS_LIMIT
    assert worst_gradient(found, expected) <= GRADIENT_LIMIT / 2
    assert worst_gradient(again, found) <= REPEATED


@pytest.mark.parametrize("name", ["norm", "loss"])
def test_the_candidates_of_first_light_have_no_fault(name: str) -> None:
    with replaced([name]):
        plain, fast = make_steps(config(), 500, torch.device(LAST), compiled=True)
        expected, found = plain(), fast()
    assert abs(found.loss / expected.loss - 1) <= LOSS_LIMIT
    assert worst_gradient(found, expected) <= GRADIENT_LIMIT / 2


def test_a_run_takes_the_fast_step(tmp_path: Path) -> None:
    corpus = write_tsv(tmp_path / "digits.tsv", range(1000, 1400))
    arguments = [f"data.train={corpus}", *TINY, "device=cuda", "training.max_steps=4", f"run_dir={tmp_path / 'run'}"]
    result = train(settings.resolve(None, arguments).config)
    chosen = read_runtime(result.paths.chosen)
    assert (chosen.kernel, chosen.precision) == ("varlen", "bf16")


def test_without_a_compiler_only_the_compiled_step_is_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("CC", "CXX"):
        monkeypatch.setenv(name, str(tmp_path / "no-compiler"))
    for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    corpus = write_tsv(tmp_path / "digits.tsv", range(1000, 1200))
    run = f"run_dir={tmp_path / 'run'}"
    own = settings.resolve(None, [f"data.train={corpus}", *TINY, run, "device=cuda", "training.compile=true"]).config
    data = load_prepared(prepare_only(own).data)
    compiled = RuntimeChoices("cuda", "bf16", 256, "varlen", 1, True)
    assert check_fast_step(compiled, own, data) == replace(compiled, compile=False)
    assert "without compiling it" in caplog.text


def test_steps_run_on_the_device_of_the_run() -> None:
    plain, fast = make_steps(config(), 500, torch.device(LAST), False)
    assert torch.cuda.current_device() == torch.device(LAST).index
    plain()
    fast()


def test_a_recorded_step_stays_where_it_is_and_draws_its_dropout_by_the_seed() -> None:
    model = model_on(LAST)
    model.config = model.config.model_copy(update={"dropout": 0.3})
    for layer in (*model.encoder, *model.decoder):
        layer.dropout = 0.3
    micro_step = RecordedStep(model, 0.1, "bf16")
    batches = [random_batch([5, 7], [6, 4], 100, tail=20)]
    one = take_step(micro_step, batches, 1)
    addresses = [parameter.grad.data_ptr() for parameter in model.parameters() if parameter.grad is not None]
    same, other = (take_step(micro_step, batches, seed) for seed in (1, 2))
    assert addresses == [parameter.grad.data_ptr() for parameter in model.parameters() if parameter.grad is not None]
    assert worst_gradient(same, one) <= REPEATED and worst_gradient(other, one) > 4 * REPEATED


def model_on(device: str) -> Any:
    model = tiny_model(100, dtype=torch.float32, **{**SMALL, "dropout": 0.0}).to(device).train()
    model.kernel = "varlen"
    model.prepare_positions(64)
    return model


def in_thread(act: Callable[[], object]) -> list[BaseException]:
    """Does something in another thread; returns its error."""
    errors = list[BaseException]()

    def run() -> None:
        try:
            act()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return errors


def pin() -> None:
    torch.empty(np.random.default_rng().integers(1 << 22, 1 << 24), dtype=torch.uint8).pin_memory()


def test_the_loaders_allocation_does_not_end_the_capture_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    num_pinned = 0
    run = RecordedStep._run

    def with_loader(self: RecordedStep, batch: Any, is_first: bool) -> None:
        nonlocal num_pinned
        run(self, batch, is_first)
        if torch.cuda.is_current_stream_capturing():
            assert in_thread(pin) == []
            num_pinned += 1

    monkeypatch.setattr(RecordedStep, "_run", with_loader)
    micro_step = RecordedStep(model_on("cuda"), 0.1, "bf16")
    batch = random_batch([5, 7], [6, 4], 100, tail=20)
    for _ in range(2):
        micro_step(batch, 0.1, is_first=True)
    torch.cuda.synchronize()
    assert num_pinned == 1


def test_another_threads_allocation_does_not_end_the_capture_of_a_decoding_step() -> None:
    use_device(torch.device(LAST))
    x, streams = torch.zeros(10, device=LAST), set[torch.cuda.Stream]()

    def step() -> None:
        x.add_(1)
        streams.add(torch.cuda.current_stream(LAST))
        if torch.cuda.is_current_stream_capturing():
            assert in_thread(pin) == []

    stream = torch.cuda.Stream(LAST)  # type: ignore[no-untyped-call]
    graph = CudaGraph(stream)
    for _ in range(4):
        graph.replay(step)
    torch.cuda.synchronize()
    assert streams == {stream}, "the warm-up runs where the graph is recorded"


def test_a_checkpoint_is_written_on_the_device_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mtx.training import checkpoint

    monkeypatch.setattr(checkpoint, "prune", lambda *_: devices.append(torch.cuda.current_device()))
    devices = list[int]()
    use_device(torch.device(LAST))
    model = model_on(LAST)
    paths = RunLayout(tmp_path)
    writer = AsyncCheckpointer(paths, TrainingConfig.model_validate({}), DeferredErrors(), State())
    writer.save(checkpoint.snapshot(model, adam(model)), State(step=3))
    writer.finish()
    writer.thread.shutdown()
    assert paths.checkpoint(3).is_dir() and devices == [torch.device(LAST).index]


def test_figures_are_read_from_the_device_of_the_run() -> None:
    copy = HostCopy(torch.arange(3.0, device=LAST))
    assert copy._event.device == torch.device(LAST)  # type: ignore[union-attr]
    assert len(copy.tensor()) == 3
