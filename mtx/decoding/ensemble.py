"""Ensembles: several models with one tokenizer that search together, on torch.

Every step of the search takes the mean of the probabilities that the models give to the next token (Sutskever et al.
2014). Each model has its own encoder outputs and its own cache; the hypotheses are shared. An ensemble takes the time
of all its models together.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mtx.decoding.attention_maps import AttentionMaps
from mtx.decoding.continuous_batching import Model
from mtx.decoding.scoring import ForcedScore
from mtx.decoding.text_translator import Attention
from mtx.decoding.torch_engine import TorchTranslator
from mtx.errors import UsageError
from mtx.run.contents import require_models


def load_torch(model: str | Path, **options: Any) -> TorchTranslator:
    """Load MODEL, which may be an ensemble A+B, for torch.

    Args:
        options: see `TorchTranslator.load`.

    Raises:
        UsageError: the models of an ensemble have different tokenizers, or one of them cannot be loaded.
    """
    paths = require_models(model)
    members = [TorchTranslator.load(path, **options) for path in paths]
    if len(members) == 1:
        return members[0]
    for path, member in zip(paths[1:], members[1:], strict=True):
        if not member.tokenizer.is_same(members[0].tokenizer):
            help = f"train one with the tokenizer of the other: tokenizer.model={paths[0]}/model/tokenizer.model"
            raise UsageError(f"{paths[0]} and {path}: have different tokenizers, so they cannot search together", help)
    return Ensemble(members)


class Ensemble(TorchTranslator):
    """Translates with several models together; the search is that of the first one's configuration.

    Args:
        members: at least one, all with the same tokenizer, device and precision.
    """

    def __init__(self, members: Sequence[TorchTranslator]):
        first = members[0]
        super().__init__(
            first.model, first.tokenizer, min(member.max_tokens for member in members), first.options,
            precision=first.precision, threads=first.num_workers,
            batch_tokens=first.batch_tokens, src=first.src, tgt=first.tgt,
            splitter=first.splitter,
        )  # fmt: skip
        self.is_automatic, self.members = first.is_automatic, members
        positions = [member.num_tgt_positions for member in members if member.num_tgt_positions is not None]
        self.num_tgt_positions = min(positions, default=None)

    def cross_attention(self, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> list[Attention]:
        """See `TextTranslator.cross_attention`: the mean over the models."""
        by_member = [member.cross_attention(sources, targets) for member in self.members]
        return [np.mean(rows, axis=0, dtype=np.float32) for rows in zip(*by_member, strict=True)]

    def forced(self, src: Sequence[list[int]], tgt: Sequence[list[int]]) -> list[ForcedScore]:
        """Not there: an ensemble only translates; raises UsageError."""
        raise _refusal()

    def attention_maps(self, src: Sequence[str], tgt: Sequence[str] | None = None) -> list[AttentionMaps]:
        """Not there: an ensemble only translates; raises UsageError."""
        raise _refusal()

    def _new_engine(self) -> Model:
        return _ModelsTogether([member._new_engine() for member in self.members])

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for member in self.members:
                stack.enter_context(member._evaluating())
            yield


def _refusal() -> UsageError:
    return UsageError("an ensemble of models only translates", "give one of its models")


class _ModelsTogether:
    """What search calls of a model, on several."""

    def __init__(self, models: Sequence[Model]):
        self._models, self.pad_id, self.device = models, models[0].pad_id, models[0].device

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
