"""MarianMT directories (transformers' MarianMTModel and MarianTokenizer): what the ways out and in both know.

File names, and which tensor there is which tensor here. The two architectures are one: norms after each residual sum,
eps 1e-5, embeddings times sqrt(d_model), sinusoids in halves. MarianMT scores pad too: its output layer has a row more.
"""

from collections.abc import Mapping

import torch

from mtx.config import ModelConfig
from mtx.model.transformer import Transformer

CONFIG, GENERATION_CONFIG, WEIGHTS = "config.json", "generation_config.json", "model.safetensors"
SOURCE_MODEL, TARGET_MODEL, VOCABULARY, TOKENIZER_CONFIG = (
    "source.spm", "target.spm", "vocab.json", "tokenizer_config.json",
)  # fmt: skip
CARD = "README.md"

SHARED, LM_HEAD, OUTPUT_BIAS = "model.shared.weight", "lm_head.weight", "final_logits_bias"
SOURCE_TABLE, TARGET_TABLE = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
POSITION_TABLES = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")

# `model.tie`: whether MarianMT's share_encoder_decoder_embeddings and tie_word_embeddings are set.
TIES: dict[str, tuple[bool, bool]] = {"all": (True, True), "target": (False, True), "none": (False, False)}

_TABLES = {
    "all": {"embedding": SHARED},
    "target": {"embedding": TARGET_TABLE, "src_embedding": SOURCE_TABLE},
    "none": {"embedding": TARGET_TABLE, "src_embedding": SOURCE_TABLE, "projection": LM_HEAD},
}
_PARTS = {
    "self_attention": "self_attn", "cross_attention": "encoder_attn", "self_attention_norm": "self_attn_layer_norm",
    "cross_attention_norm": "encoder_attn_layer_norm", "feed_forward_norm": "final_layer_norm", "inner": "fc1",
    "outer": "fc2", "query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj",
}  # fmt: skip


def shapes(config: ModelConfig, num_ids: int) -> dict[str, torch.Size]:
    """The names and shapes of mtx's own tensors; takes no memory for them."""
    with torch.device("meta"):
        return {name: tensor.shape for name, tensor in Transformer(config, num_ids).state_dict().items()}


def names(config: ModelConfig, ours: Mapping[str, object]) -> dict[str, str]:
    """What MarianMT calls each of mtx's tensors."""
    known = {**_TABLES[config.tie], "output_bias": OUTPUT_BIAS}
    return {name: known.get(name) or _layer_name(name) for name in ours}


def _layer_name(name: str) -> str:
    """`encoder.0.self_attention.query.weight` -> `model.encoder.layers.0.self_attn.q_proj.weight`."""
    stack, number, *parts = name.split(".")
    return ".".join(["model", stack, "layers", number, *(_PARTS.get(part, part) for part in parts)])
