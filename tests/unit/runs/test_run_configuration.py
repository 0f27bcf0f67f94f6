"""The data and the checkpoints of a run bind its fixed settings."""

import shutil
from pathlib import Path

import pytest

from mtx.config import settings
from mtx.config.schema import Config
from mtx.config.settings import fixed_settings
from mtx.errors import DamagedFileError, UsageError
from mtx.formatting import mtx_command
from mtx.runs.run_directory import fixed_config, load_config
from mtx.storage import durable
from mtx.storage.run_files import RunLayout

CONFIG = settings.resolve(None, ["data.src=en", "data.hub.name=x/y"]).config


@pytest.fixture
def run(tmp_path: Path) -> RunLayout:
    paths = RunLayout(tmp_path)
    paths.config.write_text(settings.dump(CONFIG))
    for step in (1, 2):
        with durable.new_directory(paths.checkpoint(step)) as new:
            durable.write_json(new / "state.json", {"settings": fixed_settings(CONFIG)})
    return paths


def test_the_settings_that_may_change_are_not_bound(run: RunLayout) -> None:
    assert load_config(run) == CONFIG
    values = {"training.max_steps": 7, "run_dir": "other", "decoding.beam_size": 1, "data.dir": "else"}
    resolved = settings.replace_values(settings.Resolved(CONFIG, {}), values, "")
    run.config.write_text(settings.dump(resolved.config))
    assert load_config(run) == resolved.config


def test_other_fixed_settings_are_told_with_both_values(run: RunLayout) -> None:
    run.config.write_text(
        settings.dump(CONFIG).replace("num_heads: 8", "num_heads: 2").replace("seed: 1\n", "seed: 5\n")
    )
    with pytest.raises(UsageError) as caught:
        load_config(run)
    assert "config.yaml: model.num_heads is 2, it was 8; seed is 5, it was 1" in str(caught.value)
    assert f"cp {run.config} COPY.yaml && {mtx_command('train', 'COPY.yaml')} run_dir=NEW" in (caught.value.help or "")


def test_the_fixed_settings_are_known_whatever_became_of_the_file(run: RunLayout) -> None:
    with durable.new_directory(run.data) as new:
        durable.write_json(new / "settings.json", {"settings": fixed_settings(CONFIG)})
    run.config.write_text(settings.dump(CONFIG).replace("seed: 1", "seed: 5"))
    for gone in (run.checkpoints, run.data):
        assert fixed_settings(fixed_config(run, CONFIG)) == fixed_settings(CONFIG)
        with pytest.raises(UsageError, match="seed is 5, it was 1"):
            load_config(run)
        shutil.rmtree(gone)
    assert load_config(run).seed == fixed_config(run, CONFIG).seed == 5, "it has not begun"


def test_a_whole_checkpoint_whose_settings_are_none_is_damaged(run: RunLayout) -> None:
    durable.write_json(run.checkpoint(2) / "state.json", {"settings": {"bogus": 1}})
    durable.write_manifest(run.checkpoint(2))
    with pytest.raises(DamagedFileError, match=r"step-00000002/state.json: its settings are not a configuration"):
        load_config(run)


def test_a_damaged_checkpoint_binds_nothing_and_the_one_before_does(run: RunLayout) -> None:
    (run.checkpoint(2) / "state.json").write_text("{}")
    assert load_config(run) == CONFIG
    run.config.write_text(settings.dump(CONFIG).replace("seed: 1", "seed: 5"))
    with pytest.raises(UsageError, match="seed is 5, it was 1"):
        load_config(run)


def test_a_setting_that_a_later_version_adds_has_its_default(run: RunLayout) -> None:
    stored = fixed_settings(CONFIG)
    del stored["model"]["output_bias"]
    for step in (1, 2):
        durable.write_json(run.checkpoint(step) / "state.json", {"settings": stored})
        durable.write_manifest(run.checkpoint(step))
    assert load_config(run) == CONFIG
    assert Config.model_validate(stored).training == Config.model_validate(fixed_settings(CONFIG)).training
