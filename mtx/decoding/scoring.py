"""Forced decoding: how probable a model finds existing translations. Flow: ids of pairs -> `ForcedScore`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mtx.decoding.batches import pack_sentences, to_device
from mtx.decoding.options import penalty
from mtx.model.transformer import Transformer

_LOGITS = 1 << 25  # that are in memory at once


@dataclass(frozen=True)
class ForcedScore:
    """A given translation: its natural log-probability and tokens, `</s>` included, and its penalised score."""

    log_prob: float
    num_tokens: int
    score: float


@torch.inference_mode()
def score_pairs(
    model: Transformer, src: Sequence[list[int]], tgt: Sequence[list[int]], alpha: float, precision: str = "fp32"
) -> list[ForcedScore]:
    """Score each target given its source, both ending in `</s>`, in batches of similar length."""
    results: dict[int, ForcedScore] = {}
    device = model.output_weight.device
    for rows in _batches(src, tgt, max(1, _LOGITS // len(model.output_weight))):
        batch = to_device(pack_sentences([src[r] for r in rows], [tgt[r] for r in rows], model.pad_id), device)
        model.prepare_positions(batch.max_tokens)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            hidden = model.decode(batch, model.encode(batch))
            logits = F.linear(hidden, model.output_weight, model.output_bias)
        totals = _totals(logits, batch.tgt_out_ids, [len(tgt[r]) for r in rows])
        for row, total in zip(rows, totals, strict=True):
            results[row] = ForcedScore(total, len(tgt[row]), total / penalty(len(tgt[row]), alpha))
    return [results[row] for row in range(len(src))]


def _totals(logits: Tensor, ids: Tensor, lengths: list[int]) -> list[float]:
    """The summed log-probabilities of sentences that lie end to end, from logits [N, V] and ids [N]."""
    log_probs = torch.log_softmax(logits, -1, dtype=torch.float).gather(1, ids.long()[:, None])[:, 0]
    ends = np.cumsum(lengths)
    return [float(part.sum()) for part in np.split(log_probs.double().cpu().numpy(), ends[:-1])]


def _batches(src: Sequence[list[int]], tgt: Sequence[list[int]], max_tokens: int) -> Iterator[list[int]]:
    """Rows of similar length with at most max_tokens target tokens together, or one."""
    rows: list[int] = []
    total = 0
    for row in sorted(range(len(tgt)), key=lambda r: (len(tgt[r]), len(src[r]))):
        if rows and total + max(len(tgt[row]), len(src[row])) > max_tokens:
            yield rows
            rows, total = [], 0
        rows.append(row)
        total += max(len(tgt[row]), len(src[row]))
    if rows:
        yield rows
