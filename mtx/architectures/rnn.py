"""A recurrent encoder-decoder with attention (Bahdanau et al. 2015) over packed batches, to set beside the Transformer.

The encoder reads in both directions. The first layer of the decoder reads the target; its states ask the encoder's
outputs by attention, and the other layers and the output read states and answers. So torch's own recurrences (cuDNN on
CUDA) run over whole sentences: attention asks with the state after the last token, as in Luong et al. 2015, and not
with the one before it. Search uses the copy that `mtx.architectures.rnn_inference` makes.

Shapes: N packed positions, M sentences, S source, T target, D d_model, L decoder layers.
"""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from mtx.config.schema import ModelConfig
from mtx.model.dropout import dropout
from mtx.model.translation_model import Batch, TranslationModel

Ints = npt.NDArray[np.int64]
_CELLS = {"lstm": nn.LSTM, "gru": nn.GRU}
_GROUP_PAIRS = 8192  # pairs of a target and a source position whose scores are computed at once: they fit a cache


class Score(nn.Module):
    """How well a state of the decoder, the query, fits an output of the encoder, the key.

    additive is v^T tanh(W_k k + W_q q) (Bahdanau et al. 2015); multiplicative is q^T W_k k (Luong et al. 2015);
    scaled_dot_product is q^T k / sqrt(D) (eq. 1 of "Attention Is All You Need").
    """

    def __init__(self, kind: str, d_model: int):
        super().__init__()
        self.kind = kind
        self.key = None if kind == "scaled_dot_product" else nn.Linear(d_model, d_model, bias=False)
        self.query = nn.Linear(d_model, d_model) if kind == "additive" else None
        self.weight = nn.Parameter(torch.empty(d_model)) if kind == "additive" else None

    def keys(self, outputs: Tensor) -> Tensor:
        """Returns what `forward` needs of the encoder's outputs, computed once for all queries; [..., D] both."""
        return outputs if self.key is None else self.key(outputs)

    def queries(self, states: Tensor) -> Tensor:
        """Returns what `forward` needs of states, [..., D] both."""
        if self.query is not None:
            return self.query(states)  # type: ignore[no-any-return]
        return states * states.shape[-1] ** -0.5 if self.key is None else states

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Returns the scores of queries [M, T, D] and keys [M, S, D], [M, T, S]."""
        return scores(queries, keys, self.weight)


def scores(queries: Tensor, keys: Tensor, weight: Tensor | None) -> Tensor:
    """Returns queries keys^T, [M, T, S], or with the weight [D] of additive attention tanh(queries + keys) weight."""
    if weight is None:
        return queries @ keys.transpose(1, 2)
    return torch.tanh(queries[:, :, None] + keys[:, None]) @ weight.to(queries.dtype)


@dataclass(frozen=True)
class Order:
    """How the sentences of a packed batch become sequences of torch's recurrences: longest first, one step at a time.

    Attributes:
        rows: the packed row of each position in that order, [N_real].
        places: the place in that order of each packed row, [N_real].
        sizes: how many sentences each step has, on the CPU.
        sentences: their numbers, longest first, [M].
        starts: where each sentence begins in the packed batch, and the end of the last one.
    """

    rows: Tensor
    places: Tensor
    sizes: Tensor
    sentences: Tensor
    starts: Ints

    @classmethod
    def of(cls, offsets: Tensor, num_sentences: int, device: torch.device) -> "Order":
        """The order of the real sentences that begin at these offsets, int32 [M+1]; dummies are left out."""
        starts = offsets[: num_sentences + 1].cpu().long().numpy()
        lengths = np.diff(starts)
        sentences = np.argsort(-lengths, kind="stable")
        steps = np.arange(lengths.max(initial=0))
        is_there = lengths[sentences] > steps[:, None]
        rows = (starts[:-1][sentences] + steps[:, None])[is_there]
        places = np.empty_like(rows)
        places[rows] = np.arange(len(rows))
        sizes = torch.from_numpy(is_there.sum(1))
        moved = (torch.from_numpy(numbers).to(device) for numbers in (rows, places, sentences))
        rows_, places_, sentences_ = moved
        return cls(rows_, places_, sizes, sentences_, starts)

    def run(self, recurrence: Any, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Any]:
        """Runs a recurrence over x [N_real, D]; returns its outputs [N_real, D] and last states, as torch has them.

        On CUDA its numbers are fp32, which cuDNN rounds to TF32 in products by default (torch.backends.cudnn.rnn):
        autocast would take fp16 there, whatever its type, and gradients would vanish.

        Args:
            state: the first state h of each sentence, [layers, M, D]; None means zeros. The cell of an LSTM begins
                with zeros.
        """
        x = x.float() if x.is_cuda else x
        sequence = PackedSequence(x.index_select(0, self.rows), self.sizes)
        first: Any = None
        if state is not None:
            first = state.index_select(1, self.sentences).to(x.dtype)
            first = (first, torch.zeros_like(first)) if isinstance(recurrence, nn.LSTM) else first
        with torch.autocast("cuda", enabled=False) if x.is_cuda else contextlib.nullcontext():
            outputs, last = recurrence(sequence, first)
        return outputs.data.index_select(0, self.places), last


@dataclass(frozen=True)
class Memory:
    """The encoder's outputs [N_real, D] with their order, and the first states of the decoder, [L, M, D]."""

    outputs: Tensor
    order: Order
    states: Tensor


class RecurrentModel(TranslationModel):
    """The whole model. `encoder`, `first_layer` and `layers` (None with one decoder layer) are torch's recurrences."""

    def __init__(self, config: ModelConfig, num_ids: int):
        super().__init__(config, num_ids)
        d_model = config.d_model
        cell = _CELLS[config.cell]
        num_layers = config.num_decoder_layers
        rates = [config.dropout if n > 1 else 0.0 for n in (config.num_encoder_layers, num_layers - 1)]
        self.encoder = cell(d_model, d_model // 2, config.num_encoder_layers, dropout=rates[0], bidirectional=True)
        self.first_layer = cell(d_model, d_model)
        self.layers = cell(2 * d_model, d_model, num_layers - 1, dropout=rates[1]) if num_layers > 1 else None
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
        order = Order.of(batch.src_offsets, batch.num_sentences, self.embedding.device)
        outputs, last = order.run(self.encoder, self.embed(batch.src_ids[: len(order.rows)], source=True))
        outputs = dropout(outputs, self.config.dropout, self.training)
        return Memory(outputs, order, self.states_after(last).index_select(1, torch.argsort(order.sentences)))

    def states_after(self, last: Any) -> Tensor:
        """Returns the decoder's first states [L, M, D] after the last states of the encoder, as torch has them."""
        states = last[0] if isinstance(last, tuple) else last
        both = torch.cat([states[-2], states[-1]], -1)  # of both directions of the last layer
        first = torch.tanh(self.first_states(both))
        return first.view(len(both), -1, self.config.d_model).transpose(0, 1)

    def decode(self, batch: Batch, memory: Memory) -> Tensor:
        """Runs the decoder, which sees the earlier tokens of the reference; returns hidden states, [N_tgt, D].

        Those of dummy sentences are zero.
        """
        rate, training = self.config.dropout, self.training
        states, order = self._read_target(batch, memory)
        answers = self.attend(states, order, memory)
        if self.layers is not None:
            upper, _ = order.run(self.layers, torch.cat([states, answers], -1), memory.states[1:])
            states = states + dropout(upper, rate, training)
        hidden = dropout(torch.tanh(self.readout(torch.cat([states, answers], -1))), rate, training)
        return F.pad(hidden, (0, 0, 0, len(batch.tgt_in_ids) - len(hidden)))

    def _read_target(self, batch: Batch, memory: Memory) -> tuple[Tensor, Order]:
        """Returns the states of the first layer, with dropout, [N_real, D]."""
        order = Order.of(batch.tgt_offsets, batch.num_sentences, self.embedding.device)
        x = self.embed(batch.tgt_in_ids[: len(order.rows)], source=False)
        states, _ = order.run(self.first_layer, x, memory.states[:1])
        return dropout(states, self.config.dropout, self.training), order

    def attention_weights(self, batch: Batch) -> list[Tensor]:
        """Returns for each sentence from which source tokens each target token comes, [T, S]; rows sum to 1."""
        memory = self.encode(batch)
        states, order = self._read_target(batch, memory)
        queries, keys = self.score.queries(states), self.score.keys(memory.outputs)
        tgt, src = (np.split(np.arange(starts[-1]), starts[1:-1]) for starts in (order.starts, memory.order.starts))
        return [
            torch.softmax(self.score(queries[rows][None], keys[columns][None])[0], -1)
            for rows, columns in zip(tgt, src, strict=True)
        ]

    def attend(self, states: Tensor, order: Order, memory: Memory) -> Tensor:
        """Returns the mean of the encoder's outputs for each state of the decoder, by its attention, [N_real, D]."""
        queries, keys = self.score.queries(states), self.score.keys(memory.outputs)
        answers, rows = list[Tensor](), list[Tensor]()
        for group in _groups(order.starts, memory.order.starts, states.device):
            weights = torch.softmax(self.score(queries[group.queries], keys[group.keys]) + group.mask, -1)
            answers.append((weights.to(states.dtype) @ memory.outputs[group.keys])[group.is_query])
            rows.append(group.queries[group.is_query])
        return torch.cat(answers).index_select(0, torch.argsort(torch.cat(rows)))


@dataclass(frozen=True)
class _Group:
    """Sentences of similar length: the rows of their queries [M, T] and keys [M, S], padded with row 0.

    Attributes:
        is_query: whether a query is none of the padding, [M, T].
        mask: added to the scores, 0 or -inf, [M, 1, S].
    """

    queries: Tensor
    keys: Tensor
    is_query: Tensor
    mask: Tensor


def _groups(query_starts: Ints, key_starts: Ints, device: torch.device) -> Iterator[_Group]:
    """Yields the sentences in groups of at most `_GROUP_PAIRS` pairs of a query and a key, longest first."""
    num_queries, num_keys = np.diff(query_starts), np.diff(key_starts)
    order, first = np.lexsort((-num_queries, -num_keys)), 0
    while first < len(order):
        longest = np.maximum.accumulate(num_queries[order[first:]])
        sizes = longest * num_keys[order[first]] * np.arange(1, len(longest) + 1)
        end = first + max(1, int(np.searchsorted(sizes, _GROUP_PAIRS, side="right")))
        some, first = order[first:end], end
        queries, is_query = _padded(query_starts[some], num_queries[some])
        keys, is_key = _padded(key_starts[some], num_keys[some])
        mask = np.where(is_key, np.float32(0), np.float32(-math.inf))[:, None]
        yield _Group(*(torch.from_numpy(part).to(device) for part in (queries, keys, is_query, mask)))


def _padded(starts: Ints, lengths: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Returns the rows of sentences, [M, longest], 0 for padding, and which are none."""
    steps = np.arange(lengths.max())
    is_there = steps < lengths[:, None]
    return np.where(is_there, starts[:, None] + steps, 0), is_there
