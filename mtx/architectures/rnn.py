"""A recurrent encoder-decoder with attention (Bahdanau et al. 2015) over packed batches, for comparison.

The encoder reads in both directions. The first layer of the decoder reads the target; its states ask the encoder's
outputs by attention, and the other layers and the output read states and answers. So torch's own recurrences (cuDNN on
CUDA) run over whole sentences: attention asks with the state after the last token, as in Luong et al. 2015, and not
with the one before it. `RecurrentModel` is the model of training and scoring, `RecurrentSearchModel` that of search.

Shapes: N packed positions, M sentences, S source, T target, D d_model, L decoder layers; in search B slots, J beams,
and C parts of a state: 2 with an LSTM (h and its cell), 1 with a GRU.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence, pad_sequence, unpack_sequence

from mtx.config.schema import ModelConfig
from mtx.model.inference import SearchModel
from mtx.model.kv_cache import SourceSlots
from mtx.model.translation_model import Batch, TranslationModel, Weights, dropout

_GROUP = 16  # sentences whose attention is computed at once: they fit a cache


class Score(nn.Module):
    """How well a state of the decoder, the query, fits an output of the encoder, the key.

    additive is v^T tanh(W_k k + W_q q) (Bahdanau et al. 2015); multiplicative is q^T W_k k (Luong et al. 2015);
    scaled_dot_product is q^T k / sqrt(D) (eq. 1 of "Attention Is All You Need").
    """

    def __init__(self, kind: str, d_model: int):
        super().__init__()
        is_scaled = kind == "scaled_dot_product"
        is_additive = kind == "additive"
        self.scale = d_model**-0.5 if is_scaled else 1.0
        self.key = nn.Identity() if is_scaled else nn.Linear(d_model, d_model, bias=False)
        self.query = nn.Linear(d_model, d_model) if is_additive else nn.Identity()
        self.weight = nn.Parameter(torch.empty(d_model)) if is_additive else None

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Returns the scores of `query` of states [M, T, D] and `key` of outputs [M, S, D], [M, T, S]."""
        if self.weight is None:
            return queries * self.scale @ keys.transpose(1, 2)
        return torch.tanh(queries[:, :, None] + keys[:, None]) @ self.weight.to(queries.dtype)


def _run(recurrence: Any, x: Tensor, lengths: list[int], state: Tensor | None = None) -> tuple[Tensor, Any]:
    """Runs a recurrence over packed sentences x [N, D]; returns its outputs [N, D] and last states, as torch has them.

    On CUDA its numbers are fp32, which cuDNN rounds to TF32 in products by default (torch.backends.cudnn.rnn):
    autocast would take fp16 there, whatever its type, and gradients would vanish.

    Args:
        state: the first state h of each sentence, [layers, M, D]; None means zeros. The cell of an LSTM begins with
            zeros.
    """
    x = x.float() if x.is_cuda else x
    first_state: Any = None if state is None else state.to(x.dtype).contiguous()
    if first_state is not None and isinstance(recurrence, nn.LSTM):
        first_state = first_state, torch.zeros_like(first_state)
    with torch.autocast("cuda", enabled=False):
        outputs, last_state = recurrence(pack_sequence([*torch.split(x, lengths)], enforce_sorted=False), first_state)
    return torch.cat(unpack_sequence(outputs)), last_state


@dataclass(frozen=True)
class Memory:
    """The encoder's outputs [N_real, D], the first states of the decoder [L, M, D], and the lengths of the sources."""

    outputs: Tensor
    states: Tensor
    lengths: list[int]


class RecurrentModel(TranslationModel):
    """The whole model. `encoder`, `first_layer` and `layers` (None with one decoder layer) are torch's recurrences."""

    def __init__(self, config: ModelConfig, num_ids: int):
        super().__init__(config, num_ids)
        d_model = config.d_model
        cell: Any = nn.LSTM if config.cell == "lstm" else nn.GRU
        num_layers = config.num_decoder_layers
        num_upper = num_layers - 1
        # torch applies dropout between layers only, and warns if there is a single one.
        encoder_dropout = config.dropout if config.num_encoder_layers > 1 else 0.0
        upper_dropout = config.dropout if num_upper > 1 else 0.0
        self.encoder = cell(
            d_model, d_model // 2, config.num_encoder_layers, dropout=encoder_dropout, bidirectional=True
        )
        self.first_layer = cell(d_model, d_model)
        self.layers = cell(2 * d_model, d_model, num_upper, dropout=upper_dropout) if num_upper > 0 else None
        self.first_states = nn.Linear(d_model, num_layers * d_model)
        self.score = Score(config.score, d_model)
        self.readout = nn.Linear(2 * d_model, d_model)
        if not self.embedding.is_meta:
            self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draws embeddings from N(0, d_model^-1/2) and matrices from Xavier's uniform, those between states orthogonal.

        Biases are zero, but those of an LSTM's forget gates are one (Jozefowicz et al. 2015).
        """
        self.reset_embeddings()
        for name, parameter in self.named_parameters():
            if "." not in name:
                continue
            if "weight_hh" in name:
                for gate in torch.split(parameter, parameter.shape[1]):
                    nn.init.orthogonal_(gate)
            elif parameter.dim() == 2:
                nn.init.xavier_uniform_(parameter)
            elif name == "score.weight":
                nn.init.normal_(parameter, std=self.config.d_model**-0.5)
            else:
                nn.init.zeros_(parameter)
                if "bias_ih" in name and self.config.cell == "lstm":
                    parameter[len(parameter) // 4 : len(parameter) // 2] = 1.0

    def embed(self, ids: Tensor, source: bool) -> Tensor:
        """Returns token embeddings times sqrt(D) with dropout, [N, D]."""
        table = self.source_embedding if source else self.embedding
        x = F.embedding(ids, table, padding_idx=self.pad_id) * math.sqrt(self.config.d_model)
        return dropout(x, self.config.dropout, self.training)

    def encode(self, batch: Batch) -> Memory:
        """Runs the encoder over the packed sources."""
        return self.read(batch.src_ids, _lengths(batch, batch.src_offsets))

    def read(self, ids: Tensor, lengths: list[int]) -> Memory:
        """Runs the encoder over sources of these lengths, which lie end to end."""
        outputs, last_state = _run(self.encoder, self.embed(ids[: sum(lengths)], source=True), lengths)
        outputs = dropout(outputs, self.config.dropout, self.training)
        states = last_state[0] if isinstance(last_state, tuple) else last_state
        both_directions = torch.cat([states[-2], states[-1]], -1)  # of the last layer
        first_states = torch.tanh(self.first_states(both_directions))
        first_states = first_states.view(len(both_directions), -1, self.config.d_model)
        return Memory(outputs, first_states.transpose(0, 1), lengths)

    def decode(self, batch: Batch, memory: Memory) -> Tensor:
        """Runs the decoder, which sees the earlier tokens of the reference; returns hidden states, [N_tgt, D].

        Those of dummy sentences are zero.
        """
        states, answers, _ = self.attend(batch, memory)
        if self.layers is not None:
            lengths = _lengths(batch, batch.tgt_offsets)
            upper, _ = _run(self.layers, torch.cat([states, answers], -1), lengths, memory.states[1:])
            states = states + dropout(upper, self.config.dropout, self.training)
        hidden = torch.tanh(self.readout(torch.cat([states, answers], -1)))
        hidden = dropout(hidden, self.config.dropout, self.training)
        return F.pad(hidden, (0, 0, 0, len(batch.tgt_in_ids) - len(hidden)))

    def attend(self, batch: Batch, memory: Memory) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Runs the first layer of the decoder, and its attention.

        Returns:
            The states, with dropout, and for each the mean of the encoder's outputs by its attention, both
            [N_real, D]; and the weights of each sentence, [T, S].
        """
        lengths = _lengths(batch, batch.tgt_offsets)
        x = self.embed(batch.tgt_in_ids[: sum(lengths)], source=False)
        states, _ = _run(self.first_layer, x, lengths, memory.states[:1])
        states = dropout(states, self.config.dropout, self.training)
        queries = torch.split(self.score.query(states), lengths)
        keys = torch.split(self.score.key(memory.outputs), memory.lengths)
        outputs = torch.split(memory.outputs, memory.lengths)
        weights = [states] * len(lengths)  # each is replaced below
        answers = [states] * len(lengths)
        order = sorted(range(len(lengths)), key=lambda row: (memory.lengths[row], lengths[row]))
        for start in range(0, len(order), _GROUP):
            rows = order[start : start + _GROUP]
            q = pad_sequence([queries[row] for row in rows], True)
            k = pad_sequence([keys[row] for row in rows], True)
            v = pad_sequence([outputs[row] for row in rows], True)
            mask = pad_sequence([k.new_zeros(memory.lengths[row]) for row in rows], True, -math.inf)
            padded = torch.softmax(self.score(q, k) + mask[:, None], -1)
            for row, sentence, answer in zip(rows, padded, padded.to(states.dtype) @ v, strict=True):
                weights[row] = sentence[: lengths[row], : memory.lengths[row]]
                answers[row] = answer[: lengths[row]]
        return states, torch.cat(answers), weights

    def attention_weights(self, batch: Batch) -> Iterator[Sequence[Weights]]:
        """See `TranslationModel.attention_weights`: one layer and one head, from target to source."""
        for weights in self.attend(batch, self.encode(batch))[2]:
            none = [np.empty((0, 1, size, size), np.float32) for size in reversed(weights.shape)]
            yield [*none, weights[None, None].detach().float().cpu().numpy()]


def _lengths(batch: Batch, offsets: Tensor) -> list[int]:
    """Returns the lengths of the real sentences of one side."""
    return offsets[: batch.num_sentences + 1].diff().tolist()


class RecurrentCache(SourceSlots):
    """The sources and the states of the sentences in a fixed number of slots; its mask is [B, 1, S].

    Attributes:
        sources: the encoder's outputs and their keys, [2, B, S, D].
        states: of the decoder, [L, C, B * J, D].
    """

    def __init__(self, config: ModelConfig, num_slots: int, beam_size: int, is_static: bool, like: Tensor):
        sources = like.new_zeros(2, num_slots, 1, config.d_model)
        super().__init__(sources, like.new_zeros(num_slots, 1, 1), beam_size, is_static)
        num_parts = 2 if config.cell == "lstm" else 1
        self.states = like.new_zeros(config.num_decoder_layers, num_parts, num_slots * beam_size, config.d_model)

    def admit(self, slots: list[int], sources: Memory, rows: list[int]) -> None:
        """Puts the sentences `rows` of `sources` into these slots."""
        slot_ids, row_ids, width = self._occupy(slots, rows, sources.lengths)
        self.sources[:, slot_ids, :width] = sources.outputs[:, row_ids, :width]
        states = torch.unflatten(self.states, 2, (-1, self.beam_size))
        states[:, :, slot_ids] = 0
        states[:, 0, slot_ids] = sources.states[:, row_ids, None]

    def reorder(self, parents: Tensor) -> None:
        """Ends a step: beam j of each slot continues beam parents[:, j]; int [B, J]."""
        if self.beam_size > 1:
            self.states.copy_(self.states.index_select(2, (self._first_rows + parents).flatten()))


def advance_state(x: Tensor, state: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Changes the state [C, N, D] of one layer of a recurrence to that after x [N, D or 2 D]; returns its output."""
    is_lstm = len(state) == 2
    new_parts = torch.lstm_cell(x, list(state), *weights) if is_lstm else [torch.gru_cell(x, state[0], *weights)]
    return state.copy_(torch.stack([*new_parts]))[0]


class RecurrentSearchModel(SearchModel):
    """`model` in `dtype`, with the methods of `mtx.model.inference.IncrementalModel`, which documents them."""

    def __init__(self, model: RecurrentModel, dtype: torch.dtype = torch.float32):
        super().__init__(model, dtype)
        self._model = copy.deepcopy(model).eval().to(dtype)
        upper: Any = [] if self._model.layers is None else self._model.layers.all_weights
        self._weights: list[list[Tensor]] = [*self._model.first_layer.all_weights, *upper]

    def encode(self, sources: Sequence[list[int]]) -> Memory:
        """Encodes sentences; the outputs of the encoder are padded, and their keys are with them, [2, B, S, D]."""
        memory = self._read(sources)
        outputs = pad_sequence([*torch.split(memory.outputs, memory.lengths)], True)
        return replace(memory, outputs=torch.stack([outputs, self._model.score.key(outputs)]))

    def source_states(self, sources: Sequence[list[int]]) -> Sequence[Tensor]:
        """Returns the encoder's output for each sentence, [S, D], without padding."""
        memory = self._read(sources)
        return torch.split(memory.outputs, memory.lengths)

    def _read(self, sources: Sequence[list[int]]) -> Memory:
        ids = torch.tensor([token for source in sources for token in source], device=self.device)
        return self._model.read(ids, [len(source) for source in sources])

    def start(self, num_slots: int, beam_size: int, max_length: int) -> RecurrentCache:
        """Returns an empty cache, for targets of any length."""
        return RecurrentCache(self._config, num_slots, beam_size, self.is_static, self._like)

    def step(self, ids: Tensor, lengths: Tensor, cache: RecurrentCache) -> Tensor:
        """Runs the decoder at the next target position of every beam; see `StackModel.step`."""
        model = self._model
        first_weights, *upper_weights = self._weights
        top = advance_state(model.embed(ids.flatten(), source=False), cache.states[0], first_weights)
        outputs, keys = cache.sources
        scores = model.score(model.score.query(top).view(*ids.shape, -1), keys) + cache.mask
        answers = (torch.softmax(scores, -1) @ outputs).flatten(0, 1)
        y = torch.cat([top, answers], -1)
        for number, weights in enumerate(upper_weights, start=1):
            y = advance_state(y, cache.states[number], weights)
        if upper_weights:
            top = top + y
        hidden = torch.tanh(model.readout(torch.cat([top, answers], -1)))
        return self._output(hidden).view(*ids.shape, -1)
