"""One tiny run that the tests share; those that change it take a copy."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from mtx import cli
from tests.integration.commands import TINY, check_error, mtx, write_tsv


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tsv(tmp_path_factory.mktemp("corpus") / "digits.tsv", range(1000, 1400))


@pytest.fixture(scope="session")
def settings(corpus: Path) -> list[str]:
    return [f"data.train={corpus}", *TINY]


@pytest.fixture(scope="session")
def trained(settings: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run in the precision that `auto` chooses, with what the command printed in `stdout` and `stderr`."""
    run = tmp_path_factory.mktemp("trained") / "run"
    result = mtx("train", *settings, f"run_dir={run}")
    assert result.returncode == 0, result.stderr.decode()
    (run.parent / "stdout").write_bytes(result.stdout)
    (run.parent / "stderr").write_bytes(result.stderr)
    return run


@pytest.fixture
def run_copy(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "copy"))


@pytest.fixture
def refused(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a command in this process, on the CPU, that must end with an error and print no result."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    def run(code: int, words: list[str], *arguments: object) -> None:
        returned = cli.run([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        check_error(returned, err, code, *words)
        assert out == ""

    return run
