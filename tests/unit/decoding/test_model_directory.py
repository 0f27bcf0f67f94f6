"""A model directory gives back the model that was written, or is refused by the name of what is wrong."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from mtx.config.schema import TokenizerConfig
from mtx.data.tokenizer import Tokenizer, train_tokenizer
from mtx.decoding import model_directory
from mtx.decoding.translator import Translator
from mtx.errors import DamagedFileError, MtxError, UsageError
from mtx.model.transformer import Transformer
from mtx.storage import durable
from mtx.storage.durable import MANIFEST
from mtx.storage.run_files import MODEL_CONFIG, SCORES, TOKENIZER_JSON, TOKENIZER_MODEL, WEIGHTS
from tests.models import random_batch, tiny_model

INFO = {"src": "de", "tgt": "en", "max_tokens": 40, "beam_size": 3, "length_penalty": 0.7}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    rng = random.Random(1)
    lines = [" ".join("".join(rng.choices("abcdef", k=4)) for _ in range(6)) for _ in range(100)]
    return train_tokenizer(iter(lines), TokenizerConfig(vocab_size=300), 100, [])


def make(directory: Path, tokenizer: Tokenizer, weights: dict[str, Tensor] | None = None) -> Transformer:
    model = tiny_model(tokenizer.num_ids, dtype=torch.float32, norm="pre")
    model_directory.write(directory, weights or model.state_dict(), model.config, tokenizer, INFO)
    return model


def test_what_is_written_is_loaded(tmp_path: Path, tokenizer: Tokenizer) -> None:
    model = make(tmp_path / "model", tokenizer)
    loaded = model_directory.load(tmp_path / "model")
    assert loaded.model.config == model.config
    assert not loaded.model.training
    assert {key: loaded.info[key] for key in INFO} == INFO
    assert loaded.tokenizer.encode(["abc fed"]) == tokenizer.encode(["abc fed"])
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], tensor), name
    batch = random_batch([5, 3], [4, 6], tokenizer.num_ids)
    loaded.model.prepare_positions(64)
    with torch.no_grad():
        hidden = [m.decode(batch, m.encode(batch)) for m in (model, loaded.model)]
    assert torch.equal(*hidden)


def test_a_translator_takes_a_model_directory_and_its_settings(tmp_path: Path, tokenizer: Tokenizer) -> None:
    make(tmp_path / "model", tokenizer)
    translator = Translator.load(tmp_path / "model", engine="torch")
    assert (translator.src, translator.tgt, translator.max_tokens) == ("de", "en", 40)
    assert (translator.options.beam_size, translator.options.length_penalty) == (3, 0.7)
    other = Translator.load(tmp_path / "model", engine="torch", beam_size=1, length_penalty=0.0)
    assert (other.options.beam_size, other.options.length_penalty) == (1, 0.0)
    assert len(other.translate(["abc", ""])) == 2


def test_scores_are_added_and_vouched_for(tmp_path: Path, tokenizer: Tokenizer) -> None:
    make(tmp_path / "model", tokenizer)
    model_directory.add_scores(tmp_path / "model", {"test": {"bleu": {"score": 1.5}}}, {"README.md": "# card\n"})
    assert (tmp_path / "model" / "README.md").read_text() == "# card\n"
    model_directory.load(tmp_path / "model")
    durable.write_json(tmp_path / "model" / SCORES, {"test": {"bleu": {"score": 99.9}}})
    with pytest.raises(DamagedFileError, match=SCORES):
        model_directory.load(tmp_path / "model")


def test_a_model_directory_is_replaced_whole(tmp_path: Path, tokenizer: Tokenizer) -> None:
    make(tmp_path / "model", tokenizer)
    model_directory.add_scores(tmp_path / "model", {"test": {"bleu": {"score": 1.5}}}, {"README.md": "# card\n"})
    (tmp_path / "model" / "mine").mkdir()
    (tmp_path / "model" / "notes").write_text("x")
    make(tmp_path / "model", tokenizer)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept-model", "model"]
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert names == {MANIFEST, MODEL_CONFIG, WEIGHTS, TOKENIZER_JSON, TOKENIZER_MODEL}
    assert (tmp_path / "kept-model" / "notes").read_text() == "x", "what mtx did not write is kept"
    (tmp_path / "model" / "notes").write_text("x")
    model_directory.add_scores(tmp_path / "model", {"test": {"bleu": {"score": 1.5}}}, {"README.md": "# card\n"})
    assert "notes" not in durable.read_manifest(tmp_path / "model")


# --- refused ---


def test_a_flipped_bit_anywhere_in_the_weights_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    make(tmp_path / "model", tokenizer)
    path = tmp_path / "model" / WEIGHTS
    whole = path.read_bytes()
    places = [0, 7, 8, 9, len(whole) - 1, *random.Random(1).sample(range(len(whole)), 12)]
    for place in places:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        with pytest.raises(DamagedFileError, match=WEIGHTS):
            model_directory.load(tmp_path / "model")
    path.write_bytes(whole)
    model_directory.load(tmp_path / "model")


@pytest.mark.parametrize("name", [WEIGHTS, MODEL_CONFIG, TOKENIZER_MODEL, TOKENIZER_JSON])
def test_a_missing_or_shortened_file_is_refused_by_name(tmp_path: Path, tokenizer: Tokenizer, name: str) -> None:
    make(tmp_path / "model", tokenizer)
    path = tmp_path / "model" / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedFileError, match=name):
        model_directory.load(tmp_path / "model")
    path.unlink()
    with pytest.raises(DamagedFileError, match=name):
        model_directory.load(tmp_path / "model")
    durable.write_manifest(tmp_path / "model")  # a manifest that says nothing of it
    with pytest.raises(DamagedFileError, match=name):
        model_directory.load(tmp_path / "model")


def missing(weights: dict[str, Tensor]) -> str:
    del weights["decoder.1.inner.bias"]
    return "missing tensor decoder.1.inner.bias"


def extra(weights: dict[str, Tensor]) -> str:
    weights["decoder.9.inner.bias"] = torch.zeros(3)
    return "unknown tensor decoder.9.inner.bias"


def transposed(weights: dict[str, Tensor]) -> str:
    weights["encoder.0.inner.weight"] = weights["encoder.0.inner.weight"].T
    return r"encoder.0.inner.weight is torch.float32 \[16, 32\], expected torch.float32 \[32, 16\]"


def of_another_type(weights: dict[str, Tensor]) -> str:
    weights["encoder.0.inner.weight"] = weights["encoder.0.inner.weight"].double()
    return r"encoder.0.inner.weight is torch.float64 \[32, 16\], expected torch.float32"


@pytest.mark.parametrize("change", [missing, extra, transposed, of_another_type])
def test_weights_that_are_not_the_models_are_refused(
    tmp_path: Path, tokenizer: Tokenizer, change: Callable[[dict[str, Tensor]], str]
) -> None:
    weights = tiny_model(tokenizer.num_ids, dtype=torch.float32, norm="pre").state_dict()
    message = change(weights)
    make(tmp_path / "model", tokenizer, weights)
    with pytest.raises(DamagedFileError, match=message):
        model_directory.load(tmp_path / "model")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"num_ids": 7}, "has 7 outputs"),
        ({"model": {"preset": "tiny", "dropout": 7}}, "model.dropout"),
        ({"model": None}, "model"),
        ({"format": 3}, "expected format 2, got 3"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(
    tmp_path: Path, tokenizer: Tokenizer, change: dict[str, Any], message: str
) -> None:
    make(tmp_path / "model", tokenizer)
    path = tmp_path / "model" / MODEL_CONFIG
    durable.write_json(path, {**durable.read_json(path), **change})
    durable.write_manifest(tmp_path / "model")
    with pytest.raises(DamagedFileError, match=message) as error:
        model_directory.load(tmp_path / "model")
    assert str(tmp_path / "model") in str(error.value)


def test_bytes_that_are_no_safetensors_are_refused(tmp_path: Path) -> None:
    for content in (b"", b"{}", b"\xff" * 100, b"\x08" + b"\0" * 7 + b"not json"):
        (tmp_path / WEIGHTS).write_bytes(content)
        with pytest.raises(DamagedFileError, match=WEIGHTS):
            model_directory.load_tensors(tmp_path / WEIGHTS)
    with pytest.raises(DamagedFileError, match="other.safetensors"):
        model_directory.load_tensors(tmp_path / "other.safetensors")


def test_what_is_no_model_directory_is_asked_wrongly(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(UsageError, match=str(path)):
            model_directory.load(path)


def test_a_manifest_cannot_reach_outside_its_directory(tmp_path: Path, tokenizer: Tokenizer) -> None:
    make(tmp_path / "model", tokenizer)
    manifest = durable.read_json(tmp_path / "model" / MANIFEST)
    manifest["files"]["../secret"] = {"bytes": 0, "sha256": ""}
    durable.write_json(tmp_path / "model" / MANIFEST, manifest)
    with pytest.raises(MtxError, match="secret"):
        model_directory.load(tmp_path / "model")


def test_a_file_of_weights_is_that_of_the_library(tmp_path: Path) -> None:
    tensors = {"b": torch.randn(3, 2), "a": torch.randn(()), 'ü"\x01': torch.randn(4, 4).T, "0": torch.empty(0, 2)}
    model_directory.save_tensors(tmp_path / WEIGHTS, tensors)
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    assert (tmp_path / WEIGHTS).read_bytes() == safetensors.torch.save(contiguous)
    loaded = model_directory.load_tensors(tmp_path / WEIGHTS)
    (tmp_path / WEIGHTS).write_bytes(bytes((tmp_path / WEIGHTS).stat().st_size))  # it is not read again
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
