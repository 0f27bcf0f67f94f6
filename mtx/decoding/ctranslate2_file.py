"""Checks a CTranslate2 directory before CTranslate2 reads it, because a damaged `model.bin` would crash CTranslate2.

`model.bin` must hold the tensors and settings that `mtx export` writes for this architecture, with the right names,
shapes and types; the values of the tensors are not checked. Its layout: version | name of the specification, revision |
variables (name, shape, type, bytes) | aliases. No torch here.
"""

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from mtx.config.schema import ModelConfig
from mtx.errors import DamagedFileError
from mtx.files.untrusted import read_untrusted_json
from mtx.model.architecture import Parameter, Shape, parameters, position_tables
from mtx.run.layout import CTRANSLATE2_CONFIG, CTRANSLATE2_VOCABULARY, CTRANSLATE2_WEIGHTS

ACTIVATIONS = {"relu": 0, "swish": 2, "gelu": 3}

_FLOAT32, _INT8, _INT16, _FLOAT16 = 0, 1, 2, 4
_SIZES = {_FLOAT32: 4, _INT8: 1, _INT16: 2, _FLOAT16: 2}
_SPECIFICATION = "TransformerSpec"
_FIXED = {  # settings of encoder and decoder that are the same in all exports
    "alibi": 0, "alibi_use_positive_positions": 0, "alignment_heads": 1, "alignment_layer": -1, "embeddings_merge": 0,
    "multi_query_attention": 0, "scale_alibi": 0, "scale_embeddings": 1, "start_from_zero_embedding": 1,
}  # fmt: skip
_ALIGNMENT_HEADS = "decoder/alignment_heads"  # those whose mean `cross_attention` gives
_OLD = {_ALIGNMENT_HEADS: 1}  # of exports of mtx before 2026-11-23
_TOKENS = ("unk_token", "bos_token", "eos_token", "decoder_start_token")


def check_export(directory: Path, config: ModelConfig, vocabulary: list[str], num_positions: int) -> None:
    """Checks that the files of a directory have this architecture and vocabulary.

    Raises:
        DamagedFileError: with the name of the file and the difference.
    """
    path = directory / CTRANSLATE2_VOCABULARY
    if read_untrusted_json(path) != vocabulary:
        raise DamagedFileError(f"{path}: is not the vocabulary of the tokenizer")
    path = directory / CTRANSLATE2_CONFIG
    settings = read_untrusted_json(path)
    if not isinstance(settings, dict) or not all(settings.get(key) in vocabulary for key in _TOKENS):
        raise DamagedFileError(f"{path}: does not name {', '.join(_TOKENS)} of the vocabulary")
    path = directory / CTRANSLATE2_WEIGHTS
    shapes = _shapes(config, len(vocabulary), num_positions)
    with path.open("rb") as file:
        try:
            _check_weights(_Reader(file, path.stat().st_size), shapes, _settings(config))
        except ValueError as error:
            raise DamagedFileError(f"{path}: {error}") from None


def variables(config: ModelConfig, num_ids: int, num_positions: int) -> dict[str, list[Parameter]]:
    """Returns the tensors of an export: for each name the parameters or position tables that it concatenates."""
    tables = [] if config.positions == "learned" else position_tables(config, num_positions)
    parts: dict[str, list[Parameter]] = {}
    for parameter in (*parameters(config, num_ids), *tables):
        for variable in parameter.ctranslate2:
            parts.setdefault(variable, []).append(parameter)
    return parts


def _shapes(config: ModelConfig, num_ids: int, num_positions: int) -> dict[str, Shape]:
    """Returns the shapes of an export's tensors, including the scales of quantized matrices."""
    shapes: dict[str, Shape] = {}
    for name, parts in variables(config, num_ids, num_positions).items():
        shapes[name] = (sum(part.shape[0] - part.has_pad_row for part in parts), *parts[0].shape[1:])
        if name.endswith("/weight"):
            shapes[f"{name}_scale"] = shapes[name][:1]
    return shapes


def _settings(config: ModelConfig) -> dict[str, int]:
    activation, pre_norm = ACTIVATIONS[config.activation], int(config.norm == "pre")
    settings = {**_FIXED, "activation": activation, "num_heads": config.num_heads, "pre_norm": pre_norm}
    both = {f"{stack}/{name}": value for stack in ("encoder", "decoder") for name, value in settings.items()}
    return {**both, _ALIGNMENT_HEADS: config.num_heads}


class _Reader:
    """Reads numbers and names from a file; raises ValueError if it ends too early."""

    def __init__(self, file: IO[bytes], size: int):
        self.file, self.size = file, size

    def number(self, form: str) -> int:
        data = self.file.read(struct.calcsize(f"<{form}"))
        try:
            return int(struct.unpack(f"<{form}", data)[0])
        except struct.error:
            raise ValueError("ends too early") from None

    def name(self) -> str:
        return self.file.read(self.number("H")).removesuffix(b"\0").decode("ascii", errors="backslashreplace")

    def skip(self, count: int) -> None:
        if self.file.seek(count, 1) > self.size:
            raise ValueError("ends too early")


def _check_weights(reader: _Reader, shapes: Mapping[str, Shape], settings: Mapping[str, int]) -> None:
    """Raises ValueError at the first difference between a `model.bin` and these shapes and settings."""
    reader.number("I")
    if (name := reader.name()) != _SPECIFICATION:
        raise ValueError(f"is a {name}, expected a {_SPECIFICATION}")
    reader.number("I")
    types: dict[str, int] = {}
    for _ in range(reader.number("I")):
        name = reader.name()
        if name in types:
            raise ValueError(f"holds {name} twice")
        types[name] = _check_variable(reader, name, shapes, settings)
    aliases: set[str] = set()
    for _ in range(reader.number("I")):
        name, original = reader.name(), reader.name()
        if name in {*types, *aliases} or original not in types or shapes.get(name, ()) != shapes.get(original):
            raise ValueError(f"{name} cannot be an alias of {original}")
        aliases.add(name)
    for name in shapes:
        _check_presence(name, types, aliases)


def _check_variable(reader: _Reader, name: str, shapes: Mapping[str, Shape], settings: Mapping[str, int]) -> int:
    """Reads a setting, or a tensor without its values; returns its type."""
    shape = tuple(reader.number("I") for _ in range(reader.number("B")))
    kind, size = reader.number("B"), reader.number("I")
    if name not in shapes and name not in settings:
        raise ValueError(f"{name} is {list(shape)}, expected no such variable")
    if shape != (expected := shapes.get(name, ())):
        raise ValueError(f"{name} is {list(shape)}, expected {list(expected)}")
    if size != math.prod(shape) * _SIZES.get(kind, -1):
        raise ValueError(f"{name} has {size:,} bytes of type {kind}")
    if name in shapes:
        _check_type(name, kind)
        reader.skip(size)
    elif (value := reader.number({_INT8: "b", _INT16: "h"}.get(kind, "i"))) not in (settings[name], _OLD.get(name)):
        raise ValueError(f"{name} is {value}, expected {settings[name]}")
    return kind


def _check_type(name: str, kind: int) -> None:
    types = {"weight_scale": (_FLOAT32,), "weight": (_FLOAT32, _FLOAT16, _INT8)}
    if kind not in types.get(name.rpartition("/")[2], (_FLOAT32, _FLOAT16)):
        raise ValueError(f"{name} is of type {kind}")


def _check_presence(name: str, types: Mapping[str, int], aliases: set[str]) -> None:
    """Checks that a tensor is there, and a scale exactly if its matrix is in int8 and not an alias."""
    matrix = name.removesuffix("_scale")
    if matrix == name:
        if name not in types and name not in aliases:
            raise ValueError(f"lacks {name}")
    elif (name in types) != (types.get(matrix) == _INT8) or (name in aliases and matrix not in aliases):
        raise ValueError(f"{name} does not go with {matrix}")
