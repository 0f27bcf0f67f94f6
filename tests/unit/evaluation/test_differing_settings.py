"""The table of differing settings, and the groups of runs that differ only in the seed."""

from pathlib import Path

import pytest

from mtx.config import settings
from mtx.config.schema import Config
from mtx.evaluation.differing_settings import differing_settings, groups_by_seed
from mtx.run.layout import RunLayout


@pytest.fixture
def systems(tmp_path: Path) -> list[Path]:
    """A file, a run, a run with another dropout, and two runs with another seed."""
    paths = [tmp_path / name for name in ("hyp.txt", "base", "dropout", "seed", "same_seed")]
    paths[0].touch()
    for root, dropout, seed in zip(paths[1:], (0.1, 0.3, 0.1, 0.1), (1, 1, 2, 2), strict=True):
        root.mkdir()
        values = {"run_dir": str(root), "seed": seed, "model": {"dropout": dropout}}
        RunLayout(root).config.write_text(settings.dump(Config.model_validate(values)))
    return paths


def test_differing_settings_are_those_of_the_runs_without_their_places(systems: list[Path]) -> None:
    assert differing_settings(systems) == {"model.dropout": [0.1, 0.3, 0.1, 0.1], "seed": [1, 1, 2, 2]}
    assert differing_settings(systems[:2]) == {}


def test_runs_with_different_seeds_form_a_group_and_a_repeated_seed_does_not(systems: list[Path]) -> None:
    assert groups_by_seed(systems) == [[1, 3], [2], [4]]
