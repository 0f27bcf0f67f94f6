"""Tokens are drawn with the probabilities that temperature, top-k, top-p and epsilon leave them."""

import numpy as np
import pytest
import torch
from torch import Tensor

from mtx.decoding.options import Sampling
from mtx.decoding.sampling import draw


def frequencies(sampling: Sampling, logits: list[float], count: int = 40_000) -> Tensor:
    uniform = (torch.arange(count)[:, None] + 0.5) / count  # evenly spaced: frequencies are exact to 1/count
    drawn = draw(torch.tensor(logits).expand(count, -1), uniform, sampling)
    return torch.bincount(drawn[:, 0], minlength=len(logits)) / count


@pytest.mark.parametrize(
    "sampling, possible",
    [
        (Sampling(), [0, 1, 2, 3, 4]),
        (Sampling(temperature=0.5), [0, 1, 2, 3, 4]),
        (Sampling(top_k=2), [3, 1]),
        (Sampling(top_p=0.5), [3, 1]),  # 0.4 alone is less
        (Sampling(top_p=0.39), [3]),
        (Sampling(top_p=0.75, temperature=2.0), [0, 1, 2, 3]),
        (Sampling(top_k=3, top_p=0.8), [3, 1]),  # of the three, 0.47 + 0.35 reach 0.8
        (Sampling(epsilon=0.12), [3, 1, 2]),
        (Sampling(epsilon=0.12, temperature=0.5), [3, 1]),  # 0.56 and 0.32; 0.15 became 0.08
        (Sampling(epsilon=0.6), [3]),  # no token has as much, so the most probable one is drawn
        (Sampling(epsilon=0.16, top_k=3), [3, 1, 2]),  # of the three, 0.15 is 0.18
        (Sampling(epsilon=0.35, top_p=0.75), [3]),
        (Sampling(epsilon=0.12, top_p=0.5), [3, 1]),
    ],
)
def test_tokens_are_drawn_as_often_as_they_are_probable(sampling: Sampling, possible: list[int]) -> None:
    logits = np.log([0.1, 0.3, 0.15, 0.4, 0.05])
    weights = np.exp(logits / sampling.temperature)
    expected = np.array([w if i in possible else 0.0 for i, w in enumerate(weights)])
    expected /= expected.sum()
    got = frequencies(sampling, logits.tolist())
    assert got.tolist() == pytest.approx(expected.tolist(), abs=1e-3)


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-24, 1.0])  # 1.0: what a product is that was rounded up
def test_a_token_below_epsilon_is_never_drawn(uniform: float) -> None:
    logits = torch.tensor([[0.05, 0.4, 0.05, 0.4, 0.1]]).log()
    token = draw(logits, torch.tensor([[uniform]]), Sampling(epsilon=0.2)).item()
    assert token == (3 if uniform else 1)
