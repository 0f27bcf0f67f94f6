"""What decoding keeps between steps: keys and values of the sentences in its slots, and who may see what.

Slots are given to other sentences when theirs are done. What the encoder said of a sentence is there once, shared by
its beams. On the target side nothing moves when beams cross: all beams of a slot look at all cached positions of that
slot, and a mask, which follows the beams, hides those of others. That costs a few more products and saves copying the
cache at every step. Every few steps what no beam sees any more is dropped.

Shapes: B slots, J beams, S source, C columns (one a step), T positions looked at, H heads, K head size, L layers.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

COLUMNS_AT_A_TIME = {False: 12, True: 32}  # that are allocated, by `Cache.is_static`
_HIDDEN = -math.inf


@dataclass(frozen=True)
class Sources:
    """Keys and values of encoded sentences for every layer's cross attention.

    Attributes:
        projected: [B, S, L, 2, H, K].
        lengths: of the sentences.
    """

    projected: Tensor
    lengths: list[int]


class Cache:
    """What decoding keeps of the sentences in its slots.

    Its tensors are as wide as what is looked at, and dense: a CPU would copy slices of them for every product.

    Args:
        like: a tensor of its type and on its device.
        shape: layers, heads, head size.
        is_static: steps read and write the same memory where `version` is the same, as a recorded graph must (CUDA).

    Attributes:
        of_sources, of_targets: for each layer the keys, transposed [B * H, K, T], and values [B * H, T, K].
        memory_mask, mask: added to their scores, [B, 1, 1, S] and [B, 1, J, C * J]: 0 where something is to be seen (of
            the target a beam's own history), -inf elsewhere; None where everything is.
        version: changes where tensors are replaced.
    """

    def __init__(
        self, like: Tensor, shape: tuple[int, int, int], num_slots: int, beam_size: int, is_static: bool
    ):  # fmt: skip
        layers, heads, size = shape
        self.beam_size, self.is_static = beam_size, is_static
        self._more_columns, self._more_sources = COLUMNS_AT_A_TIME[is_static], 16 if is_static else 4
        self._size = size
        self._memory = like.new_zeros(layers, 2, num_slots, heads, 0, size)  # keys and values of the source
        self._memory_mask = like.new_zeros(num_slots, 1, 1, 0)
        self._target = like.new_zeros(layers, 2, num_slots, heads, 0, size)  # what the beams of a slot wrote
        self.mask = like.new_zeros(num_slots, 1, beam_size, 0)
        own = torch.eye(beam_size, dtype=torch.bool, device=like.device)
        self._own = like.new_full((beam_size, beam_size), _HIDDEN).masked_fill_(own, 0.0)
        self._beams = torch.arange(beam_size, device=like.device)
        self._first_rows = (torch.arange(num_slots, device=like.device) * beam_size)[:, None]
        self._next = torch.zeros((), dtype=torch.long, device=like.device)  # where the next step writes
        self._used = self.version = 0  # the same on the host
        self._widths = [0] * num_slots  # the length of its source; 0 for an empty slot
        self._seen = -1  # the version of which `of_sources` and `of_targets` are

    def admit(self, slots: list[int], sources: Sources, rows: list[int]) -> None:
        """Put the sentences `rows` of `sources` into these slots."""
        lengths, device = torch.tensor([sources.lengths[row] for row in rows]), self._memory.device
        width = int(lengths.max())
        if width > self._memory.shape[4]:
            self._set_width(width)
        chosen = torch.tensor(rows).to(device, non_blocking=True)
        at = torch.tensor(slots).to(device, non_blocking=True)
        self._memory[:, :, at, :, :width] = sources.projected[chosen, :width].permute(2, 3, 0, 4, 1, 5)
        is_pad = torch.arange(self._memory.shape[4]) >= lengths[:, None]
        mask = torch.zeros(is_pad.shape, dtype=self._memory.dtype).masked_fill_(is_pad, _HIDDEN)
        self._memory_mask[at] = mask[:, None, None].to(device, non_blocking=True)
        self.mask[at] = _HIDDEN
        for slot, length in zip(slots, lengths.tolist(), strict=True):
            self._widths[slot] = length

    def release(self, slots: list[int]) -> None:
        """These slots hold nothing that is still needed."""
        for slot in slots:
            self._widths[slot] = 0

    def keep(self, slots: list[int]) -> None:
        """Only these slots stay, renumbered in this order."""
        at = torch.tensor(slots, device=self._memory.device)
        self._memory, self._target = self._memory.index_select(2, at), self._target.index_select(2, at)
        self._memory_mask, self.mask = self._memory_mask[at], self.mask[at]
        self._first_rows = self._first_rows[: len(slots)]
        self._widths = [self._widths[slot] for slot in slots]
        self.version += 1

    def prepare(self) -> int:
        """Make room for the next step, on the host; what is recorded for one result holds for equal ones."""
        if self._used + self.beam_size > self.mask.shape[3]:
            self._make_room()
        self._set_width(max(1, *self._widths))
        if self.version != self._seen:
            self.of_sources, self.of_targets = _by_layer(self._memory), _by_layer(self._target)
            self._seen = self.version
        if not self.is_static:
            self._columns = self._target.narrow(4, self._used, self.beam_size).unbind(0)
        width = self._memory.shape[4]
        is_even = not self.is_static and all(w == width for w in self._widths)
        self.memory_mask = None if is_even else self._memory_mask
        return self.version

    def stepped(self) -> None:
        """Count a step, on the host."""
        self._used += self.beam_size

    def _make_room(self) -> None:
        """Drop what no beam sees any more, and have room for the next steps.

        Beams that go back to the same one share most of their history: about a third of what they wrote is still seen.
        """
        seen = (self.mask[:, 0] == 0).any(1)  # [B, C * J]
        seen &= torch.tensor(self._widths, device=seen.device)[:, None] > 0
        used = int(seen.sum(1).max()) if seen.shape[1] else 0
        at = torch.argsort(~seen, dim=1, stable=True)[:, :used]  # what is seen, in its order
        more = self._more_columns * self.beam_size
        size = -(-(used + more // 2) // more) * more
        target = self._target.gather(
            4, at[None, None, :, None, :, None].expand(*self._target.shape[:4], used, self._size)
        )
        mask = self.mask.gather(3, at[:, None, None].expand(*self.mask.shape[:3], used))
        if size != self.mask.shape[3]:
            self._target = target.new_empty(*target.shape[:4], size, self._size)
            self.mask = mask.new_empty(*mask.shape[:3], size)
            self.version += 1
        self.mask.fill_(_HIDDEN)
        self._target[..., used:, :].zero_()  # hidden, but NaN would not stay so
        self._target[..., :used, :], self.mask[..., :used] = target, mask
        self._used = used
        self._next.fill_(used)

    def _set_width(self, width: int) -> None:
        """Have as many source positions as are needed, to a multiple."""
        more = self._more_sources
        added = -(-width // more) * more - self._memory.shape[4]
        if added:
            self._memory = F.pad(self._memory, (0, 0, 0, added)).contiguous()
            self._memory_mask = F.pad(self._memory_mask, (0, added), value=_HIDDEN).contiguous()
            self.version += 1

    def begin(self) -> None:
        """Begin a step: every beam sees what it is about to write."""
        if self.is_static:
            own = self._own.expand(*self.mask.shape[:2], -1, -1)
            self.mask.index_copy_(3, self._next + self._beams, own)
        else:
            self.mask.narrow(3, self._used, self.beam_size).copy_(self._own)

    def extend(self, layer: int, keys_values: Tensor) -> None:
        """Write what a layer computed at this step, [2, B, H, J, K]."""
        if self.is_static:
            self._target[layer].index_copy_(3, self._next + self._beams, keys_values)
        else:
            self._columns[layer].copy_(keys_values)

    def reorder(self, parents: Tensor) -> None:
        """End a step: let beam j of each slot go on from beam parents[:, j]; int [B, J]."""
        self._next += self.beam_size
        if self.beam_size > 1:
            rows = (self._first_rows + parents).flatten()
            self.mask.copy_(self.mask.flatten(0, 2).index_select(0, rows).view_as(self.mask))


def _by_layer(keys_values: Tensor) -> list[tuple[Tensor, Tensor]]:
    """[L, 2, B, H, T, K] as each layer's keys, transposed [B * H, K, T], and values [B * H, T, K]."""
    flat = keys_values.flatten(2, 3)
    return list(zip(flat[:, 0].transpose(2, 3).unbind(0), flat[:, 1].unbind(0), strict=True))
