"""The table of differing settings, and the groups of runs that differ only in the seed."""

from pathlib import Path

import pytest

from mtx.config import settings
from mtx.config.schema import Config
from mtx.evaluation.differing_settings import differing_settings, groups_by_seed, groups_of
from mtx.storage import durable
from mtx.storage.run_files import RunLayout


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


def record(run: Path, *sha256: str) -> None:
    files = [
        {"path": f"/text/{name}", "sha256": value} for name, value in zip(("a.tsv", "b.tsv"), sha256, strict=False)
    ]
    durable.write_json(RunLayout(run).sources, {"files": files})


def set_data(run: Path, **values: object) -> None:
    """Give a run the seed in its place and a `data` section."""
    seed = {"base": 1, "seed": 2, "same_seed": 3}[run.name]
    config = Config.model_validate({"run_dir": str(run), "seed": seed, "model": {"dropout": 0.1}, "data": values})
    RunLayout(run).config.write_text(settings.dump(config))


def test_runs_on_other_text_are_no_twins(systems: list[Path]) -> None:
    base, _, seed, same_seed = systems[1:]
    for run, second in ((base, "2" * 64), (seed, "2" * 64), (same_seed, "3" * 64)):
        set_data(run)
        record(run, "1" * 64, second)
    assert groups_by_seed([seed, base, same_seed]) == [[0, 1], [2]]
    files = [["a.tsv 11111111", f"b.tsv {second}"] for second in ("22222222", "33333333")]
    assert differing_settings([base, same_seed])["text"] == files
    labels = [group.label for group in groups_of([base, seed, same_seed], ["first", "second", "third"])]
    assert labels == ["first and 1 more seed", "third"]
    set_data(same_seed, dir="/other")
    labels = [group.label for group in groups_of([base, seed, same_seed], ["first", "second", "third"])]
    assert labels == ["data.dir=null", "data.dir=/other"]


def test_a_run_whose_record_is_damaged_is_no_twin(systems: list[Path]) -> None:
    record(systems[1], "1" * 64)
    RunLayout(systems[4]).sources.write_text("{")
    assert groups_by_seed([systems[1], systems[4]]) == [[0], [1]]


def test_a_setting_without_a_value_is_null(systems: list[Path]) -> None:
    set_data(systems[1], valid="b.tsv")
    labels = [group.label for group in groups_of([systems[1], systems[3], systems[4]], ["a", "b", "c"])]
    assert labels == ["a", "b", "c"]
    set_data(systems[4])
    labels = [group.label for group in groups_of([systems[1], systems[3], systems[4]], ["a", "b", "c"])]
    assert labels == ["data.valid=b.tsv", "data.valid=null"]
