"""Imports a published MarianMT directory (OPUS-MT and its like) as a model directory of mtx.

No code of transformers runs, and nothing is unpickled. mtx reads JSON, SentencePiece models and one safetensors file
under their fixed names. An error names what mtx cannot represent exactly.
"""

import reprlib
from pathlib import Path
from typing import Any, Literal, TypeVar, get_origin

from pydantic import BaseModel, Field, ValidationError

from mtx.config.limits import MAX_BEAM_SIZE, MAX_LENGTH_PENALTY, MAX_TOKENS
from mtx.config.schema import ModelConfig
from mtx.data.sentencepiece_models import check_vocabulary, read_split
from mtx.data.tokenizer import EOS_ID, Tokenizer
from mtx.errors import DamagedFileError, UsageError
from mtx.files import untrusted
from mtx.files.shell import mtx_command
from mtx.interop import marian
from mtx.interop.limits import check_model_replaceable
from mtx.model_directory import storage
from mtx.run.contents import is_run
from mtx.run.layout import TOKENIZER_JSON

_DEFAULT_BEAM_SIZE = 4
_LANGUAGE = "^[A-Za-z0-9_+-]{0,100}$"

_Values = TypeVar("_Values", bound=BaseModel)


class _TokenizerConfig(BaseModel, strict=True, protected_namespaces=()):
    """The keys of tokenizer_config.json that mtx reads; the default length is that of MarianTokenizer."""

    separate_vocabs: Literal[False, None] = False
    source_lang: str | None = Field(None, pattern=_LANGUAGE)
    target_lang: str | None = Field(None, pattern=_LANGUAGE)
    model_max_length: float = Field(512, ge=8)


class _GenerationConfig(BaseModel, strict=True):
    """The keys of generation_config.json that mtx reads."""

    num_beams: int | None = Field(None, ge=1, le=MAX_BEAM_SIZE)
    length_penalty: Any = 1.0


def import_marian(source: Path, target: Path) -> None:
    """Write the model directory `target` from the MarianMT directory `source`.

    Raises:
        UsageError: if `source` is not such a directory, or needs a feature that mtx does not have.
        DamagedFileError: if a file is missing, cannot be read, or does not fit the others.
    """
    _check_paths(source, target)
    path = source / marian.CONFIG
    values = _read_json(path)
    required = {"model_type": None, "scale_embedding": False, "activation_function": None}  # an absent key is refused
    marian_config = _validated(marian.MarianConfig, path, {**required, **values})
    config, num_ids = _model_config(path, marian_config), _num_ids(path, marian_config)
    info, tokenizer = _info(source, marian_config, values), _tokenizer(source, num_ids)
    weights = marian.read_weights(source / marian.WEIGHTS, config, num_ids)
    config = config.model_copy(update={"output_bias": "output_bias" in weights})
    storage.write(target, weights, config, tokenizer, info)


def _check_paths(source: Path, target: Path) -> None:
    if not source.is_dir():
        raise UsageError(f"{source}: no such directory")
    if target.exists() and source.samefile(target):
        raise UsageError(f"{target}: is the directory that is read", "name a new directory")
    check_model_replaceable(target)
    if is_run(source) or ((source / TOKENIZER_JSON).is_file() and not (source / marian.VOCABULARY).is_file()):
        raise UsageError(f"{source}: is of mtx already and needs no import", mtx_command("translate", source))
    if (source / marian.WEIGHTS).is_file():
        return
    place = repr(str(source))
    for name, why, arguments in (
        ("pytorch_model.bin", "is pickle, which could run code; mtx reads", ""),
        (f"{marian.WEIGHTS}.index.json", "means weights in several files; mtx reads", ", max_shard_size='100GB'"),
    ):
        if (source / name).is_file():
            convert = f"with transformers: MarianMTModel.from_pretrained({place}).save_pretrained({place}{arguments})"
            raise UsageError(f"{source / name}: {why} {marian.WEIGHTS} only", convert)
    raise DamagedFileError(f"{source / marian.WEIGHTS}: is missing")


def _read_json(path: Path, optional: bool = False) -> dict[str, Any]:
    """Read a JSON object of another program, which has no format number of mtx."""
    if optional and not path.is_file():
        return {}
    value = untrusted.read_untrusted_json(path)
    if not isinstance(value, dict):
        raise DamagedFileError(f"{path}: holds no JSON object")
    return value


def _validated(kind: type[_Values], path: Path, values: dict[str, Any]) -> _Values:
    """Check the values of a file.

    Raises:
        UsageError: if mtx supports only another value.
        DamagedFileError: if a value is missing, or has the wrong type or size.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        problem = error.errors()[0]
    key = str(problem["loc"][0])
    what = "is missing" if problem["type"] == "missing" else f"is {reprlib.repr(problem['input'])}: {problem['msg']}"
    is_unsupported = get_origin(kind.model_fields[key].annotation) is Literal
    raise (UsageError if is_unsupported else DamagedFileError)(f"{path}: {key} {what}")


def _model_config(path: Path, marian_config: marian.MarianConfig) -> ModelConfig:
    """The architecture; whether it has an output bias shows when the weights are read."""
    sizes: dict[str, int] = {}
    for key, name in marian.SIZES.items():
        size = getattr(marian_config, key)
        if sizes.setdefault(name, size) != size:
            first = next(other for other in marian.SIZES if marian.SIZES[other] == name)
            raise UsageError(f"{path}: {first} is {sizes[name]} and {key} {size}, in mtx they are equal")
    ties = {flags: tie for tie, flags in marian.TIES.items()}
    flags = marian_config.share_encoder_decoder_embeddings, marian_config.tie_word_embeddings
    if flags not in ties:
        keys = "share_encoder_decoder_embeddings", "tie_word_embeddings"
        raise UsageError(f"{path}: {keys[0]} {flags[0]} with {keys[1]} {flags[1]}: mtx has no such model")
    activation = "swish" if marian_config.activation_function == "silu" else marian_config.activation_function
    values = {**sizes, "activation": activation, "dropout": marian_config.dropout, "tie": ties[flags]}
    try:
        return ModelConfig.model_validate(values)
    except ValidationError as error:
        problem = error.errors()[0]
        key = "".join(f"{part}: " for part in problem["loc"])
        raise UsageError(f"{path}: {key}{problem['msg'].removeprefix('Value error, ')}") from None


def _num_ids(path: Path, marian_config: marian.MarianConfig) -> int:
    """The number of rows of mtx's output layer: all but that of pad, which must be the last."""
    pad_id = marian_config.vocab_size - 1
    expected = {"pad_token_id": pad_id, "decoder_start_token_id": pad_id, "eos_token_id": EOS_ID}
    if marian_config.decoder_vocab_size is not None:
        expected["decoder_vocab_size"] = marian_config.vocab_size
    for key, value in expected.items():
        if (got := getattr(marian_config, key)) != value:
            size = marian_config.vocab_size
            raise UsageError(f"{path}: {key} is {reprlib.repr(got)}, mtx needs {value} where vocab_size is {size}")
    return pad_id


def _tokenizer(source: Path, num_ids: int) -> Tokenizer:
    path = source / marian.VOCABULARY
    vocabulary = check_vocabulary(path, _read_json(path))
    if len(vocabulary) != num_ids + 1:
        raise DamagedFileError(f"{path}: has {len(vocabulary)} entries, {marian.CONFIG} says vocab_size {num_ids + 1}")
    models = read_split(source / marian.SOURCE_MODEL, source / marian.TARGET_MODEL, vocabulary)
    return Tokenizer(models, "none", [])


def _info(source: Path, marian_config: marian.MarianConfig, values: dict[str, Any]) -> dict[str, Any]:
    """Languages, longest source and search settings, with defaults for what the directory does not give.

    Old directories have the search settings in config.json. transformers divides by |Y|^alpha with alpha 1 by default;
    the penalty of mtx with the same alpha is the nearest.
    """
    path = source / marian.TOKENIZER_CONFIG
    text = _validated(_TokenizerConfig, path, _read_json(path, optional=True))
    path = source / marian.GENERATION_CONFIG
    search = _validated(_GenerationConfig, path, {**values, **_read_json(path, optional=True)})
    penalty = search.length_penalty
    if isinstance(penalty, bool) or not isinstance(penalty, int | float) or not 0 <= penalty <= MAX_LENGTH_PENALTY:
        got = reprlib.repr(penalty)
        raise UsageError(f"{path}: length_penalty is {got}, mtx needs a number from 0 to {MAX_LENGTH_PENALTY}")
    return {
        "src": text.source_lang or "src",
        "tgt": text.target_lang or "tgt",
        "max_tokens": int(min(marian_config.max_position_embeddings, text.model_max_length, MAX_TOKENS)),
        "beam_size": search.num_beams or _DEFAULT_BEAM_SIZE,
        "length_penalty": float(penalty),
    }
