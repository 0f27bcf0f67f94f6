"""A decoder alone that translates: one causal stack reads the source and then the target (as GPT does).

A sentence pair is one sequence: the source with its `</s>`, pad, and the earlier tokens of the target. Each position
sees all positions before it, and those of the target predict the next token. Positions count through both sides. Search
uses the copy that `mtx.architectures.decoder_only_inference` makes.

Shapes: N packed positions, D d_model.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtx.config.limits import MAX_LEARNED_POSITIONS
from mtx.config.schema import ModelConfig
from mtx.model.transformer import AttentionModel, EncoderLayer, apply
from mtx.model.translation_model import Batch


@dataclass(frozen=True)
class Memory:
    """The embeddings of the packed sources, [N_src, D]; they go through the stack with their targets."""

    embeddings: Tensor


class DecoderModel(AttentionModel):
    """The whole model: embeddings, a stack of layers with causal self-attention, and the weights of the output layer.

    Attributes:
        positions: the learned table, if positions are learned, for source and target together.
        source_loss: whether training also learns to predict the source.
    """

    def __init__(self, config: ModelConfig, num_ids: int):
        super().__init__(config, num_ids)
        self.source_loss = False
        shape = 2 * MAX_LEARNED_POSITIONS, config.d_model
        self.positions = nn.Parameter(torch.empty(shape)) if config.positions == "learned" else None
        self.decoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_decoder_layers))
        self.decoder_norm = nn.LayerNorm(config.d_model) if config.norm == "pre" else None
        if not self.embedding.is_meta:
            self.reset_parameters()

    @property
    def num_tgt_positions(self) -> int | None:
        """See `TranslationModel.num_tgt_positions`; a source has at most as many."""
        return None if self.positions is None else MAX_LEARNED_POSITIONS

    def learned_positions(self, source: bool) -> Tensor | None:
        """See `AttentionModel.learned_positions`."""
        return self.positions

    def prepare_positions(self, num_positions: int) -> None:
        """See `AttentionModel.prepare_positions`: for a source and a target of so many tokens each."""
        super().prepare_positions(2 * num_positions)

    def encode(self, batch: Batch) -> Memory:
        """Embeds the packed sources."""
        return Memory(self.embed(batch.src_ids, batch.src_positions, source=True))

    def decode(self, batch: Batch, memory: Memory) -> Tensor:
        """Runs the stack over sources and targets; returns the hidden states of the targets, [N_tgt, D]."""
        x, _, rows = self._run(batch, memory)
        return self._normed(x.index_select(0, rows))

    def predictions(self, batch: Batch) -> list[tuple[Tensor, Tensor]]:
        """See `TranslationModel.predictions`; with `source_loss` the source follows the target."""
        if not self.source_loss:
            return super().predictions(batch)
        x, src_rows, tgt_rows = self._run(batch, self.encode(batch))
        x = self._normed(x)
        source = x.index_select(0, src_rows), self.next_source_ids(batch)
        return [(x.index_select(0, tgt_rows), batch.tgt_out_ids), source]

    def next_source_ids(self, batch: Batch) -> Tensor:
        """What each position of a source predicts: the token after it, [N_src]; pad where the source ends."""
        following, positions = (F.pad(x[1:], (0, 1)) for x in (batch.src_ids, batch.src_positions))
        return following.masked_fill(positions == 0, self.pad_id)

    def _normed(self, x: Tensor) -> Tensor:
        return x if self.decoder_norm is None else apply(self.decoder_norm, x)

    def _run(self, batch: Batch, memory: Memory) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the states of the last layer, and which rows of them are those of sources and of targets."""
        device = self.embedding.device
        src, tgt = (offsets.to(device).long() for offsets in (batch.src_offsets, batch.tgt_offsets))
        sentence_of_src, sentence_of_tgt = _sentences(src, len(batch.src_ids)), _sentences(tgt, len(batch.tgt_in_ids))
        positions = batch.tgt_positions + (src[sentence_of_tgt + 1] - src[sentence_of_tgt])
        targets = self.embed(batch.tgt_in_ids, positions, source=False)
        src_rows = torch.arange(len(batch.src_ids), device=device) + tgt[sentence_of_src]
        tgt_rows = torch.arange(len(batch.tgt_in_ids), device=device) + src[sentence_of_tgt + 1]
        order = torch.argsort(torch.cat([src_rows, tgt_rows]))
        x = torch.cat([memory.embeddings, targets]).index_select(0, order)
        offsets = batch.src_offsets + batch.tgt_offsets
        layout = self.layout(offsets, offsets, batch, causal=True)
        for layer in self.decoder:
            x = layer(x, layout)
        return x, src_rows, tgt_rows


def _sentences(offsets: Tensor, num_rows: int) -> Tensor:
    """The number of the sentence that each packed row belongs to, [N], from where sentences begin."""
    rows = torch.arange(num_rows, device=offsets.device)
    return torch.searchsorted(offsets[1:].contiguous(), rows, right=True)
