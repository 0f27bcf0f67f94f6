"""What is exported is, to transformers, the model that mtx has: ids, logits and greedy translations."""

import json
import random
import unicodedata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mtx.config.schema import ModelConfig, TokenizerConfig
from mtx.data.tokenizer import Tokenizer, train_tokenizer
from mtx.decoding import model_directory
from mtx.decoding.model_directory import LoadedModel
from mtx.errors import UsageError
from mtx.interop.cards import Comparison, export_card
from mtx.interop.export import export
from mtx.interop.huggingface import PAD_BIAS, ExportNote, export_huggingface, huggingface_obstacles
from mtx.storage import durable
from tests.models import random_ids, tiny_config, tiny_model
from tests.unit.interop import peers

pytest.importorskip("transformers")

INFO = {"src": "de", "tgt": "en", "max_tokens": 40, "beam_size": 3, "length_penalty": 0.7}
TEXTS = [
    "", "abc fed", "  ab   cd  ", "Grüße, Übermut", "n\u0303ino", "\U0001f600 ab\U0001f468\u200d\U0001f469", "漢字",
    "m² ½", "abcdef " * 20, "a\tb", "▁a", "<0x41> <BT>",
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    rng = random.Random(1)
    lines = [" ".join("".join(rng.choices("abcdefüß", k=4)) for _ in range(6)) for _ in range(100)]
    return train_tokenizer(iter(lines), TokenizerConfig(vocab_size=300), 100, ["BT"])


def bundle_of(tokenizer: Tokenizer, directory: Path, **changes: Any) -> LoadedModel:
    model = tiny_model(tokenizer.num_ids, dtype=torch.float32, **changes)
    model_directory.write(directory, model.state_dict(), model.config, tokenizer, INFO)
    return model_directory.load(directory)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"activation": "swish", "output_bias": True},
        {"activation": "gelu", "tie": "target", "num_encoder_layers": 3, "num_decoder_layers": 1},
        {"tie": "none", "output_bias": True, "num_heads": 2},
    ],
)
def test_transformers_gives_our_logits(tokenizer: Tokenizer, tmp_path: Path, changes: dict[str, Any]) -> None:
    loaded = bundle_of(tokenizer, tmp_path / "ours", **changes)
    export_huggingface(loaded, tmp_path / "theirs")
    model, _ = peers.marian(tmp_path / "theirs")
    src, tgt = random_ids([5, 9, 1, 20, 7], tokenizer.num_ids, 3), random_ids([6, 3, 12, 4, 1], tokenizer.num_ids, 4)
    ours, theirs = peers.our_logits(loaded.model, src, tgt), peers.their_logits(model, src, tgt)
    assert ours.abs().max() > 1
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-4)


def test_transformers_gives_our_token_ids_and_text(tokenizer: Tokenizer, tmp_path: Path) -> None:
    export_huggingface(bundle_of(tokenizer, tmp_path / "ours"), tmp_path / "theirs")
    _, theirs = peers.marian(tmp_path / "theirs")
    ids = tokenizer.encode(TEXTS)
    assert theirs([unicodedata.normalize("NFC", text) for text in TEXTS]).input_ids == ids
    assert theirs(text_target=[unicodedata.normalize("NFC", text) for text in TEXTS]).input_ids == ids
    plain = [sentence for sentence, text in zip(ids, TEXTS, strict=True) if text.isprintable()]
    assert theirs.batch_decode(plain, skip_special_tokens=True) == tokenizer.decode(plain)
    assert theirs.convert_ids_to_tokens([300, 301, tokenizer.pad_id]) == ["<BT>", "<reserved_1>", "<pad>"]
    assert (theirs.pad_token_id, theirs.eos_token_id, theirs.model_max_length) == (tokenizer.pad_id, 0, 40)


@pytest.mark.parametrize("changes", [{}, {"activation": "swish", "output_bias": True, "tie": "target"}])
def test_greedy_generation_is_ours(tokenizer: Tokenizer, tmp_path: Path, changes: dict[str, Any]) -> None:
    loaded = bundle_of(tokenizer, tmp_path / "ours", seed=3, **changes)
    export_huggingface(loaded, tmp_path / "theirs")
    model, theirs = peers.marian(tmp_path / "theirs")
    texts = ["abc fed", "Grüße ab", "a", "dabcab fedcab"]
    inputs = theirs(texts, return_tensors="pt", padding=True)
    got = model.generate(**inputs, num_beams=1, early_stopping=False, length_penalty=1.0, max_length=12)
    for row, src in zip(got.tolist(), tokenizer.encode(texts), strict=True):
        expected = peers.our_greedy(loaded.model, src, 11)
        assert row[: len(expected) + 1] == [tokenizer.pad_id, *expected]
        assert set(row[len(expected) + 1 :]) <= {tokenizer.pad_id}


def test_generation_has_the_settings_of_the_model_and_never_gives_pad(tokenizer: Tokenizer, tmp_path: Path) -> None:
    export_huggingface(bundle_of(tokenizer, tmp_path / "ours"), tmp_path / "theirs")
    model, theirs = peers.marian(tmp_path / "theirs")
    settings = model.generation_config
    assert (settings.num_beams, settings.length_penalty, settings.early_stopping) == (3, 0.7, True)
    assert (settings.max_length, settings.forced_eos_token_id) == (91, 0)
    assert settings.bad_words_ids == [[tokenizer.pad_id]]
    assert model.final_logits_bias[0, -1] == PAD_BIAS
    ids = random_ids([40], tokenizer.num_ids, 1)  # the longest source, and the longest output
    out = model.generate(torch.tensor(ids), min_length=91)
    assert out.shape[1] == 91 and tokenizer.pad_id not in out[0, 1:]
    assert model.config.max_position_embeddings >= 40 + 64
    assert theirs.source_lang == "de" and theirs.target_lang == "en"


def test_the_model_card_says_what_the_model_is(tokenizer: Tokenizer, tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    loaded = bundle_of(tokenizer, tmp_path / "ours")
    signature = "nrefs:1|case:mixed"
    scores = {"test": {"bleu": {"score": 39.414, "signature": signature}}, "run": {"seed": 1, "precision": "fp32"}}
    info = {**loaded.info, "src": "no", "tgt": "any"}  # YAML reads a bare `no` as false
    _, front, text = export_card("marian", LoadedModel(loaded.model, loaded.tokenizer, info), "fp32", scores).split(
        "---\n", 2
    )
    described = yaml.safe_load(front)
    assert described["language"] == ["no", "any"]
    assert (described["library_name"], described["pipeline_tag"]) == ("transformers", "translation")
    assert {"translation", "marian"} <= {*described["tags"]}
    assert f"- `test`: BLEU 39.41 (`{signature}`)" in text
    assert "were not compared" in text
    compared = export_card("marian", loaded, "fp32", {}, Comparison(200, 0.995, -0.02))
    assert "On 200 lines, 99.5% of its translations are identical" in compared and "greedy search" in compared
    assert "308 entries" in text and "NFC" in text and "seed" not in text


def test_what_marian_cannot_hold_is_said_in_plain_words(
    tokenizer: Tokenizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert huggingface_obstacles(tiny_config()) == []
    both = tiny_config(norm="pre", positions="learned")
    assert [text.split(":")[0] for text in huggingface_obstacles(both)] == ["model.norm=pre", "model.positions=learned"]
    (rnn,) = huggingface_obstacles(ModelConfig(architecture="rnn"))
    assert rnn == "model.architecture=rnn: only a Transformer can be exported"
    with caplog.at_level("INFO"):
        ExportNote().on_start(SimpleNamespace(config=SimpleNamespace(model=both)))  # type: ignore[arg-type]
    assert "note: this model cannot be exported to huggingface (model.norm=pre: " in caplog.text
    loaded = bundle_of(tokenizer, tmp_path / "ours", norm="pre")
    with pytest.raises(UsageError, match=r"cannot be exported to MarianMT: model\.norm=pre"):
        export_huggingface(loaded, tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()


def test_only_an_earlier_export_is_replaced(tokenizer: Tokenizer, tmp_path: Path) -> None:
    bundle_of(tokenizer, tmp_path / "ours")
    for _ in range(2):
        export(tmp_path / "ours", "huggingface", tmp_path / "theirs")
    durable.verify(tmp_path / "theirs", ("README.md", "model.safetensors", "source.spm"))
    (tmp_path / "theirs" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="theirs: not an earlier export or import"):
        export(tmp_path / "ours", "huggingface", tmp_path / "theirs")
    assert (tmp_path / "theirs" / "notes.txt").read_text() == "mine"
    with pytest.raises(UsageError, match="not an earlier export or import"):
        export(tmp_path / "ours", "huggingface", tmp_path / "theirs" / "notes.txt")
    with pytest.raises(UsageError, match="not an earlier export or import"):
        export(tmp_path / "ours", "huggingface", tmp_path / "ours")


def test_the_files_are_plain_json_without_a_format_number(tokenizer: Tokenizer, tmp_path: Path) -> None:
    export_huggingface(bundle_of(tokenizer, tmp_path / "ours"), tmp_path / "theirs")
    for name in ("config.json", "generation_config.json", "tokenizer_config.json", "vocab.json"):
        assert "format" not in json.loads((tmp_path / "theirs" / name).read_text())
    vocabulary = json.loads((tmp_path / "theirs" / "vocab.json").read_text())
    assert [*vocabulary] == [*tokenizer.vocabulary(), "<pad>"]
