"""The way out to transformers: a MarianMT directory of a model, ready for the hub. The way in is `marian_import`.

Needs no transformers: the files are written as `MarianMTModel` and `MarianTokenizer` of 4.48 and later read them. The
logits are mtx's. MarianMT's softmax runs over pad too, which gets a bias that makes it impossible.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from mtx import files
from mtx.bundle import Bundle
from mtx.data.piece_models import PAD
from mtx.data.tokenizer import EOS_ID, Tokenizer
from mtx.decoding.options import EXTRA_LENGTH
from mtx.errors import UsageError
from mtx.exchange import marian
from mtx.exchange.limits import check_replaceable, huggingface_obstacles
from mtx.exchange.marian_card import model_card
from mtx.model.transformer import Transformer

PAD_BIAS = -1e4  # its exponential is 0 in every precision, and float16 holds it

# Rows of the computed position table: at least those of published models, and room for the longest source, a tag and
# the longest translation (EXTRA_LENGTH more, the start, </s>): transformers fails at a position beyond the table.
_MIN_POSITIONS = 512
_EXTRA_POSITIONS = 64


def export_huggingface(loaded: Bundle, directory: Path, scores: Mapping[str, Any] | None = None) -> None:
    """Write a directory for `MarianMTModel.from_pretrained` and `MarianTokenizer.from_pretrained`.

    One that an earlier export wrote is replaced.

    Args:
        scores: what `scores.json` beside the model holds, for the model card.

    Raises:
        UsageError: where MarianMT cannot hold the model, saying why, or `directory` holds what is not mtx's.
    """
    if obstacles := huggingface_obstacles(loaded.model.config):
        raise UsageError(f"this model cannot become a MarianMT directory: {'; '.join(obstacles)}")
    check_replaceable(directory)
    vocabulary = marian_vocabulary(loaded.tokenizer)
    with files.new_directory(directory, replace=True) as new:
        _write_json(new / marian.CONFIG, _config(loaded))
        _write_json(new / marian.GENERATION_CONFIG, _generation_config(loaded))
        _write_json(new / marian.TOKENIZER_CONFIG, _tokenizer_config(loaded))
        _write_json(new / marian.VOCABULARY, vocabulary)
        files.write_bytes(new / marian.SOURCE_MODEL, loaded.tokenizer.models.source)
        files.write_bytes(new / marian.TARGET_MODEL, loaded.tokenizer.models.target)
        tensors = marian_tensors(loaded.model)
        weights = safetensors.torch.save(tensors, metadata={"format": "pt"})  # transformers 4.x wants it
        files.write_bytes(new / marian.WEIGHTS, weights)
        files.write_text(new / marian.CARD, model_card(loaded, scores))


def marian_vocabulary(tokenizer: Tokenizer) -> dict[str, int]:
    """Piece to id, reserved symbols and `<pad>` at the end; refused where two pieces read the same."""
    pieces = [*tokenizer.vocabulary(), PAD]
    if twice := [piece for piece, times in Counter(pieces).items() if times > 1]:
        raise UsageError(f"the tokenizer has two pieces {twice[0]!r}: MarianTokenizer could not tell them apart")
    return {piece: token for token, piece in enumerate(pieces)}


def marian_tensors(model: Transformer) -> dict[str, Tensor]:
    """The weights under MarianMT's names, each once, in fp32."""
    ours = {name: tensor.detach().cpu().float() for name, tensor in model.state_dict().items()}
    theirs = marian.names(model.config, ours)
    tensors = {theirs[name]: tensor.contiguous() for name, tensor in ours.items() if name != "output_bias"}
    if "projection" in ours:
        tensors[marian.LM_HEAD] = torch.cat([ours["projection"], torch.zeros(1, model.config.d_model)])
    bias = ours.get("output_bias", torch.zeros(model.pad_id))
    tensors[marian.OUTPUT_BIAS] = torch.cat([bias, torch.tensor([PAD_BIAS])])[None]
    return tensors


def _config(loaded: Bundle) -> dict[str, Any]:
    config, num_rows = loaded.model.config, loaded.model.pad_id + 1
    share, tie = marian.TIES[config.tie]
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "vocab_size": num_rows,
        "decoder_vocab_size": num_rows,
        "max_position_embeddings": max(_MIN_POSITIONS, loaded.info["max_tokens"] + _EXTRA_POSITIONS),
        "d_model": config.d_model,
        "encoder_layers": config.num_encoder_layers,
        "decoder_layers": config.num_decoder_layers,
        "num_hidden_layers": config.num_encoder_layers,
        "encoder_attention_heads": config.num_heads,
        "decoder_attention_heads": config.num_heads,
        "encoder_ffn_dim": config.d_ff,
        "decoder_ffn_dim": config.d_ff,
        "activation_function": config.activation,
        "dropout": config.dropout,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
        "scale_embedding": True,
        "static_position_embeddings": True,
        "normalize_before": False,
        "normalize_embedding": False,
        "add_final_layer_norm": False,
        "share_encoder_decoder_embeddings": share,
        "tie_word_embeddings": tie,
        "eos_token_id": EOS_ID,
        "pad_token_id": loaded.model.pad_id,
        "decoder_start_token_id": loaded.model.pad_id,
    }


def _generation_config(loaded: Bundle) -> dict[str, Any]:
    """Search as mtx has it. transformers' penalty is |Y|^alpha, mtx's ((5 + |Y|) / 6)^alpha: alpha is the same."""
    beam_size = loaded.info["beam_size"]
    beam_search = {"early_stopping": True, "length_penalty": loaded.info["length_penalty"]}
    return {
        "eos_token_id": EOS_ID,
        "pad_token_id": loaded.model.pad_id,
        "decoder_start_token_id": loaded.model.pad_id,
        "bad_words_ids": [[loaded.model.pad_id]],
        "forced_eos_token_id": EOS_ID,  # at the maximum length only </s> is left
        "max_length": loaded.info["max_tokens"] + EXTRA_LENGTH + 1,  # which counts the start token too
        "num_beams": beam_size,
        **(beam_search if beam_size > 1 else {}),
    }


def _tokenizer_config(loaded: Bundle) -> dict[str, Any]:
    return {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": loaded.info["src"],
        "target_lang": loaded.info["tgt"],
        "model_max_length": loaded.info["max_tokens"],
        "unk_token": "<unk>",
        "eos_token": "</s>",
        "pad_token": PAD,
        "separate_vocabs": False,
        "clean_up_tokenization_spaces": False,
    }


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Plain JSON: these formats are not mtx's and carry no format number of its own."""
    files.write_text(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")
