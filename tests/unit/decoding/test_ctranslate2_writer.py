"""What CTranslate2 gets is the model: its scores of given translations are mtx's, in every architecture."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from mtx.data.tokenizer import Tokenizer
from mtx.decoding import model_directory
from mtx.decoding.ctranslate2_writer import model_spec, write_ctranslate2
from mtx.interop import export as interop_export
from mtx.interop.cards import Comparison, export_card
from mtx.storage import durable
from tests.exports import INFO, VARIANTS, lively_bundle, small_tokenizer
from tests.models import random_ids
from tests.unit.interop import peers

ctranslate2 = pytest.importorskip("ctranslate2")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return small_tokenizer()


@pytest.mark.parametrize("changes", VARIANTS)
def test_forced_scores_are_ours(tokenizer: Tokenizer, tmp_path: Path, changes: dict[str, Any]) -> None:
    loaded = lively_bundle(tokenizer, tmp_path / "model", **changes)
    write_ctranslate2(loaded, tmp_path / "export", "fp32")
    src = random_ids([5, 9, 2, 20, 7], tokenizer.num_ids, 3)
    tgt = random_ids([6, 3, 12, 40, 1], tokenizer.num_ids, 4)
    log_probs = torch.log_softmax(peers.our_logits(loaded.model, src, tgt), -1)
    ours = log_probs.gather(1, torch.tensor([[token] for sentence in tgt for token in sentence]))[:, 0]
    runtime = ctranslate2.Translator(str(tmp_path / "export"), "cpu", intra_threads=1)
    pieces = [[tokenizer.pieces(sentence[:-1]) for sentence in side] for side in (src, tgt)]
    theirs = [value for result in runtime.score_batch(*pieces) for value in result.log_probs]
    assert ours.std() > 1
    np.testing.assert_allclose(theirs, ours.numpy(), rtol=0, atol=1e-4)


def test_quantizing_leaves_the_model_as_it_was(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """CTranslate2 quantizes the arrays that it is given in place."""
    loaded = lively_bundle(tokenizer, tmp_path / "model")
    before = {name: tensor.clone() for name, tensor in loaded.model.state_dict().items()}
    write_ctranslate2(loaded, tmp_path / "export", "int8")
    for name, tensor in loaded.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_the_directory_says_what_it_is_and_is_whole(tokenizer: Tokenizer, tmp_path: Path) -> None:
    loaded = lively_bundle(tokenizer, tmp_path / "model")
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "old").write_text("old")
    write_ctranslate2(loaded, tmp_path / "export", "fp16")
    durable.verify(tmp_path / "export", ("model.bin", "config.json", "shared_vocabulary.json", "mtx.json"))
    described = durable.read_json(tmp_path / "export" / "mtx.json")
    assert described.items() >= {**INFO, "precision": "fp16", "num_positions": 512}.items()
    assert json.loads((tmp_path / "export" / "shared_vocabulary.json").read_bytes()) == tokenizer.vocabulary()
    sizes = {}
    for precision in ("fp32", "fp16", "int8"):
        write_ctranslate2(loaded, tmp_path / "export", precision)
        sizes[precision] = (tmp_path / "export" / "model.bin").stat().st_size
    assert sizes["fp32"] > 1.8 * sizes["fp16"] and sizes["fp32"] > 1.5 * sizes["int8"]  # positions stay whole


def test_the_model_card_says_what_the_export_is_and_how_it_was_verified(tokenizer: Tokenizer, tmp_path: Path) -> None:
    lively_bundle(tokenizer, tmp_path / "model")
    scores = {
        "news": {"bleu": {"score": 25.125, "signature": "sig"}},
        "run": {"licence": "CC-BY-4.0", "data_licence": "ours\n# x"},
    }
    loaded = model_directory.load(tmp_path / "model")
    card = export_card("ctranslate2", loaded, "int8", scores)
    _, metadata, text = card.split("---\n", 2)
    values = yaml.safe_load(metadata)
    assert (values["license"], values["library_name"]) == ("cc-by-4.0", "ctranslate2")
    assert "# `de` to `en`, for CTranslate2" in text and "in int8." in text and "- `news`: BLEU 25.12 (`sig`)" in text
    assert "python example.py < input.txt" in text and "were not compared" in text
    assert "Licence of the model: `CC-BY-4.0`. Licence of the training text: `ours # x`" in text
    compared = export_card("ctranslate2", loaded, "int8", scores, Comparison(200, 0.9, -0.25))
    assert "On 200 lines, 90.0% of its translations are identical to those of the original model" in compared
    assert "its BLEU differs by -0.25." in compared
    assert "It was not scored." in export_card("ctranslate2", loaded, "int8", {})


def test_every_position_that_a_translation_can_need_is_there(tokenizer: Tokenizer, tmp_path: Path) -> None:
    loaded = lively_bundle(tokenizer, tmp_path / "model")
    write_ctranslate2(
        model_directory.LoadedModel(loaded.model, tokenizer, {**INFO, "max_tokens": 300}), tmp_path / "export", "int8"
    )
    assert durable.read_json(tmp_path / "export" / "mtx.json")["num_positions"] >= 300 + 50
    spec = model_spec(loaded.model, tokenizer.vocabulary(), 700)
    assert spec.encoder.position_encodings.encodings.shape == (700, 16)


EXAMPLE = """
import runpy, sys
for name in ("torch", "mtx"):
    sys.modules[name] = None
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_the_example_translates_without_torch_and_mtx(tokenizer: Tokenizer, tmp_path: Path) -> None:
    from mtx.decoding.translator import Translator

    write_ctranslate2(lively_bundle(tokenizer, tmp_path / "model", **VARIANTS[2]), tmp_path / "export", "fp32")
    lines = ["ab cde", "", "fgu\u0308 a", "b ", "cab fad gab"]
    example = shutil.copy(interop_export._EXAMPLE, tmp_path / "export" / "example.py")
    result = subprocess.run(
        [sys.executable, "-c", EXAMPLE, str(example)],
        input="".join(f"{line}\n" for line in lines).encode(), capture_output=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr.decode()
    expected = Translator.load(tmp_path / "model", engine="torch", max_length=INFO["max_tokens"] + 50).translate(lines)
    assert result.stdout.decode().split("\n")[:-1] == expected
    assert len(set(expected)) >= 3
