"""The conversions in the user's cache: made once, made again for other weights, never half there, never too many."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mtx.data.tokenizer import Tokenizer
from mtx.decoding import load as module
from mtx.decoding import model_directory
from mtx.decoding.load import cached_export
from mtx.decoding.translator import Translator
from mtx.errors import DamagedFileError, MtxError, UsageError
from mtx.formatting import install_command
from mtx.storage import durable
from mtx.storage.run_files import WEIGHTS
from tests.exports import lively_bundle, small_tokenizer
from tests.integration.commands import flip_bit, tree
from tests.rig import PATIENCE_S

ctranslate2 = pytest.importorskip("ctranslate2")

LINES = ["ab cde", "fgü a", "cab fad gab"]
KEEP = (
    "import sys; from pathlib import Path; from mtx.decoding.load import cached_export;"
    "print(cached_export(Path(sys.argv[1])).name, 'torch' in sys.modules)"
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return small_tokenizer()


@pytest.fixture
def model(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    lively_bundle(tokenizer, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "mtx" / "ctranslate2"


def conversions(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.name != "lock")


def convert_elsewhere(model: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", KEEP, str(model)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_it_is_made_once_outside_the_model_and_then_found_without_torch(model: Path, cache: Path) -> None:
    before = tree(model)
    export = cached_export(model)
    assert export.parent == cache and export.name.endswith(f"-fp32-{ctranslate2.__version__}")
    made = (export / "model.bin").stat().st_mtime_ns
    out, err = convert_elsewhere(model).communicate(timeout=PATIENCE_S)
    assert out == f"{export.name} False\n", err
    assert cached_export(model) == export
    assert (export / "model.bin").stat().st_mtime_ns == made
    assert conversions(cache) == [export.name] and tree(model) == before


def test_a_copy_of_a_model_has_the_same_one_and_other_weights_another(
    model: Path, tokenizer: Tokenizer, tmp_path: Path, cache: Path
) -> None:
    export = cached_export(model)
    assert cached_export(Path(shutil.copytree(model, tmp_path / "copy"))) == export
    lively_bundle(tokenizer, tmp_path / "other", seed=5)
    other = cached_export(tmp_path / "other")
    assert len({export, other, cached_export(model, "int8")}) == len(conversions(cache)) == 3
    out = [Translator.load(path).translate(LINES) for path in (export, other)]
    assert out == [Translator.load(path, engine="torch").translate(LINES) for path in (model, tmp_path / "other")]
    assert out[0] != out[1]


def test_other_search_settings_of_the_same_weights_are_another(model: Path) -> None:
    export = cached_export(model)
    info = durable.read_json(model / "config.json")
    info.pop("format")
    durable.write_json(model / "config.json", {**info, "beam_size": 1})
    durable.write_manifest(model)
    assert Translator.load(export).options.beam_size != 1
    assert Translator.load(cached_export(model)).options.beam_size == 1


@pytest.mark.parametrize("name", [WEIGHTS, "config.json", "tokenizer.model", "tokenizer.json"])
def test_a_flipped_bit_in_the_model_is_noticed_beside_a_sound_conversion(model: Path, name: str) -> None:
    cached_export(model)
    flip_bit(model / name)
    with pytest.raises(DamagedFileError, match=name):
        cached_export(model)


def test_a_model_that_changes_while_it_is_read_gives_nobody_its_conversion(
    model: Path, tokenizer: Tokenizer, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lively_bundle(tokenizer, tmp_path / "other", seed=5)
    load = model_directory.load

    def replace_and_load(root: Path) -> Any:
        shutil.copytree(tmp_path / "other", root, dirs_exist_ok=True)
        return load(root)

    monkeypatch.setattr(model_directory, "load", replace_and_load)
    with pytest.raises(DamagedFileError, match="changed while being read"):
        cached_export(model)
    assert conversions(cache) == []


def test_a_manifest_that_claims_the_weights_of_another_model_does_not_get_its_conversion(
    model: Path, tokenizer: Tokenizer, tmp_path: Path, cache: Path
) -> None:
    lively_bundle(tokenizer, tmp_path / "other", seed=5)
    theirs, own = (durable.read_manifest(path) for path in (tmp_path / "other", model))
    for entries in ([theirs[WEIGHTS], own[WEIGHTS]], [own[WEIGHTS], theirs[WEIGHTS]]):
        durable.write_json(model / durable.MANIFEST, {"files": {**own, WEIGHTS: entries}})
        assert cached_export(tmp_path / "other") != cached_export(model)
    assert len(conversions(cache)) == 3


def test_an_unfinished_one_is_made_again(model: Path, cache: Path) -> None:
    export = cached_export(model)
    (export / durable.MANIFEST).unlink()
    durable.verify(cached_export(model), ("mtx.json", "model.bin"))
    assert conversions(cache) == [export.name]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_nothing_is_left_of_one_that_fails(
    error: BaseException, model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    before = tree(model)
    with monkeypatch.context() as context:
        context.setattr("mtx.decoding.ctranslate2_writer.write_ctranslate2", fail)
        with pytest.raises((MtxError, KeyboardInterrupt)):
            cached_export(model)
    assert conversions(cache) == [] and tree(model) == before
    (cache / ".tmp-0123456789abcdef").mkdir()  # of a process that was killed
    assert conversions(cache) != [cached_export(model).name] == conversions(cache)


def test_without_the_library_nothing_is_written_or_told(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with caplog.at_level("INFO"), pytest.raises(MtxError, match="CTranslate2 is not installed") as error:
        cached_export(model)
    assert not cache.exists() and caplog.text == ""
    assert error.value.help == install_command("ctranslate2")


@pytest.mark.seconds
def test_two_processes_at_once_make_one(model: Path, cache: Path) -> None:
    processes = [convert_elsewhere(model) for _ in range(2)]
    results = [process.communicate(timeout=PATIENCE_S) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], results
    assert sorted(out.split()[1] for out, _ in results) == ["False", "True"], results
    (name,) = conversions(cache)
    durable.verify(cache / name, ("model.bin",))


def test_the_one_that_was_used_longest_ago_goes_first(
    model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, unused = cached_export(model), cached_export(model, "fp16")
    (cache / "of-an-earlier-version").mkdir()
    for path in cache.iterdir():
        os.utime(path, (1, 1))
    os.utime(unused, (2, 2))
    assert cached_export(model) == used
    sizes = {path: sum(file.stat().st_size for file in path.iterdir()) for path in (used, unused)}
    monkeypatch.setattr(module, "_MAX_BYTES", 2 * sizes[used])
    new = cached_export(model, "int8")
    assert conversions(cache) == sorted([used.name, new.name])
    monkeypatch.setattr(module, "_MAX_BYTES", 1)
    assert conversions(cache) != [cached_export(model, "fp16").name] == conversions(cache), "the newest stays"


def test_where_nothing_can_be_written_is_said(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def __init__(self, path: Path):
            self.path = path

        def __enter__(self) -> None:
            raise PermissionError(13, "Permission denied", str(self.path))

        def __exit__(self, *_: Any) -> None:
            pass

    monkeypatch.setattr(module, "FileLock", Refusing)
    with pytest.raises(MtxError, match="mtx/ctranslate2: cannot write it: Permission denied"):
        cached_export(model)


def test_what_is_no_finished_model_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(UsageError, match="no finished model"):
            cached_export(path)
    (tmp_path / "config.yaml").write_text("")
    with pytest.raises(UsageError, match="no finished model"):
        cached_export(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "manifest.json").write_text("{")
    with pytest.raises(DamagedFileError, match="manifest.json"):
        cached_export(tmp_path)


def test_the_model_of_a_run_is_meant(model: Path) -> None:
    assert cached_export(model.parent) == cached_export(model)
