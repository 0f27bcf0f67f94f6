"""Which engine a model is served with."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ctranslate2")

from mtx.decoding.ctranslate2_engine import CTranslate2Translator
from mtx.decoding.translator import Translator
from mtx.errors import UsageError
from mtx.model import device
from mtx.serve import engine
from tests.exports import lively_bundle, small_tokenizer


class Cuda:
    """What CTranslate2 says of a machine with a GPU."""

    @staticmethod
    def get_cuda_device_count() -> int:
        return 1


def test_a_cpu_has_ctranslate2_in_fp32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lively_bundle(small_tokenizer(), tmp_path / "model")
    translator = engine.load_translator(str(tmp_path / "model"))
    assert isinstance(translator, CTranslate2Translator) and translator.runtime.compute_type == "float32"
    assert (translator.src, translator.tgt) == ("de", "en")
    monkeypatch.setattr(engine, "library", Cuda)
    assert isinstance(engine.load_translator(str(tmp_path / "model")), CTranslate2Translator), "torch sees no GPU"
    with pytest.raises(UsageError, match="no such model"):
        engine.load_translator(str(tmp_path / "none"))


def test_a_gpu_has_torch_but_for_an_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lively_bundle(small_tokenizer(), tmp_path / "model")
    engine.load_translator(str(tmp_path / "model"))
    loaded = list[Path]()
    monkeypatch.setattr(engine, "library", Cuda)
    monkeypatch.setattr(device, "find_device", lambda name: type("Device", (), {"type": "cuda"}))

    def load(path: Path) -> Any:
        loaded.append(path)

    monkeypatch.setattr(Translator, "load", load)
    engine.load_translator(str(tmp_path / "model"))
    assert loaded == [tmp_path / "model"]
    export = tmp_path / "model" / "ctranslate2-fp32"
    assert isinstance(engine.load_translator(str(export)), CTranslate2Translator) and len(loaded) == 1
