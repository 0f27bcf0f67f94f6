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
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import safetensors.torch
import torch
from pydantic import BaseModel, Field, ValidationError
from torch import Tensor
from torch.nn.functional import pad

from mtx.config.limits import MAX_BEAM_SIZE, MAX_LENGTH_PENALTY, MAX_TOKENS
from mtx.config.schema import ModelConfig
from mtx.data.sentencepiece_models import EOS, PAD, UNK, read_split
from mtx.data.tokenizer import EOS_ID, Tokenizer
from mtx.decoding import model_directory
from mtx.decoding.model_directory import LoadedModel
from mtx.decoding.options import EXTRA_LENGTH
from mtx.errors import DamagedFileError, UsageError
from mtx.model.parameters import Shape, parameters, position_tables
from mtx.model.transformer import Transformer, sinusoidal_positions
from mtx.storage import durable
from mtx.storage.run_files import MARIAN_SOURCE_MODEL, MODEL_CONFIG, WEIGHTS, RunLayout, is_run
from mtx.training.hooks import Hook, Run

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
    expected = {"architecture": "transformer", "norm": "pre", "positions": "fairseq", "start": "eos", "tie": "all"}
    return not config.output_bias and expected.items() <= config.model_dump().items()


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
    if config.start != "pad":
        obstacles.append(f"model.start={config.start}: MarianMT starts from pad")
    return obstacles


def export_huggingface(loaded: LoadedModel, directory: Path) -> None:
    """Write a directory that `MarianMTModel` and `MarianTokenizer` load; an earlier export in it is replaced.

    Raises:
        UsageError: if MarianMT cannot represent the model.
    """
    if obstacles := huggingface_obstacles(loaded.model.config):
        raise UsageError(f"this model cannot be exported to MarianMT: {'; '.join(obstacles)}")
    info, pad_id = loaded.info, loaded.model.pad_id
    # mtx's search settings with the same alpha, although transformers' penalty is |Y|^alpha, not ((5 + |Y|) / 6)^alpha.
    beam_search = {"early_stopping": True, "length_penalty": info["length_penalty"]} if info["beam_size"] > 1 else {}
    generation = {
        "eos_token_id": EOS_ID,
        "pad_token_id": pad_id,
        "decoder_start_token_id": loaded.model.start_id,
        "bad_words_ids": [[pad_id]],
        "forced_eos_token_id": EOS_ID,  # at the maximum length only </s> can follow
        "max_length": info["max_tokens"] + EXTRA_LENGTH + 1,  # includes the start token
        "num_beams": info["beam_size"],
        **beam_search,
    }
    tokenizer = {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": info["src"],
        "target_lang": info["tgt"],
        "model_max_length": info["max_tokens"],
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
    objects = {  # without mtx's format number, because these are not mtx formats
        MODEL_CONFIG: _config(loaded).model_dump(),
        GENERATION_CONFIG: generation,
        TOKENIZER_CONFIG: tokenizer,
        VOCABULARY: ids,
    }
    with durable.new_directory(directory) as new:
        for name, value in objects.items():
            durable.write_text(new / name, json.dumps(value, ensure_ascii=False, indent=2) + "\n")
        durable.write_bytes(new / MARIAN_SOURCE_MODEL, loaded.tokenizer.models.source)
        durable.write_bytes(new / TARGET_MODEL, loaded.tokenizer.models.target)
        assert isinstance(loaded.model, Transformer)
        weights = safetensors.torch.save(tensors_of(loaded.model), metadata={"format": "pt"})  # 4.x needs it
        durable.write_bytes(new / WEIGHTS, weights)


def _config(loaded: LoadedModel) -> MarianConfig:
    config, pad_id = loaded.model.config, loaded.model.pad_id
    share, tie = TIES[config.tie]
    sizes: dict[str, Any] = {key: getattr(config, name) for key, name in SIZES.items()}
    return MarianConfig(
        model_type="marian",
        vocab_size=pad_id + 1,
        decoder_vocab_size=pad_id + 1,
        # Rows of the computed position table, beyond which transformers fails: at least as in published models, and
        # enough for the longest source, a tag and the longest translation (EXTRA_LENGTH more, the start, </s>).
        max_position_embeddings=max(512, loaded.info["max_tokens"] + 64),
        **sizes,
        activation_function=config.activation,
        dropout=config.dropout,
        scale_embedding=True,
        share_encoder_decoder_embeddings=share,
        tie_word_embeddings=tie,
        eos_token_id=EOS_ID,
        pad_token_id=pad_id,
        decoder_start_token_id=loaded.model.start_id,
    )


def tensors_of(model: Transformer) -> dict[str, Tensor]:
    """The weights of a model in fp32 under MarianMT's names, each once."""
    weights = {name: tensor.cpu().float().contiguous() for name, tensor in model.state_dict().items()}
    bias = weights.get("output_bias", torch.zeros(model.pad_id))
    if "projection" in weights:
        weights["projection"] = pad(weights["projection"], (0, 0, 0, 1))
    tensors = {p.huggingface[0]: weights[p.name] for p in parameters(model.config, model.pad_id)}
    return {**tensors, OUTPUT_BIAS: pad(bias, (0, 1), value=PAD_BIAS)[None]}


def check_replaceable(directory: Path, marks: set[str]) -> None:
    """Raise UsageError if an export or import would replace anything other than an earlier one with these files."""
    path = directory.resolve()
    is_free = not os.path.lexists(directory) or (path.is_dir() and not any(path.iterdir()))
    is_earlier = (
        durable.has_manifest(path)
        and marks <= durable.read_manifest(path).keys()
        and not durable.foreign_entries(path)
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
    values = read_config(source, target, "MarianMTModel")
    marian_config = validate(MarianConfig, source / MODEL_CONFIG, values)
    info = read_info(source, marian_config.max_position_embeddings, values)
    path = source / VOCABULARY
    vocabulary, order = _reorder(read_json(path))
    models = read_split(source / MARIAN_SOURCE_MODEL, source / TARGET_MODEL, path, vocabulary)
    if (size := len(models.vocabulary)) != marian_config.vocab_size:
        raise DamagedFileError(f"{path}: expected {marian_config.vocab_size} entries ({MODEL_CONFIG}), got {size}")
    config = _model_config(source / MODEL_CONFIG, marian_config, order[EOS_ID], order[-1])
    weights = read_weights(source / WEIGHTS, config, [[token] for token in order], len(order))
    config = config.model_copy(update={"output_bias": "output_bias" in weights})
    model_directory.write(target, weights, config, Tokenizer(models, "none", []), info)


def _reorder(vocabulary: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    """The vocabulary with mtx's ids, `</s>` 0, `<unk>` 1, `<pad>` last, and the file's id of each of them.

    A vocabulary that does not name each id from 0 on, or lacks these, is unchanged, and `read_split` refuses it.
    """
    known = [vocabulary.get(piece) for piece in (EOS, UNK, PAD)]
    is_whole = all(type(token) is int for token in (*vocabulary.values(), *known))
    if not is_whole or sorted(vocabulary.values()) != list(range(len(vocabulary))):
        return vocabulary, []
    eos, unk, last = known
    order: Any = [eos, unk, *(token for token in range(len(vocabulary)) if token not in known), last]
    ids = {token: place for place, token in enumerate(order)}
    return {piece: ids[token] for piece, token in vocabulary.items()}, order


def model_type(source: Path) -> Any:
    """What config.json of a directory calls the model, such as marian or m2m_100; None if there is none."""
    path = source / MODEL_CONFIG
    return read_json(path).get("model_type") if path.is_file() else None


def read_config(source: Path, target: Path, kind: str) -> dict[str, Any]:
    """Returns config.json of a directory of transformers, whose class is `kind`, that is to become `target`.

    Raises:
        UsageError: if there is no such directory, its weights are pickled, or `target` has something else.
        DamagedFileError: if the file is missing or damaged.
    """
    if not source.is_dir():
        raise UsageError(f"{source}: no such directory", "hf:OWNER/NAME downloads a model from the Hugging Face hub")
    check_replaceable(target, {MODEL_CONFIG, WEIGHTS})
    pickle = source / "pytorch_model.bin"
    if pickle.is_file() and not (source / WEIGHTS).is_file():
        place = repr(str(source))
        convert = f"with transformers: {kind}.from_pretrained({place}).save_pretrained({place})"
        raise UsageError(f"{pickle}: pickle files are unsafe; mtx reads only {WEIGHTS}", convert)
    return read_json(source / MODEL_CONFIG)


def read_json(path: Path, max_bytes: int = durable.MAX_JSON_BYTES) -> dict[str, Any]:
    """Read a JSON object of another program, without mtx's format number."""
    value = durable.read_untrusted_json(path, max_bytes)
    if not isinstance(value, dict):
        raise DamagedFileError(f"{path}: not a JSON object")
    return value


def validate(kind: type[_Values], path: Path, values: dict[str, Any]) -> _Values:
    """Check the values of a file.

    Raises:
        UsageError: if mtx supports only another value.
        DamagedFileError: if a value is missing, or has the wrong type or size.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        problem = error.errors()[0]
    where = "".join(f"{part} " for part in problem["loc"])
    is_unsupported = problem["type"] in ("literal_error", "value_error")
    raise (UsageError if is_unsupported else DamagedFileError)(
        f"{path}: {where}is {reprlib.repr(problem['input'])}: {problem['msg']}",
        "mtx imports MarianMT (OPUS-MT), M2M-100 and NLLB models, but not NLLB's experts, mBART and T5",
    )


def _model_config(path: Path, marian: MarianConfig, eos_id: int, pad_id: int) -> ModelConfig:
    """The architecture, without the output bias, which only the weights show.

    Raises:
        UsageError: for unsupported variants, such as ids that differ from those of the vocabulary.
    """
    expected = {
        "decoder_attention_heads": marian.encoder_attention_heads,
        "decoder_ffn_dim": marian.encoder_ffn_dim,
        "decoder_vocab_size": marian.decoder_vocab_size and marian.vocab_size,
        "tie_word_embeddings": marian.tie_word_embeddings or marian.share_encoder_decoder_embeddings,
        "pad_token_id": pad_id,
        "decoder_start_token_id": pad_id,
        "eos_token_id": eos_id,
    }
    for key, value in expected.items():
        if (actual := getattr(marian, key)) != value:
            raise UsageError(f"{path}: {key} is {reprlib.repr(actual)}, but mtx requires {value}")
    ties = {flags: tie for tie, flags in TIES.items()}
    return read_sizes(path, marian, tie=ties[marian.share_encoder_decoder_embeddings, marian.tie_word_embeddings])


def read_sizes(path: Path, theirs: Any, **values: Any) -> ModelConfig:
    """The architecture with the sizes of a checked config.json, and other values."""
    values |= {name: getattr(theirs, key) for key, name in SIZES.items()}
    values["activation"] = theirs.activation_function.replace("silu", "swish")
    return validate(ModelConfig, path, {**values, "dropout": theirs.dropout})


def read_info(source: Path, num_positions: int, values: dict[str, Any]) -> dict[str, Any]:
    """Languages, longest source and search settings, with defaults for missing values.

    Old directories have the search settings in config.json. transformers divides by |Y|^alpha with alpha 1 by default;
    mtx's penalty with the same alpha is the closest.
    """
    path = source / TOKENIZER_CONFIG
    text = validate(_TokenizerConfig, path, read_json(path) if path.is_file() else {})
    path = source / GENERATION_CONFIG
    search = validate(_GenerationConfig, path, {**values, **(read_json(path) if path.is_file() else {})})
    return {
        "src": text.source_lang or "src",
        "tgt": text.target_lang or "tgt",
        "max_tokens": int(min(num_positions, text.model_max_length, MAX_TOKENS)),
        "beam_size": search.num_beams or 4,
        "length_penalty": search.length_penalty,
    }


def read_weights(path: Path, config: ModelConfig, order: Sequence[Sequence[int]], num_rows: int) -> dict[str, Tensor]:
    """Read the weights in fp32 under mtx's names, without an output bias of zeros.

    Args:
        order: for each of mtx's ids, pad last, the rows in the file whose mean is its row.
        num_rows: the number of rows in the file.

    Raises:
        DamagedFileError: if a tensor is missing, unknown, of another shape, or not finite.
        UsageError: if the pad row of an embedding is not zero, or the positions are not sinusoids.
    """
    num_ids, is_fairseq = len(order) - 1, config.positions == "fairseq"
    first = [rows[0] for rows in order]
    durable.require_file(path)
    durable.require_size(path, 1 << 34)
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
                positions = positions[2:]  # no token has these positions
            # The tolerance is above bfloat16's rounding of a sine, far below any other table.
            expected = sinusoidal_positions(positions.numel() // config.d_model, config.d_model, is_fairseq)
            if positions.shape != expected.shape or not torch.allclose(positions, expected, rtol=0, atol=1e-2):
                raise UsageError(f"{path}: {name} is not mtx's table of sinusoids")
    tensors.setdefault(OUTPUT_BIAS, torch.zeros(1, num_rows))
    bias = _take(path, tensors, (OUTPUT_BIAS,), (1, num_rows))[0, first[:-1]]
    weights = {"output_bias": bias} if bias.any() else {}
    for parameter in parameters(config.model_copy(update={"output_bias": False}), num_ids):
        is_by_token = parameter.has_pad_row or parameter.name == "projection"  # theirs has a row for pad too
        rows = num_rows if is_by_token else parameter.shape[0]
        weight = _take(path, tensors, parameter.huggingface, (rows, *parameter.shape[1:]))
        if is_by_token:
            means = {place: weight[[*rows]].mean(0) for place, rows in enumerate(order) if len(rows) > 1}
            weight = weight[first[: parameter.shape[0]]]
            for place, mean in means.items():
                weight[place] = mean
        if parameter.has_pad_row and weight[-1].any():
            if config.start == "pad":
                raise UsageError(f"{path}: row {first[-1]} of {parameter.huggingface[0]} (<pad>) is not zero")
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
    (name, tensor), *others = copies
    for alias, copy in others:
        if not torch.equal(copy, tensor):
            raise DamagedFileError(f"{path}: {alias} differs from {name}, but {MODEL_CONFIG} ties them")
    if tensor.shape != shape:
        raise DamagedFileError(f"{path}: {name} is {list(tensor.shape)}, expected {list(shape)}")
    return tensor
