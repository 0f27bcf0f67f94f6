"""What a training step reads and writes stays where it is, and all of it exists before the first step."""

import contextlib
import shutil
import signal
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from mtx.config import settings
from mtx.data.token_store import load_prepared
from mtx.decoding.options import EXTRA_LENGTH
from mtx.decoding.torch_engine import SCORED_TOKENS
from mtx.storage.run_files import RunLayout
from mtx.training import checkpoint
from mtx.training.build import _try_step, build, new_model
from mtx.training.events import Run
from mtx.training.micro_batch import RuntimeChoices
from mtx.training.ranks import InterruptedTrainingError
from mtx.training.run import prepare_only, train
from mtx.training.trainer import Trainer
from mtx.training.validation import validate_part
from tests.integration.commands import TINY, write_tsv
from tests.translators import search, torch_translator

MAX_TOKENS = 32


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> RunLayout:
    directory = tmp_path_factory.mktemp("prepared")
    corpus = write_tsv(directory / "digits.tsv", range(1000, 1200))
    config = settings.resolve(None, [f"data.train={corpus}", *TINY, f"run_dir={directory / 'run'}"]).config
    assert config.data.max_tokens == MAX_TOKENS
    return prepare_only(config)


def trainer(prepared: RunLayout, root: Path) -> Trainer:
    chosen = RuntimeChoices("cpu", "fp32", 256, "padded", 1, False)
    return build(settings.load(prepared.config), chosen, load_prepared(prepared.data), RunLayout(root))


def take_steps(run: Trainer, number: int) -> None:
    with contextlib.closing(run.load(number)) as loaded:
        for step, batches in enumerate(loaded, 1):
            run.update(batches, step, 0.001)


def test_a_signal_ends_a_step_between_its_micro_batches(
    prepared: RunLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = RuntimeChoices("cpu", "fp32", 64, "padded", 1, False)
    run = build(settings.load(prepared.config), chosen, load_prepared(prepared.data), RunLayout(tmp_path))
    micro_step = run.micro_step
    num_calls = 0

    def signalled(*arguments: Any) -> None:
        nonlocal num_calls
        num_calls += 1
        micro_step(*arguments)
        run._signals.stop = signal.SIGTERM

    monkeypatch.setattr(run, "micro_step", signalled)
    with contextlib.closing(run.load(1)) as loaded:
        step = next(loaded)
        assert len(step.micro_batches) > 1
        with pytest.raises(InterruptedTrainingError):
            run.update(step, 1, 0.001)
    assert num_calls == 1


def step_tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [*model.parameters(), *gradients, *model.buffers()]


def test_a_validation_replaces_nothing_that_a_step_reads(prepared: RunLayout, tmp_path: Path) -> None:
    """A recorded step reads these addresses; decoding needs positions up to the source's length + 50."""
    run = trainer(prepared, tmp_path)
    take_steps(run, 1)
    tensors = step_tensors(run.model)
    addresses = [tensor.data_ptr() for tensor in tensors]
    assert len(tensors) == 2 * len(list(run.model.parameters())) + 1, "gradients and the table of positions"
    table = tensors[-1]
    assert table.shape == (MAX_TOKENS + EXTRA_LENGTH, 32)
    sources = run.data.valid.src.lengths
    assert sources.max() + EXTRA_LENGTH > MAX_TOKENS
    validate_part(run.config, run.data, run.model)
    longest = [9] * (MAX_TOKENS - 1) + [0]
    translator = torch_translator(run.model, run.data.tokenizer, MAX_TOKENS)
    search(translator, [longest])
    lines = ["nine " * 6, "one"]
    for targets in (None, ["x" * (MAX_TOKENS + EXTRA_LENGTH - 2)] * 2):  # of the report, the longest that it accepts
        translator.attention_maps(lines, targets)
    after = step_tensors(run.model)
    assert all(a is b for a, b in zip(tensors, after, strict=True))
    assert [tensor.data_ptr() for tensor in after] == addresses


def test_adam_has_its_moments_before_the_first_step(
    prepared: RunLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left to allocate in the first step, where running out of memory would leave half of them."""
    run = trainer(prepared, tmp_path)
    names = [name for name, _ in run.model.named_parameters()]
    moments = checkpoint.snapshot(run.model, run.optimizer).moments
    assert set(moments) == {f"{name}.{key}" for name in names for key in ("step", "exp_avg", "exp_avg_sq")}
    assert not any(tensor.any() for tensor in moments.values())
    addresses = [value.data_ptr() for values in run.optimizer.state.values() for value in values.values()]
    take_steps(run, 2)
    after = [value.data_ptr() for values in run.optimizer.state.values() for value in values.values()]
    assert after == addresses
    assert all(values["step"] == 2 for values in run.optimizer.state.values())


def test_moments_made_before_give_the_bits_of_those_that_torch_makes(prepared: RunLayout, tmp_path: Path) -> None:
    runs: list[Trainer] = []
    for name in ("made", "lazy"):
        run = trainer(prepared, tmp_path / name)
        if name == "lazy":
            run.optimizer.state.clear()
        take_steps(run, 3)
        runs.append(run)
    snapshots: list[dict[str, Any]] = [checkpoint.snapshot(run.model, run.optimizer).moments for run in runs]
    assert snapshots[0].keys() == snapshots[1].keys()
    for name, tensor in snapshots[0].items():
        assert tensor.dtype == snapshots[1][name].dtype and torch.equal(tensor, snapshots[1][name]), name
    for ours, theirs in zip(runs[0].model.parameters(), runs[1].model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_what_fills_the_memory_is_gone_before_scoring(
    prepared: RunLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the trainer, whatever an error or a hook has left in a cycle."""
    held, alive = list[Any](), list[Any]()
    real = Trainer.train

    def watched(run: Trainer, *hooks: Any) -> Any:
        held.extend(map(weakref.ref, (run, run.model, run.optimizer, run.micro_step, run.model.embedding)))
        return real(run, *hooks)

    def score(run: Run, *_: Any) -> None:
        alive.extend(thing() for thing in held)
        assert run.state.step == 2

    monkeypatch.setattr(Trainer, "train", watched)
    monkeypatch.setattr("mtx.training.run._score", score)
    monkeypatch.setattr("mtx.training.run.stored_scores", lambda *_: None)
    root = shutil.copytree(prepared.root, tmp_path / "run")
    train(settings.with_values(settings.load(prepared.config), {"run_dir": str(root), "training.max_steps": 2}))
    assert alive == [None] * 5


def test_a_trial_holds_what_a_checkpoint_and_a_validation_need(
    prepared: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings.load(prepared.config)
    data = load_prepared(prepared.data)
    held, seen = list[Any](), list[int]()
    zeros = torch.zeros

    def counted(*size: Any, **named: Any) -> torch.Tensor:
        made = zeros(*size, **named)
        held.append(weakref.ref(made))
        return made

    def validate_part(model: Any, src: list[list[int]], tgt: list[list[int]], alpha: float) -> None:
        assert not model.training and src == tgt
        alive = [tensor for thing in held if (tensor := thing()) is not None]
        seen.extend([sum(map(len, tgt)), sum(tensor.numel() for tensor in alive)])

    monkeypatch.setattr(torch, "zeros", counted)
    monkeypatch.setattr("mtx.training.build.score_pairs", validate_part)
    chosen = RuntimeChoices("cpu", "fp32", 256, "padded", 1, False)
    _try_step(config, chosen, data)
    monkeypatch.undo()
    num_numbers = sum(parameter.numel() for parameter in new_model(config, chosen, data).parameters())
    assert SCORED_TOKENS <= seen[0] < 1.02 * SCORED_TOKENS
    needed = "Adam's moments, copies of these and of the weights, and the weights that a validation searches with"
    assert 6 * num_numbers <= seen[1] < 6.01 * num_numbers, needed
