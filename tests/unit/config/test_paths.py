"""Paths in settings: the home directory, and characters that no path can have; and what a configuration file can be."""

import gzip
import os
from pathlib import Path

import pytest

from mtx.config import settings
from mtx.config.schema import Config
from mtx.errors import UsageError

KEYS = ("run_dir", "data.dir", "data.train", "data.valid", "data.test", "training.init_from")


def value_of(config: Config, key: str) -> object:
    value: object = config
    for name in key.split("."):
        value = getattr(value, name)
    return value[0] if isinstance(value, tuple) else value


@pytest.mark.parametrize("key", KEYS)
def test_the_home_directory_is_put_in(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert value_of(settings.resolve(None, [f"{key}=~/x"]).config, key) == "/home/me/x"
    assert value_of(settings.resolve(None, [f"{key}=a/~/x"]).config, key) == "a/~/x"
    assert value_of(settings.resolve(None, [f"{key}=~nobody-of-this-name/x"]).config, key) == "~nobody-of-this-name/x"
    section, _, name = key.rpartition(".")
    text = f"{name}: ~/x" if name not in ("train", "test") else f"{name}: [~/x]"
    (tmp_path / "a.yaml").write_text(f"{section}: {{{text}}}" if section else text)
    assert value_of(settings.resolve(str(tmp_path / "a.yaml"), []).config, key) == "/home/me/x"


def test_the_home_directory_is_put_into_weighted_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    (tmp_path / "a.yaml").write_text("data: {train: [{name: ~/x.tsv, weight: 2}]}")
    train = settings.resolve(str(tmp_path / "a.yaml"), []).config.data.train[0]
    assert not isinstance(train, str) and train.name == "/home/me/x.tsv"


@pytest.mark.parametrize("character", ["\\0", "\\uD800"])
@pytest.mark.parametrize("key", [*KEYS, "data.train.name"])
def test_a_path_that_cannot_be_is_refused_with_its_key(key: str, character: str, tmp_path: Path) -> None:
    path, quoted = tmp_path / "a.yaml", f'"a{character}b"'
    texts = {
        "run_dir": f"run_dir: {quoted}", "data.train": f"data: {{train: [{quoted}]}}",
        "data.test": f"data: {{test: [{quoted}]}}", "data.train.name": f"data: {{train: [{{name: {quoted}}}]}}",
    }  # fmt: skip
    section, _, name = key.rpartition(".")
    path.write_text(texts.get(key, f"{section}: {{{name}: {quoted}}}"))
    with pytest.raises(UsageError, match=r"a\.yaml:1: \S+: expected (a valid path|text in UTF-8)"):
        settings.resolve(str(path), [])


@pytest.mark.parametrize("name", ["fifo", "directory", "/dev/zero", "/dev/null"])
def test_a_configuration_is_a_regular_file(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if name == "fifo":
        os.mkfifo(path)
    elif name == "directory":
        path.mkdir()
    with pytest.raises(UsageError, match="no such text, configuration"):
        settings.resolve(str(path), [])
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").symlink_to(path)
    with pytest.raises(UsageError, match="no such text, configuration"):
        settings.resolve(str(run), [])


def test_a_compressed_configuration_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(gzip.compress(b"#" * 50_000_000))
    for name in (path, tmp_path):
        with pytest.raises(UsageError, match="config.yaml: invalid YAML: "):
            settings.resolve(str(name), [])
    os.truncate(path, 10 << 40)
    with pytest.raises(UsageError, match="at most 524,288"):
        settings.resolve(str(path), [])


def test_a_configuration_in_utf_16_is_read_and_bytes_of_another_encoding_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes("seed: 7 # é\n".encode("utf-16"))
    assert settings.resolve(str(path), []).config.seed == 7
    path.write_bytes("seed: 7 # é\n".encode("latin-1"))
    with pytest.raises(UsageError, match="config.yaml: invalid YAML: unacceptable character #x00e9"):
        settings.resolve(str(path), [])
