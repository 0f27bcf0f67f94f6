"""Random sampling of the next token: temperature, top-k, top-p and epsilon (`Sampling` in options.py explains them).

A sample depends on the seed, its source, its prefix and its number, but not on other sentences of the batch. The
search in `mtx.decoding.beam_search` uses it in place of the best token.

Shapes: B slots, J beams (always 1 here), V outputs.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mtx.decoding.options import Request, Sampling


class Sampler:
    """Draws one token for each slot at a time.

    Attributes:
        uniform: a random number in [0, 1) for each slot and step of its sentence, [B, T].
    """

    def __init__(self, sampling: Sampling, num_slots: int, max_length: int, device: torch.device):
        self.sampling = sampling
        self.uniform = torch.zeros(num_slots, max_length, device=device)

    def admit(self, slots: list[int], requests: Sequence[Request]) -> None:
        """Draws the random numbers of these sentences for these slots, each by its source and prefix."""
        self.uniform[slots] = torch.from_numpy(np.stack(list(map(self._numbers, requests)))).to(self.uniform)

    def _numbers(self, request: Request) -> "np.typing.NDArray[np.float32]":
        key = repr((self.sampling.seed, request.sample, [*request.source, *request.prefix])).encode()
        number = int.from_bytes(hashlib.sha256(key).digest()[:16], "little")
        return np.random.Generator(np.random.Philox(key=number)).random(self.uniform.shape[1], dtype=np.float32)

    def draw(self, logits: Tensor, lengths: Tensor) -> Tensor:
        """Returns a token for each slot, [B, 1, 1], from logits [B, 1, V]; `lengths` [B] counts tokens so far."""
        return draw(logits[:, 0], self.uniform.gather(1, lengths[:, None]), self.sampling)[:, None]


def draw(logits: Tensor, uniform: Tensor, sampling: Sampling) -> Tensor:
    """Returns tokens [B, 1]: where the cumulative probability of logits [B, V] passes `uniform` [B, 1]."""
    values, size = logits / sampling.temperature, logits.shape[1]
    if not sampling.top_k and sampling.top_p == 1:
        tokens = torch.arange(size, device=logits.device).expand(len(logits), -1)
    else:
        values, tokens = values.topk(min(sampling.top_k or size, size), -1)  # most probable first
    exact = torch.float64 if logits.device.type in ("cpu", "cuda") else torch.float32  # MPS has no float64
    probs = torch.softmax(values.to(exact), -1)
    if sampling.top_p < 1:  # a token is in the nucleus if the sum before it is less than top_p
        before = torch.nn.functional.pad(probs.cumsum(-1)[:, :-1], (1, 0))
        probs = probs.masked_fill(before >= sampling.top_p, 0)
    if sampling.epsilon:  # the most probable token always stays
        probs = probs.masked_fill(probs < probs.amax(-1, keepdim=True).clamp(max=sampling.epsilon), 0)
    total = probs.cumsum(-1)
    mass = total[:, -1:].contiguous()
    rank = torch.searchsorted(total, uniform.to(exact) * mass, right=True)
    last = torch.searchsorted(total, mass).clamp(max=tokens.shape[1] - 1)  # the last one that may be drawn
    return tokens.gather(1, torch.minimum(rank, last))  # the product may be rounded to the mass
