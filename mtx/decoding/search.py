"""The rules of beam search, greedy search and sampling (6.1 of the paper): from log-probabilities to hypotheses.

Score of a hypothesis: log-probability / ((5 + |Y|) / 6)^alpha, where |Y| counts `</s>`. A hypothesis finishes when its
`</s>` is among the top `beam_size` candidates; a sentence is done when `beam_size` hypotheses have finished, or when
the best open one cannot beat the worst finished one even at the maximum length. There only `</s>` is left. Greedy
search is a beam of one; a sample is a beam of one whose token is drawn.

All sentences take a step together, and what a step computes stays on the device. Which sentences are in which slot is
`mtx.decoding.slots`.

Shapes: B slots, J beams, V outputs, T target length.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mtx.decoding.options import Candidate

EOS_ID = 0
_CHUNKS = 32  # the best of a row are looked for among the best of so many parts of it


class Beams:
    """The hypotheses of all slots, on the device.

    Attributes:
        ids: last token of each hypothesis [B, J]. scores: its log-probability, -inf where there is none [B, J].
        ages: tokens so far [B]. limits: most tokens [B].
        history: what each beam chose at each age, token * J + parent [B, J, T].
        finished: penalised scores, best first, -inf where there is none [B, J]; ends: age * J + parent of each.
        done: the sentence needs no further step, or there is none [B].
        forced: the token that must come at each age, -1 where any may [B, P].
    """

    def __init__(
        self, num_slots: int, beam_size: int, alpha: float, max_length: int, prefix_width: int, pad_id: int,
        device: torch.device,
    ):  # fmt: skip
        beams, self.pad_id = beam_size, pad_id

        def full(*shape: int, value: Any, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.full((num_slots, *shape), value, dtype=dtype, device=device)

        minus_inf = float("-inf")
        self.ids, self.scores = full(beams, value=pad_id), full(beams, value=minus_inf, dtype=torch.float)
        self.ages, self.limits = full(value=0), full(value=1)
        self.history = full(beams, max_length, value=0)
        self.finished, self.ends = full(beams, value=minus_inf, dtype=torch.float), full(beams, value=0)
        self.done = full(value=True, dtype=torch.bool)
        self.forced = full(prefix_width, value=-1)
        lengths = torch.arange(max_length + 1, dtype=torch.float)
        self.penalties = (((5 + lengths) / 6) ** alpha).to(device)
        self.ranks = torch.arange(2 * beams, device=device)

    def tensors(self) -> dict[str, Tensor]:
        """Everything with a row for each slot."""
        names = "ids", "scores", "ages", "limits", "history", "finished", "ends", "done", "forced"
        return {name: getattr(self, name) for name in names}

    def admit(self, slots: list[int], limits: Sequence[int], prefixes: Sequence[list[int]]) -> None:
        """Begin sentences with these limits and prefixes in these slots."""
        at, device = torch.tensor(slots, device=self.ids.device), self.ids.device
        self.ids[at], self.ages[at], self.done[at] = self.pad_id, 0, False
        self.scores[at] = float("-inf")
        self.scores[at, 0] = 0.0  # all beams start equal: one is enough
        self.finished[at] = float("-inf")
        self.limits[at] = torch.tensor(limits, device=device)
        if width := self.forced.shape[1]:
            rows = [prefix + [-1] * (width - len(prefix)) for prefix in prefixes]
            self.forced[at] = torch.tensor(rows, device=device)

    def keep(self, slots: list[int]) -> None:
        """Only these slots stay, renumbered in this order."""
        at = torch.tensor(slots, device=self.ids.device)
        for name, tensor in self.tensors().items():
            setattr(self, name, tensor.index_select(0, at))

    def force(self, log_probs: Tensor, tokens: Tensor, every: Tensor) -> tuple[Tensor, Tensor]:
        """Candidates [B, J, k] with only the token that must come, where one must: of the prefix, `</s>` at the limit.

        Args:
            every: log-probabilities of all tokens, [B, J, V].
        """
        must = self.ages.new_full(self.ages.shape, -1)
        if width := self.forced.shape[1]:
            at = self.ages.clamp(max=width - 1)[:, None]
            must = torch.where(self.ages < width, self.forced.gather(1, at)[:, 0], must)
        must = torch.where(self.ages + 1 == self.limits, EOS_ID, must)[:, None, None]
        only = every.gather(-1, must.clamp(min=0).expand(-1, every.shape[1], 1))
        only = torch.where(self.ranks[: tokens.shape[-1]] == 0, only, float("-inf"))
        return torch.where(must < 0, log_probs, only), torch.where(must < 0, tokens, must)

    def advance(self, log_probs: Tensor, tokens: Tensor) -> Tensor:
        """Take the best candidates of each slot, and put those that end among the finished hypotheses.

        Args:
            log_probs, tokens: of some candidates of each beam, [B, J, k].

        Returns:
            The beam that each new one goes on from, [B, J].
        """
        num_slots, beams, width = log_probs.shape
        total = (self.scores[:, :, None] + log_probs).flatten(1)
        top, flat = total.topk(min(2 * beams, beams * width), dim=1)
        parents, token = flat // width, tokens.flatten(1).gather(1, flat)
        is_end, is_last = token == EOS_ID, (self.ages + 1 == self.limits)[:, None]
        may_end = (self.ranks[: top.shape[1]] < beams) | is_last
        ends = is_end & may_end & (top > float("-inf")) & ~self.done[:, None]
        self._finish(top, parents, ends)
        scores, order = top.masked_fill(is_end, float("-inf")).topk(min(beams, top.shape[1]), dim=1)
        parents, token = parents.gather(1, order), token.gather(1, order)
        self._settle(scores)
        self.scores.copy_(scores)
        self.ids.copy_(token)
        at = self.ages[:, None, None].expand(-1, beams, 1)
        self.history.scatter_(2, at, (token * beams + parents)[:, :, None])
        self.ages += ~self.done
        return parents

    def _finish(self, top: Tensor, parents: Tensor, ends: Tensor) -> None:
        beams = self.finished.shape[1]
        new = (top / self.penalties[self.ages + 1][:, None]).masked_fill_(~ends, float("-inf"))
        finished, order = torch.cat([self.finished, new], 1).topk(beams, dim=1)
        self.ends.copy_(torch.cat([self.ends, self.ages[:, None] * beams + parents], 1).gather(1, order))
        self.finished.copy_(finished)

    def _settle(self, scores: Tensor) -> None:
        """Mark the sentences that are done, given the scores of the open hypotheses, best first."""
        best_open = scores[:, 0]
        is_kept = self.finished > float("-inf")
        worst = self.finished.masked_fill(~is_kept, float("inf")).amin(1)
        hopeless = is_kept[:, 0] & (best_open / self.penalties[self.limits] <= worst)
        self.done |= hopeless | is_kept[:, -1] | (best_open == float("-inf"))


def best_of(log_probs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest along the last dimension of [B, J, V] and where they are, largest first.

    They are among the parts with the `count` largest maxima, which is quicker to find out than sorting whole rows.
    """
    size, stride = log_probs.shape[-1], log_probs.shape[-1] // _CHUNKS
    if stride < 64:
        return log_probs.topk(min(count, size), -1)
    whole = log_probs[..., : stride * _CHUNKS]
    parts: Tensor = whole.unflatten(-1, (_CHUNKS, stride))  # type: ignore[no-untyped-call]  # part c: c, c + stride …
    columns = parts.amax(-2).topk(count, -1).indices
    rows = torch.arange(0, stride * _CHUNKS, stride, device=log_probs.device)
    rest = torch.arange(stride * _CHUNKS, size, device=log_probs.device).expand(*columns.shape[:-1], -1)
    index = torch.cat([(columns[..., None] + rows).flatten(-2), rest], -1)
    values, at = log_probs.gather(-1, index).topk(count, -1)
    return values, index.gather(-1, at)


def trace(history: Tensor, finished: Tensor, ends: Tensor) -> list[Candidate]:
    """The finished hypotheses of one sentence, best first: its rows of `Beams`, in host memory."""
    beams, rows = history.shape[0], history.tolist()
    found = []
    for score, end in zip(finished.tolist(), ends.tolist(), strict=True):
        if score == float("-inf"):
            break
        age, beam = divmod(end, beams)
        ids = [EOS_ID]
        for at in range(age - 1, -1, -1):
            token, beam = divmod(rows[beam][at], beams)
            ids.append(token)
        found.append(Candidate(ids[::-1], score))
    return found
