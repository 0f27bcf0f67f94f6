"""A number that is not finite stops before the update; memory that is short halves the micro-batch, once."""

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mtx.config import settings
from mtx.data.sampler import SamplerState, steps
from mtx.data.token_store import PreparedData, load_prepared
from mtx.errors import MtxError
from mtx.storage import durable, text_files
from mtx.storage.run_files import RunLayout, full_checkpoint_steps
from mtx.training.build import build
from mtx.training.micro_batch import MicroStep, RuntimeChoices
from mtx.training.run import prepare_only
from mtx.training.trainer import Trainer
from mtx.training.validation import validate_part
from tests.integration.commands import TINY, write_tsv

Tally = Callable[[str, int, int], None]
SETTINGS = [
    *TINY,
    "model.dropout=0.0",
    "training.max_steps=9",
    "training.checkpoint_every=2",
    "training.validate_every=50",
]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> RunLayout:
    directory = tmp_path_factory.mktemp("prepared")
    corpus = write_tsv(directory / "digits.tsv", range(1000, 1300))
    wanted = settings.resolve(None, [f"data.train={corpus}", *SETTINGS, f"run_dir={directory / 'run'}"])
    return prepare_only(wanted.config)


def trainer(prepared: RunLayout, root: Path, micro_batch_tokens: int = 96) -> Trainer:
    """A run of steps of 256 tokens, in three micro-batches each."""
    data: PreparedData = load_prepared(prepared.data)
    chosen = RuntimeChoices("cpu", "fp32", micro_batch_tokens, "padded", 1, False)
    root.mkdir(exist_ok=True)
    durable.write_json(RunLayout(root).chosen, asdict(chosen))
    return build(settings.load(prepared.config), chosen, data, RunLayout(root))


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def before_step(number: int, act: Callable[[Trainer], None], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Have something done just before an update; the result is filled with the weights at that time."""
    real, seen = Trainer.update, dict[str, Any]()

    def update(self: Trainer, loaded: Any, step: int, rate: float) -> Any:
        if step == number and not seen:
            seen.update(weights(self.model))
            act(self)
        return real(self, loaded, step, rate)

    monkeypatch.setattr(Trainer, "update", update)
    return seen


def spoil_loss(value: float, at: int) -> Callable[[Trainer], None]:
    """The loss of one of the micro-batches, and its gradient."""

    def act(self: Trainer) -> None:
        real, count = self.micro_step._forward, [0]

        def forward(step: Any, batch: Any, scale: Any) -> Any:
            count[0] += 1
            loss, nll = real(step, batch, scale)
            return (loss * value, nll) if count[0] == at else (loss, nll)

        self.micro_step._forward = forward

    return act


def spoil_one_gradient(value: float) -> Callable[[Trainer], None]:
    """One element of one gradient; the loss stays as it is."""

    def act(self: Trainer) -> None:
        parameter = list(self.model.parameters())[-1]

        def hook(gradient: torch.Tensor) -> torch.Tensor:
            spoilt = gradient.clone()
            spoilt.view(-1)[3] = value
            return spoilt

        parameter.register_hook(hook)

    return act


WAYS = {
    "loss is nan": spoil_loss(math.nan, 1), "loss is inf": spoil_loss(math.inf, 1),
    "an accumulated micro-batch is nan": spoil_loss(math.nan, 3), "the second is -inf": spoil_loss(-math.inf, 2),
    "one gradient element is nan": spoil_one_gradient(math.nan), "one is inf": spoil_one_gradient(math.inf),
}  # fmt: skip


def test_stopped_before_the_update(
    prepared: RunLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tally: Tally
) -> None:
    cases = [(way, step) for way in WAYS for step in (1, 4, 5)]
    held = 0
    for number, (way, step) in enumerate(cases):
        run = trainer(prepared, tmp_path / f"run-{number}")
        with monkeypatch.context() as patch:
            seen = before_step(step, WAYS[way], patch)
            with pytest.raises(MtxError, match=rf"^step {step}: loss .*nothing was updated") as error:
                run.train()
        pairs = list(steps(run.sampler, SamplerState(), step))[-1].pairs
        place = list(steps(run.sampler, SamplerState(), step - 1))[-1].position_after if step > 1 else SamplerState()
        assert f"has {len(pairs)} pairs from position {place.index} of epoch {place.epoch}," in str(error.value)
        texts = zip(run.data.train.lines(pairs), *run.data.train.texts(pairs), strict=True)
        assert list(text_files.read_lines(run.paths.refused)) == [f"{line}\t{src}\t{tgt}" for line, src, tgt in texts]
        saved = [before for before in (2, 4) if before < step]
        assert full_checkpoint_steps(run.paths) == saved, "what came before it, and nothing else"
        held += all(torch.equal(tensor, seen[name]) for name, tensor in run.model.state_dict().items())
    tally("a loss or a gradient that is not finite", len(cases), held)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_never_saved(
    value: float, prepared: RunLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trainer(prepared, tmp_path / "run")
    real = Trainer.update

    def update(self: Trainer, loaded: Any, step: int, rate: float) -> Any:
        figures = real(self, loaded, step, rate)
        if step == 4:
            with torch.no_grad():
                next(iter(self.model.parameters())).view(-1)[0] = value
        return figures

    monkeypatch.setattr(Trainer, "update", update)
    with pytest.raises(MtxError, match="not finite|loss nan"):
        run.train()
    assert full_checkpoint_steps(run.paths) == [2]


def short_of_memory(times: int, at: int, where: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let a micro-step, or the update after all of them, run out of memory."""
    made = [0]
    owner: Any = MicroStep if where == "micro-step" else torch.optim.Adam
    name = "__call__" if where == "micro-step" else "step"
    real, calls = getattr(owner, name), [0]

    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] >= at and made[0] < times:
            made[0] += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nmore")
        return real(self, *arguments, **named)

    monkeypatch.setattr(owner, name, call)
    return made


def gradients(step: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """Filled with the gradients that a step ends with."""
    real, found = Trainer.update, dict[str, torch.Tensor]()

    def update(self: Trainer, loaded: Any, number: int, rate: float) -> Any:
        figures = real(self, loaded, number, rate)
        if number == step:
            found.update({name: p.grad.clone() for name, p in self.model.named_parameters() if p.grad is not None})
        return figures

    monkeypatch.setattr(Trainer, "update", update)
    return found


def test_memory_that_is_short_once_halves_the_micro_batch(
    prepared: RunLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tally: Tally
) -> None:
    cases = [("micro-step", 1, 1), ("micro-step", 8, 3), ("update", 3, 3)]
    held = 0
    for number, (where, at, step) in enumerate(cases):
        found = []
        for is_short in (False, True):
            run = trainer(prepared, tmp_path / f"run-{number}-{is_short}")
            with monkeypatch.context() as patch:
                made = short_of_memory(int(is_short), at, where, patch)
                found.append(gradients(step, patch))
                run.train()
            assert made == [int(is_short)] and run.state.step == 9
        assert f"step {step}: out of memory with micro-batches of 96 target tokens: CUDA out of memory" in caplog.text
        assert "; halving micro-batches" in caplog.text
        assert run.runtime.micro_batch_tokens == durable.read_json(run.paths.chosen)["micro_batch_tokens"] == 48
        assert run.num_micro_steps == 6
        far = max(float((found[1][name] - g).norm() / g.norm().clamp(min=1e-3)) for name, g in found[0].items())
        held += far < 1e-5
    tally("memory that is short once: the gradient of the step", len(cases), held)


def test_a_rank_that_is_short_of_memory_records_only_the_micro_batch(prepared: RunLayout, tmp_path: Path) -> None:
    run = trainer(prepared, tmp_path / "run")
    before = durable.read_json(run.paths.chosen)
    for rank in (3, 0):
        run.runtime = replace(run.runtime, device=f"cuda:{rank}", threads=7, micro_batch_tokens=96, plan={"row": 1})
        run._has_halved = False
        run.ranks = SimpleNamespace(size=4, rank=rank, is_rank_zero=rank == 0)  # type: ignore[assignment]
        with pytest.raises(MtxError, match="out of memory with micro-batches of 96") as error:
            run._halve("CUDA out of memory")
        assert error.value.help == "rerun the same command to resume with micro-batches of 48"
        assert durable.read_json(run.paths.chosen) == {**before, "micro_batch_tokens": 48}


def test_memory_that_is_short_in_a_validation_halves_the_micro_batch_too(
    prepared: RunLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def validate(*arguments: Any) -> dict[str, Any]:
        calls.append(arguments)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return validate_part(*arguments)

    monkeypatch.setattr("mtx.training.build.validate_part", validate)
    run = trainer(prepared, tmp_path / "run")
    run.train()
    assert len(calls) == 2 and run.state.step == run.state.validated_step == 9
    assert run.runtime.micro_batch_tokens == 48


def test_memory_that_is_short_again_stops_with_what_to_set(
    prepared: RunLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trainer(prepared, tmp_path / "run")
    short_of_memory(99, 5, "micro-step", monkeypatch)
    with pytest.raises(MtxError, match="step 2: out of memory with micro-batches of 48 target tokens: CUDA") as error:
        run.train()
    assert error.value.help and "training.micro_batch_tokens=32" in error.value.help


def test_an_error_that_is_not_memory_is_told_as_it_is(
    prepared: RunLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Any, *arguments: Any) -> None:
        raise RuntimeError("something else")

    monkeypatch.setattr(MicroStep, "__call__", fail)
    with pytest.raises(RuntimeError, match="something else"):
        trainer(prepared, tmp_path / "run").train()
