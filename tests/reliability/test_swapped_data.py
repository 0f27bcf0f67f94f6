"""A run goes on with the data that it was trained on, to the byte, or says by name what is another."""

import shutil
from pathlib import Path

import pytest

from tests.integration.commands import check_error, tree, write_tsv
from tests.reliability import tiny
from tests.rig import Rig

GOES_ON = "training.max_steps=7"


@pytest.fixture(scope="module")
def pair(rig: Rig, whole: tiny.Whole, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run of six steps, and one that is prepared with other training text."""
    directory = tmp_path_factory.mktemp("pair")
    settings, other = whole.settings, write_tsv(directory / "other.tsv", range(3000, 3400))
    assert rig.run("train", *settings, "training.max_steps=6", f"run_dir={directory / 'run'}").code == 0
    assert rig.run("prepare", *settings, f"data.train={other}", f"run_dir={directory / 'other'}").code == 0
    return directory / "run", directory / "other"


@pytest.mark.parametrize(
    "name, words",
    [
        ("", ["data: not the data of step 6 of this run", "another run_dir"]),
        ("train.arrow", ["data/train.arrow", "manifest"]),
        ("tokenizer.model", ["data/tokenizer.model", "manifest"]),
    ],
)
def test_data_of_another_run_is_refused_by_name(
    rig: Rig, pair: tuple[Path, Path], tmp_path: Path, name: str, words: list[str]
) -> None:
    run = Path(shutil.copytree(pair[0], tmp_path / "run"))
    if not name:
        shutil.rmtree(run / "data")
        shutil.copytree(pair[1] / "data", run / "data")
    else:
        shutil.copy(pair[1] / "data" / name, run / "data" / name)
    before = tree(run)
    refused = rig.run("train", run, GOES_ON)
    check_error(refused.code or 0, refused.err(), 1, *words)
    after = tree(run)
    for changing in ("status.json", "config.yaml"):  # they say what was asked for, and that it failed
        del before[changing], after[changing]
    assert after == before


def test_the_data_itself_may_be_put_back(rig: Rig, pair: tuple[Path, Path], tmp_path: Path) -> None:
    run = Path(shutil.copytree(pair[0], tmp_path / "run"))
    shutil.rmtree(run / "data")
    missing = rig.run("train", run, GOES_ON)
    check_error(missing.code or 0, missing.err(), 1, "data: the prepared data of this run is missing")
    shutil.copytree(pair[0] / "data", run / "data")
    assert rig.run("train", run, GOES_ON).code == 0
