"""Attention maps are the model's own weights: multiplied with its values they give the outputs of its layers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mtx.config.schema import TokenizerConfig
from mtx.data.tokenizer import EOS_ID, Tokenizer, train_tokenizer
from mtx.decoding import model_directory
from mtx.decoding.options import SearchOptions
from mtx.decoding.torch_engine import AttentionMaps, attention_maps
from mtx.decoding.translator import Translator
from mtx.errors import DataError
from mtx.model.transformer import Transformer
from tests.attended import KINDS, largest_error, recorded
from tests.models import OTHERS, random_ids, tiny_model
from tests.translators import torch_translator

VARIANTS: list[dict[str, Any]] = [
    {}, {"norm": "pre"}, {"positions": "learned"}, {"norm": "pre", "tie": "none", "activation": "swish"},
    {"num_encoder_layers": 1, "num_decoder_layers": 3, "num_heads": 2},
]  # fmt: skip
SRC, TGT = [7, 1, 40, 12], [5, 3, 33, 1]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    lines = [" ".join(f"{a}{b}" for b in "abcdefgh") for a in "abcdefgh"] * 3
    return train_tokenizer(iter(lines), TokenizerConfig(vocab_size=290), 200, [])


def model_of(tokenizer: Tokenizer, **changes: Any) -> Transformer:
    return tiny_model(tokenizer.num_ids, dtype=torch.float32, **changes)


def check(found: AttentionMaps, num_src: int, num_tgt: int) -> None:
    """Shapes, rows that sum to one, nothing from the future."""
    assert (len(found.src_tokens), len(found.tgt_tokens), len(found.tgt_inputs)) == (num_src, num_tgt, num_tgt)
    shapes = {"encoder": (num_src, num_src), "decoder": (num_tgt, num_tgt), "cross": (num_tgt, num_src)}
    for kind in KINDS:
        weights = getattr(found, kind)
        assert weights.dtype == np.float32 and weights.shape[2:] == shapes[kind]
        assert weights.min() >= 0 and np.abs(weights.sum(-1, dtype=np.float64) - 1).max() < 1e-6
    assert np.triu(found.decoder, 1).max() == 0 and found.decoder[..., -1, :].min() > 0


@pytest.mark.parametrize("changes", VARIANTS)
def test_weights_times_values_are_the_outputs_of_the_layers(tokenizer: Tokenizer, changes: dict[str, Any]) -> None:
    model = model_of(tokenizer, **changes)
    for src, tgt in zip(random_ids(SRC, 200, 1), random_ids(TGT, 200, 2), strict=True):
        with recorded(model) as calls:
            (found,) = attention_maps(model, tokenizer, [src], [tgt])
        check(found, len(src), len(tgt))
        layers = [len(model.encoder), len(model.decoder), len(model.decoder)]
        for kind, num_layers in zip(KINDS, layers, strict=True):
            assert getattr(found, kind).shape[:2] == (num_layers, model.config.num_heads)
            assert largest_error(getattr(found, kind), calls[kind]) < 1e-5
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("changes", [{"norm": "pre"}, *OTHERS])
def test_several_sentences_give_what_each_gives_alone(tokenizer: Tokenizer, changes: dict[str, Any]) -> None:
    model = model_of(tokenizer, **changes)
    src, tgt = random_ids(SRC, 200, 3), random_ids(TGT, 200, 4)
    together = attention_maps(model, tokenizer, src, tgt)
    for row, found in enumerate(together):
        (alone,) = attention_maps(model, tokenizer, src[row : row + 1], tgt[row : row + 1])
        assert found.src_tokens == alone.src_tokens and found.tgt_tokens == alone.tgt_tokens
        for kind in KINDS:
            np.testing.assert_allclose(getattr(found, kind), getattr(alone, kind), rtol=0, atol=1e-6)
    assert np.abs(together[0].cross[:, :, 0, :7] - together[3].cross[:, :, 0, :7]).max() > 1e-3


@pytest.mark.parametrize("changes", OTHERS)
def test_maps_of_other_architectures_are_distributions(tokenizer: Tokenizer, changes: dict[str, Any]) -> None:
    model, src, tgt = model_of(tokenizer, **changes), random_ids(SRC, 200, 3), random_ids(TGT, 200, 4)
    for found in attention_maps(model, tokenizer, src, tgt):
        parts = [found.cross] if found.kinds == ["cross"] else [found.cross, found.decoder]
        np.testing.assert_allclose(np.concatenate(parts, -1).sum(-1), 1, rtol=0, atol=1e-5)
        np.testing.assert_allclose(found.encoder.sum(-1), 1, rtol=0, atol=1e-5)
        assert not found.decoder.size or np.triu(found.decoder, 1).max() == 0, "nothing from the future"
    for weights in torch_translator(model, tokenizer, 64, SearchOptions(1)).engine.cross_attention(src, tgt):
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=0, atol=1e-5)


def test_rows_and_columns_are_named_by_pieces(tokenizer: Tokenizer) -> None:
    src, tgt = tokenizer.encode(["ab cd", "ef gh"])
    (found,) = attention_maps(model_of(tokenizer), tokenizer, [src], [tgt])
    assert found.src_tokens[0].startswith("▁") and "".join(found.src_tokens) == "▁ab▁cd</s>"
    assert "".join(found.tgt_tokens) == "▁ef▁gh</s>" and "".join(found.tgt_inputs) == "<pad>▁ef▁gh"


@pytest.fixture
def translator(tokenizer: Tokenizer) -> Translator:
    model = model_of(tokenizer, output_bias=True, positions="learned", dropout=0.5)
    with torch.no_grad():
        assert model.output_bias is not None
        model.output_bias[EOS_ID] += 2
    return torch_translator(model.train(), tokenizer, 12, SearchOptions(3))


def test_without_a_target_it_is_the_models_own_translation(translator: Translator) -> None:
    lines = ["ab cd", "ef"]
    found = translator.attention_maps(lines)
    best = [hypotheses[0] for hypotheses in translator.hypotheses(lines)]
    assert [list(each.tgt_tokens) for each in found] == [hypothesis.pieces for hypothesis in best]
    again = translator.attention_maps(lines)
    assert np.array_equal(found[1].cross, again[1].cross), "without dropout"


def test_a_target_replaces_the_models_translation(translator: Translator) -> None:
    (found,) = translator.attention_maps(["ab\tcd"], ["ef\x0bgh"])
    assert "".join(found.src_tokens) == "▁ab▁cd</s>" and "".join(found.tgt_tokens) == "▁ef▁gh</s>"


def test_a_sentence_that_is_too_long_is_refused(translator: Translator) -> None:
    with pytest.raises(DataError, match="line .* has .* subwords, the model supports 12"):
        translator.attention_maps(["ab", "ab " * 40])
    with pytest.raises(DataError, match="target .* has .* subwords, the model supports 62"):
        translator.attention_maps(["ab"], ["ab " * 80])


@pytest.mark.seconds
def test_an_imported_model(tmp_path: Path) -> None:
    marian = pytest.importorskip("tests.unit.interop.test_import_marian")
    from mtx.interop.huggingface import import_marian

    marian.write_marian(tmp_path / "published")
    import_marian(tmp_path / "published", tmp_path / "ours")
    loaded = model_directory.load(tmp_path / "ours")
    assert len(loaded.tokenizer.models.files) == 2, "a model for each side"
    translator = torch_translator(loaded.model, loaded.tokenizer, 48, SearchOptions(2, max_length=9))
    with recorded(loaded.model) as calls:
        (found,) = translator.attention_maps(["abc fed ab"])
    check(found, len(found.src_tokens), len(found.tgt_tokens))
    assert max(largest_error(getattr(found, kind), calls[kind]) for kind in KINDS) < 1e-5
