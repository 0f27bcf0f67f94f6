"""Which checkpoints may become the final model."""

from pathlib import Path

from mtx.data.sampler import SamplerState
from mtx.storage.run_files import WEIGHTS, RunLayout
from mtx.training import checkpoint
from mtx.training.checkpoint import State
from mtx.training.final_weights import _candidates
from tests.models import tiny_model
from tests.unit.training.test_checkpoint import NUM_IDS, flip


def save(paths: RunLayout, *steps: int) -> None:
    model = tiny_model(NUM_IDS)
    optimizer = checkpoint.torch.optim.Adam(model.parameters(), fused=True)
    for step in steps:
        checkpoint.save(paths, checkpoint.snapshot(model, optimizer), State(step))


def state(best: int, validated: int) -> State:
    return State(100, SamplerState(0, 0), 20.5, best, validated, 0, 1.0)


def test_means_the_last_and_the_best_are_compared(tmp_path: Path) -> None:
    paths = RunLayout(tmp_path / "run")
    save(paths, 50, 80, 85, 90, 100)
    means: dict[tuple[int, ...], float | None] = {(80, 85, 90, 100): None, (90, 100): None}
    assert _candidates(paths, state(100, 100), 5, 4) == means | {(100,): 20.5}
    # the last one was validated and is worse than the best
    assert _candidates(paths, state(50, 100), 5, 4) == means | {(50,): 20.5}
    # the best one is no longer there, or no validation was better than the model of training.init_from
    for best, validated in ((40, 40), (0, 100)):
        assert _candidates(paths, state(best, validated), 5, 4) == means | {(100,): None}


def test_damaged_weights_are_no_candidate(tmp_path: Path) -> None:
    paths = RunLayout(tmp_path / "run")
    save(paths, 50, 90, 100)
    for step in (50, 100):
        flip(paths.checkpoint(step) / WEIGHTS, -2)
    assert _candidates(paths, state(50, 50), 5, 4) == {(90,): None}
