"""Models of other architectures train, go on, translate and are looked at as the Transformer is; none is exported."""

import shutil
import signal
from pathlib import Path

import pytest

from tests.integration.commands import check_error, end_at_step, mtx

SETTINGS = {
    "rnn": ["model.architecture=rnn", "training.rdrop_alpha=1.0"],
    "decoder": ["model.architecture=decoder", "training.rdrop_alpha=1.0"],
}


@pytest.fixture(scope="module", params=SETTINGS)
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def run(architecture: str, settings: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp(architecture) / "run"
    done = mtx("train", *settings, *SETTINGS[architecture], f"run_dir={run}")
    assert done.returncode == 0, done.stderr.decode()
    assert f"model.architecture={architecture} cannot be exported" in done.stderr.decode()
    return run


@pytest.mark.extended
def test_killed_it_goes_on_to_the_same_bits(run: Path, architecture: str, settings: list[str], tmp_path: Path) -> None:
    again, arguments = tmp_path / "run", [*settings, *SETTINGS[architecture]]
    assert end_at_step(again, 8, signal.SIGKILL, *arguments)[0] == -signal.SIGKILL
    assert mtx("train", *arguments, f"run_dir={again}").returncode == 0
    for name in ("model/model.safetensors", "checkpoints/step-00000040/optimizer.safetensors"):
        assert (again / name).read_bytes() == (run / name).read_bytes()


def test_it_translates_and_is_looked_at(run: Path, architecture: str, tmp_path: Path) -> None:
    lines = b"one two\n\nthree four five six\n"
    done = mtx("translate", run, "--n-best", 2, "--beam", 3, stdin=lines)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 3
    assert b"cannot be exported" in done.stderr, "so torch translates"
    translations = mtx("translate", run, stdin=lines).stdout.splitlines()
    assert translations[0] and translations[1] == b""
    assert translations[2] == mtx("translate", run, stdin=b"three four five six\n").stdout.strip()
    page = tmp_path / "page.html"
    assert mtx("attention", run, "one two", "-o", page).returncode == 0
    content, has_more = page.read_text(encoding="utf-8"), architecture != "rnn"
    assert 'data-kind="cross"' in content and ('data-kind="encoder"' in content) == has_more
    assert mtx("report", run, "-o", page).returncode == 0


def test_it_is_not_exported(run: Path, tmp_path: Path) -> None:
    for to in ("ctranslate2", "huggingface"):
        done = mtx("export", run, "--to", to, "-o", tmp_path / "out")
        check_error(done.returncode, done.stderr.decode(), 2, "only transformer")
    done = mtx("translate", run, "--engine", "ctranslate2", stdin=b"one\n")
    check_error(done.returncode, done.stderr.decode(), 2, "only transformer")
    assert not (tmp_path / "out").exists()


def test_training_starts_from_such_a_model(run: Path, settings: list[str], tmp_path: Path) -> None:
    copy = shutil.copytree(run / "model", tmp_path / "model")
    text = [setting for setting in settings if setting.startswith("data.")]
    done = mtx(
        "train", *text, "training.max_steps=2", "training.batch_tokens=256", "training.learning_rate=0.0001",
        "training.warmup_steps=1", f"training.init_from={copy}", f"run_dir={tmp_path / 'run'}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
