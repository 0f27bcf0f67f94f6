"""Checks a directory for CTranslate2 before CTranslate2 reads it: it trusts `model.bin`, and a stranger's can crash it.

`model.bin` must hold what `mtx export` writes for this architecture, by name, shape, type and setting; the numbers may
be any. Layout: version | name of the specification, revision | variables (name, shape, type, bytes) | aliases.
"""

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from mtx.config import ModelConfig
from mtx.errors import DamagedFileError
from mtx.files import read_foreign_json
from mtx.paths import CTRANSLATE2_CONFIG, CTRANSLATE2_VOCABULARY, CTRANSLATE2_WEIGHTS

Shape = tuple[int, ...]

_FLOAT32, _INT8, _INT16, _FLOAT16 = 0, 1, 2, 4
_SIZES = {_FLOAT32: 4, _INT8: 1, _INT16: 2, _FLOAT16: 2}
_SPECIFICATION = "TransformerSpec"
_ACTIVATIONS = {"relu": 0, "swish": 2, "gelu": 3}
_FIXED = {  # settings of each side that mtx's models have in common
    "alibi": 0, "alibi_use_positive_positions": 0, "alignment_heads": 1, "alignment_layer": -1, "embeddings_merge": 0,
    "multi_query_attention": 0, "scale_alibi": 0, "scale_embeddings": 1, "start_from_zero_embedding": 1,
}  # fmt: skip
_TOKENS = ("unk_token", "bos_token", "eos_token", "decoder_start_token")


def check_export(directory: Path, config: ModelConfig, vocabulary: list[str], num_positions: int) -> None:
    """Refuse a directory whose files are not those of this architecture and vocabulary.

    Raises:
        DamagedFileError: naming the file and what in it is another.
    """
    path = directory / CTRANSLATE2_VOCABULARY
    if read_foreign_json(path) != vocabulary:
        raise DamagedFileError(f"{path}: is not the vocabulary of the tokenizer")
    path = directory / CTRANSLATE2_CONFIG
    settings = read_foreign_json(path)
    if not isinstance(settings, dict) or not all(settings.get(key) in vocabulary for key in _TOKENS):
        raise DamagedFileError(f"{path}: does not name {', '.join(_TOKENS)} of the vocabulary")
    path = directory / CTRANSLATE2_WEIGHTS
    shapes = dict(_shapes(config, len(vocabulary), num_positions))
    with path.open("rb") as file:
        try:
            _check_weights(_Reader(file, path.stat().st_size), shapes, _settings(config))
        except ValueError as error:
            raise DamagedFileError(f"{path}: {error}") from None


class _Reader:
    """Numbers and names of a file; raises ValueError at its end."""

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
    """Raise ValueError at the first thing in a `model.bin` that is not what these shapes and settings say."""
    reader.number("I")
    if (name := reader.name()) != _SPECIFICATION:
        raise ValueError(f"is a {name}, expected a {_SPECIFICATION}")
    reader.number("I")
    types: dict[str, int] = {}
    for _ in range(reader.number("I")):
        name = reader.name()
        if name in types:
            raise ValueError(f"{name} stands twice")
        types[name] = _check_variable(reader, name, shapes, settings)
    aliases: dict[str, str] = {}
    for _ in range(reader.number("I")):
        name, original = reader.name(), reader.name()
        if name in {**types, **aliases} or original not in types or shapes.get(name, ()) != shapes.get(original):
            raise ValueError(f"{name} cannot be the same as {original}")
        aliases[name] = original
    for name in shapes:
        _check_presence(name, types, aliases)


def _check_variable(reader: _Reader, name: str, shapes: Mapping[str, Shape], settings: Mapping[str, int]) -> int:
    """Read a variable, all but the numbers of a tensor; its type."""
    shape = tuple(reader.number("I") for _ in range(reader.number("B")))
    kind, size = reader.number("B"), reader.number("I")
    wanted = shapes.get(name, ())
    if (name not in shapes and name not in settings) or shape != wanted:
        raise ValueError(f"{name} is {list(shape)}, expected {list(wanted) if name in shapes else 'no such variable'}")
    count = 1
    for length in shape:
        count *= length
    if size != count * _SIZES.get(kind, -1):
        raise ValueError(f"{name} has {size:,} bytes of type {kind}")
    if name in shapes:
        _check_type(name, kind)
        reader.skip(size)
    elif (value := reader.number({_INT8: "b", _INT16: "h"}.get(kind, "i"))) != settings[name]:
        raise ValueError(f"{name} is {value}, expected {settings[name]}")
    return kind


def _check_type(name: str, kind: int) -> None:
    known = {"weight_scale": (_FLOAT32,), "weight": (_FLOAT32, _FLOAT16, _INT8)}
    if kind not in known.get(name.rpartition("/")[2], (_FLOAT32, _FLOAT16)):
        raise ValueError(f"{name} is of type {kind}")


def _check_presence(name: str, types: Mapping[str, int], aliases: Mapping[str, str]) -> None:
    """Every tensor must be there; a scale for each matrix that is in int8 and not the same as another, and no other."""
    matrix = name.removesuffix("_scale")
    if matrix == name:
        if name not in types and name not in aliases:
            raise ValueError(f"lacks {name}")
    elif (name in types) != (types.get(matrix) == _INT8) or (name in aliases and matrix not in aliases):
        raise ValueError(f"{name} does not go with {matrix}")


def _settings(config: ModelConfig) -> dict[str, int]:
    own = {
        "activation": _ACTIVATIONS[config.activation],
        "num_heads": config.num_heads,
        "pre_norm": config.norm == "pre",
    }
    return {f"{side}/{name}": int(v) for side in ("encoder", "decoder") for name, v in {**_FIXED, **own}.items()}


def _shapes(config: ModelConfig, num_ids: int, num_positions: int) -> Iterator[tuple[str, Shape]]:
    """The tensors that an export may have."""
    width = config.d_model
    yield from _matrix("encoder/embeddings_0", num_ids, width)
    yield from _matrix("decoder/embeddings", num_ids, width)
    yield from _matrix("decoder/projection", num_ids, width)
    if config.output_bias:
        yield "decoder/projection/bias", (num_ids,)
    for side, num_layers in (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers)):
        yield f"{side}/position_encodings/encodings", (num_positions, width)
        if config.norm == "pre":
            yield from _norm(side, width)
        for number in range(num_layers):
            yield from _layer(f"{side}/layer_{number}", side == "decoder", width, config.d_ff)


def _layer(layer: str, is_decoder: bool, width: int, inner: int) -> Iterator[tuple[str, Shape]]:
    """Projections of what comes from one place are one matrix; see `mtx.exchange.ctranslate2`."""
    linears = {
        "self_attention/linear_0": (3 * width, width), "self_attention/linear_1": (width, width),
        "ffn/linear_0": (inner, width), "ffn/linear_1": (width, inner),
    }  # fmt: skip
    if is_decoder:
        linears |= {
            "attention/linear_0": (width, width), "attention/linear_1": (2 * width, width),
            "attention/linear_2": (width, width),
        }  # fmt: skip
    for name, (rows, columns) in linears.items():
        yield from _matrix(f"{layer}/{name}", rows, columns)
        yield f"{layer}/{name}/bias", (rows,)
    for part in {name.split("/")[0] for name in linears}:
        yield from _norm(f"{layer}/{part}", width)


def _matrix(name: str, rows: int, columns: int) -> Iterator[tuple[str, Shape]]:
    yield f"{name}/weight", (rows, columns)
    yield f"{name}/weight_scale", (rows,)


def _norm(name: str, width: int) -> Iterator[tuple[str, Shape]]:
    yield f"{name}/layer_norm/gamma", (width,)
    yield f"{name}/layer_norm/beta", (width,)
