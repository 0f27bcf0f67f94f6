"""What a model computes for existing translations: their probability (forced scoring), and its attention weights.

`mtx logprob`, validation and the tests of search use the scores; `mtx.report` draws the maps. Flow: ids of pairs ->
packed batches -> `ForcedScore` or `AttentionMaps`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mtx.data.packing import PackedBatch, pack_sentences, to_device
from mtx.data.tokenizer import Tokenizer
from mtx.decoding.options import penalty
from mtx.model.translation_model import TranslationModel, Weights

BATCH_TOKENS = 8192  # in a batch, or those of a single longer pair
# In memory at once; in a validation next to all that training keeps there, and larger blocks leave holes in it.
_MAX_LOGITS = 1 << 21


@dataclass(frozen=True)
class ForcedScore:
    """An existing translation: natural log-probability, number of tokens with `</s>`, and penalised score."""

    log_prob: float
    num_tokens: int
    score: float


@torch.inference_mode()
def score_pairs(
    model: TranslationModel, src: Sequence[list[int]], tgt: Sequence[list[int]], alpha: float, precision: str = "fp32"
) -> list[ForcedScore]:
    """Scores each target given its source, both ending in `</s>`, in batches of similar length."""
    results: dict[int, ForcedScore] = {}
    for rows in batch_by_length(src, tgt, BATCH_TOKENS):
        batch = _pack(model, [src[row] for row in rows], [tgt[row] for row in rows])
        with torch.autocast(batch.src_ids.device.type, torch.bfloat16, enabled=precision == "bf16"):
            hidden = model.decode(batch, model.encode(batch))
            nll = target_nll(hidden, batch.tgt_out_ids, model.output_weight, model.output_bias)
        for row, part in zip(rows, torch.split(nll, [len(tgt[r]) for r in rows]), strict=True):
            log_prob, length = -float(part.numpy().sum()), len(tgt[row])
            results[row] = ForcedScore(log_prob, length, log_prob / penalty(length, alpha))
    return [results[row] for row in range(len(src))]


def _pack(model: TranslationModel, src: Sequence[list[int]], tgt: Sequence[list[int]]) -> PackedBatch:
    """One batch of pairs on the device of the model, which is ready for it."""
    batch = pack_sentences(src, tgt, model.pad_id, model.start_id)
    model.prepare_positions(batch.max_tokens)
    return to_device(batch, model.output_weight.device)


def target_nll(hidden: Tensor, targets: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns the nll of each target token, fp64 [N] in host memory; 0 for pad, the id after the last output.

    Args:
        hidden: [N, D]. targets: [N]. weight: [V, D]. bias: [V] or None.
    """
    rows = max(1, _MAX_LOGITS // len(weight))
    parts = [
        F.cross_entropy(F.linear(h, weight, bias).float(), y, ignore_index=len(weight), reduction="none")
        for h, y in zip(torch.split(hidden, rows), torch.split(targets.long(), rows), strict=True)
    ]
    return torch.cat(parts).cpu().double()  # on the CPU, because MPS has no float64


def batch_by_length(src: Sequence[list[int]], tgt: Sequence[list[int]], max_tokens: int) -> Iterator[list[int]]:
    """Yields rows of similar length that have at most `max_tokens` tokens together, or a single longer row."""
    rows: list[int] = []
    total = 0
    for row in sorted(range(len(tgt)), key=lambda r: (len(tgt[r]), len(src[r]))):
        num_tokens = max(len(tgt[row]), len(src[row]))
        if rows and total + num_tokens > max_tokens:
            yield rows
            rows, total = [], 0
        rows.append(row)
        total += num_tokens
    if rows:
        yield rows


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """All attention weights of one pair; L layers, H heads, S source and T target pieces, each row a distribution.

    Row t of `decoder` and `cross` belongs to the position that predicts `tgt_tokens[t]` from `tgt_inputs[: t + 1]`.

    Attributes:
        src_tokens: [S] pieces as text, such as `▁the`, with `</s>`.
        tgt_tokens: [T] predicted pieces, with `</s>`.
        encoder: [L, H, S, S], from source pieces to source pieces.
        decoder: [L, H, T, T], from predicted pieces to the pieces before them, `tgt_inputs`.
        cross: [L, H, T, S], from predicted pieces to source pieces.
    """

    src_tokens: tuple[str, ...]
    tgt_tokens: tuple[str, ...]
    encoder: Weights
    decoder: Weights
    cross: Weights

    @property
    def kinds(self) -> list[str]:
        """Which of `cross`, `encoder` and `decoder` the model has."""
        return [kind for kind in ("cross", "encoder", "decoder") if getattr(self, kind).size]

    @property
    def tgt_inputs(self) -> tuple[str, ...]:
        """[T] pieces that the decoder reads: `<pad>` first, then the predicted pieces except the last."""
        return ("<pad>", *self.tgt_tokens[:-1])


@torch.inference_mode()
def attention_maps(
    model: TranslationModel, tokenizer: Tokenizer, src: Sequence[list[int]], tgt: Sequence[list[int]]
) -> list[AttentionMaps]:
    """Returns the maps of each pair of ids, both sides ending in `</s>`; the model must be in evaluation mode."""
    batch = _pack(model, src, tgt)
    tokens = ([tuple(tokenizer.pieces(ids)) for ids in side] for side in (src, tgt))
    return list(map(AttentionMaps, *tokens, *zip(*model.attention_weights(batch), strict=True)))
