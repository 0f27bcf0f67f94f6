"""The export inside a model directory: made once, made again for other weights, and never half there."""

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mtx.data.tokenizer import Tokenizer
from mtx.decoding.ctranslate2_engine import CTranslate2Translator
from mtx.decoding.torch_engine import TorchTranslator
from mtx.errors import MtxError, UsageError
from mtx.files import durable
from mtx.files.shell import install_command
from mtx.interop import export_cache
from mtx.interop.export_cache import cached_export
from mtx.model_directory import storage
from tests.exports import lively_bundle, small_tokenizer

pytest.importorskip("ctranslate2")

LINES = ["ab cde", "fgü a", "cab fad gab"]
KEEP = (
    "import sys; from pathlib import Path; from mtx.interop.export_cache import cached_export;"
    "print(cached_export(Path(sys.argv[1])).name, 'torch' in sys.modules)"
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return small_tokenizer()


@pytest.fixture
def model(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    lively_bundle(tokenizer, tmp_path / "model")
    return tmp_path / "model"


def keep_elsewhere(model: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", KEEP, str(model)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_it_is_made_once_and_then_found_without_torch(model: Path) -> None:
    export = cached_export(model)
    assert export == model / "ctranslate2-fp32"
    made = (export / "model.bin").stat().st_mtime_ns
    out, err = keep_elsewhere(model).communicate(timeout=60)
    assert out == "ctranslate2-fp32 False\n", err
    assert cached_export(export) == export == cached_export(model)
    assert (export / "model.bin").stat().st_mtime_ns == made
    assert [path.name for path in model.iterdir() if path.name.startswith(".")] == []
    assert TorchTranslator.load(model).translate(LINES)  # the model directory is still one


def test_it_is_made_again_for_other_weights(model: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    before = cached_export(model, "fp32")
    out = CTranslate2Translator.load(before).translate(LINES)
    lively_bundle(tokenizer, tmp_path / "other", seed=5)
    before.rename(tmp_path / "other" / before.name)
    after = cached_export(tmp_path / "other", "fp32")
    expected = TorchTranslator.load(tmp_path / "other").translate(LINES)
    assert CTranslate2Translator.load(after).translate(LINES) == expected != out


def test_an_unfinished_one_is_made_again(model: Path) -> None:
    export = cached_export(model)
    (export / "mtx.json").unlink()
    durable.verify(cached_export(model), ("mtx.json", "model.bin"))


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_nothing_is_left_of_one_that_fails(error: BaseException, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        assert (model / ".tmp-ctranslate2-fp32.lock").is_file()
        raise error

    before = sorted(model.iterdir())
    monkeypatch.setattr("mtx.interop.ctranslate2.write_ctranslate2", fail)
    with pytest.raises((MtxError, KeyboardInterrupt)):
        cached_export(model)
    assert sorted(model.iterdir()) == before


def test_without_the_library_nothing_is_written_or_told(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = sorted(model.rglob("*"))
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with caplog.at_level("INFO"), pytest.raises(MtxError, match="CTranslate2 is not installed") as error:
        cached_export(model)
    assert sorted(model.rglob("*")) == before and caplog.text == ""
    assert error.value.help == install_command("ctranslate2")


@pytest.mark.seconds
def test_two_processes_at_once_make_one(model: Path) -> None:
    processes = [keep_elsewhere(model) for _ in range(2)]
    results = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], results
    assert sorted(out.split()[1] for out, _ in results) == ["False", "True"], results
    durable.verify(model / "ctranslate2-fp32", ("model.bin",))
    assert [path.name for path in model.iterdir() if path.name.startswith(".")] == []


def test_where_nothing_can_be_written_is_said(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def __init__(self, path: Path):
            self.path = path

        def __enter__(self) -> None:
            raise PermissionError(13, "Permission denied", str(self.path))

        def __exit__(self, *_: Any) -> None:
            pass

    monkeypatch.setattr(export_cache, "FileLock", Refusing)
    with pytest.raises(MtxError, match="ctranslate2-fp32: cannot be written: Permission denied") as error:
        cached_export(model)
    assert error.value.help is not None and "mtx export" in error.value.help


def test_what_is_no_finished_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such"):
        cached_export(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="is not a model directory"):
        cached_export(tmp_path)
    (tmp_path / "config.yaml").write_text("")
    with pytest.raises(UsageError, match="no model directory yet"):
        cached_export(tmp_path)


def test_the_model_of_a_run_is_meant(model: Path) -> None:
    assert cached_export(model.parent) == model / "ctranslate2-fp32"
    assert storage.load(model).info["src"] == "de"
