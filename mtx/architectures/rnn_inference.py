"""The recurrent model for translation: it encodes sources, and runs the decoder one token at a time for many beams.

Training uses `mtx.architectures.rnn`. This module copies its weights, in one precision. Tests check that the two give
the same numbers. `RecurrentSearchModel` has the methods of `mtx.model.inference.IncrementalModel`, which documents
them.

Shapes: B slots, J beams, S source, D d_model, L decoder layers, C parts of a state: 2 with an LSTM (h and its cell),
1 with a GRU.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from mtx.architectures.rnn import RecurrentModel, scores
from mtx.model.inference import PackedLinear, SearchModel, padded_ids
from mtx.model.kv_cache import SourceSlots


class _Cell:
    """One layer of a recurrence, for one token."""

    def __init__(self, recurrence: nn.LSTM | nn.GRU, layer: int, dtype: torch.dtype):
        self._is_lstm = isinstance(recurrence, nn.LSTM)
        self._input, self._state = (
            PackedLinear(
                getattr(recurrence, f"weight_{name}_l{layer}"), getattr(recurrence, f"bias_{name}_l{layer}"), dtype
            )
            for name in ("ih", "hh")
        )

    def __call__(self, x: Tensor, state: Tensor) -> Tensor:
        """Returns the state after x [N, D or 2 D]; states are [C, N, D]."""
        from_input, from_state = self._input(x), self._state(state[0])
        if self._is_lstm:
            into, forget, new, out = (from_input + from_state).chunk(4, -1)
            cell = torch.sigmoid(forget) * state[1] + torch.sigmoid(into) * torch.tanh(new)
            return torch.stack([torch.sigmoid(out) * torch.tanh(cell), cell])
        (reset, update, new), (old_reset, old_update, old) = from_input.chunk(3, -1), from_state.chunk(3, -1)
        new = torch.tanh(new + torch.sigmoid(reset + old_reset) * old)
        return torch.lerp(new, state[0], torch.sigmoid(update + old_update))[None]


@dataclass(frozen=True)
class EncodedSources:
    """The encoder's outputs and their keys, [2, B, S, D], the first states of the decoder, [L, B, D], and lengths."""

    outputs_keys: Tensor
    states: Tensor
    lengths: list[int]


class RecurrentCache(SourceSlots):
    """The sources and the states of the sentences in a fixed number of slots; its mask is [B, 1, S].

    Args:
        shape: layers, parts, width.

    Attributes:
        states: of the decoder, [L, C, B * J, D].
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

        num_layers, num_parts, d_model = shape
        super().__init__(zeros(2, num_slots, 0, d_model), zeros(num_slots, 1, 0), beam_size, is_static)
        self.states = zeros(num_layers, num_parts, num_slots * beam_size, d_model)

    @property
    def outputs_keys(self) -> Tensor:
        """The encoder's outputs and their keys, [2, B, S, D]."""
        return self._sources

    def admit(self, slots: list[int], sources: EncodedSources, rows: list[int]) -> None:
        """Puts the sentences `rows` of `sources` into these slots."""
        slot_ids, width = self._occupy(slots, [sources.lengths[row] for row in rows])
        row_ids = torch.tensor(rows).to(slot_ids.device, non_blocking=True)
        self._sources[:, slot_ids, :width] = sources.outputs_keys[:, row_ids, :width]
        states = self.states.view(*self.states.shape[:2], len(self.mask), self.beam_size, -1)
        states[:, :, slot_ids] = 0
        states[:, 0, slot_ids] = sources.states[:, row_ids, None]

    def count_step(self) -> None:
        """Does nothing: states take the same room at each step."""

    def reorder(self, parents: Tensor) -> None:
        """Ends a step: beam j of each slot continues beam parents[:, j]; int [B, J]."""
        if self.beam_size > 1:
            self.states.copy_(self.states.index_select(2, (self._first_rows + parents).flatten()))


class RecurrentSearchModel(SearchModel):
    """`model` in `dtype`, with the interface that `mtx.decoding.beam_search` expects."""

    def __init__(self, model: RecurrentModel, dtype: torch.dtype = torch.float32):
        super().__init__(model, dtype)
        self._model = copy.deepcopy(model).eval().to(dtype)
        layers = [] if model.layers is None else [(model.layers, n) for n in range(model.layers.num_layers)]
        self._cells = [_Cell(recurrence, n, dtype) for recurrence, n in [(model.first_layer, 0), *layers]]
        self._readout = PackedLinear.of([model.readout], dtype)

    def encode(self, sources: Sequence[list[int]]) -> EncodedSources:
        """Encodes sentences."""
        outputs, last = self._read(sources)
        outputs_keys = torch.stack([outputs, self._model.score.keys(outputs)])
        return EncodedSources(outputs_keys, self._model.states_after(last), [len(source) for source in sources])

    def source_states(self, sources: Sequence[list[int]]) -> list[Tensor]:
        """Returns the encoder's output for each sentence, [S, D], without padding."""
        outputs, _ = self._read(sources)
        return [row[: len(source)] for row, source in zip(outputs, sources, strict=True)]

    def _read(self, sources: Sequence[list[int]]) -> tuple[Tensor, Any]:
        """Returns the encoder's outputs, padded [B, S, D], and its last states."""
        x = self._model.embed(padded_ids(sources, self.pad_id).to(self.device), source=True)
        lengths = torch.tensor([len(source) for source in sources])
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        outputs, last = self._model.encoder(packed)
        return pad_packed_sequence(outputs, batch_first=True)[0], last

    def start(self, num_slots: int, beam_size: int, max_length: int) -> RecurrentCache:
        """Returns an empty cache, for targets of any length."""
        config = self._model.config
        shape = config.num_decoder_layers, 2 if config.cell == "lstm" else 1, config.d_model
        return RecurrentCache(shape, num_slots, beam_size, self.is_static, self._dtype, self.device)

    def step(self, ids: Tensor, lengths: Tensor, cache: RecurrentCache) -> Tensor:
        """Runs the decoder at the next target position of every beam; see `StackModel.step`."""
        model = self._model
        x = F.embedding(ids.flatten(), model.embedding).mul_(math.sqrt(model.config.d_model))
        states = self._cells[0](x, cache.states[0])
        cache.states[0].copy_(states)
        queries = model.score.queries(states[0]).view(*ids.shape, -1)
        outputs, keys = cache.outputs_keys
        weights = torch.softmax(scores(queries, keys, model.score.weight) + cache.mask, -1)
        answers, top = (weights @ outputs).flatten(0, 1), states[0]
        y = torch.cat([top, answers], -1)
        for number, cell in enumerate(self._cells[1:], start=1):
            states = cell(y, cache.states[number])
            cache.states[number].copy_(states)
            y = states[0]
        if len(self._cells) > 1:
            top = top + y
        hidden = torch.tanh(self._readout(torch.cat([top, answers], -1)))
        return self._output(hidden).view(*ids.shape, -1)
