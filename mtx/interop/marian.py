"""MarianMT directories (transformers' MarianMTModel and MarianTokenizer): file names, configuration and weights.

The architecture is that of mtx: a layer norm (eps 1e-5) after each residual sum, embeddings times sqrt(d_model), and
position vectors that hold all sines first and then all cosines. MarianMT also scores pad, so its output layer has one
more row. transformers leaves out tensors that others determine (tied matrices, computed positions); older files hold
copies of them, which must equal the original.
"""

from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from mtx.config.schema import ModelConfig
from mtx.errors import DamagedFileError, UsageError
from mtx.model.architecture import Shape, parameters, position_tables
from mtx.model.transformer import Transformer, sinusoidal_positions
from mtx.model_directory import storage
from mtx.run.layout import MARIAN_SOURCE_MODEL

CONFIG, GENERATION_CONFIG, TOKENIZER_CONFIG = "config.json", "generation_config.json", "tokenizer_config.json"
WEIGHTS, VOCABULARY, SOURCE_MODEL, TARGET_MODEL = "model.safetensors", "vocab.json", MARIAN_SOURCE_MODEL, "target.spm"

# `model.tie`: whether MarianMT's share_encoder_decoder_embeddings and tie_word_embeddings are set.
TIES: dict[str, tuple[bool, bool]] = {"all": (True, True), "target": (False, True), "none": (False, False)}
# The sizes in config.json and the keys of mtx's ModelConfig.
SIZES = {
    "d_model": "d_model", "encoder_layers": "num_encoder_layers", "decoder_layers": "num_decoder_layers",
    "encoder_attention_heads": "num_heads", "decoder_attention_heads": "num_heads", "encoder_ffn_dim": "d_ff",
    "decoder_ffn_dim": "d_ff",
}  # fmt: skip
PAD_BIAS = -1e4  # makes pad impossible: its exponential is 0 in every precision, and float16 holds it

_OUTPUT_BIAS = "final_logits_bias"
_MAX_BYTES = 1 << 34
_TYPES = (torch.float32, torch.float16, torch.bfloat16)
_POSITION_TOLERANCE = 1e-2  # above bfloat16's rounding of a sine, far below any other table


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
    num_hidden_layers: Any = None
    encoder_attention_heads: int = Field(ge=1, le=1 << 16)
    decoder_attention_heads: int = Field(ge=1, le=1 << 16)
    encoder_ffn_dim: int = Field(ge=1, le=1 << 18)
    decoder_ffn_dim: int = Field(ge=1, le=1 << 18)
    activation_function: Literal["relu", "swish", "silu", "gelu"]
    dropout: Any = 0.1
    attention_dropout: Any = 0.0
    activation_dropout: Any = 0.0
    encoder_layerdrop: Any = 0.0
    decoder_layerdrop: Any = 0.0
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


def tensors_of(model: Transformer) -> dict[str, Tensor]:
    """The weights of a model in fp32 under MarianMT's names, each once."""
    weights = {name: tensor.detach().cpu().float().contiguous() for name, tensor in model.state_dict().items()}
    bias = weights.get("output_bias", torch.zeros(model.pad_id))
    if "projection" in weights:
        weights["projection"] = torch.cat([weights["projection"], torch.zeros(1, model.config.d_model)])
    tensors = {p.marian[0]: weights[p.name] for p in parameters(model.config, model.pad_id)}
    return {**tensors, _OUTPUT_BIAS: torch.cat([bias, torch.tensor([PAD_BIAS])])[None]}


def read_weights(path: Path, config: ModelConfig, num_ids: int) -> dict[str, Tensor]:
    """Read the weights in fp32 under mtx's names; an output bias of zeros is left out.

    Raises:
        DamagedFileError: if a tensor is missing, unknown, of another shape, or not finite.
        UsageError: if the pad row of an embedding is not zero, or the positions are not sinusoids.
    """
    if path.stat().st_size > _MAX_BYTES:
        raise UsageError(f"{path}: {path.stat().st_size:,} bytes are more than mtx reads")
    tensors = storage.load_tensors(path)
    for name, tensor in tensors.items():
        if tensor.dtype not in _TYPES:
            raise UsageError(f"{path}: {name} is {tensor.dtype}, mtx reads float32, float16 and bfloat16")
        if not bool(tensor.isfinite().all()):
            raise DamagedFileError(f"{path}: {name} holds numbers that are not finite")
    for table in position_tables(config, 0):
        positions = tensors.pop(table.marian[0], None)
        if positions is not None and not _is_sinusoidal(positions, config.d_model):
            raise UsageError(f"{path}: {table.marian[0]} is not the table of sinusoids that mtx computes")
    tensors.setdefault(_OUTPUT_BIAS, torch.zeros(1, num_ids + 1))
    bias = _take(path, tensors, (_OUTPUT_BIAS,), (1, num_ids + 1))[0, :num_ids]
    weights = {"output_bias": bias} if bool(bias.any()) else {}
    for parameter in parameters(config.model_copy(update={"output_bias": False}), num_ids):
        rows = parameter.shape[0] + (parameter.name == "projection")  # MarianMT's has a row for pad
        weight = _take(path, tensors, parameter.marian, (rows, *parameter.shape[1:]))
        if parameter.has_pad_row and bool(weight[num_ids].any()):
            name = parameter.marian[0]
            raise UsageError(f"{path}: row {num_ids} of {name}, which is <pad>, is not zero as mtx needs it")
        weights[parameter.name] = weight[: parameter.shape[0]]
    if tensors:
        raise DamagedFileError(f"{path}: holds an unknown tensor {min(tensors)}")
    return weights


def _take(path: Path, tensors: dict[str, Tensor], names: tuple[str, ...], shape: Shape) -> Tensor:
    """Remove a tensor from a file's tensors and return it in fp32; its copies under other names must be equal."""
    copies = {name: tensors.pop(name).float() for name in names if name in tensors}
    if not copies:
        raise DamagedFileError(f"{path}: lacks {names[0]}")
    name, tensor = next(iter(copies.items()))
    for alias, copy in copies.items():
        if not torch.equal(copy, tensor):
            raise DamagedFileError(f"{path}: {alias} differs from {name}, which {CONFIG} calls the same")
    if tensor.shape != shape:
        raise DamagedFileError(f"{path}: {name} is {list(tensor.shape)}, expected {list(shape)}")
    return tensor


def _is_sinusoidal(table: Tensor, d_model: int) -> bool:
    expected = sinusoidal_positions(len(table), d_model) if table.shape[1:] == (d_model,) else None
    return expected is not None and torch.allclose(table.float(), expected, rtol=0, atol=_POSITION_TOLERANCE)
