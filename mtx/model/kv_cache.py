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
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mtx.config.schema import ModelConfig
from mtx.formatting import round_up

_STATIC_COLUMNS = 128  # that a cache of CUDA adds at once: those of all steps of most sentences
_COLUMNS_READ = 32  # once a cache of CUDA is reused, the number of columns that a step reads is a multiple of this


class EncodedSources(NamedTuple):
    """Keys and values of encoded sentences for the cross attention of every layer, [B, S, L, 2, H, K], and lengths."""

    keys_values: Tensor
    lengths: list[int]


class SourceSlots:
    """The encoded sources of the sentences in a fixed number of slots.

    Args:
        sources: zeros for one position, [..., 1, K].
        mask: zeros, [B, ..., 1], so that an empty slot sees that position; its numbers would be NaN without.

    Attributes:
        is_static: steps use the same memory as long as `version` is the same, as a CUDA graph requires; recording one
            takes longer than many steps, so nothing ever shrinks.
        sources: what the model keeps of them.
        mask: added to the scores of attention over sources, 0 or -inf, [B, ..., S].
        version: changes when tensors are replaced, and graphs with them.
    """

    def __init__(self, sources: Tensor, mask: Tensor, beam_size: int, is_static: bool):
        num_slots = len(mask)
        self.sources = sources
        self.mask = mask
        self.beam_size = beam_size
        self.is_static = is_static
        self._sources_at_a_time = 64 if is_static else 4
        self._source_lengths = torch.zeros(num_slots, dtype=torch.long)  # in host memory; 0 for an empty slot
        self._first_rows = (torch.arange(num_slots, device=mask.device) * beam_size)[:, None]
        self.version = 0

    def _occupy(self, slots: list[int], rows: list[int], lengths: list[int]) -> tuple[Tensor, Tensor, int]:
        """Makes room for the sources `rows` of these lengths.

        Returns:
            The slots and the rows on the device, and the largest length.
        """
        row_lengths = torch.tensor(lengths)[rows]
        width = int(row_lengths.max())
        self._set_width(max(width, self.sources.shape[-2]))
        slot_ids, row_ids = (torch.tensor(ids).to(self.mask.device, non_blocking=True) for ids in (slots, rows))
        is_pad = torch.arange(self.sources.shape[-2]) >= row_lengths[:, None]
        mask = torch.where(is_pad, -math.inf, 0.0).view(len(slots), *self.mask.shape[1:])
        self.mask[slot_ids] = mask.to(self.mask, non_blocking=True)
        self._source_lengths[slots] = row_lengths
        return slot_ids, row_ids, width

    def release(self, slots: list[int]) -> None:
        """Marks these slots as empty."""
        self._source_lengths[slots] = 0

    def prepare(self) -> tuple[int, int]:
        """Makes the sources no wider than needed, from the host, unless `is_static`.

        Returns:
            `version`, and the target positions that the next step reads.
        """
        if not self.is_static:
            self._set_width(max(1, int(self._source_lengths.max())))
        return self.version, 0

    def _set_width(self, width: int) -> None:
        """Sets the number of source positions to `width`, rounded up."""
        rounded_width = round_up(width, self._sources_at_a_time)
        added = rounded_width - self.sources.shape[-2]
        if added:
            self.sources = F.pad(self.sources, (0, 0, 0, added)).contiguous()
            self.mask = F.pad(self.mask, (0, added), value=-math.inf).contiguous()
            self.version += 1


class KVCache(SourceSlots):
    """Keys and values of the sentences in a fixed number of slots.

    Its tensors are dense and no wider than needed, because a CPU would copy slices of them for every product. On CUDA,
    once a cache is used again, steps read only its first columns, as many as needed: one graph for each number of them.

    Args:
        like: a tensor of the type and on the device of the cache.

    Attributes:
        mask: [B, 1, 1, S].
        source_kv, target_kv: for each layer the keys, transposed [B * H, K, T], and values [B * H, T, K].
        target_mask: added to the scores of self-attention, [B, 1, J, T]: 0 for a beam's own history, else -inf.
        positions: those of the target, [P, D], which every step reads.
    """

    positions: Tensor
    _is_reused = False
    _num_targets = 0  # positions that are written
    _prepared = (0, 0)  # what `prepare` has returned

    def __init__(self, config: ModelConfig, num_slots: int, beam_size: int, is_static: bool, like: Tensor):
        heads = config.num_heads
        sources = like.new_zeros(config.num_decoder_layers, 2, num_slots, heads, 1, config.d_model // heads)
        super().__init__(sources, like.new_zeros(num_slots, 1, 1, 1), beam_size, is_static)
        self._columns_at_a_time = _STATIC_COLUMNS if is_static else 12
        self._targets = sources[..., :0, :]
        self._mask = like.new_empty(num_slots, 1, beam_size, 0)  # of all columns
        self._beams = torch.arange(beam_size, device=like.device)
        self._own_mask = torch.where(torch.eye(beam_size, dtype=torch.bool), 0.0, -math.inf).to(like)
        self._places = self._beams.clone()  # the target positions that the next step writes, one for each beam

    def admit(self, slots: list[int], sources: EncodedSources, rows: list[int]) -> None:
        """Puts the sentences `rows` of `sources` into these slots."""
        if self.is_static and not self._source_lengths.any():  # an earlier search has ended
            self._begin_again(0)
        slot_ids, row_ids, width = self._occupy(slots, rows, sources.lengths)
        self.sources[:, :, slot_ids, :, :width] = sources.keys_values[row_ids, :width].permute(2, 3, 0, 4, 1, 5)
        self._mask[slot_ids] = -math.inf

    def prepare(self) -> tuple[int, int]:
        """Makes room for the next step, which follows, from the host; see `SourceSlots.prepare`."""
        if self._num_targets + self.beam_size > self._mask.shape[3]:
            self._make_room()
        self._num_targets += self.beam_size
        super().prepare()
        at_a_time = _COLUMNS_READ * self.beam_size if self._is_reused else self._mask.shape[3]
        width = round_up(self._num_targets, at_a_time)
        if (self.version, width) != self._prepared:
            self._prepared = (self.version, width)
            self.target_mask = self._mask[..., :width]
            sources = self.sources.flatten(2, 3)
            targets = self._targets[..., :width, :].flatten(2, 3)
            self.source_kv = [*zip(sources[:, 0].mT, sources[:, 1], strict=True)]
            self.target_kv = [*zip(targets[:, 0].mT, targets[:, 1], strict=True)]
        return self._prepared

    def _make_room(self) -> None:
        """Drops target positions that no beam sees any more, and makes room for the next steps.

        Beams that descend from the same beam share most of their history: about a third of the positions are visible.
        """
        is_visible = (self._mask[:, 0] == 0).any(1)  # [B, C * J]
        is_visible &= self._source_lengths.to(is_visible.device)[:, None] > 0
        num_kept = int(is_visible.sum(1).max()) if self._num_targets else 0  # CUDA would wait
        positions = torch.argsort(~is_visible, dim=1, stable=True)[:, :num_kept]  # the visible ones, in their order
        added = self._columns_at_a_time * self.beam_size
        size = round_up(num_kept + added // 2, added)
        if self.is_static and num_kept <= 0.75 * self._targets.shape[4]:
            size = self._targets.shape[4] or added
        # The mask hides the positions that are added, but it could not hide NaN.
        targets = torch.take_along_dim(self._targets, positions[None, None, :, None, :, None], 4)
        targets = F.pad(targets, (0, 0, 0, size - num_kept))
        mask = torch.take_along_dim(self._mask, positions[:, None, None], 3)
        mask = F.pad(mask, (0, size - num_kept), value=-math.inf)
        if targets.shape == self._targets.shape:
            self._targets.copy_(targets)
            self._mask.copy_(mask)
        else:
            self._targets = targets
            self._mask = mask
            self.version += 1
        self._begin_again(num_kept)

    def _begin_again(self, num_kept: int) -> None:
        """Makes the next step write after the first `num_kept` target positions."""
        self._is_reused |= self.is_static and self._num_targets > 0
        self._num_targets = num_kept
        self._places.copy_(self._beams + num_kept)

    def begin_step(self) -> None:
        """Begins a step: makes the position that each beam is about to write visible to that beam."""
        mask = self._own_mask.expand(*self.target_mask.shape[:2], -1, -1)
        self.target_mask.index_copy_(3, self._places, mask)

    def write(self, layer: int, keys_values: Tensor) -> None:
        """Writes the keys and values of a layer at this step, [2, B, H, J, K]."""
        self._targets[layer].index_copy_(3, self._places, keys_values)

    def reorder(self, parents: Tensor) -> None:
        """Ends a step: beam j of each slot continues beam parents[:, j]; int [B, J]."""
        self._places += self.beam_size
        if self.beam_size > 1:
            rows = (self._first_rows + parents).flatten()
            self.target_mask.copy_(self.target_mask.flatten(0, 2).index_select(0, rows).view_as(self.target_mask))
