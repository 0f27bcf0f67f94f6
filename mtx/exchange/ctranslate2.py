"""A model as CTranslate2 runs it: its own files, and beside them all that translating lines with it takes.

CTranslate2's documented specification is filled from mtx's weights directly. The decoder starts from a zero embedding,
as mtx's does; logits, scores and translations are those of mtx (`mtx.decoding.ctranslate2_engine` runs the result).
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from mtx import disk, files
from mtx.bundle import Bundle
from mtx.data.piece_models import EOS, UNK
from mtx.decoding.ctranslate2_engine import library
from mtx.decoding.options import EXTRA_LENGTH
from mtx.errors import DamagedFileError
from mtx.model.transformer import DecoderLayer, EncoderLayer, MultiHeadAttention, Transformer, sinusoidal_positions
from mtx.paths import EXPORT_CONFIG, EXPORT_EXAMPLE

PRECISIONS = ("float32", "float16", "int8")
_MIN_POSITIONS = 512
_ACTIVATIONS = {"relu": "RELU", "swish": "SWISH", "gelu": "GELU"}
_LAYER_NORM_EPSILON = 1e-5  # torch's default, which mtx keeps


def write_ctranslate2(loaded: Bundle, directory: Path, precision: str, source: str | None = None) -> None:
    """Write a directory that CTranslate2 and `CTranslate2Translator` load; one that is there is replaced.

    Args:
        precision: of `PRECISIONS`; int8 quantizes the matrices and leaves the rest in float32.
        source: sha256 of the weights that `loaded` was read from, so that an export can be told to be out of date.

    Raises:
        MtxError: where CTranslate2 is not installed.
    """
    library()
    vocabulary = loaded.tokenizer.vocabulary()
    if len(set(vocabulary)) < len(vocabulary):
        raise DamagedFileError("the tokenizer has two pieces that read the same: CTranslate2 could not tell them apart")
    max_tokens = int(loaded.info["max_tokens"])
    positions = _num_positions(loaded.model, max_tokens)
    described = {
        **loaded.info, "model": loaded.model.config.model_dump(), "num_ids": loaded.tokenizer.num_ids,
        "precision": precision, "num_positions": positions, "source": source,
    }  # fmt: skip
    spec = model_spec(loaded.model, vocabulary, positions)
    spec.validate()
    spec.optimize(quantization=precision)
    with files.new_directory(directory, replace=True) as new:
        with disk.naming(new):
            spec.save(str(new))
        loaded.tokenizer.save(new)
        files.write_json(new / EXPORT_CONFIG, described)
        files.write_text(new / EXPORT_EXAMPLE, _example_text())


def _num_positions(model: Transformer, max_tokens: int) -> int:
    """How far the position table reaches: further than any source, and any translation with the usual limit."""
    if model.tgt_positions is not None:
        return len(model.tgt_positions)
    return max(_MIN_POSITIONS, 2 * max_tokens + EXTRA_LENGTH)


def model_spec(model: Transformer, vocabulary: list[str], num_positions: int) -> Any:
    """CTranslate2's `TransformerSpec`, filled with copies of the weights (quantizing works in place).

    Args:
        vocabulary: how each output id reads.
        num_positions: rows of the position table, where it is computed.
    """
    from ctranslate2.specs import common_spec, transformer_spec

    config = model.config
    spec = transformer_spec.TransformerSpec.from_config(
        (config.num_encoder_layers, config.num_decoder_layers),
        config.num_heads,
        pre_norm=config.norm == "pre",
        activation=common_spec.Activation[_ACTIVATIONS[config.activation]],
    )
    source = model.embedding if model.src_embedding is None else model.src_embedding
    _fill_stack(spec.encoder, model.encoder, model.encoder_norm)
    _fill_stack(spec.decoder, model.decoder, model.decoder_norm)
    spec.encoder.embeddings[0].weight = _array(source[:-1])
    spec.decoder.embeddings.weight = _array(model.embedding[:-1])
    spec.decoder.start_from_zero_embedding = True
    spec.decoder.projection.weight = _array(model.output_weight)
    if model.output_bias is not None:
        spec.decoder.projection.bias = _array(model.output_bias)
    sinusoids = sinusoidal_positions(num_positions, config.d_model)
    for side, learned in ((spec.encoder, model.src_positions), (spec.decoder, model.tgt_positions)):
        side.position_encodings.encodings = _array(sinusoids if learned is None else learned)
    spec.register_source_vocabulary(vocabulary)
    spec.register_target_vocabulary(vocabulary)
    spec.config.add_source_eos = True
    spec.config.unk_token = UNK
    spec.config.bos_token = spec.config.eos_token = EOS  # there is none; any token will do for the zero embedding
    spec.config.decoder_start_token = EOS
    spec.config.layer_norm_epsilon = _LAYER_NORM_EPSILON
    return spec


def _fill_stack(spec: Any, layers: Iterable[nn.Module], norm: nn.LayerNorm | None) -> None:
    for layer_spec, layer in zip(spec.layer, layers, strict=True):
        assert isinstance(layer, EncoderLayer)
        _fill_attention(layer_spec.self_attention, layer.self_attention, layer.self_attention_norm, fused=3)
        if isinstance(layer, DecoderLayer):
            _fill_attention(layer_spec.attention, layer.cross_attention, layer.cross_attention_norm, fused=2)
        _fill_linear(layer_spec.ffn.linear_0, [layer.inner])
        _fill_linear(layer_spec.ffn.linear_1, [layer.outer])
        _fill_norm(layer_spec.ffn.layer_norm, layer.feed_forward_norm)
    if norm is not None:
        _fill_norm(spec.layer_norm, norm)


def _fill_attention(spec: Any, attend: MultiHeadAttention, norm: nn.LayerNorm, fused: int) -> None:
    """The projections of what comes from one place are one matrix: the last `fused` of query, key and value."""
    projections = [attend.query, attend.key, attend.value]
    groups = [*([p] for p in projections[:-fused]), projections[-fused:], [attend.output]]
    for linear, group in zip(spec.linear, groups, strict=True):
        _fill_linear(linear, group)
    _fill_norm(spec.layer_norm, norm)


def _fill_linear(spec: Any, parts: list[nn.Linear]) -> None:
    spec.weight = np.concatenate([_array(part.weight) for part in parts])
    spec.bias = np.concatenate([_array(part.bias) for part in parts])


def _fill_norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _array(tensor: torch.Tensor) -> npt.NDArray[np.float32]:
    return np.array(tensor.detach().float().cpu().numpy())


def _example_text() -> str:
    """A program that translates with the export and needs no mtx."""
    return Path(__file__).with_name("ctranslate2_example.py").read_text(encoding="utf-8")
