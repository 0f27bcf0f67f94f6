"""The way in: a model directory of mtx from a published MarianMT directory (OPUS-MT and its like).

No code of transformers runs and nothing is unpickled: JSON, SentencePiece models and one safetensors file are read,
under their fixed names. Anything that mtx cannot represent exactly is refused by name. `marian_weights` reads the
tensors; the result translates as any model of mtx does.
"""

import re
import reprlib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mtx import bundle, files
from mtx.config import MAX_BEAM_SIZE, MAX_LENGTH_PENALTY, MAX_TOKENS, ModelConfig
from mtx.data.piece_models import check_vocabulary, read_split
from mtx.data.tokenizer import EOS_ID, Tokenizer
from mtx.errors import DamagedFileError, UsageError
from mtx.exchange import marian
from mtx.exchange.limits import check_replaceable
from mtx.exchange.marian_weights import read_weights

short = reprlib.repr

_DEFAULT_MODEL_MAX_LENGTH = 512  # MarianTokenizer's
_DEFAULT_BEAM_SIZE = 4

# What MarianMT's configuration may say: the value that mtx's models have, and what its absence means.
_FIXED = {
    "is_encoder_decoder": (True, True),
    "scale_embedding": (True, False),
    "static_position_embeddings": (True, True),
    "normalize_before": (False, False),
    "normalize_embedding": (False, False),
    "add_final_layer_norm": (False, False),
}
# The numbers of both stacks that mtx has once.
_WIDTHS = {
    "num_heads": ("encoder_attention_heads", "decoder_attention_heads"),
    "d_ff": ("encoder_ffn_dim", "decoder_ffn_dim"),
}
_ACTIVATIONS = {"relu": "relu", "swish": "swish", "silu": "swish", "gelu": "gelu"}
_LANGUAGE = re.compile(r"[A-Za-z0-9_+-]{1,100}")


def import_marian(source: Path, target: Path) -> None:
    """Write the model directory `target` from the MarianMT directory `source`.

    Raises:
        UsageError: where `source` is not such a directory, or needs what mtx does not have.
        DamagedFileError: naming the file that is missing, cannot be read, or does not fit the others.
    """
    _check_places(source, target)
    described = _read_json(source / marian.CONFIG)
    config, num_ids = _model_config(source / marian.CONFIG, described), _num_ids(source / marian.CONFIG, described)
    info, tokenizer = _info(source, described), _tokenizer(source, num_ids)
    config, weights = read_weights(source / marian.WEIGHTS, config, num_ids)
    bundle.write(target, weights, config, tokenizer, info)


def _check_places(source: Path, target: Path) -> None:
    if not source.is_dir():
        raise UsageError(f"{source}: no such directory")
    if source.resolve() == target.resolve():
        raise UsageError(f"{target}: is the directory that is read", "name a new directory")
    check_replaceable(target)
    if (source / marian.WEIGHTS).is_file():
        return
    convert = f"with transformers: MarianMTModel.from_pretrained({str(source)!r}).save_pretrained(NEW_DIR"
    for name, why, arguments in (
        ("pytorch_model.bin", "is pickle, which could run code; mtx reads", ", safe_serialization=True)"),
        (f"{marian.WEIGHTS}.index.json", "means weights in several files; mtx reads", ", max_shard_size='100GB')"),
    ):
        if (source / name).is_file():
            raise UsageError(f"{source / name}: {why} {marian.WEIGHTS} only", convert + arguments)
    raise DamagedFileError(f"{source / marian.WEIGHTS}: is missing")


def _read_json(path: Path, optional: bool = False) -> dict[str, Any]:
    """A JSON object of another program, which has no format number of mtx."""
    if optional and not path.is_file():
        return {}
    value = files.read_foreign_json(path)
    if not isinstance(value, dict):
        raise DamagedFileError(f"{path}: holds no JSON object")
    return value


def _model_config(path: Path, described: dict[str, Any]) -> ModelConfig:
    """The architecture, with an output bias; `read_weights` knows whether there is one."""
    if described.get("model_type") != "marian":
        raise UsageError(f"{path}: model_type is {short(described.get('model_type'))}, mtx imports 'marian' only")
    for key, (wanted, absent) in _FIXED.items():
        if (got := described.get(key, absent)) is not wanted:
            raise UsageError(f"{path}: {key} is {short(got)}, mtx has only models where it is {wanted}")
    widths = {}
    for name, keys in _WIDTHS.items():
        first, second = (_integer(path, described, key, 1, 1 << 16) for key in keys)
        if first != second:
            raise UsageError(f"{path}: {keys[0]} is {first} and {keys[1]} {second}, in mtx they are one")
        widths[name] = first
    activation = described.get("activation_function")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise UsageError(f"{path}: activation_function is {short(activation)}, mtx has {', '.join(_ACTIVATIONS)}")
    values = {
        "preset": "base",
        "num_encoder_layers": _integer(path, described, "encoder_layers", 1, 256),
        "num_decoder_layers": _integer(path, described, "decoder_layers", 1, 256),
        "d_model": _integer(path, described, "d_model", 2, 1 << 14),
        **widths,
        "dropout": described.get("dropout", 0.1),
        "activation": _ACTIVATIONS[activation],
        "tie": _tie(path, described),
        "output_bias": True,
    }
    try:
        return ModelConfig.model_validate(values)
    except ValidationError as error:
        problem = error.errors()[0]
        raise UsageError(f"{path}: {'.'.join(map(str, problem['loc']))}: {problem['msg']}") from None


def _tie(path: Path, described: dict[str, Any]) -> str:
    keys = ("share_encoder_decoder_embeddings", "tie_word_embeddings")
    flags = tuple(described.get(key, True) for key in keys)
    for tie, known in marian.TIES.items():
        if flags == known:
            return tie
    raise UsageError(f"{path}: {keys[0]} {short(flags[0])} with {keys[1]} {short(flags[1])} is nothing that mtx has")


def _num_ids(path: Path, described: dict[str, Any]) -> int:
    """Rows of mtx's output layer: all but pad, which must be the last."""
    num_rows = _integer(path, described, "vocab_size", 3, 1 << 20)
    wanted = {
        "decoder_vocab_size": num_rows, "pad_token_id": num_rows - 1, "decoder_start_token_id": num_rows - 1,
        "eos_token_id": EOS_ID,
    }  # fmt: skip
    for key, value in wanted.items():
        got = described.get(key)
        if got != value and not (got is None and key == "decoder_vocab_size"):
            raise UsageError(f"{path}: {key} is {short(got)}, mtx needs {value} where vocab_size is {num_rows}")
    return num_rows - 1


def _integer(path: Path, values: dict[str, Any], key: str, least: int, most: int) -> int:
    value = values.get(key)
    if type(value) is not int or not least <= value <= most:
        raise DamagedFileError(f"{path}: {key} is {short(value)}, expected a whole number from {least} to {most}")
    return value


def _tokenizer(source: Path, num_ids: int) -> Tokenizer:
    path = source / marian.VOCABULARY
    vocabulary = check_vocabulary(path, _read_json(path))
    if len(vocabulary) != num_ids + 1:
        raise DamagedFileError(f"{path}: has {len(vocabulary)} entries, {marian.CONFIG} says vocab_size {num_ids + 1}")
    models = read_split(source / marian.SOURCE_MODEL, source / marian.TARGET_MODEL, vocabulary)
    return Tokenizer(models, "none", [])


def _info(source: Path, described: dict[str, Any]) -> dict[str, Any]:
    """Languages, longest source and search, where the directory names them."""
    path = source / marian.TOKENIZER_CONFIG
    about_text = _read_json(path, optional=True)
    if about_text.get("separate_vocabs"):
        raise UsageError(f"{path}: separate_vocabs: a vocabulary for each side is nothing that mtx has")
    longest = _integer(source / marian.CONFIG, described, "max_position_embeddings", 8, 1 << 20)
    limit = about_text.get("model_max_length", _DEFAULT_MODEL_MAX_LENGTH)
    if not isinstance(limit, int | float) or not limit >= 8:
        raise DamagedFileError(f"{path}: model_max_length is {short(limit)}, expected at least 8")
    return {
        "src": _language(path, about_text, "source_lang", "src"),
        "tgt": _language(path, about_text, "target_lang", "tgt"),
        "max_tokens": int(min(longest, limit, MAX_TOKENS)),
        **_search(source, described),
    }


def _language(path: Path, about_text: dict[str, Any], key: str, default: str) -> str:
    value = about_text.get(key) or default
    if not isinstance(value, str) or not _LANGUAGE.fullmatch(value):
        raise DamagedFileError(f"{path}: {key} is {short(value)}, expected letters, digits, _, + and -")
    return value


def _search(source: Path, described: dict[str, Any]) -> dict[str, Any]:
    """Beam size and length penalty: of generation_config.json, else, as once was usual, of config.json.

    transformers divides by |Y|^alpha, 1 by default; mtx's penalty with the same alpha is the nearest.
    """
    path = source / marian.GENERATION_CONFIG
    values = {**described, **_read_json(path, optional=True)}
    if values.get("num_beams") is None:
        values["num_beams"] = _DEFAULT_BEAM_SIZE
    penalty = values.get("length_penalty", 1.0)
    if isinstance(penalty, bool) or not isinstance(penalty, int | float) or not 0 <= penalty <= MAX_LENGTH_PENALTY:
        got = short(penalty)
        raise UsageError(f"{path}: length_penalty is {got}, mtx needs a number from 0 to {MAX_LENGTH_PENALTY}")
    return {"beam_size": _integer(path, values, "num_beams", 1, MAX_BEAM_SIZE), "length_penalty": float(penalty)}
