"""Which engine translates, and what is said where it is not the fast one."""

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ctranslate2")

from mtx.decoding import load as module
from mtx.decoding.load import cached_export, choose_engine
from mtx.decoding.options import Placement, Sampling
from mtx.decoding.translator import Translator
from mtx.errors import DamagedFileError, UsageError
from mtx.model import device
from tests.exports import lively_bundle, small_tokenizer

LINES = ["ab cde", "fgü a", "cab fad gab"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    lively_bundle(small_tokenizer(), tmp_path / "model")
    return tmp_path / "model"


DRAWN, TOGETHER = "random sampling", "ensembles of models"


@pytest.mark.parametrize("asked, is_export, only_torch, has_gpu, expected", [
    # on a CPU CTranslate2, where it can be used
    ({}, False, None, False, "auto"),
    ({"device": "cpu"}, False, None, True, "auto"),
    ({"precision": "fp32"}, False, None, False, "auto"),
    ({}, False, DRAWN, False, "torch"),
    ({}, False, TOGETHER, False, "torch"),
    # on a GPU torch
    ({}, False, None, True, "torch"),
    ({}, False, TOGETHER, True, "torch"),
    ({"device": "cuda:1"}, False, None, False, "torch"),
    ({"device": "mps"}, False, None, True, "torch"),
    # what only one of them can do
    ({}, True, None, True, "ctranslate2"),
    ({}, True, DRAWN, False, None),
    ({"precision": "int8"}, False, None, True, "ctranslate2"),
    ({"precision": "fp16"}, False, None, False, "ctranslate2"),
    ({"precision": "bf16"}, False, None, False, "torch"),
    # what is asked for
    ({"engine": "torch"}, False, DRAWN, True, "torch"),
    ({"engine": "torch"}, False, TOGETHER, False, "torch"),
    ({"engine": "ctranslate2"}, False, None, True, "ctranslate2"),
    ({"engine": "ctranslate2"}, False, DRAWN, True, None),
    ({"engine": "ctranslate2", "device": "cuda"}, False, None, True, "ctranslate2"),
    ({"engine": "ctranslate2"}, False, TOGETHER, False, None),
    ({"precision": "int8"}, False, TOGETHER, False, None),
])  # fmt: skip
def test_the_engine_is_chosen(
    asked: Any, is_export: bool, only_torch: Any, has_gpu: bool, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "has_gpu", lambda: has_gpu)
    if expected is None:
        with pytest.raises(UsageError, match=f"only the engine torch supports {only_torch}"):
            choose_engine(Placement(**asked), is_export, only_torch)
    else:
        assert choose_engine(Placement(**asked), is_export, only_torch) == expected


def test_nobody_looks_for_a_gpu_where_that_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def has_gpu() -> bool:
        raise AssertionError

    monkeypatch.setattr(module, "has_gpu", has_gpu)
    for asked, is_export in (({"device": "cpu"}, False), ({"engine": "torch"}, False), ({}, True)):
        choose_engine(Placement(**asked), is_export, None)  # type: ignore[arg-type]


def loaded(model: Path, **placement: Any) -> Translator:
    return Translator.load(model, **placement)


def test_on_a_cpu_it_is_ctranslate2(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert loaded(model).engine.name == "ctranslate2"
    export, quantized = cached_export(model), cached_export(model, "int8")
    assert loaded(export).translate(LINES) == loaded(model, device="cpu").translate(LINES)
    assert loaded(quantized).engine.name == "ctranslate2" and export != quantized
    assert "torch" not in caplog.text


def test_a_gpu_is_one_that_torch_can_use(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("cuda", "cpu"):
        monkeypatch.setattr(device, "find_device", lambda name, kind=kind: type("Device", (), {"type": kind}))
        assert module.has_gpu() == (kind == "cuda")


def test_what_an_engine_lacks_is_refused(model: Path) -> None:
    for engine, precision in (("torch", "int8"), ("ctranslate2", "bf16")):
        with pytest.raises(UsageError, match=f"precision {precision}: the engine {engine} has fp32, "):
            loaded(model, engine=engine, precision=precision)
    with pytest.raises(ValueError, match="batch_tokens"):
        Translator.load(model, batch_tokens=0)


def test_batch_tokens_are_those_of_either_engine(model: Path) -> None:
    for engine in ("torch", "ctranslate2"):
        small: Any = loaded(model, engine=engine, batch_tokens=64)
        assert small.engine.batch_tokens == 64
        assert small.translate(LINES) == loaded(model, engine=engine).translate(LINES)


def test_where_a_kept_export_is_of_no_use_torch_translates(
    model: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    sound, export = Translator.load(model).translate(LINES), cached_export(model)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    (export / "model.bin").write_bytes(b"no model")
    with monkeypatch.context() as context:
        context.setattr("mtx.decoding.ctranslate2_writer.write_ctranslate2", full)
        caplog.clear()
        assert Translator.load(model).translate(LINES) == sound
        assert [text.partition(": ")[0] for text in caplog.messages if "No space left" in text] == ["torch translates"]
        with pytest.raises(Exception, match="No space left"):
            loaded(model, engine="ctranslate2")
    assert Translator.load(model).engine.name == "ctranslate2"
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    assert Translator.load(model).translate(LINES) == sound
    assert "torch translates: CTranslate2 is not installed" in caplog.messages[-1]
    with pytest.raises(Exception, match="CTranslate2 is not installed"):
        loaded(model, engine="ctranslate2")


def test_a_translator_does_everything_with_either_engine(model: Path) -> None:
    fast, slow = Translator.load(model), Translator.load(model, engine="torch")
    assert (fast.engine.name, slow.engine.name) == ("ctranslate2", "torch")
    assert fast.translate(LINES) == slow.translate(LINES)
    out = fast.translate(LINES)
    assert fast.log_probs(LINES, out) == slow.log_probs(LINES, out)
    shapes = [[maps.cross.shape for maps in translator.attention_maps(LINES)] for translator in (fast, slow)]
    assert shapes[0] == shapes[1]
    assert Translator.load(model, sampling=Sampling(2)).engine.name == "torch"
    assert (fast.src, fast.tgt, fast.max_tokens) == (slow.src, slow.tgt, slow.max_tokens) == ("de", "en", 24)


def test_asked_wrongly(model: Path, tmp_path: Path) -> None:
    name: Any = "onnx"
    with pytest.raises(UsageError, match="engine onnx: expected auto, torch, ctranslate2"):
        Translator.load(model, engine=name)
    with pytest.raises(UsageError, match="no such model directory or run directory"):
        Translator.load(tmp_path / "nowhere")


def test_a_damaged_export_is_made_again_only_where_the_model_is(model: Path) -> None:
    export = cached_export(model)
    sound = Translator.load(model).translate(LINES)
    (export / "model.bin").write_bytes(b"no model")
    with pytest.raises(DamagedFileError):
        Translator.load(export)
    assert Translator.load(model).translate(LINES) == sound
    assert Translator.load(export).translate(LINES) == sound
