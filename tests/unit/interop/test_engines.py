"""Which engine translates, and what is said where it is not the fast one."""

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ctranslate2")

from mtx.decoding.ctranslate2_engine import CTranslate2Translator
from mtx.decoding.options import Sampling
from mtx.decoding.torch_engine import TorchTranslator
from mtx.errors import DamagedFileError, UsageError
from mtx.interop import engines
from mtx.interop.engines import Translator, find_export
from mtx.model import device
from tests.exports import lively_bundle, small_tokenizer

LINES = ["ab cde", "fgü a", "cab fad gab"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    lively_bundle(small_tokenizer(), tmp_path / "model")
    return tmp_path / "model"


def with_gpu(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(device, "find_device", lambda name: type("Device", (), {"type": kind}))


def test_on_a_cpu_it_is_ctranslate2(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    export, quantized = find_export(model), find_export(model, precision="int8")
    assert export is not None and quantized is not None and export != quantized
    assert find_export(model, device="cpu") == find_export(export) == export
    assert find_export(quantized) == quantized
    assert "torch" not in caplog.text


def test_on_a_gpu_it_is_torch_but_for_exports(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export = find_export(model)
    with_gpu(monkeypatch, "cuda")
    assert find_export(model) is find_export(model, device="cuda:1") is find_export(model, device="mps") is None
    assert find_export(model, device="cpu") == export
    assert export is not None and find_export(export) == export
    with_gpu(monkeypatch, "cpu")
    assert find_export(model) == export, "there is a driver, and torch cannot use it"


def test_why_torch_translates_is_said(
    model: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    assert find_export(model, torch_options=["--batch-tokens"]) is None
    assert caplog.messages[-1] == "torch translates: CTranslate2 has no --batch-tokens"
    assert find_export(model, "torch") is find_export(model, precision="bf16") is None
    assert len(caplog.messages) == 1
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    assert find_export(model) is None and "torch translates: CTranslate2 is not installed" in caplog.messages[-1]
    with pytest.raises(Exception, match="CTranslate2 is not installed"):
        find_export(model, "ctranslate2")
    with pytest.raises(UsageError, match="precision int8: the engine torch has fp32, bf16"):
        find_export(model, "torch", "int8")


def test_what_ctranslate2_lacks_is_refused_where_it_is_needed(model: Path, tmp_path: Path) -> None:
    export = find_export(model, precision="int8")
    assert export is not None
    for engine, precision, place in (("ctranslate2", None, model), ("auto", "int8", model), ("auto", None, export)):
        with pytest.raises(UsageError, match="only the engine torch has --batch-tokens"):
            find_export(place, engine, precision, torch_options=["--batch-tokens"])
    with pytest.raises(UsageError, match="only the engine torch has batch_tokens"):
        Translator.load(model, precision="int8", batch_tokens=64)
    with pytest.raises(ValueError, match="batch_tokens"):
        Translator.load(model, batch_tokens=0)


def test_where_a_kept_export_is_of_no_use_torch_translates(
    model: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    sound, export = Translator.load(model).translate(LINES), find_export(model)
    assert export is not None

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    (export / "model.bin").write_bytes(b"no model")
    with monkeypatch.context() as context:
        context.setattr("mtx.interop.ctranslate2.write_ctranslate2", full)
        assert Translator.load(model).translate(LINES) == sound
        assert "torch translates: " in caplog.messages[-1] and "No space left" in caplog.messages[-1]
    assert isinstance(Translator.load(model).engine, CTranslate2Translator)
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    assert Translator.load(model).translate(LINES) == sound
    assert "CTranslate2 is not installed" in caplog.messages[-1]


def test_samples_that_depend_on_earlier_lines_are_not_repeatable(model: Path) -> None:
    sampling = Sampling(2)
    assert Translator.load(model).is_repeatable and Translator.load(model, sampling=sampling).is_repeatable
    assert not Translator.load(model, engine="ctranslate2", sampling=sampling).is_repeatable


def test_a_translator_does_everything_with_either_engine(model: Path) -> None:
    fast, slow = Translator.load(model), Translator.load(model, engine="torch")
    assert isinstance(fast.engine, CTranslate2Translator) and isinstance(slow.engine, TorchTranslator)
    assert fast.translate(LINES) == slow.translate(LINES) == TorchTranslator.load(model).translate(LINES)
    out = fast.translate(LINES)
    assert fast.log_probs(LINES, out) == slow.log_probs(LINES, out)
    shapes = [[maps.cross.shape for maps in translator.attention_maps(LINES)] for translator in (fast, slow)]
    assert shapes[0] == shapes[1]
    assert isinstance(Translator.load(model, sampling=Sampling(2)).engine, TorchTranslator)
    assert isinstance(Translator.load(model, batch_tokens=64).engine, TorchTranslator)


def test_asked_wrongly(model: Path, tmp_path: Path) -> None:
    name: Any = "onnx"
    with pytest.raises(UsageError, match="engine onnx: expected auto, torch, ctranslate2"):
        Translator.load(model, engine=name)
    with pytest.raises(UsageError, match="no such model directory or run directory"):
        Translator.load(tmp_path / "nowhere")


def test_what_an_export_in_8_bits_costs_is_said(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    export = find_export(model, precision="int8")
    assert export is not None
    engines._tell_cost(export)
    assert "compared with fp32" not in caplog.text, "there is no text to compare on"
    described = engines.durable.read_json(export / "mtx.json")
    engines.durable.write_json(
        export / "mtx.json", {**described, "comparison": "200 lines: 90.0% identical, BLEU -0.10"}
    )
    engines._tell_cost(export)
    assert caplog.messages[-1] == "int8, compared with fp32 on 200 lines: 90.0% identical, BLEU -0.10"


def test_a_damaged_export_is_made_again_only_where_the_model_is(model: Path) -> None:
    export = find_export(model)
    assert export is not None
    sound = Translator.load(model).translate(LINES)
    (export / "model.bin").write_bytes(b"no model")
    with pytest.raises(DamagedFileError):
        Translator.load(export)
    assert Translator.load(model).translate(LINES) == sound
    assert Translator.load(export).translate(LINES) == sound
