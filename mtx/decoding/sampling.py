"""Drawing the next token: temperature, the k most probable, the nucleus.

What is drawn for a source depends on the seed, on that source and on the number of the sample, not on its company.

Shapes: B slots, J beams (always 1 here), V outputs.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mtx.decoding.options import Sampling


class Sampler:
    """Draws one token for each slot at a time.

    Attributes:
        uniform: a number in [0, 1) for each slot and age, [B, T].
    """

    def __init__(self, sampling: Sampling, num_slots: int, max_length: int, device: torch.device):
        self.sampling = sampling
        self.uniform = torch.zeros(num_slots, max_length, device=device)

    def admit(self, slots: list[int], sources: Sequence[Sequence[int]], samples: Sequence[int]) -> None:
        """Take the random numbers of these sentences into these slots."""
        rows = [self._numbers(source, sample) for source, sample in zip(sources, samples, strict=True)]
        at = torch.tensor(slots, device=self.uniform.device)
        self.uniform[at] = torch.from_numpy(np.stack(rows)).to(self.uniform)

    def _numbers(self, source: Sequence[int], sample: int) -> "np.typing.NDArray[np.float32]":
        key = hashlib.sha256(repr((self.sampling.seed, sample, list(source))).encode()).digest()
        generator = np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "little")))
        return generator.random(self.uniform.shape[1], dtype=np.float32)

    def keep(self, slots: list[int]) -> None:
        """Only these slots stay, renumbered in this order."""
        self.uniform = self.uniform[torch.tensor(slots, device=self.uniform.device)]

    def draw(self, logits: Tensor, ages: Tensor) -> Tensor:
        """A token for each slot, [B, 1, 1], from logits [B, 1, V]: the inverse of the cumulative probabilities."""
        return draw(logits[:, 0], self.uniform.gather(1, ages[:, None]), self.sampling)[:, None]


def draw(logits: Tensor, uniform: Tensor, sampling: Sampling) -> Tensor:
    """A token for each row of logits [B, V] and number [B, 1] in [0, 1), [B, 1]."""
    values, size = logits / sampling.temperature, logits.shape[1]
    if not sampling.top_k and sampling.top_p == 1:
        tokens = torch.arange(size, device=logits.device).expand(len(logits), -1)
    else:
        values, tokens = values.topk(min(sampling.top_k or size, size), -1)  # in falling order
    total = torch.softmax(values.double(), -1).cumsum(-1)
    if sampling.top_p < 1:  # the fewest whose sum reaches top_p: those before which it is not reached
        before = torch.cat([torch.zeros_like(total[:, :1]), total[:, :-1]], -1)
        number = (before < sampling.top_p).sum(-1, keepdim=True)
        whole = total.gather(1, number - 1)
    else:
        whole = total[:, -1:]
    at = torch.searchsorted(total, uniform.double() * whole, right=True)
    return tokens.gather(1, at.clamp(max=tokens.shape[1] - 1))
