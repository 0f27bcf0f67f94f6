"""Greedy and beam search over any model that offers `start_cache` and `decode_step` (6.1 of the paper).

Score of a hypothesis: log-probability / ((5 + |Y|) / 6)^alpha, where |Y| counts `</s>`. A hypothesis finishes when its
`</s>` is among the top `beam_size` candidates; a sentence is done when `beam_size` hypotheses have finished, or when
the best open one cannot beat the worst finished one even at the maximum length. There only `</s>` is left.

Shapes: B sentences, J beams, V outputs, T target length.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

EOS_ID = 0


class Model(Protocol):
    """What search knows of a model."""

    pad_id: int

    @property
    def output_weight(self) -> Tensor: ...
    @property
    def output_bias(self) -> Tensor | None: ...
    def start_cache(self, memory: Any, beam_size: int) -> Any: ...
    def decode_step(self, ids: Tensor, cache: Any) -> Tensor: ...


@dataclass(frozen=True)
class Candidate:
    """One finished hypothesis: its tokens, `</s>` included, and its penalised score."""

    ids: list[int]
    score: float


def length_penalty(length: int | Tensor, alpha: float) -> Any:
    """((5 + |Y|) / 6)^alpha (Wu et al. 2016, as 6.1 uses it)."""
    return ((5 + length) / 6) ** alpha


def next_log_probs(model: Model, ids: Tensor, cache: Any) -> Tensor:
    """Log-probabilities of the token after `ids` [B, J], in fp32, [B, J, V]."""
    logits = model.decode_step(ids, cache) @ model.output_weight.T
    if model.output_bias is not None:
        logits = logits + model.output_bias
    return torch.log_softmax(logits.float(), -1)


@dataclass
class _Sentence:
    """The finished hypotheses of one sentence, best first, at most `beam_size`."""

    finished: list[Candidate] = field(default_factory=list)

    def add(self, candidate: Candidate, beam_size: int) -> None:
        self.finished.append(candidate)
        self.finished.sort(key=lambda c: -c.score)
        del self.finished[beam_size:]


@torch.no_grad()
def search(model: Model, memory: Any, max_lengths: Tensor, beam_size: int, alpha: float) -> list[list[Candidate]]:
    """Find the best translations of each source.

    Args:
        memory: the encoder's output for B sentences.
        max_lengths: int [B], in host memory, target tokens with `</s>`, at least 1.

    Returns:
        For each sentence its finished hypotheses, at most `beam_size`, best first.
    """
    cache = model.start_cache(memory, beam_size)
    device = model.output_weight.device
    results = [_Sentence() for _ in range(len(max_lengths))]
    active = torch.arange(len(max_lengths))  # the sentences still in the batch
    limits = max_lengths
    tokens = torch.full((len(active), beam_size, 1), model.pad_id, dtype=torch.long, device=device)
    scores = torch.full((len(active), beam_size), float("-inf"), device=device)
    scores[:, 0] = 0  # all beams start equal: one is enough
    length = 0
    while len(active):
        length += 1
        log_p = next_log_probs(model, tokens[:, :, -1], cache)
        last = (limits == length).to(device)
        log_p[last, :, 1:] = float("-inf")  # </s> is output 0
        total = scores[:, :, None] + log_p
        top, flat = total.flatten(1).topk(min(2 * beam_size, total[0].numel()), dim=1)
        parent, token = flat // log_p.shape[-1], flat % log_p.shape[-1]
        is_end = token == EOS_ID
        rank = torch.arange(top.shape[1], device=device)
        finishes = is_end & ((rank < beam_size) | last[:, None]) & (top > float("-inf"))
        _collect(results, active, tokens, parent, top, finishes, length, beam_size, alpha)
        # open hypotheses: the first beam_size candidates that did not end
        order = (is_end.int() * top.shape[1] + rank).argsort(dim=1)[:, :beam_size]
        scores = top.masked_fill(is_end, float("-inf")).gather(1, order)
        parent, token = parent.gather(1, order), token.gather(1, order)
        best_open = scores[:, 0] / length_penalty(limits.to(device), alpha)
        keep = [
            not _is_done(results[sentence], float(best), beam_size)
            for sentence, best in zip(active.tolist(), best_open.tolist(), strict=True)
        ]
        tokens, scores = _advance(tokens, scores, parent, token, torch.tensor(keep, device=device), cache)
        active, limits = active[keep], limits[keep]
    return [result.finished for result in results]


def _collect(
    results: list[_Sentence], active: Tensor, tokens: Tensor, parent: Tensor, top: Tensor, finishes: Tensor,
    length: int, beam_size: int, alpha: float,
) -> None:  # fmt: skip
    """Store the hypotheses that end at this step."""
    for row, rank in finishes.nonzero().tolist():
        ids = tokens[row, parent[row, rank], 1:].tolist()
        score = float(top[row, rank]) / length_penalty(length, alpha)
        results[int(active[row])].add(Candidate([*ids, EOS_ID], score), beam_size)


def _is_done(sentence: _Sentence, best_open: float, beam_size: int) -> bool:
    finished = sentence.finished
    if best_open == float("-inf") or len(finished) >= beam_size:
        return True
    return bool(finished) and best_open <= finished[-1].score


def _advance(
    tokens: Tensor, scores: Tensor, parent: Tensor, token: Tensor, keep: Tensor, cache: Any
) -> tuple[Tensor, Tensor]:
    """Extend the kept sentences' hypotheses by their tokens, and let the cache follow."""
    beam_size = parent.shape[1]
    if not bool(keep.any()):
        return tokens[:0], scores[:0]
    sentences = keep.nonzero()[:, 0]
    rows = (sentences[:, None] * beam_size + parent[keep]).flatten()
    if len(sentences) < len(keep):
        cache.keep_sentences(sentences, rows)
    elif beam_size > 1:
        cache.reorder(rows)
    history = tokens.flatten(0, 1)[rows].view(len(sentences), beam_size, -1)
    return torch.cat([history, token[keep][:, :, None]], dim=2), scores[keep]


@torch.no_grad()
def greedy(model: Model, memory: Any, max_lengths: Tensor, alpha: float) -> list[list[Candidate]]:
    """The most probable token at each step; one hypothesis a sentence, the one `search` finds with beam_size 1."""
    cache = model.start_cache(memory, 1)
    device = model.output_weight.device
    results: list[list[int]] = [[] for _ in range(len(max_lengths))]
    log_probs = [0.0] * len(results)
    active, limits = torch.arange(len(max_lengths)), max_lengths
    ids = torch.full((len(active), 1), model.pad_id, dtype=torch.long, device=device)
    length = 0
    while len(active):
        length += 1
        log_p = next_log_probs(model, ids, cache)[:, 0]
        log_p[(limits == length).to(device), 1:] = float("-inf")  # </s> is output 0
        best, ids = log_p.max(-1, keepdim=True)
        chosen = ids[:, 0].tolist()
        for sentence, token, value in zip(active.tolist(), chosen, best[:, 0].tolist(), strict=True):
            results[sentence].append(token)
            log_probs[sentence] += value
        keep = [token != EOS_ID for token in chosen]
        if not all(keep):
            rows = torch.tensor(keep, device=device).nonzero()[:, 0]
            ids, active, limits = ids[rows], active[keep], limits[keep]
            if len(active):
                cache.keep_sentences(rows, rows)
    scores = [total / length_penalty(len(r), alpha) for r, total in zip(results, log_probs, strict=True)]
    return [[Candidate(r, score)] for r, score in zip(results, scores, strict=True)]
