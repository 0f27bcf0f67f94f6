"""Models whose translations differ from source to source, and their exports."""

import random
from pathlib import Path
from typing import Any

import torch

from mtx.config.schema import TokenizerConfig
from mtx.data.tokenizer import Tokenizer, train_tokenizer
from mtx.decoding import model_directory
from mtx.decoding.model_directory import LoadedModel
from mtx.model.transformer import DecoderLayer
from tests.models import tiny_model

INFO = {"src": "de", "tgt": "en", "max_tokens": 24, "beam_size": 4, "length_penalty": 0.6}
VARIANTS: list[dict[str, Any]] = [  # seeds with which translations are of all lengths, or go on to the limit
    {"seed": 2},
    {"seed": 2, "norm": "pre", "activation": "gelu", "num_encoder_layers": 1},
    {"seed": 1, "tie": "none", "output_bias": True, "num_heads": 4},
    {"seed": 4, "tie": "target", "activation": "swish", "positions": "learned"},
]


def small_tokenizer(tag: str = "BT") -> Tokenizer:
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefgü", k=rng.randint(1, 6))) for _ in range(80)]
    lines = [" ".join(rng.choices(words, k=8)) for _ in range(200)]
    return train_tokenizer(iter(lines), TokenizerConfig(vocab_size=320), 200, [tag])


def lively_bundle(tokenizer: Tokenizer, directory: Path, seed: int = 2, **changes: Any) -> LoadedModel:
    """A model directory with random weights: sharp, attentive to the source, and apt to end."""
    model = tiny_model(tokenizer.num_ids, seed=seed, dtype=torch.float32, **changes)
    last = model.decoder_norm if model.config.norm == "pre" else model.decoder[-1].feed_forward_norm
    with torch.no_grad():
        for layer in model.decoder:
            assert isinstance(layer, DecoderLayer)
            layer.cross_attention.output.weight.mul_(6)
            layer.self_attention.output.weight.mul_(2)
        model.output_weight.mul_(2)
        model.output_weight[0] += last.bias / last.bias.norm()  # type: ignore[operator, union-attr]
    model_directory.write(directory, model.state_dict(), model.config, tokenizer, INFO)
    return model_directory.load(directory)
