from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.integration.commands import check_error, events, mtx

pytest.importorskip("tensorboard")


def _scalars(run: Path) -> dict[str, dict[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(run / "tensorboard")).Reload()
    return {tag: {each.step: each.value for each in board.Scalars(tag)} for tag in board.Tags()["scalars"]}


def test_tensorboard_shows_the_numbers_of_metrics_under_their_names(settings: list[str], tmp_path: Path) -> None:
    run, wanted = tmp_path / "run", [*settings, "training.tensorboard=true"]
    assert mtx("train", *wanted, f"run_dir={run}").returncode == 0
    assert mtx("train", run, "training.max_steps=44").returncode == 0
    found, shown = events(run), _scalars(run)
    for kind, keys in (("train", ("loss", "nll", "learning_rate", "grad_norm")), ("validation", ("bleu", "ppl"))):
        for key in keys:
            told = {event["step"]: pytest.approx(event[key], rel=1e-6) for event in found if event["event"] == kind}
            assert shown[f"{kind}/{key}"] == told, key
    assert "train/step" not in shown and "validation/samples" not in shown


def test_a_full_disk_costs_its_files_and_not_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mtx.errors import DeferredErrors
    from mtx.storage.run_files import RunLayout
    from mtx.training.checkpoint import State
    from mtx.training.hooks import TensorBoard

    class Full:
        def __init__(self, *_: object, **__: object):
            pass

        def add_scalar(self, *_: object) -> None:
            raise OSError(28, f"No space left, {len(lost.messages)}")

        def close(self) -> None:
            self.add_scalar()

    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter", Full)
    lost = DeferredErrors()
    config = SimpleNamespace(training=SimpleNamespace(tensorboard=True))
    trainer: Any = SimpleNamespace(
        paths=RunLayout(tmp_path), config=config, state=State(), deferred_errors=lost, cleanup=ExitStack()
    )
    board = TensorBoard()
    with trainer.cleanup:
        board.on_start(trainer)
        board.on_event(trainer, "train", {"step": 1, "loss": 2.0})
    assert [text[-1] for text in lost.messages] == ["0", "1"]


def test_without_the_package_it_is_refused_before_anything_is_made(
    settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mtx.config import settings as configuration
    from mtx.errors import UsageError
    from mtx.training.run import train

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    run = tmp_path / "run"
    wanted = configuration.resolve(None, [*settings, "training.tensorboard=true", f"run_dir={run}"]).config
    with pytest.raises(UsageError) as refused:
        train(wanted)
    check_error(refused.value.exit_code, f"error: {refused.value}\nhelp: {refused.value.help}\n", 2, "tensorboard")
    assert not run.exists()
