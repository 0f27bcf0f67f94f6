"""Ensembles: several models with one tokenizer that search together, on torch.

Every step of the search takes the mean of the probabilities that the models give to the next token (Sutskever et al.
2014). Each model has its own encoder outputs and its own cache; the hypotheses are shared. An ensemble takes the time
of all its models together.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mtx.decoding.continuous_batching import Model


class ModelsTogether:
    """What search calls of a model, on several."""

    def __init__(self, models: Sequence[Model]):
        self._models, self.pad_id = models, models[0].pad_id
        self.device = models[0].device

    def encode(self, sources: Sequence[Any]) -> list[Any]:
        return [model.encode(sources) for model in self._models]

    def source_states(self, sources: Sequence[Any]) -> list[Tensor]:
        """Returns the outputs of all encoders side by side, [S, D of all]."""
        by_model = [model.source_states(sources) for model in self._models]
        return [torch.cat(states, -1) for states in zip(*by_model, strict=True)]

    def start(self, num_slots: int, beam_size: int, max_length: int) -> "_CachesTogether":
        return _CachesTogether([model.start(num_slots, beam_size, max_length) for model in self._models])

    def step(self, ids: Tensor, lengths: Tensor, cache: "_CachesTogether") -> Tensor:
        """Returns the logarithm of the mean probability, up to a constant, which are logits of the mean, [B, J, V]."""
        steps = (model.step(ids, lengths, own) for model, own in zip(self._models, cache.caches, strict=True))
        return torch.stack([torch.log_softmax(logits, -1, dtype=torch.float) for logits in steps]).logsumexp(0)


class _CachesTogether:
    """What search calls of a cache, on those of several models."""

    def __init__(self, caches: Sequence[Any]):
        self.caches = caches

    def admit(self, slots: list[int], sources: list[Any], rows: list[int]) -> None:
        for cache, encoded in zip(self.caches, sources, strict=True):
            cache.admit(slots, encoded, rows)

    def release(self, slots: list[int]) -> None:
        for cache in self.caches:
            cache.release(slots)

    def prepare(self) -> int:
        return sum(cache.prepare() for cache in self.caches)  # each only grows, so the sum tells every change

    def count_step(self) -> None:
        for cache in self.caches:
            cache.count_step()

    def reorder(self, parents: Tensor) -> None:
        for cache in self.caches:
            cache.reorder(parents)
