"""A change to config.yaml is noticed and told by its line; a file without a seal is taken as it is."""

from pathlib import Path

import pytest

from mtx.config import settings
from mtx.config.schema import Config
from mtx.config.seal import check_seal, is_sealed, sealed
from mtx.errors import DamagedFileError, UsageError

TEXT = "".join(f"key_{number}: {number}\n" for number in range(40))


def test_what_mtx_wrote_is_accepted_also_with_other_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(settings.dump(Config(seed=3)))
    assert settings.load(path).seed == 3 and settings.is_dumped(path)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert settings.load(path).seed == 3
    check_seal(path, TEXT.split("\n"))  # of an earlier version, without a seal


@pytest.mark.parametrize("number", range(40))
def test_each_changed_line_is_named(number: int) -> None:
    lines = sealed(TEXT.replace(f"key_{number}: {number}\n", f"key_{number}: 77\n")).split("\n")[:-1]
    whole = sealed(TEXT).split("\n")[:-1]
    check_seal(Path("c"), whole)
    with pytest.raises(DamagedFileError, match=rf"c:{number + 1}: 'key_{number}: 77': was changed") as caught:
        check_seal(Path("c"), [*lines[:-1], whole[-1]])
    assert caught.value.help and "run_dir=NEW" in caught.value.help


def test_every_other_change_is_noticed() -> None:
    lines = sealed(TEXT).split("\n")[:-1]
    seal = lines[-1]
    for changed in (
        [*lines, "seed: 2"], ["seed: 2", *lines], [*lines, seal], lines[1:], [lines[1], lines[0], *lines[2:]],
        [*lines[:-1], seal[:-1]], [*lines[:-1], seal + "0"], [*lines[:-1], seal.replace(": ", ": x")],
        [*lines, "# a comment"],
    ):  # fmt: skip
        assert not is_sealed(changed)
        with pytest.raises(DamagedFileError, match="was changed after mtx wrote it"):
            check_seal(Path("c"), changed)


def test_a_recipe_called_config_yaml_needs_no_seal(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(settings.dump(Config(run_dir="x")).replace("seed: 1", "seed: 2"))
    assert settings.resolve(str(path), []).config.seed == 2  # a file by its name starts a new run
    with pytest.raises(DamagedFileError, match="config.yaml:2: 'seed: 2': was changed"):
        settings.resolve(str(tmp_path), [])
    path.write_text("seed: 4\n")
    assert settings.resolve(str(path), []).config.seed == settings.resolve(str(tmp_path), []).config.seed == 4
    assert not settings.is_dumped(path) and not settings.is_dumped(tmp_path)
    with pytest.raises(UsageError):
        settings.resolve(str(path / "missing.yaml"), [])
