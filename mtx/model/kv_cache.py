"""The key-value cache of decoding: keys and values of the sentences in its slots, and masks of those that a beam sees.

Each slot holds one sentence and its beams; when a sentence is done, another takes its slot. The keys and values of a
source sentence are stored once and shared by its beams. On the target side, beams never copy each other's keys and
values: all beams of a slot attend to all cached positions of that slot, and a mask, which is reordered with the beams,
hides the positions of other beams. That costs a few more products and saves copying the cache at every step. From time
to time, positions that no beam sees any more are dropped.

Shapes: B slots, J beams, S source positions, C columns (one a step), T attended positions, H heads, K head size,
L layers.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

COLUMNS_AT_A_TIME = {False: 12, True: 32}  # columns to allocate at a time, by `KVCache.is_static`


@dataclass(frozen=True)
class EncodedSources:
    """Keys and values of encoded sentences for the cross attention of every layer, [B, S, L, 2, H, K], and lengths."""

    keys_values: Tensor
    lengths: list[int]


class SourceSlots:
    """The encoded sources of the sentences in a fixed number of slots.

    Args:
        sources: of no positions yet, [..., 0, K].
        mask: [B, ..., 0].

    Attributes:
        is_static: steps use the same memory as long as `version` is the same, as a CUDA graph requires.
        mask: added to the scores of attention over sources, 0 or -inf, [B, ..., S].
        source_lengths: of the source that each slot has or had, on the device, [B].
        version: changes when tensors are replaced.
    """

    def __init__(self, sources: Tensor, mask: Tensor, beam_size: int, is_static: bool):
        num_slots, device = len(mask), mask.device
        self._sources = sources
        self.mask = mask
        self.beam_size, self.is_static = beam_size, is_static
        self._sources_at_a_time = 16 if is_static else 4
        self._source_lengths = [0] * num_slots  # 0 for an empty slot
        self.source_lengths = torch.zeros(num_slots, dtype=torch.long, device=device)
        self._first_rows = (torch.arange(num_slots, device=device) * beam_size)[:, None]
        self.version = 0

    def _occupy(self, slots: list[int], lengths: list[int]) -> tuple[Tensor, int]:
        """Makes room for sources of these lengths; returns the slots on the device, and the largest length."""
        width, numbers = max(lengths), torch.tensor(lengths)
        self._set_width(max(width, self._sources.shape[-2]))
        slot_ids = torch.tensor(slots).to(self.mask.device, non_blocking=True)
        is_pad = torch.arange(self._sources.shape[-2]) >= numbers[:, None]
        mask = torch.zeros(is_pad.shape, dtype=self.mask.dtype).masked_fill_(is_pad, -math.inf)
        mask = mask.view(len(slots), *self.mask.shape[1:])
        self.mask[slot_ids] = mask.to(self.mask.device, non_blocking=True)
        self.source_lengths[slot_ids] = numbers.to(self.mask.device, non_blocking=True)
        for slot, length in zip(slots, lengths, strict=True):
            self._source_lengths[slot] = length
        return slot_ids, width

    def release(self, slots: list[int]) -> None:
        """Marks these slots as empty."""
        for slot in slots:
            self._source_lengths[slot] = 0

    def prepare(self) -> int:
        """Makes the sources no wider than needed, from the host; returns `version`."""
        self._set_width(max(1, *self._source_lengths))
        return self.version

    def _set_width(self, width: int) -> None:
        """Sets the number of source positions to `width`, rounded up."""
        added = -(-width // self._sources_at_a_time) * self._sources_at_a_time - self._sources.shape[-2]
        if added:
            self._sources = F.pad(self._sources, (0, 0, 0, added)).contiguous()
            self.mask = F.pad(self.mask, (0, added), value=-math.inf).contiguous()
            self.version += 1


class KVCache(SourceSlots):
    """Keys and values of the sentences in a fixed number of slots.

    Its tensors are dense and no wider than needed, because a CPU would copy slices of them for every product.

    Args:
        shape: layers, heads, head size.

    Attributes:
        source_kv, target_kv: for each layer the keys, transposed [B * H, K, T], and values [B * H, T, K].
        source_mask: `mask`, [B, 1, 1, S], or None if every position is visible.
        target_mask: added to the scores of self-attention, [B, 1, J, C * J]: 0 for a beam's own history, else -inf.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        num_slots: int,
        beam_size: int,
        is_static: bool,
        dtype: torch.dtype,
        device: torch.device,
    ):
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        layers, heads, size = shape
        super().__init__(zeros(layers, 2, num_slots, heads, 0, size), zeros(num_slots, 1, 1, 0), beam_size, is_static)
        self._columns_at_a_time = COLUMNS_AT_A_TIME[is_static]
        self._targets = zeros(layers, 2, num_slots, heads, 0, size)
        self.target_mask = zeros(num_slots, 1, beam_size, 0)
        is_own = torch.eye(beam_size, dtype=torch.bool, device=device)
        self._own_mask = zeros(beam_size, beam_size).masked_fill_(~is_own, -math.inf)
        self._beams = torch.arange(beam_size, device=device)
        self._next = torch.zeros((), dtype=torch.long, device=device)  # the target position that the next step writes
        self._num_used = 0  # the same number on the host
        self._version_by_layer = -1  # that of `source_kv` and `target_kv`

    def admit(self, slots: list[int], sources: EncodedSources, rows: list[int]) -> None:
        """Puts the sentences `rows` of `sources` into these slots."""
        slot_ids, width = self._occupy(slots, [sources.lengths[row] for row in rows])
        row_ids = torch.tensor(rows).to(slot_ids.device, non_blocking=True)
        self._sources[:, :, slot_ids, :, :width] = sources.keys_values[row_ids, :width].permute(2, 3, 0, 4, 1, 5)
        self.target_mask[slot_ids] = -math.inf

    def prepare(self) -> int:
        """Makes room for the next step, from the host; returns `version`."""
        if self._num_used + self.beam_size > self.target_mask.shape[3]:
            self._make_room()
        super().prepare()
        if self.version != self._version_by_layer:
            self.source_kv, self.target_kv = _by_layer(self._sources), _by_layer(self._targets)
            self._version_by_layer = self.version
        if not self.is_static:
            self._columns = self._targets.narrow(4, self._num_used, self.beam_size).unbind(0)
        width = self._sources.shape[4]
        is_full = not self.is_static and all(length == width for length in self._source_lengths)
        self.source_mask = None if is_full else self.mask
        return self.version

    def count_step(self) -> None:
        """Adds the positions of a step to the host's copy of their number; the device counts for itself."""
        self._num_used += self.beam_size

    def _make_room(self) -> None:
        """Drops target positions that no beam sees any more, and makes room for the next steps.

        Beams that descend from the same beam share most of their history: about a third of the positions are visible.
        """
        is_visible = (self.target_mask[:, 0] == 0).any(1)  # [B, C * J]
        is_visible &= torch.tensor(self._source_lengths, device=is_visible.device)[:, None] > 0
        used = int(is_visible.sum(1).max()) if is_visible.shape[1] else 0
        positions = torch.argsort(~is_visible, dim=1, stable=True)[:, :used]  # the visible ones, in their order
        added = self._columns_at_a_time * self.beam_size
        size = -(-(used + added // 2) // added) * added
        shape, head_size = self._targets.shape[:4], self._targets.shape[5]
        targets = self._targets.gather(4, positions[None, None, :, None, :, None].expand(*shape, used, head_size))
        mask = self.target_mask.gather(3, positions[:, None, None].expand(*self.target_mask.shape[:3], used))
        if size != self.target_mask.shape[3]:
            self._targets = targets.new_empty(*shape, size, head_size)
            self.target_mask = mask.new_empty(*mask.shape[:3], size)
            self.version += 1
        self.target_mask.fill_(-math.inf)
        self._targets[..., used:, :].zero_()  # the mask hides these positions, but it could not hide NaN
        self._targets[..., :used, :], self.target_mask[..., :used] = targets, mask
        self._num_used = used
        self._next.fill_(used)

    def begin_step(self) -> None:
        """Begins a step: makes the position that each beam is about to write visible to that beam."""
        if self.is_static:
            own = self._own_mask.expand(*self.target_mask.shape[:2], -1, -1)
            self.target_mask.index_copy_(3, self._next + self._beams, own)
        else:
            self.target_mask.narrow(3, self._num_used, self.beam_size).copy_(self._own_mask)

    def write(self, layer: int, keys_values: Tensor) -> None:
        """Writes the keys and values of a layer at this step, [2, B, H, J, K]."""
        if self.is_static:
            self._targets[layer].index_copy_(3, self._next + self._beams, keys_values)
        else:
            self._columns[layer].copy_(keys_values)

    def reorder(self, parents: Tensor) -> None:
        """Ends a step: beam j of each slot continues beam parents[:, j]; int [B, J]."""
        self._next += self.beam_size
        if self.beam_size > 1:
            rows = (self._first_rows + parents).flatten()
            self.target_mask.copy_(self.target_mask.flatten(0, 2).index_select(0, rows).view_as(self.target_mask))


def _by_layer(keys_values: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Returns [L, 2, B, H, T, K] as each layer's keys, transposed [B * H, K, T], and values [B * H, T, K]."""
    flat = keys_values.flatten(2, 3)
    return list(zip(flat[:, 0].transpose(2, 3).unbind(0), flat[:, 1].unbind(0), strict=True))
