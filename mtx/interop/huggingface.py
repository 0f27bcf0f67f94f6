"""MarianMT directories (transformers' MarianMTModel and MarianTokenizer): export and import.

Parts of it also serve `fairseq_models`, which has M2M-100 and NLLB.

transformers is not needed: the files have the format of version 4.48 and later. The logits equal the logits of mtx,
which has the same architecture: a layer norm (eps 1e-5) after each residual sum, embeddings times sqrt(d_model), and
position vectors with all sines first and then all cosines. MarianMT also scores pad, so its output layer has one more
row. transformers omits tensors that others determine (tied matrices, computed positions).

A published directory (such as OPUS-MT) is untrusted. No code of transformers runs, and nothing is unpickled: mtx reads
JSON, SentencePiece models and one safetensors file under their fixed names. Errors name features that mtx cannot
represent exactly. Older files contain copies of tensors that others determine, which must equal the original.
"""

import json
import logging
import os
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import safetensors.torch
import torch
from pydantic import BaseModel, Field, ValidationError
from torch import Tensor
from torch.nn.functional import embedding_bag, pad

from mtx.config.limits import MAX_BEAM_SIZE, MAX_LENGTH_PENALTY, MAX_TOKENS
from mtx.config.schema import ModelConfig
from mtx.data.sentencepiece_models import EOS, PAD, UNK, read_split
from mtx.data.tokenizer import EOS_ID, Tokenizer
from mtx.decoding import model_directory
from mtx.decoding.model_directory import LoadedModel
from mtx.decoding.options import EXTRA_LENGTH
from mtx.errors import DamagedFileError, UsageError
from mtx.model.parameter_names import Shape, parameters, position_tables
from mtx.model.transformer import sinusoidal_positions
from mtx.model.translation_model import TranslationModel
from mtx.storage.durable import (
    Json,
    foreign_entries,
    has_manifest,
    new_directory,
    read_manifest,
    read_untrusted_json,
    require_file,
    require_size,
    write_bytes,
)
from mtx.storage.model_description import language_pairs
from mtx.storage.run_files import MARIAN_SOURCE_MODEL, MODEL_CONFIG, WEIGHTS, RunLayout, is_run
from mtx.training.events import Run
from mtx.training.hooks import Hook

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
PAD_BIAS = -1e4  # makes pad impossible: its exponential is 0 in every precision, and float16 can represent it

OUTPUT_BIAS = "final_logits_bias"
_TYPES = (torch.float32, torch.float16, torch.bfloat16)
_MAX_JSON_BYTES = 1 << 26  # of a tokenizer.json such as that of NLLB
_LANGUAGE = "^[A-Za-z0-9_+-]{0,100}$"

_Values = TypeVar("_Values", bound=BaseModel)
_Size = Annotated[int, Field(ge=1, le=1 << 21)]


class MarianConfig(BaseModel, strict=True, protected_namespaces=()):
    """config.json in the order in which mtx writes it.

    A Literal is the value in mtx's models; a default is for a missing key.
    """

    architectures: Any = ["MarianMTModel"]
    model_type: Literal["marian"]
    is_encoder_decoder: Literal[True] = True
    vocab_size: _Size
    decoder_vocab_size: Any = None
    max_position_embeddings: int = Field(ge=8)
    d_model: _Size
    encoder_layers: _Size
    decoder_layers: _Size
    encoder_attention_heads: _Size
    decoder_attention_heads: _Size
    encoder_ffn_dim: _Size
    decoder_ffn_dim: _Size
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
    """Logs before training that MarianMT cannot represent the model."""

    def on_start(self, run: Run) -> None:
        if obstacles := huggingface_obstacles(run.config.model):
            logger.info("note: this model cannot be exported to huggingface (%s)", "; ".join(obstacles))


def is_m2m_100(config: ModelConfig) -> bool:
    """Whether transformers' M2M100 has this architecture."""
    expected = {
        "architecture": "transformer",
        "norm": "pre",
        "positions": "fairseq",
        "start": "eos",
        "tie": "all",
        "output_bias": False,
    }
    return expected.items() <= config.model_dump().items()


def huggingface_obstacles(config: ModelConfig) -> list[str]:
    """Why neither MarianMT nor M2M100 can represent this architecture; empty if one can."""
    if is_m2m_100(config):
        return []
    obstacles = []
    if config.architecture != "transformer":
        obstacles.append(f"model.architecture={config.architecture}: only a Transformer can be exported")
    if config.norm != "post":
        obstacles.append(f"model.norm={config.norm}: MarianMT has norms after each residual sum (model.norm=post)")
    if config.positions != "sinusoidal":
        obstacles.append(f"model.positions={config.positions}: MarianMT computes its positions (sinusoidal)")
    return obstacles


def export_huggingface(loaded: LoadedModel, directory: Path) -> None:
    """Write a directory that `MarianMTModel` and `MarianTokenizer` load; an earlier export in it is replaced.

    Raises:
        UsageError: if MarianMT cannot represent the model.
    """
    if obstacles := huggingface_obstacles(loaded.model.config):
        raise UsageError(f"this model cannot be exported to MarianMT: {'; '.join(obstacles)}")
    src, tgt = language_pairs(loaded.info)[0]
    tokenizer = {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": src,
        "target_lang": tgt,
        "model_max_length": loaded.info["max_tokens"],
        "unk_token": UNK,
        "eos_token": EOS,
        "pad_token": PAD,
        "separate_vocabs": False,
        "clean_up_tokenization_spaces": False,
    }
    pieces = [*loaded.tokenizer.vocabulary(), PAD]  # the reserved symbols and `<pad>` are at the end
    ids = {piece: token for token, piece in enumerate(pieces)}
    if len(ids) < len(pieces):
        raise UsageError("the tokenizer has two equal subwords, which MarianTokenizer does not support")
    special = {
        "model_type": "marian",
        "eos_token_id": EOS_ID,
        "pad_token_id": loaded.model.pad_id,
        "decoder_start_token_id": loaded.model.start_id,
    }
    models = loaded.tokenizer.models
    files = {
        TOKENIZER_CONFIG: to_json(tokenizer),
        VOCABULARY: to_json(ids),
        MARIAN_SOURCE_MODEL: models.source,
        TARGET_MODEL: models.target,
    }
    tensors = tensors_of(loaded.model)
    # at the maximum length only </s> can follow
    write_directory(directory, loaded, MarianConfig, special, files, tensors, forced_eos_token_id=EOS_ID)


def to_json(value: Any) -> bytes:
    """A file of JSON without mtx's format number, because it is not of mtx's format."""
    return (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode()


def write_directory(
    directory: Path,
    loaded: LoadedModel,
    kind: type[MarianConfig],
    special: Json,
    files: Mapping[str, bytes],
    tensors: model_directory.Tensors,
    **generation: Any,
) -> None:
    """Write a directory of transformers: its configuration, the settings of the search, other files, and weights.

    The search has the length penalty's alpha of mtx, although transformers' penalty is |Y|^alpha, and not
    ((5 + |Y|) / 6)^alpha.

    Args:
        special: the values of `kind` that do not follow from the model.
        generation: further settings of the search.
    """
    info = loaded.info
    config = loaded.model.config
    num_rows = loaded.model.pad_id + 1
    share, tie = TIES[config.tie]
    sizes: Json = {key: getattr(config, name) for key, name in SIZES.items()}
    values = kind(
        vocab_size=num_rows,
        decoder_vocab_size=num_rows,
        # Rows of the computed position table, beyond which transformers fails: at least as in published models, and
        # enough for the longest source, a tag and the longest translation (EXTRA_LENGTH more, the start, </s>).
        max_position_embeddings=max(512, info["max_tokens"] + 64),
        **sizes,
        activation_function=config.activation,
        dropout=config.dropout,
        scale_embedding=True,
        share_encoder_decoder_embeddings=share,
        tie_word_embeddings=tie,
        **special,
    ).model_dump()
    search = {
        **{key: value for key, value in values.items() if key.endswith("token_id")},
        "bad_words_ids": [[values["pad_token_id"]]],
        **generation,
        "max_length": info["max_tokens"] + EXTRA_LENGTH + 1,  # includes the start token
        "num_beams": info["beam_size"],
        **({"early_stopping": True, "length_penalty": info["length_penalty"]} if info["beam_size"] > 1 else {}),
    }
    with new_directory(directory) as new_dir:
        for name, content in {MODEL_CONFIG: to_json(values), GENERATION_CONFIG: to_json(search), **files}.items():
            write_bytes(new_dir / name, content)
        # 4.x needs the metadata
        write_bytes(new_dir / WEIGHTS, safetensors.torch.save(tensors, metadata={"format": "pt"}))


def tensors_of(model: TranslationModel) -> dict[str, Tensor]:
    """The weights of a model in fp32 under MarianMT's names, each once."""
    weights = {name: tensor.cpu().float().contiguous() for name, tensor in model.state_dict().items()}
    bias = weights.get("output_bias", torch.zeros(model.pad_id))
    if "projection" in weights:
        weights["projection"] = pad(weights["projection"], (0, 0, 0, 1))
    tensors = {
        parameter.huggingface[0]: weights[parameter.name] for parameter in parameters(model.config, model.pad_id)
    }
    return {**tensors, OUTPUT_BIAS: pad(bias, (0, 1), value=PAD_BIAS)[None]}


def check_replaceable(directory: Path, marks: set[str]) -> None:
    """Raise UsageError if an export or import would replace anything other than an earlier one with these files."""
    path = directory.resolve()
    is_free = not os.path.lexists(directory) or (path.is_dir() and not any(path.iterdir()))
    is_earlier = (
        has_manifest(path)
        and marks <= read_manifest(path).keys()
        and not foreign_entries(path)
        and not (RunLayout(path.parent).model == path and is_run(path.parent))
    )
    if not is_free and not is_earlier:
        raise UsageError(f"{directory}: not an earlier export or import, so it is not replaced", "use a new directory")


class _TokenizerConfig(BaseModel, strict=True, protected_namespaces=()):
    """The keys of tokenizer_config.json that mtx reads; the default length is that of MarianTokenizer."""

    separate_vocabs: Literal[False, None] = False
    source_lang: str | None = Field(None, pattern=_LANGUAGE)
    target_lang: str | None = Field(None, pattern=_LANGUAGE)
    model_max_length: float = Field(512, ge=8)


class _GenerationConfig(BaseModel, strict=True):
    """The keys of generation_config.json that mtx reads."""

    num_beams: int | None = Field(None, ge=1, le=MAX_BEAM_SIZE)
    length_penalty: float = Field(1.0, ge=0, le=MAX_LENGTH_PENALTY)


def import_marian(source: Path, target: Path) -> None:
    """Write the model directory `target` from the MarianMT directory `source`.

    Raises:
        UsageError: if `source` is not such a directory, or needs an unsupported feature.
        DamagedFileError: if a file is missing, cannot be read, or does not fit the others.
    """
    marian_config, info = read_config(source, target, MarianConfig)
    path = source / VOCABULARY
    vocabulary = read_json(path)
    models = read_split(source / MARIAN_SOURCE_MODEL, source / TARGET_MODEL, path, vocabulary)
    order = [vocabulary[piece] for piece in models.vocabulary]
    if (size := len(order)) != marian_config.vocab_size:
        raise DamagedFileError(f"{path}: expected {marian_config.vocab_size} entries ({MODEL_CONFIG}), got {size}")
    ids = {"pad_token_id": order[-1], "decoder_start_token_id": order[-1], "eos_token_id": order[EOS_ID]}
    config = model_config(source / MODEL_CONFIG, marian_config, ids)
    weights = read_weights(source / WEIGHTS, config, [[token] for token in order], size)
    config = config.model_copy(update={"output_bias": "output_bias" in weights})
    model_directory.write(target, weights, config, Tokenizer(models, "none", []), info)


def model_type(source: Path) -> Any:
    """What config.json of a directory calls the model, such as marian or m2m_100; None if there is none."""
    path = source / MODEL_CONFIG
    return read_json(path).get("model_type") if path.is_file() else None


def read_config(source: Path, target: Path, kind: type[MarianConfig]) -> tuple[MarianConfig, Json]:
    """Read the settings of a directory of transformers that is to become `target`.

    Old directories have the search settings in config.json. transformers divides by |Y|^alpha with alpha 1 by default;
    mtx's penalty with the same alpha is the closest.

    Returns:
        config.json, of this kind; and languages, longest source and search settings, with defaults for missing values.

    Raises:
        UsageError: if there is no such directory, its weights are pickled, or `target` has something else.
        DamagedFileError: if a file is missing or damaged.
    """
    if not source.is_dir():
        raise UsageError(f"{source}: no such directory", "hf:USER/MODEL downloads a model from the Hugging Face hub")
    check_replaceable(target, {MODEL_CONFIG, WEIGHTS})
    pickle = source / "pytorch_model.bin"
    if pickle.is_file() and not (source / WEIGHTS).is_file():
        model = kind.model_fields["architectures"].default[0]
        place = repr(str(source))
        raise UsageError(
            f"{pickle}: pickle files are unsafe; mtx reads only {WEIGHTS}",
            f"with transformers: {model}.from_pretrained({place}).save_pretrained({place})",
        )
    path = source / MODEL_CONFIG
    if any(source.glob("*.npz")):
        hint = "transformers' convert_marian_to_pytorch makes a MarianMT directory of it, which mtx imports"
        raise UsageError(f"{source}: a model of Marian itself (*.npz)", hint)
    values = read_json(path)
    if values.get("model_type") in ("marian", "m2m_100"):
        require_file(source / WEIGHTS)
    config = validate(kind, path, values)
    tokenizer = read_settings(_TokenizerConfig, source / TOKENIZER_CONFIG)
    search = read_settings(_GenerationConfig, source / GENERATION_CONFIG, values)
    return config, {
        "src": tokenizer.source_lang or "src",
        "tgt": tokenizer.target_lang or "tgt",
        "max_tokens": int(min(config.max_position_embeddings, tokenizer.model_max_length, MAX_TOKENS)),
        "beam_size": search.num_beams or 4,
        "length_penalty": search.length_penalty,
    }


def read_settings(kind: type[_Values], path: Path, values: Mapping[str, Any] = {}) -> _Values:
    """The values of a file, which may be missing; those that it lacks are of `values`."""
    return validate(kind, path, {**values, **(read_json(path) if path.is_file() else {})})


def read_json(path: Path) -> Json:
    """Read a JSON object of another program, without mtx's format number."""
    value = read_untrusted_json(path, _MAX_JSON_BYTES)
    if not isinstance(value, dict):
        raise DamagedFileError(f"{path}: not a JSON object")
    return value


def validate(kind: type[_Values], path: Path, values: Json) -> _Values:
    """Check the values of a file.

    Raises:
        UsageError: if mtx supports only another value.
        DamagedFileError: if a value is missing, or has the wrong type or size.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        problem = error.errors()[0]
    key = "".join(f"{part} " for part in problem["loc"])
    is_unsupported = problem["type"] in ("literal_error", "value_error")
    error_type = UsageError if is_unsupported else DamagedFileError
    raise error_type(
        f"{path}: {key}is {reprlib.repr(problem['input'])}: {problem['msg'].replace('Input should be', 'expected')}",
        "mtx imports MarianMT (OPUS-MT), M2M-100 and NLLB models, but not NLLB's experts, mBART and T5",
    )


def model_config(path: Path, marian_config: MarianConfig, ids: Mapping[str, int], **values: Any) -> ModelConfig:
    """The architecture with these ids and values, without the output bias, which only the weights show.

    Raises:
        UsageError: for unsupported variants, such as ids that differ from those of the vocabulary.
    """
    expected: dict[str, Any] = {
        "decoder_attention_heads": marian_config.encoder_attention_heads,
        "decoder_ffn_dim": marian_config.encoder_ffn_dim,
    }
    if marian_config.decoder_vocab_size:  # most configurations do not have it
        expected["decoder_vocab_size"] = marian_config.vocab_size
    if marian_config.share_encoder_decoder_embeddings:
        expected["tie_word_embeddings"] = True
    expected |= ids
    for key, value in expected.items():
        if (actual := getattr(marian_config, key)) != value:
            raise UsageError(f"{path}: {key} is {reprlib.repr(actual)}, but mtx requires {value}")
    ties = {flags: tie for tie, flags in TIES.items()}
    values["tie"] = ties[marian_config.share_encoder_decoder_embeddings, marian_config.tie_word_embeddings]
    values["activation"] = marian_config.activation_function.replace("silu", "swish")
    values |= {name: getattr(marian_config, key) for key, name in SIZES.items()}
    return validate(ModelConfig, path, {**values, "dropout": marian_config.dropout})


def read_weights(
    path: Path, config: ModelConfig, order: Sequence[Sequence[int]], num_rows: int
) -> model_directory.Tensors:
    """Read the weights in fp32 under mtx's names, without an output bias of zeros.

    Args:
        order: for each of mtx's ids, pad last, the rows in the file whose mean is its row.
        num_rows: the number of rows in the file.

    Raises:
        DamagedFileError: if a tensor is missing, unknown, of another shape, or not finite.
        UsageError: if the pad row of an embedding is not zero, or the positions are not sinusoids.
    """
    is_fairseq = config.positions == "fairseq"
    flat_rows = torch.tensor([row for rows in order for row in rows])
    offsets = torch.tensor([0, *map(len, order)]).cumsum(0)[:-1]
    require_file(path)
    require_size(path, 1 << 34)
    tensors = model_directory.load_tensors(path)
    for name, tensor in tensors.items():
        if tensor.dtype not in _TYPES:
            raise UsageError(f"{path}: {name} is {tensor.dtype}, mtx reads float32, float16 and bfloat16")
        if not tensor.isfinite().all():
            raise DamagedFileError(f"{path}: {name} has numbers that are not finite")
    for table in position_tables(config, 0):
        for name in table.huggingface:
            positions = tensors.pop(name, torch.empty(0, config.d_model)).float()
            if is_fairseq:
                positions = positions[2:]  # the first of a token
            # The tolerance is above bfloat16's rounding of a sine, far below any other table.
            expected = sinusoidal_positions(positions.numel() // config.d_model, config.d_model, is_fairseq)
            if positions.shape != expected.shape or not torch.allclose(positions, expected, rtol=0, atol=1e-2):
                raise UsageError(f"{path}: {name} is not mtx's table of sinusoids")
    tensors.setdefault(OUTPUT_BIAS, torch.zeros(1, num_rows))
    bias = _take(path, tensors, (OUTPUT_BIAS,), (1, num_rows))[0, flat_rows[offsets[:-1]]]
    weights = {"output_bias": bias} if bias.any() else {}
    for parameter in parameters(config.model_copy(update={"output_bias": False}), len(order) - 1):
        is_by_token = parameter.has_pad_row or parameter.name == "projection"  # theirs has a row for pad too
        rows = num_rows if is_by_token else parameter.shape[0]
        weight = _take(path, tensors, parameter.huggingface, (rows, *parameter.shape[1:]))
        if is_by_token:
            weight = embedding_bag(flat_rows, weight, offsets, mode="mean")[: parameter.shape[0]]
        if parameter.has_pad_row and weight[-1].any():
            if config.start == "pad":
                raise UsageError(f"{path}: row {flat_rows[-1]} of {parameter.huggingface[0]} (<pad>) is not zero")
            weight[-1] = 0  # the logit of pad may have trained it; no decoder starts from it
        weights[parameter.name] = weight
    if tensors:
        raise DamagedFileError(f"{path}: unknown tensor {min(tensors)}")
    return weights


def _take(path: Path, tensors: dict[str, Tensor], names: tuple[str, ...], shape: Shape) -> Tensor:
    """Remove a tensor from a file's tensors and return it in fp32; its copies under other names must be equal."""
    copies = [(name, tensors.pop(name).float()) for name in names if name in tensors]
    if not copies:
        raise DamagedFileError(f"{path}: missing tensor {names[0]}")
    (name, tensor), *aliases = copies
    for alias, copy in aliases:
        if not torch.equal(copy, tensor):
            raise DamagedFileError(f"{path}: {alias} differs from {name}, but {MODEL_CONFIG} ties them")
    if tensor.shape != shape:
        raise DamagedFileError(f"{path}: {name} is {list(tensor.shape)}, expected {list(shape)}")
    return tensor
