"""MarianMT directories (transformers' MarianMTModel and MarianTokenizer): their form, and the export of a model to one.

`marian_import` is the other direction. transformers is not needed: the files have the form that version 4.48 and later
reads. The logits equal those of mtx, which has the same architecture: a layer norm (eps 1e-5) after each residual sum,
embeddings times sqrt(d_model), and position vectors that hold all sines first and then all cosines. MarianMT also
scores pad, so its output layer has one more row. transformers leaves out tensors that others determine (tied matrices,
computed positions).
"""

import json
import logging
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from pydantic import BaseModel, Field
from torch import Tensor

from mtx.config.schema import ModelConfig
from mtx.data.sentencepiece_models import EOS, PAD, UNK
from mtx.data.tokenizer import EOS_ID, Tokenizer
from mtx.decoding.model_directory import LoadedModel
from mtx.decoding.options import EXTRA_LENGTH
from mtx.errors import UsageError
from mtx.model.parameters import parameters
from mtx.model.transformer import Transformer
from mtx.storage import durable
from mtx.storage.run_files import MARIAN_SOURCE_MODEL, MODEL_CONFIG, WEIGHTS
from mtx.training.hooks import Hook
from mtx.training.trainer import Trainer

logger = logging.getLogger(__name__)

GENERATION_CONFIG = "generation_config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
VOCABULARY = "vocab.json"
TARGET_MODEL = "target.spm"

# `model.tie`: whether MarianMT's share_encoder_decoder_embeddings and tie_word_embeddings are set.
TIES: dict[str, tuple[bool, bool]] = {"all": (True, True), "target": (False, True), "none": (False, False)}
# The sizes in config.json and the keys of mtx's ModelConfig.
SIZES = {
    "d_model": "d_model",
    "encoder_layers": "num_encoder_layers",
    "decoder_layers": "num_decoder_layers",
    "encoder_attention_heads": "num_heads",
    "decoder_attention_heads": "num_heads",
    "encoder_ffn_dim": "d_ff",
    "decoder_ffn_dim": "d_ff",
}
PAD_BIAS = -1e4  # makes pad impossible: its exponential is 0 in every precision, and float16 holds it

OUTPUT_BIAS = "final_logits_bias"
# Rows of the computed position table: at least those of published models, and enough for the longest source, a tag and
# the longest translation (EXTRA_LENGTH more, the start, </s>). transformers fails at a position beyond the table.
_MIN_POSITIONS = 512
_EXTRA_POSITIONS = 64


class MarianConfig(BaseModel, strict=True, protected_namespaces=()):
    """config.json in the order in which mtx writes it.

    A Literal is the value that mtx's models have, and a default is what the key's absence means.
    """

    architectures: Any = ["MarianMTModel"]
    model_type: Literal["marian"]
    is_encoder_decoder: Literal[True] = True
    vocab_size: int = Field(ge=3, le=1 << 21)
    decoder_vocab_size: Any = None
    max_position_embeddings: int = Field(ge=8, le=1 << 20)
    d_model: int = Field(ge=2, le=1 << 16)
    encoder_layers: int = Field(ge=1, le=1000)
    decoder_layers: int = Field(ge=1, le=1000)
    encoder_attention_heads: int = Field(ge=1, le=1 << 16)
    decoder_attention_heads: int = Field(ge=1, le=1 << 16)
    encoder_ffn_dim: int = Field(ge=1, le=1 << 18)
    decoder_ffn_dim: int = Field(ge=1, le=1 << 18)
    activation_function: Literal["relu", "swish", "silu", "gelu"]
    dropout: Any = 0.1
    scale_embedding: Literal[True]
    static_position_embeddings: Literal[True] = True
    normalize_before: Literal[False] = False
    normalize_embedding: Literal[False] = False
    add_final_layer_norm: Literal[False] = False
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True
    eos_token_id: Any = None
    pad_token_id: Any = None
    decoder_start_token_id: Any = None


class ExportNote(Hook):
    """Says before training starts that MarianMT cannot represent the model."""

    def on_start(self, trainer: Trainer) -> None:
        if obstacles := huggingface_obstacles(trainer.config.model):
            logger.info("note: this model cannot be exported to huggingface (%s)", "; ".join(obstacles))


def huggingface_obstacles(config: ModelConfig) -> list[str]:
    """Why MarianMT cannot represent this architecture; empty if it can."""
    obstacles = []
    if config.architecture != "transformer":
        obstacles.append(f"model.architecture={config.architecture}: only a Transformer can be exported")
    if config.norm != "post":
        obstacles.append(f"model.norm={config.norm}: MarianMT has its norms after each residual sum (model.norm=post)")
    if config.positions != "sinusoidal":
        obstacles.append(f"model.positions={config.positions}: MarianMT computes its positions (sinusoidal)")
    return obstacles


def export_huggingface(loaded: LoadedModel, directory: Path) -> None:
    """Write a directory that `MarianMTModel` and `MarianTokenizer` load; an earlier export in it is replaced.

    Raises:
        UsageError: if MarianMT cannot represent the model.
    """
    if obstacles := huggingface_obstacles(loaded.model.config):
        raise UsageError(f"this model cannot become a MarianMT directory: {'; '.join(obstacles)}")
    objects = {  # without mtx's format number, because these are not formats of mtx
        MODEL_CONFIG: _config(loaded).model_dump(),
        GENERATION_CONFIG: _generation_config(loaded),
        TOKENIZER_CONFIG: _tokenizer_config(loaded),
        VOCABULARY: _vocabulary(loaded.tokenizer),
    }
    with durable.new_directory(directory, replace=True) as new:
        for name, value in objects.items():
            durable.write_text(new / name, json.dumps(value, ensure_ascii=False, indent=2) + "\n")
        durable.write_bytes(new / MARIAN_SOURCE_MODEL, loaded.tokenizer.models.source)
        durable.write_bytes(new / TARGET_MODEL, loaded.tokenizer.models.target)
        assert isinstance(loaded.model, Transformer)
        weights = safetensors.torch.save(tensors_of(loaded.model), metadata={"format": "pt"})  # 4.x needs it
        durable.write_bytes(new / WEIGHTS, weights)


def _vocabulary(tokenizer: Tokenizer) -> dict[str, int]:
    """The id of each piece; the reserved symbols and `<pad>` are at the end."""
    pieces = [*tokenizer.vocabulary(), PAD]
    ids = {piece: token for token, piece in enumerate(pieces)}
    if len(ids) < len(pieces):
        raise UsageError("the tokenizer has two equal pieces, which MarianTokenizer cannot tell apart")
    return ids


def _config(loaded: LoadedModel) -> MarianConfig:
    config, pad_id = loaded.model.config, loaded.model.pad_id
    share, tie = TIES[config.tie]
    sizes: dict[str, Any] = {key: getattr(config, name) for key, name in SIZES.items()}
    return MarianConfig(
        model_type="marian",
        vocab_size=pad_id + 1,
        decoder_vocab_size=pad_id + 1,
        max_position_embeddings=max(_MIN_POSITIONS, loaded.info["max_tokens"] + _EXTRA_POSITIONS),
        **sizes,
        activation_function=config.activation,
        dropout=config.dropout,
        scale_embedding=True,
        share_encoder_decoder_embeddings=share,
        tie_word_embeddings=tie,
        eos_token_id=EOS_ID,
        pad_token_id=pad_id,
        decoder_start_token_id=pad_id,
    )


def _generation_config(loaded: LoadedModel) -> dict[str, Any]:
    """The search of mtx with the same alpha, though transformers' penalty is |Y|^alpha, not ((5 + |Y|) / 6)^alpha."""
    beam_size, pad_id = loaded.info["beam_size"], loaded.model.pad_id
    beam_search = {"early_stopping": True, "length_penalty": loaded.info["length_penalty"]}
    return {
        "eos_token_id": EOS_ID,
        "pad_token_id": pad_id,
        "decoder_start_token_id": pad_id,
        "bad_words_ids": [[pad_id]],
        "forced_eos_token_id": EOS_ID,  # at the maximum length only </s> can follow
        "max_length": loaded.info["max_tokens"] + EXTRA_LENGTH + 1,  # it counts the start token, too
        "num_beams": beam_size,
        **(beam_search if beam_size > 1 else {}),
    }


def _tokenizer_config(loaded: LoadedModel) -> dict[str, Any]:
    return {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": loaded.info["src"],
        "target_lang": loaded.info["tgt"],
        "model_max_length": loaded.info["max_tokens"],
        "unk_token": UNK,
        "eos_token": EOS,
        "pad_token": PAD,
        "separate_vocabs": False,
        "clean_up_tokenization_spaces": False,
    }


def tensors_of(model: Transformer) -> dict[str, Tensor]:
    """The weights of a model in fp32 under MarianMT's names, each once."""
    weights = {name: tensor.detach().cpu().float().contiguous() for name, tensor in model.state_dict().items()}
    bias = weights.get("output_bias", torch.zeros(model.pad_id))
    if "projection" in weights:
        weights["projection"] = torch.cat([weights["projection"], torch.zeros(1, model.config.d_model)])
    tensors = {p.marian[0]: weights[p.name] for p in parameters(model.config, model.pad_id)}
    return {**tensors, OUTPUT_BIAS: torch.cat([bias, torch.tensor([PAD_BIAS])])[None]}
