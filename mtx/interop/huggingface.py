"""Exports a model to transformers: a MarianMT directory, ready for the hub. `marian_import` is the other direction.

transformers is not needed: the files have the form that `MarianMTModel` and `MarianTokenizer` of 4.48 and later read.
The logits equal those of mtx.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch

from mtx.data.sentencepiece_models import EOS, PAD, UNK
from mtx.data.tokenizer import EOS_ID, Tokenizer
from mtx.decoding.options import EXTRA_LENGTH
from mtx.errors import UsageError
from mtx.files import durable
from mtx.interop import marian
from mtx.interop.cards import marian_card
from mtx.interop.limits import check_replaceable, huggingface_obstacles
from mtx.model.transformer import Transformer
from mtx.model_directory.storage import LoadedModel
from mtx.run.layout import CARD

# Rows of the computed position table: at least those of published models, and enough for the longest source, a tag and
# the longest translation (EXTRA_LENGTH more, the start, </s>). transformers fails at a position beyond the table.
_MIN_POSITIONS = 512
_EXTRA_POSITIONS = 64


def export_huggingface(loaded: LoadedModel, directory: Path, scores: Mapping[str, Any] | None = None) -> None:
    """Write a directory that `MarianMTModel` and `MarianTokenizer` load; an earlier export in it is replaced.

    Args:
        scores: the content of `scores.json` beside the model, for the model card.

    Raises:
        UsageError: if MarianMT cannot represent the model, or `directory` holds files that mtx did not write.
    """
    if obstacles := huggingface_obstacles(loaded.model.config):
        raise UsageError(f"this model cannot become a MarianMT directory: {'; '.join(obstacles)}")
    check_replaceable(directory)
    objects = {  # without mtx's format number, because these are not formats of mtx
        marian.CONFIG: _config(loaded).model_dump(),
        marian.GENERATION_CONFIG: _generation_config(loaded),
        marian.TOKENIZER_CONFIG: _tokenizer_config(loaded),
        marian.VOCABULARY: _vocabulary(loaded.tokenizer),
    }
    with durable.new_directory(directory, replace=True) as new:
        for name, value in objects.items():
            durable.write_text(new / name, json.dumps(value, ensure_ascii=False, indent=2) + "\n")
        durable.write_bytes(new / marian.SOURCE_MODEL, loaded.tokenizer.models.source)
        durable.write_bytes(new / marian.TARGET_MODEL, loaded.tokenizer.models.target)
        assert isinstance(loaded.model, Transformer)
        weights = safetensors.torch.save(marian.tensors_of(loaded.model), metadata={"format": "pt"})  # 4.x needs it
        durable.write_bytes(new / marian.WEIGHTS, weights)
        durable.write_text(new / CARD, marian_card(loaded, scores))


def _vocabulary(tokenizer: Tokenizer) -> dict[str, int]:
    """The id of each piece; the reserved symbols and `<pad>` are at the end."""
    pieces = [*tokenizer.vocabulary(), PAD]
    if duplicates := [piece for piece, count in Counter(pieces).items() if count > 1]:
        raise UsageError(f"the tokenizer has two pieces {duplicates[0]!r}, which MarianTokenizer cannot tell apart")
    return {piece: token for token, piece in enumerate(pieces)}


def _config(loaded: LoadedModel) -> marian.MarianConfig:
    config, pad_id = loaded.model.config, loaded.model.pad_id
    share, tie = marian.TIES[config.tie]
    sizes: dict[str, Any] = {key: getattr(config, name) for key, name in marian.SIZES.items()}
    return marian.MarianConfig(
        model_type="marian", vocab_size=pad_id + 1, decoder_vocab_size=pad_id + 1,
        max_position_embeddings=max(_MIN_POSITIONS, loaded.info["max_tokens"] + _EXTRA_POSITIONS), **sizes,
        num_hidden_layers=config.num_encoder_layers, activation_function=config.activation, dropout=config.dropout,
        scale_embedding=True, share_encoder_decoder_embeddings=share, tie_word_embeddings=tie, eos_token_id=EOS_ID,
        pad_token_id=pad_id, decoder_start_token_id=pad_id,
    )  # fmt: skip


def _generation_config(loaded: LoadedModel) -> dict[str, Any]:
    """The search of mtx with the same alpha, though transformers' penalty is |Y|^alpha, not ((5 + |Y|) / 6)^alpha."""
    beam_size, pad_id = loaded.info["beam_size"], loaded.model.pad_id
    beam_search = {"early_stopping": True, "length_penalty": loaded.info["length_penalty"]}
    return {
        "eos_token_id": EOS_ID, "pad_token_id": pad_id, "decoder_start_token_id": pad_id, "bad_words_ids": [[pad_id]],
        "forced_eos_token_id": EOS_ID,  # at the maximum length only </s> can follow
        "max_length": loaded.info["max_tokens"] + EXTRA_LENGTH + 1,  # it counts the start token, too
        "num_beams": beam_size, **(beam_search if beam_size > 1 else {}),
    }  # fmt: skip


def _tokenizer_config(loaded: LoadedModel) -> dict[str, Any]:
    return {
        "tokenizer_class": "MarianTokenizer", "source_lang": loaded.info["src"], "target_lang": loaded.info["tgt"],
        "model_max_length": loaded.info["max_tokens"], "unk_token": UNK, "eos_token": EOS, "pad_token": PAD,
        "separate_vocabs": False, "clean_up_tokenization_spaces": False,
    }  # fmt: skip
