"""A change to a sealed text is noticed; a file without a seal is taken as it is."""

from pathlib import Path

import pytest

from mtx.config import settings
from mtx.config.schema import Config
from mtx.config.seal import is_changed, is_sealed, sealed
from mtx.errors import UsageError

TEXT = "".join(f"key_{number}: {number}\n" for number in range(4))


def test_what_mtx_wrote_is_accepted_also_with_other_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(settings.dump(Config(seed=3)))
    assert settings.load(path).seed == 3 and settings.is_dumped(path) and not settings.is_changed(path)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert settings.load(path).seed == 3 and settings.is_dumped(path) and not settings.is_changed(path)
    assert not is_changed(TEXT.split("\n")) and not is_sealed(TEXT.split("\n")), "of an earlier version"


def test_every_change_is_noticed() -> None:
    lines = sealed(TEXT).split("\n")[:-1]
    seal = lines[-1]
    assert is_sealed(lines) and not is_changed(lines)
    for changed in (
        [*lines, "seed: 2"], ["seed: 2", *lines], [*lines, seal], lines[1:], [lines[1], lines[0], *lines[2:]],
        [*lines[:-1], seal[:-1]], [*lines[:-1], seal + "0"], [*lines[:-1], seal.replace(": ", ": x")],
        [*lines, "# a comment"], [*lines[:2], "key_2: 77", *lines[3:]],
    ):  # fmt: skip
        assert not is_sealed(changed) and is_changed(changed)


def test_a_recipe_called_config_yaml_needs_no_seal(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(settings.dump(Config(run_dir="x")).replace("seed: 1", "seed: 2"))
    assert settings.resolve(str(path), []).config.seed == 2  # a file by its name starts a new run
    path.write_text("seed: 4\n")
    assert settings.resolve(str(path), []).config.seed == settings.resolve(str(tmp_path), []).config.seed == 4
    assert not settings.is_dumped(path) and not settings.is_dumped(tmp_path)
    with pytest.raises(UsageError):
        settings.resolve(str(path / "missing.yaml"), [])
