"""What all architectures have in common: embeddings, the weights of the output layer, and what training calls.

Training knows a model by `encode`, `decode`, `output_weight`, `output_bias`, `pad_id`, `prepare_positions` and
`step_tensors`. `mtx.model.architectures` lists the models that there are.
"""

from abc import abstractmethod
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from mtx.config.schema import ModelConfig
from mtx.model.attention import Kernel


class Batch(Protocol):
    """The fields of a packed batch that a model reads; `mtx.data.packing.PackedBatch` defines them."""

    @property
    def src_ids(self) -> Tensor: ...
    @property
    def src_positions(self) -> Tensor: ...
    @property
    def src_offsets(self) -> Tensor: ...
    @property
    def tgt_in_ids(self) -> Tensor: ...
    @property
    def tgt_out_ids(self) -> Tensor: ...
    @property
    def tgt_positions(self) -> Tensor: ...
    @property
    def tgt_offsets(self) -> Tensor: ...
    @property
    def num_sentences(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...


class TranslationModel(nn.Module):
    """A model of packed batches of sentence pairs.

    Args:
        num_ids: number of rows of the output layer, V. An embedding has one more row, for pad; it stays zero.

    Attributes:
        embedding: of the target's tokens and, unless there is a `src_embedding`, of the source's, [V + 1, D].
        projection: the weights of the output layer, if they are not those of `embedding`, [V, D].
        tgt_positions: learned positions of the target, if the model has them; it writes no longer translations.
        kernel: how attention is computed.
        source_loss: whether training also learns to predict the source, which only some models can.
    """

    source_loss = False

    def __init__(self, config: ModelConfig, num_ids: int):
        super().__init__()
        self.config = config
        self.pad_id = num_ids
        self.kernel: Kernel = "padded"
        d_model = config.d_model
        self.embedding = nn.Parameter(torch.empty(num_ids + 1, d_model))
        self.src_embedding = None if config.tie == "all" else nn.Parameter(torch.empty(num_ids + 1, d_model))
        self.projection = nn.Parameter(torch.empty(num_ids, d_model)) if config.tie == "none" else None
        self.output_bias = nn.Parameter(torch.zeros(num_ids)) if config.output_bias else None
        self.tgt_positions: nn.Parameter | None = None

    @property
    def output_weight(self) -> Tensor:
        """The matrix [V, D] of the output layer: logits are hidden @ output_weight^T (+ output_bias)."""
        return self.embedding[:-1] if self.projection is None else self.projection

    @property
    def source_embedding(self) -> Tensor:
        """The embeddings of the source's tokens, [V + 1, D]."""
        return self.embedding if self.src_embedding is None else self.src_embedding

    @torch.no_grad()
    def reset_embeddings(self) -> None:
        """Draws the matrices with a row for each token from N(0, d_model^-1/2); the rows of pad are zero."""
        for table in (self.embedding, self.src_embedding, self.projection):
            if table is not None:
                nn.init.normal_(table, std=self.config.d_model**-0.5)
                table[self.pad_id :].zero_()

    @property
    def num_tgt_positions(self) -> int | None:
        """The most tokens of a translation; None means any number."""
        return None if self.tgt_positions is None else len(self.tgt_positions)

    def prepare_positions(self, num_positions: int) -> None:
        """Makes ready for sentences of `num_positions` tokens; call it before `encode` and `decode`."""

    def step_tensors(self) -> list[Tensor]:
        """Returns all tensors of the model that a training step reads or writes.

        A recorded step uses their addresses: it is valid as long as none of them is replaced, moved or freed.
        """
        gradients = [parameter.grad for parameter in self.parameters() if parameter.grad is not None]
        return [*self.parameters(), *gradients, *self.buffers()]

    @abstractmethod
    def encode(self, batch: Batch) -> Any:
        """Reads the packed sources; returns what `decode` needs of them."""

    @abstractmethod
    def decode(self, batch: Batch, memory: Any) -> Tensor:
        """Reads the earlier tokens of the reference; returns hidden states, [N_tgt, D]."""

    def predictions(self, batch: Batch) -> list[tuple[Tensor, Tensor]]:
        """The hidden states of what training learns to predict, [N, D], each with the tokens [N]: first the target."""
        return [(self.decode(batch, self.encode(batch)), batch.tgt_out_ids)]
