"""The decoder one position at a time, for many sentences and beams at once: what search runs.

It holds fused copies of a Transformer's weights in the precision that is asked for. Sentences sit in slots, which are
given to others when they are done. What the encoder said of a sentence is projected once and shared by its beams. On
the target side nothing is ever moved: all beams of a slot look at all cached positions of that slot, and a mask, which
follows the beams, hides those of others. That costs a few more products and saves copying the cache at every step.

Shapes: B slots, J beams, S source, C columns (one a step), D d_model, H heads, K head size, L layers, V vocabulary.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtx.model.product import Product
from mtx.model.transformer import DecoderLayer, Memory, Transformer

_HIDDEN = -math.inf
_COLUMNS = 32  # at first; doubled when sentences get longer
_WIDTH = 16  # on CUDA, attention looks at a multiple of so many positions: one recorded graph for each


@dataclass(frozen=True)
class Sources:
    """Keys and values of encoded sentences for every layer's cross attention.

    Attributes:
        projected: packed, [N_src, L, 2, H, K].
        starts, lengths: of the sentences, on the host.
    """

    projected: Tensor
    starts: Tensor
    lengths: Tensor


class Cache:
    """What decoding keeps of the sentences in its slots.

    Args:
        src_width: longest source that will be admitted.

    Attributes:
        memory: [L, 2, B, H, S, K], keys and values of the source.
        target: [L, 2, B, H, C * J, K], of the target; what the beams of a slot wrote in a step stands side by side.
        mask: [B, J, C * J], added to the scores: 0 where a beam's own history is, -inf elsewhere.
        column: the next to be written, on the device; `clock` is the same on the host.
        version: changes where tensors are replaced, which what was recorded of them cannot see.
    """

    def __init__(self, decoder: "IncrementalDecoder", num_slots: int, beam_size: int, src_width: int):
        like, (layers, heads, size) = decoder.embedding, decoder.shape
        self.beam_size, self.is_static = beam_size, decoder.is_static
        self.memory = like.new_zeros(layers, 2, num_slots, heads, self._rounded(src_width), size)
        self.memory_mask = like.new_zeros(num_slots, 1, self.memory.shape[4])
        self.target = like.new_zeros(layers, 2, num_slots, heads, _COLUMNS * beam_size, size)
        self.mask = like.new_full((num_slots, beam_size, _COLUMNS * beam_size), _HIDDEN)
        own = torch.eye(beam_size, dtype=torch.bool, device=like.device)
        self._own = like.new_full((beam_size, beam_size), _HIDDEN).masked_fill_(own, 0.0)
        self._beams = torch.arange(beam_size, device=like.device)
        self._first_rows = (torch.arange(num_slots, device=like.device) * beam_size)[:, None]
        self.column = torch.zeros((), dtype=torch.long, device=like.device)
        self.clock = self.version = 0
        self._starts = [0] * num_slots  # the first column of each sentence; that of an empty slot does not matter
        self._widths = [0] * num_slots  # its source's length; 0 for an empty slot
        self._set_layers()
        self._set_view()

    def _set_layers(self) -> None:
        """What each layer has of `memory` and `target`; anew wherever those are replaced."""
        self._memories, self._targets = list(self.memory), list(self.target)
        self.version += 1

    def _rounded(self, width: int, to: int = _WIDTH) -> int:
        return -(-width // to) * to if self.is_static else width

    def admit(self, slots: list[int], sources: Sources, rows: list[int]) -> None:
        """Put the sentences `rows` of `sources` into these slots."""
        lengths, device = sources.lengths[rows], self.memory.device
        column = torch.arange(int(lengths.max()))
        real = column < lengths[:, None]
        index = (sources.starts[rows][:, None] + column * real).to(device, non_blocking=True)
        at = torch.tensor(slots).to(device, non_blocking=True)
        width = len(column)
        self.memory[:, :, at, :, :width] = sources.projected[index].permute(2, 3, 0, 4, 1, 5)
        mask = torch.full((len(slots), 1, self.memory.shape[4]), _HIDDEN)
        mask[:, 0, :width].masked_fill_(real, 0.0)
        self.memory_mask[at] = mask.to(device, self.memory_mask.dtype, non_blocking=True)
        self.mask[at] = _HIDDEN
        for slot, length in zip(slots, lengths.tolist(), strict=True):
            self._starts[slot], self._widths[slot] = self.clock, length

    def release(self, slots: list[int]) -> None:
        """These slots hold nothing that is still needed."""
        for slot in slots:
            self._widths[slot] = 0

    def keep(self, slots: list[int]) -> None:
        """Only these slots stay, renumbered in this order."""
        at = torch.tensor(slots, device=self.memory.device)
        self._make_room()  # of the columns only those in use are copied
        used = self.clock * self.beam_size
        target = self.target.new_empty(*self.target.shape[:2], len(slots), *self.target.shape[3:])
        torch.index_select(self.target[..., :used, :], 2, at, out=target[..., :used, :])
        self.memory, self.target = self.memory[..., : max(self._widths), :].index_select(2, at), target
        self.memory_mask, self.mask = self.memory_mask[..., : max(self._widths)][at], self.mask[at]
        self._first_rows = self._first_rows[: len(slots)]
        self._starts, self._widths = [self._starts[s] for s in slots], [self._widths[s] for s in slots]
        self._set_layers()

    def reorder(self, parents: Tensor) -> None:
        """End a step: let beam j of each slot go on from beam parents[:, j]; int [B, J]."""
        self.column += 1
        if self.beam_size > 1:
            rows = (self._first_rows + parents).flatten()
            mask = self.mask.flatten(0, 1)[:, self.views[1]]
            mask.copy_(mask.index_select(0, rows))

    def prepare(self) -> tuple[int, ...]:
        """Make room for the next step, on the host; what is recorded for one result holds for equal ones."""
        if (self.clock + 1) * self.beam_size > self.mask.shape[2]:
            self._make_room()
        self._set_view()
        return self.version, self.views[0].stop, self.views[1].stop

    def stepped(self) -> None:
        """Count a step, on the host."""
        self.clock += 1

    def _set_view(self) -> None:
        """The positions of the source and of the target that attention looks at, as slices."""
        first = min((s for s, w in zip(self._starts, self._widths, strict=True) if w), default=self.clock)
        width, last = self._rounded(max(1, *self._widths)), (self.clock + 1) * self.beam_size
        beams = (
            slice(0, self._rounded(last, _WIDTH * self.beam_size))
            if self.is_static
            else slice(first * self.beam_size, last)
        )
        self.views = slice(0, width), slice(beams.start, min(beams.stop, self.mask.shape[2]))

    def _make_room(self) -> None:
        """Move what is needed to the first columns, or double their number where that frees less than half."""
        live = [start for start, width in zip(self._starts, self._widths, strict=True) if width]
        first = min(live, default=self.clock)
        used, columns = self.clock - first, self.mask.shape[2] // self.beam_size
        moved = slice(first * self.beam_size, self.clock * self.beam_size)
        kept = slice(0, used * self.beam_size)
        target, mask = self.target[..., moved, :].clone(), self.mask[..., moved].clone()
        if used > columns // 2:
            shape, size = self.target.shape, 2 * columns * self.beam_size
            self.target = self.target.new_zeros(*shape[:4], size, shape[5])
            self.mask = self.mask.new_empty(*self.mask.shape[:2], size)
            self._set_layers()
        self.mask.fill_(_HIDDEN)
        self.target[..., kept, :], self.mask[..., kept] = target, mask
        self._starts = [max(0, start - first) for start in self._starts]
        self.clock = used
        self.column.fill_(used)

    def of_source(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the source, [B * H, S, K]."""
        keys, values = self._memories[layer].flatten(1, 2)[:, :, self.views[0]]
        return keys, values

    def extend(self, layer: int, keys_values: Tensor) -> tuple[Tensor, Tensor]:
        """Write what a layer computed at this step, [2, B, H, J, K]; keys and values of the target, [B * H, C, K]."""
        target = self._targets[layer]
        if self.is_static:
            target.index_copy_(3, self.column * self.beam_size + self._beams, keys_values)
        else:
            target.narrow(3, self.clock * self.beam_size, self.beam_size).copy_(keys_values)
        keys, values = target.flatten(1, 2)[:, :, self.views[1]]
        return keys, values

    def masks(self) -> tuple[Tensor | None, Tensor | None]:
        """What is added to the scores of source and target, [B, 1, 1, S] and [B, 1, J, C]; None where all is seen."""
        memory_mask, mask = self.memory_mask[:, None, :, self.views[0]], self.mask[:, None, :, self.views[1]]
        is_even = not self.is_static and len({*self._widths}) == 1
        is_alone = is_even and self.beam_size == 1 and len({*self._starts}) == 1
        return None if is_even else memory_mask, None if is_alone else mask

    def see_own_column(self) -> None:
        """Let every beam see what it writes at this step."""
        if self.is_static:
            own = self._own.expand(len(self.mask), -1, -1)
            self.mask.index_copy_(2, self.column * self.beam_size + self._beams, own)
        else:
            self.mask[:, :, self.clock * self.beam_size :][:, :, : self.beam_size] = self._own


class IncrementalDecoder:
    """The decoder of `model`, position by position, in `dtype`.

    Attributes:
        shape: layers, heads, head size.
        max_positions: the longest target, where positions are learned.
        is_static: steps read and write the same memory and few shapes, as a recorded graph must (CUDA).
    """

    def __init__(self, model: Transformer, dtype: torch.dtype = torch.float32):
        config = model.config
        self.pad_id = model.pad_id
        self.shape = (config.num_decoder_layers, config.num_heads, config.d_model // config.num_heads)
        self.is_static = model.embedding.is_cuda
        self.dtype, self._scale = dtype, math.sqrt(config.d_model)
        self.embedding = model.embedding.to(dtype)
        self._output = Product(model.output_weight, model.output_bias, dtype)
        self._model, self._positions = model, torch.empty(0)
        self.max_positions = None if model.tgt_positions is None else len(model.tgt_positions)
        self.layers = [_StepLayer(layer, dtype) for layer in model.decoder]  # type: ignore[arg-type]
        self.norm = None if model.decoder_norm is None else _Norm(model.decoder_norm, dtype)
        crosses = [layer.cross_attention for layer in model.decoder]
        parts = [part for cross in crosses for part in (cross.key, cross.value)]  # type: ignore[union-attr]
        self._project = Product.of(parts, dtype)  # type: ignore[arg-type]

    def project(self, memory: Memory) -> Sources:
        """Keys and values of the encoder's output, for all layers at once."""
        layers, heads, size = self.shape
        starts = memory.offsets[: memory.num_sentences + 1].cpu().long()
        projected = self._project(memory.hidden.to(self.dtype))
        return Sources(projected.view(-1, layers, 2, heads, size), starts[:-1], starts.diff())

    def start(self, num_slots: int, beam_size: int, src_width: int, max_length: int) -> Cache:
        """An empty cache, for targets of at most `max_length`."""
        if self._model.tgt_positions is not None:
            self._positions = self._model.tgt_positions.to(self.dtype)
        else:
            self._positions = self._model.sinusoids(max_length).to(self.dtype)
        return Cache(self, num_slots, beam_size, src_width)

    def step(self, ids: Tensor, ages: Tensor, cache: Cache) -> Tensor:
        """One more target position of every beam; `cache.prepare()` comes before.

        Args:
            ids: the last token of each hypothesis (pad at the start), [B, J].
            ages: how many tokens the hypotheses of each slot have, [B].

        Returns:
            Logits of the next token, [B, J, V].
        """
        x = F.embedding(ids, self.embedding).mul_(self._scale).add_(self._positions[ages][:, None]).flatten(0, 1)
        cache.see_own_column()
        masks = cache.masks()
        for number, layer in enumerate(self.layers):
            x = layer(x, cache, number, *masks)
        x = x if self.norm is None else self.norm(x)
        return self._output(x).view(*ids.shape, -1)


class _Norm:
    def __init__(self, norm: nn.LayerNorm, dtype: torch.dtype):
        self.weight, self.bias, self.eps = norm.weight.to(dtype), norm.bias.to(dtype), norm.eps

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (x.shape[-1],), self.weight, self.bias, self.eps)


class _StepLayer:
    """A decoder layer at one position: x is [B * J, D]."""

    def __init__(self, layer: DecoderLayer, dtype: torch.dtype):
        self.pre_norm, self.activation = layer.pre_norm, layer.activation
        self.is_relu = layer.activation is F.relu
        own, cross = layer.self_attention, layer.cross_attention
        self.num_heads = own.num_heads
        scale = (own.query.out_features // own.num_heads) ** -0.5  # of 3.2.1, taken ahead
        self.own_in = Product.of([own.query, own.key, own.value], dtype, scale)
        self.own_out, self.cross_in = Product.of([own.output], dtype), Product.of([cross.query], dtype, scale)
        self.cross_out = Product.of([cross.output], dtype)
        self.inner, self.outer = Product.of([layer.inner], dtype), Product.of([layer.outer], dtype)
        norms = layer.self_attention_norm, layer.cross_attention_norm, layer.feed_forward_norm
        self.own_norm, self.cross_norm, self.feed_forward_norm = (_Norm(norm, dtype) for norm in norms)

    def __call__(self, x: Tensor, cache: Cache, number: int, memory_mask: Tensor | None, mask: Tensor | None) -> Tensor:
        beams, heads = cache.beam_size, self.num_heads
        y = self._before(self.own_norm, x)
        split = self.own_in(y).view(-1, beams, 3, heads, y.shape[1] // heads).permute(2, 0, 3, 1, 4)
        keys, values = cache.extend(number, split[1:])
        x = self._after(self.own_norm, self.own_out.plus(_attend(split[0], keys, values, mask), x))
        y = self._before(self.cross_norm, x)
        q = self.cross_in(y).view(-1, beams, heads, y.shape[1] // heads).transpose(1, 2)
        out = _attend(q, *cache.of_source(number), memory_mask)
        x = self._after(self.cross_norm, self.cross_out.plus(out, x))
        y = self._before(self.feed_forward_norm, x)
        hidden: Tensor = self.inner(y, relu=True) if self.is_relu else self.activation(self.inner(y))  # type: ignore[operator]
        return self._after(self.feed_forward_norm, self.outer.plus(hidden, x))

    def _before(self, norm: _Norm, x: Tensor) -> Tensor:
        return norm(x) if self.pre_norm else x

    def _after(self, norm: _Norm, x: Tensor) -> Tensor:
        return x if self.pre_norm else norm(x)


def _attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Attention of [B, H, J, K] over [B * H, T, K], with a mask [B, 1, J or 1, T]; returns [B * J, D]."""
    num_slots, heads, beams, size = q.shape
    scores = torch.bmm(q.reshape(-1, beams, size), keys.transpose(1, 2))
    if mask is not None:
        scores.view(num_slots, heads, beams, -1).add_(mask)
    out = torch.bmm(torch.softmax(scores, -1), values).view(num_slots, heads, beams, size)
    return out.transpose(1, 2).reshape(-1, heads * size)
