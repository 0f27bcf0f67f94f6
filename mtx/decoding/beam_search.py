"""The rules of beam search, greedy search and sampling (6.1 of the paper): from log-probabilities to hypotheses.

The score of a hypothesis is its log-probability / ((5 + |Y|) / 6)^alpha; |Y| counts `</s>`. A hypothesis finishes when
its `</s>` is among the top `beam_size` candidates. A sentence is done when `beam_size` hypotheses have finished, or
when the best open hypothesis cannot beat the worst finished one even at the maximum length. At the maximum length only
`</s>` is allowed. Greedy search is a beam of one; sampling is a beam of one whose token is drawn.

All sentences take a step together, and the results of a step stay on the device. `mtx.decoding.continuous_batching`
decides which sentence is in which slot.

Shapes: B slots, J beams, V outputs, T target length, P tokens that the translation must begin with.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mtx.data.tokenizer import EOS_ID
from mtx.decoding.options import Candidate

_GROUP = 64  # number of neighbouring tokens in a group, see `top_continuations`


class Beams:
    """The hypotheses of all slots, on the device.

    Attributes:
        ids: the last token of each open hypothesis, [B, J].
        scores: its log-probability, -inf if there is no hypothesis, [B, J].
        lengths: number of tokens so far, [B].
        limits: largest number of tokens, [B].
        history: the choice of each beam at each length, token * J + parent, [B, J, T].
        finished: scores of finished hypotheses, best first, -inf if there are fewer than J, [B, J].
        ends: the place of each finished hypothesis in `history`, length * J + parent, [B, J].
        done: whether the sentence needs no further step, or the slot is empty, [B].
        prefixes: the token that is required at each length, -1 if any is allowed, [B, P].
    """

    def __init__(
        self,
        num_slots: int,
        beam_size: int,
        alpha: float,
        max_length: int,
        prefix_width: int,
        pad_id: int,
        device: torch.device,
    ):
        beams, self.pad_id = beam_size, pad_id

        def full(*shape: int, value: Any, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.full((num_slots, *shape), value, dtype=dtype, device=device)

        minus_inf = float("-inf")
        self.ids, self.scores = full(beams, value=pad_id), full(beams, value=minus_inf, dtype=torch.float)
        self.lengths, self.limits = full(value=0), full(value=1)
        self.history = full(beams, max_length, value=0)
        self.finished, self.ends = full(beams, value=minus_inf, dtype=torch.float), full(beams, value=0)
        self.done = full(value=True, dtype=torch.bool)
        self.prefixes = full(prefix_width, value=-1)
        all_lengths = torch.arange(max_length + 1, dtype=torch.float)
        self.penalties = (((5 + all_lengths) / 6) ** alpha).to(device)
        self.ranks = torch.arange(2 * beams, device=device)

    def admit(self, slots: list[int], limits: Sequence[int], prefixes: Sequence[list[int]]) -> None:
        """Begins sentences with these limits and prefixes in these slots."""
        device = self.ids.device
        slot_ids = torch.tensor(slots, device=device)
        self.ids[slot_ids] = self.pad_id
        self.lengths[slot_ids] = 0
        self.done[slot_ids] = False
        self.scores[slot_ids] = float("-inf")
        self.scores[slot_ids, 0] = 0.0  # one open beam is enough, because all beams would start equal
        self.finished[slot_ids] = float("-inf")
        self.limits[slot_ids] = torch.tensor(limits, device=device)
        if width := self.prefixes.shape[1]:
            rows = [prefix + [-1] * (width - len(prefix)) for prefix in prefixes]
            self.prefixes[slot_ids] = torch.tensor(rows, device=device)

    def candidates(self, log_probs: Tensor, samples: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the best continuations of each slot: the best 2 J of all beams and tokens, or the required token.

        Args:
            log_probs: of all tokens, [B, J, V].
            samples: tokens that were drawn, to take instead of the best, [B, J, 1]; J is 1.

        Returns:
            The log-probability of each hypothesis with its continuation, best first, its beam, and its token, [B, k]
            each.
        """
        num_beams = self.ids.shape[1]
        if samples is None:
            best = top_continuations(self.scores, log_probs, 2 * num_beams if num_beams > 1 else 1)
        else:
            tokens = samples[..., 0]
            best = self.scores + log_probs.gather(-1, samples)[..., 0], torch.zeros_like(tokens), tokens
        required = self._required_tokens()[:, None]
        scores = log_probs.gather(-1, required.clamp(min=0)[:, :, None].expand(-1, num_beams, 1))[..., 0]
        scores, beams = (self.scores + scores).sort(-1, descending=True)
        rest = (0, best[0].shape[1] - num_beams)
        forced = F.pad(scores, rest, value=float("-inf")), F.pad(beams, rest), required.expand_as(best[2])
        top, parents, tokens = (torch.where(required < 0, a, b) for a, b in zip(best, forced, strict=True))
        return top, parents, tokens

    def _required_tokens(self) -> Tensor:
        """Returns the only token that each sentence may have next, -1 if any is allowed, [B]."""
        required = torch.where(self.lengths + 1 == self.limits, EOS_ID, -1)
        if width := self.prefixes.shape[1]:
            next_position = self.lengths.clamp(max=width - 1)[:, None]
            prefix = torch.where(self.lengths < width, self.prefixes.gather(1, next_position)[:, 0], -1)
            required = torch.where(required < 0, prefix, required)
        return required

    def advance(self, top: Tensor, parents: Tensor, tokens: Tensor) -> Tensor:
        """Continues with the best of `candidates` that do not end, and adds those that end to the finished hypotheses.

        Returns:
            The parent of each new beam: the beam that it continues, [B, J].
        """
        beams = self.ids.shape[1]
        is_end, is_last = tokens == EOS_ID, (self.lengths + 1 == self.limits)[:, None]
        may_end = (self.ranks[: top.shape[1]] < beams) | is_last
        ends = is_end & may_end & (top > float("-inf")) & ~self.done[:, None]
        self._finish(top, parents, ends)
        if beams > 1:
            top, order = top.masked_fill(is_end, float("-inf")).topk(beams, dim=1)
            parents, tokens = parents.gather(1, order), tokens.gather(1, order)
            self._mark_done(top)
        else:
            self.done |= is_end[:, 0]
        self.scores.copy_(top)
        self.ids.copy_(tokens)
        position = self.lengths[:, None, None].expand(-1, beams, 1)
        self.history.scatter_(2, position, (tokens * beams + parents)[:, :, None])
        self.lengths += ~self.done
        return parents

    def _finish(self, top: Tensor, parents: Tensor, ends: Tensor) -> None:
        beams = self.finished.shape[1]
        new = (top / self.penalties[self.lengths + 1][:, None]).masked_fill_(~ends, float("-inf"))
        finished, order = torch.cat([self.finished, new], 1).topk(beams, dim=1)
        self.ends.copy_(torch.cat([self.ends, self.lengths[:, None] * beams + parents], 1).gather(1, order))
        self.finished.copy_(finished)

    def _mark_done(self, scores: Tensor) -> None:
        """Marks the sentences that are done, given the scores of the open hypotheses, best first."""
        best_open = scores[:, 0]
        is_finished = self.finished > float("-inf")
        worst = self.finished.masked_fill(~is_finished, float("inf")).amin(1)
        cannot_improve = is_finished[:, 0] & (best_open / self.penalties[self.limits] <= worst)
        self.done |= cannot_improve | is_finished[:, -1] | (best_open == float("-inf"))


def top_continuations(scores: Tensor, log_probs: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the `count` largest sums of a beam's score [B, J] and a token's log-probability [B, J, V] of each slot.

    Neighbouring tokens form groups. The largest sums lie in the `count` groups with the largest maxima, and finding
    these groups first is much faster than sorting all tokens. With a small vocabulary all tokens are sorted.

    Returns:
        The sums, largest first, their beams and their tokens, [B, min(count, J V)] each.
    """
    num_slots, beams, size = log_probs.shape
    if size % _GROUP or log_probs.numel() < 1 << 17 or size < count * _GROUP:
        total = (scores[:, :, None] + log_probs).flatten(1)
        top, flat = total.topk(min(count, beams * size), dim=1) if count > 1 else total.max(1, keepdim=True)
        return top, flat // size, flat % size
    groups = log_probs.view(num_slots, beams, -1, _GROUP)
    best = (groups.amax(-1) + scores[:, :, None]).flatten(1).topk(count, dim=1).indices  # groups of the slot
    per_slot = groups.shape[1] * groups.shape[2]
    rows = torch.arange(0, num_slots * per_slot, per_slot, device=scores.device)[:, None] + best
    in_beam = best // groups.shape[2]
    values = groups.flatten(0, 2).index_select(0, rows.flatten()).view(num_slots, count, _GROUP)
    top, flat = (values + scores.gather(1, in_beam)[:, :, None]).flatten(1).topk(count, dim=1)
    group = flat // _GROUP
    tokens = (best % groups.shape[2]).gather(1, group) * _GROUP + flat % _GROUP
    return top, in_beam.gather(1, group), tokens


def backtrace(history: Tensor, finished: Tensor, ends: Tensor) -> list[Candidate]:
    """Returns the finished hypotheses of one sentence, best first, from its rows of `Beams` in host memory."""
    beams, rows = history.shape[0], history.tolist()
    candidates = []
    for score, end in zip(finished.tolist(), ends.tolist(), strict=True):
        if score == float("-inf"):
            break
        length, beam = divmod(end, beams)
        ids = [EOS_ID]
        for position in reversed(range(length)):
            token, beam = divmod(rows[beam][position], beams)
            ids.append(token)
        candidates.append(Candidate(ids[::-1], score))
    return candidates
