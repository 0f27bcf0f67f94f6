"""A run that has begun refuses a change of a fixed key, with both values, and writes nothing.

A run has begun once anything was made with its configuration; here that is chosen.json alone.
"""

from pathlib import Path
from typing import Any

import pytest

from mtx.config import settings
from mtx.config.schema import Config, key_names, leaves
from mtx.errors import UsageError
from mtx.run.directory import open_run

BEGUN = {
    "data.src": "en", "data.tgt": "de", "data.hub.name": "owner/name",
    "training.max_steps": "100",
}  # fmt: skip
# Another value for every key of the run `BEGUN`; a new key belongs into one of the two tables.
FIXED: dict[str, Any] = {
    "seed": 2, "precision": "fp32",
    "data.src": "fr", "data.tgt": "nl", "data.generator": "grammar", "data.train": ("a.tsv",),
    "data.valid": "v.tsv", "data.test": ("t.tsv",), "data.max_tokens": 64, "data.max_length_ratio": 9.0,
    "data.hub.name": "owner/other", "data.hub.subset": "de-en", "data.hub.revision": "v2", "data.hub.train": "all",
    "data.hub.valid": "dev", "data.hub.test": ("test",),
    "tokenizer.vocab_size": 8000, "tokenizer.normalization": "none",
    "model.preset": "big", "model.num_encoder_layers": 3, "model.num_decoder_layers": 3, "model.d_model": 256,
    "model.d_ff": 64, "model.num_heads": 4, "model.dropout": 0.2, "model.norm": "pre", "model.activation": "gelu",
    "model.tie": "none", "model.positions": "learned", "model.output_bias": True,
    "training.init_from": "runs/other", "training.batch_tokens": 1000, "training.micro_batch_tokens": 500,
    "training.learning_rate": 0.1, "training.warmup_steps": 5, "training.label_smoothing": 0.2,
    "training.clip_norm": 1.0,
    "training.deterministic": True,
}  # fmt: skip
MAY_CHANGE: dict[str, Any] = {
    "run_dir": "moved", "device": "cpu", "data.dir": "elsewhere",
    "training.max_steps": 200, "training.time_limit": 60.0, "training.validate_every": 7,
    "training.checkpoint_every": 7, "training.average_last": 2, "training.patience": 3,
    "training.tensorboard": True,
    "decoding.beam_size": 1, "decoding.length_penalty": 1.0, "decoding.batch_tokens": 64,
}  # fmt: skip


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> settings.Resolved:
    """The configuration of a run in `run/` of the current directory."""
    monkeypatch.chdir(tmp_path)
    resolved = settings.resolve(None, [f"{key}={value}" for key, value in {**BEGUN, "run_dir": "run"}.items()])
    with open_run(resolved.config) as paths:
        paths.chosen.write_text("{}")
    return resolved


def tree(directory: Path) -> dict[str, bytes]:
    """The content of every file, except of the lock, which names its last owner."""
    paths = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path): b"" if path.name == "run.lock" else path.read_bytes() for path in paths}


def value_of(config: Config, key: str) -> Any:
    return dict(leaves(config.model_dump()))[key]


def test_every_key_is_in_one_table() -> None:
    assert sorted([*FIXED, *MAY_CHANGE]) == sorted(key_names())


@pytest.mark.parametrize("key", FIXED)
def test_a_fixed_key_is_refused_with_both_values(key: str, begun: settings.Resolved) -> None:
    config = settings.replace_values(begun, {key: FIXED[key]}, "test").config
    old, new = value_of(begun.config, key), value_of(config, key)
    before = tree(Path())
    with pytest.raises(UsageError) as error, open_run(config):
        raise AssertionError("the run was opened")
    assert error.value.exit_code == 2
    assert f"another configuration: {key} is {old!r} there, {new!r} was asked for" in str(error.value)
    assert old != new and ";" not in str(error.value), "only this key differs"
    assert tree(Path()) == before


@pytest.mark.parametrize("key", MAY_CHANGE)
def test_a_key_that_may_change_takes_its_new_value(key: str, begun: settings.Resolved) -> None:
    config = settings.replace_values(begun, {key: MAY_CHANGE[key]}, "test").config
    assert value_of(config, key) != value_of(begun.config, key)
    Path("run").rename(config.run_dir)
    with open_run(config) as paths:
        assert settings.load(paths.config) == config
        assert paths.chosen.read_text() == "{}"


def test_a_run_that_has_not_begun_may_change_every_key(begun: settings.Resolved) -> None:
    Path("run", "chosen.json").unlink()
    with open_run(settings.replace_values(begun, {"seed": 2, "model.d_ff": 64}, "test").config) as paths:
        assert settings.load(paths.config).seed == 2
