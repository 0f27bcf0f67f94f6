"""A table of the Transformer's parameters: their names and shapes in mtx, and their names in other formats.

A test checks that it matches `mtx.model.transformer`. Exports, imports and the check of CTranslate2 models read the
table, so a new kind of layer is added to the model and to this file only. This module does not need torch.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from mtx.config.limits import MAX_LEARNED_POSITIONS
from mtx.config.schema import ModelConfig

Shape = tuple[int, ...]


class Parameter(NamedTuple):
    """A parameter of the model.

    Attributes:
        name: its name in the model's state_dict.
        huggingface: its names in MarianMT and M2M100. mtx writes the first; other files may hold equal tensors under
            the rest.
        ctranslate2: the CTranslate2 variables that hold it. Several parameters of one variable are concatenated.
        has_pad_row: whether the last row is the embedding of pad; CTranslate2 has no such row.
    """

    name: str
    shape: Shape
    huggingface: tuple[str, ...]
    ctranslate2: tuple[str, ...]
    has_pad_row: bool = False


# The parts of a layer: names in mtx, Hugging Face and CTranslate2, and the weight's shape as keys of `ModelConfig`.
_SQUARE = ("d_model", "d_model")
_LAYER = (
    ("self_attention.query", "self_attn.q_proj", "self_attention/linear_0", _SQUARE),
    ("self_attention.key", "self_attn.k_proj", "self_attention/linear_0", _SQUARE),
    ("self_attention.value", "self_attn.v_proj", "self_attention/linear_0", _SQUARE),
    ("self_attention.output", "self_attn.out_proj", "self_attention/linear_1", _SQUARE),
    ("self_attention_norm", "self_attn_layer_norm", "self_attention/layer_norm", ("d_model",)),
    ("inner", "fc1", "ffn/linear_0", ("d_ff", "d_model")),
    ("outer", "fc2", "ffn/linear_1", ("d_model", "d_ff")),
    ("feed_forward_norm", "final_layer_norm", "ffn/layer_norm", ("d_model",)),
)
_DECODER_LAYER = (
    *_LAYER,
    ("cross_attention.query", "encoder_attn.q_proj", "attention/linear_0", _SQUARE),
    ("cross_attention.key", "encoder_attn.k_proj", "attention/linear_1", _SQUARE),
    ("cross_attention.value", "encoder_attn.v_proj", "attention/linear_1", _SQUARE),
    ("cross_attention.output", "encoder_attn.out_proj", "attention/linear_2", _SQUARE),
    ("cross_attention_norm", "encoder_attn_layer_norm", "attention/layer_norm", ("d_model",)),
)

# The matrices with a row for each token: for each `model.tie`, their names in Hugging Face and CTranslate2.
SHARED = "model.shared.weight"
_SOURCE = "model.encoder.embed_tokens.weight", "encoder/embeddings_0/weight"
_TARGET = "model.decoder.embed_tokens.weight", "decoder/embeddings/weight"
_OUTPUT = "lm_head.weight", "decoder/projection/weight"
_TOKENS: dict[str, dict[str, tuple[tuple[str, str], ...]]] = {
    "all": {"embedding": (_SOURCE, _TARGET, _OUTPUT)},
    "target": {"embedding": (_TARGET, _OUTPUT), "src_embedding": (_SOURCE,)},
    "none": {"embedding": (_TARGET,), "src_embedding": (_SOURCE,), "projection": (_OUTPUT,)},
}


def parameters(config: ModelConfig, num_ids: int) -> Iterator[Parameter]:
    """Yields the parameters of a Transformer whose output layer has `num_ids` rows."""
    for name, uses in _TOKENS[config.tie].items():
        huggingface, ctranslate2 = zip(*uses, strict=True)
        has_pad_row = name != "projection"
        names = (SHARED, *huggingface) if config.tie == "all" else huggingface
        num_rows = num_ids + 1 if has_pad_row else num_ids
        yield Parameter(name, (num_rows, config.d_model), names, ctranslate2, has_pad_row)
    if config.output_bias:
        yield Parameter("output_bias", (num_ids,), ("final_logits_bias",), ("decoder/projection/bias",))
    if config.positions == "learned":
        yield from position_tables(config, MAX_LEARNED_POSITIONS)
    stacks = ("encoder", _LAYER, config.num_encoder_layers), ("decoder", _DECODER_LAYER, config.num_decoder_layers)
    for stack, layer, num_layers in stacks:
        for number, (name, part, variable, keys) in itertools.product(range(num_layers), layer):
            shape = tuple(int(getattr(config, key)) for key in keys)
            names = (f"model.{stack}.layers.{number}.{part}",)
            yield from _weight_and_bias(f"{stack}.{number}.{name}", shape, names, f"{stack}/layer_{number}/{variable}")
        if config.norm == "pre":  # MarianMT has no final norms
            names = (f"model.{stack}.layer_norm",)
            yield from _weight_and_bias(f"{stack}_norm", (config.d_model,), names, f"{stack}/layer_norm")


def position_tables(config: ModelConfig, num_positions: int) -> list[Parameter]:
    """Returns the position tables of source and target; they are parameters only if positions are learned."""
    shape = (num_positions, config.d_model)
    return [
        Parameter(
            name,
            shape,
            (f"model.{stack}.embed_positions.weight", f"model.{stack}.embed_positions.weights"),
            (f"{stack}/position_encodings/encodings",),
        )
        for name, stack in (("src_positions", "encoder"), ("tgt_positions", "decoder"))
    ]


def _weight_and_bias(name: str, shape: Shape, names: tuple[str, ...], variable: str) -> Iterator[Parameter]:
    """Yields the parameters of a linear layer, or of a LayerNorm if the weight's shape has one dimension."""
    suffixes = ("weight", "bias") if len(shape) > 1 else ("gamma", "beta")
    for kind, suffix, size in zip(("weight", "bias"), suffixes, (shape, shape[:1]), strict=True):
        yield Parameter(f"{name}.{kind}", size, tuple(f"{part}.{kind}" for part in names), (f"{variable}/{suffix}",))
