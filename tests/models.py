"""Tiny models and batches that several tests share."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mtx.config.schema import ModelConfig, TrainingConfig
from mtx.data.packing import PackedBatch, Shape, pack
from mtx.data.sampler import BLOCK, Side
from mtx.model.architectures import new_model
from mtx.model.attention import BlockLayout

torch.set_num_threads(1)  # models are tiny: a second thread only waits

# Architectures beside the Transformer, which have its invariants.
OTHERS: list[dict[str, Any]] = [
    {"architecture": "decoder"},
    {"architecture": "decoder", "norm": "pre", "positions": "learned", "tie": "target", "activation": "gelu"},
    {"architecture": "rnn"},
    {"architecture": "rnn", "cell": "gru", "score": "scaled_dot_product", "num_decoder_layers": 1, "tie": "none"},
    {"architecture": "rnn", "score": "multiplicative", "num_encoder_layers": 1, "num_decoder_layers": 3},
]

TINY: dict[str, Any] = {
    "num_encoder_layers": 2, "num_decoder_layers": 2, "d_model": 16, "d_ff": 32, "num_heads": 4, "dropout": 0.0,
}  # fmt: skip


def tiny_config(**changes: Any) -> ModelConfig:
    return ModelConfig.model_validate({**TINY, **changes})


def averaging_of(checkpoint_every: int, average_last: int) -> TrainingConfig:
    return TrainingConfig.model_validate({"checkpoint_every": checkpoint_every, "average_last": average_last})


def tiny_model(num_ids: int = 13, seed: int = 1, dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    """A random model in evaluation mode; norms and biases are random too, so that a test sees them."""
    torch.manual_seed(seed)
    model = new_model(tiny_config(**changes), num_ids)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    model.prepare_positions(64)
    return model.to(dtype).eval()


def adam(model: torch.nn.Module, lr: float = 0.01) -> torch.optim.Adam:
    """An optimizer whose moments exist before its first step, as those of a run."""
    optimizer = torch.optim.Adam(model.parameters(), lr, betas=(0.9, 0.98), eps=1e-9, fused=True)
    for p in model.parameters():
        moments = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
        optimizer.state[p] = {"step": torch.zeros((), device=p.device), **moments}
    return optimizer


def random_ids(lengths: Sequence[int], num_ids: int, seed: int) -> list[list[int]]:
    """Sentences of such lengths, each ending in `</s>` (0) and nowhere else holding it."""
    rng = np.random.default_rng(seed)
    return [[*rng.integers(1, num_ids, n - 1).tolist(), 0] for n in lengths]


def side(sentences: Sequence[Sequence[int]]) -> Side:
    """Sentences in blocks of one; they lie in reverse order and with gaps, as nothing should depend on that."""
    tokens, places = [99], []
    for sentence in reversed(sentences):
        places.append(len(tokens))
        tokens += [*sentence, 99]
    offsets = np.array([offset for sentence in sentences for offset in (0, len(sentence))], np.int32)
    blocks = [(1, place, 2 * number) for number, place in enumerate(reversed(places))]
    return Side(np.array(tokens, np.uint16), offsets, np.array(blocks, BLOCK))


def batch_of(
    src: list[list[int]], tgt: list[list[int]], num_ids: int, tail: int = 0, max_tokens: int = 8
) -> PackedBatch:
    """A batch of these sentences as tensors, with at least `tail` positions of dummies on each side."""
    num_src, num_tgt = sum(map(len, src)), sum(map(len, tgt))
    longest = max([max_tokens, *map(len, src), *map(len, tgt)])
    shape = Shape(num_src + 2 * tail, num_tgt + tail, len(src) + tail, longest, 0)
    return pack(side(src), side(tgt), np.arange(len(src)), shape, num_ids)


def random_batch(
    src_lengths: Sequence[int], tgt_lengths: Sequence[int], num_ids: int = 13, seed: int = 5, tail: int = 0
) -> PackedBatch:
    return batch_of(random_ids(src_lengths, num_ids, seed), random_ids(tgt_lengths, num_ids, seed + 1), num_ids, tail)


def dense(layout: BlockLayout, queries: Tensor, keys_values: Tensor | None) -> Tensor:
    """Attention in which each query sees its range of keys, without blocks; the kernels need triton."""
    q, *rest = queries.unbind(1)
    k, v = rest if keys_values is None else keys_values.unbind(1)
    keys, (first, end) = torch.arange(len(k)), layout.key_ranges[:, :, None]
    scores = torch.einsum("nhk,mhk->hnm", q, k) * q.shape[-1] ** -0.5
    weights = torch.softmax(scores.masked_fill((keys < first) | (keys >= end), -math.inf), -1)
    return torch.einsum("hnm,mhk->nhk", weights, v)
