"""The rules of beam search, greedy search and sampling (6.1 of the paper): from log-probabilities to hypotheses.

Score of a hypothesis: log-probability / ((5 + |Y|) / 6)^alpha, where |Y| counts `</s>`. A hypothesis finishes when its
`</s>` is among the top `beam_size` candidates; a sentence is done when `beam_size` hypotheses have finished, or when
the best open one cannot beat the worst finished one even at the maximum length. There only `</s>` is left. Greedy
search is a beam of one; a sample is a beam of one whose token is drawn.

All sentences take a step together, and what a step computes stays on the device. Which sentences are in which slot is
`mtx.decoding.continuous_batching`.

Shapes: B slots, J beams, V outputs, T target length.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mtx.decoding.options import Candidate

EOS_ID = 0
_GROUP = 64  # tokens that are looked at together, see `best_of`


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
        self.on_host = device.type == "cpu"  # where looking at a figure costs nothing
        self._free_steps = 0  # on the host: so many steps to come have no token that must come

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
        self._free_steps = 0
        if width := self.forced.shape[1]:
            rows = [prefix + [-1] * (width - len(prefix)) for prefix in prefixes]
            self.forced[at] = torch.tensor(rows, device=device)

    def keep(self, slots: list[int]) -> None:
        """Only these slots stay, renumbered in this order."""
        at = torch.tensor(slots, device=self.ids.device)
        for name, tensor in self.tensors().items():
            setattr(self, name, tensor.index_select(0, at))

    def candidates(self, log_probs: Tensor, drawn: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """The best ways on for each slot: the best 2 J of all beams and tokens, or what must come.

        Args:
            log_probs: of all tokens, [B, J, V].
            drawn: tokens that were sampled instead, [B, J, 1]; J is 1.

        Returns:
            Their log-probabilities in all, best first, their beams, and their tokens, [B, k] each.
        """
        if drawn is not None:
            found = self.scores + log_probs.gather(-1, drawn)[..., 0], torch.zeros_like(drawn[..., 0]), drawn[..., 0]
        else:
            found = best_of(self.scores, log_probs, 2 * self.ids.shape[1] if self.ids.shape[1] > 1 else 1)
        if self.on_host and self._free_steps > 0:
            self._free_steps -= 1
            return found
        must = torch.where(self.ages + 1 == self.limits, EOS_ID, -1)
        if width := self.forced.shape[1]:
            at = self.ages.clamp(max=width - 1)[:, None]
            prefix = torch.where(self.ages < width, self.forced.gather(1, at)[:, 0], -1)
            must = torch.where(must < 0, prefix, must)
        elif self.on_host:
            self._free_steps = int((self.limits - self.ages).amin()) - 2
        must = must[:, None]
        only = log_probs.gather(-1, must.clamp(min=0)[:, :, None].expand(-1, log_probs.shape[1], 1))[..., 0]
        only, beams = (self.scores + only).sort(-1, descending=True)
        forced = _as_wide(only, found[0], float("-inf")), _as_wide(beams, found[1], 0), must.expand_as(found[2])
        top, parents, tokens = (torch.where(must < 0, a, b) for a, b in zip(found, forced, strict=True))
        return top, parents, tokens

    def advance(self, top: Tensor, parents: Tensor, tokens: Tensor) -> Tensor:
        """Go on with the best of `candidates` that do not end, and put those that do among the finished hypotheses.

        Returns:
            The beam that each new one goes on from, [B, J].
        """
        beams = self.ids.shape[1]
        is_end, is_last = tokens == EOS_ID, (self.ages + 1 == self.limits)[:, None]
        may_end = (self.ranks[: top.shape[1]] < beams) | is_last
        ends = is_end & may_end & (top > float("-inf")) & ~self.done[:, None]
        if not self.on_host or bool(ends.any()):
            self._finish(top, parents, ends)
        if beams > 1:
            top, order = top.masked_fill(is_end, float("-inf")).topk(beams, dim=1)
            parents, tokens = parents.gather(1, order), tokens.gather(1, order)
            self._settle(top)
        else:
            self.done |= is_end[:, 0]
        self.scores.copy_(top)
        self.ids.copy_(tokens)
        at = self.ages[:, None, None].expand(-1, beams, 1)
        self.history.scatter_(2, at, (tokens * beams + parents)[:, :, None])
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


def best_of(scores: Tensor, log_probs: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The `count` largest sums of a beam's score [B, J] and a token's log-probability [B, J, V], for each slot.

    They are in the `count` groups of tokens with the largest maxima, which is much quicker to find out than sorting
    all tokens; a small vocabulary is sorted.

    Returns:
        The sums, largest first, their beams and their tokens, [B, min(count, J V)] each.
    """
    num_slots, beams, size = log_probs.shape
    if size % _GROUP or log_probs.numel() < 1 << 17 or size < count * _GROUP:
        total = (scores[:, :, None] + log_probs).flatten(1)
        top, flat = total.topk(min(count, beams * size), dim=1) if count > 1 else total.max(1, keepdim=True)
        return top, flat // size, flat % size
    groups = log_probs.view(num_slots, beams, -1, _GROUP)
    best = (groups.amax(-1) + scores[:, :, None]).flatten(1).topk(count, dim=1).indices  # of all groups of a slot
    per_slot = groups.shape[1] * groups.shape[2]
    rows = torch.arange(0, num_slots * per_slot, per_slot, device=scores.device)[:, None] + best
    in_beam = best // groups.shape[2]
    values = groups.flatten(0, 2).index_select(0, rows.flatten()).view(num_slots, count, _GROUP)
    top, flat = (values + scores.gather(1, in_beam)[:, :, None]).flatten(1).topk(count, dim=1)
    group = flat // _GROUP
    tokens = (best % groups.shape[2]).gather(1, group) * _GROUP + flat % _GROUP
    return top, in_beam.gather(1, group), tokens


def _as_wide(values: Tensor, like: Tensor, fill: float) -> Tensor:
    """[B, J] with as many columns as `like` has, cut or filled."""
    missing = like.shape[1] - values.shape[1]
    return F.pad(values, (0, missing), value=fill) if missing > 0 else values[:, : like.shape[1]]


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
