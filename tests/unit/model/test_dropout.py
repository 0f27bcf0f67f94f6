"""The CPU's own dropout has the rate, mean and gradient of dropout."""

import pytest
import torch

from mtx.model.translation_model import dropout


@pytest.mark.parametrize("probability", [0.1, 0.3, 0.5])
def test_rate_and_mean(probability: float) -> None:
    torch.manual_seed(1)
    x = torch.ones(1000, 1001)  # no multiple of eight
    out = dropout(x, probability, training=True)
    zeros = (out == 0).double().mean()
    rounded = round(probability * 256) / 256
    assert abs(float(zeros) - rounded) < 0.0025  # 5 standard errors of 0.5 / 1000
    assert abs(float(out.double().mean()) - 1) < 0.005
    kept = out[out != 0]
    assert (kept == kept[0]).all()
    assert float(kept[0]) == pytest.approx(1 / (1 - rounded))


def test_neighbours_are_independent() -> None:
    torch.manual_seed(1)
    zeros = dropout(torch.ones(400_000), 0.5, training=True).eq(0).double()
    for distance in (1, 2, 3, 4, 8):
        both = zeros[:-distance] * zeros[distance:]
        assert abs(float(both.mean()) - 0.25) < 0.005


def test_nothing_happens_in_evaluation_or_at_zero() -> None:
    x = torch.randn(5, 7)
    assert dropout(x, 0.5, training=False) is x
    assert dropout(x, 0.0, training=True) is x


def test_the_same_seed_gives_the_same_mask_and_the_next_call_another() -> None:
    x = torch.ones(50, 9)
    torch.manual_seed(1)
    first, second = dropout(x, 0.5, True), dropout(x, 0.5, True)
    torch.manual_seed(1)
    assert torch.equal(dropout(x, 0.5, True), first)
    assert not torch.equal(second, first)


def test_the_gradient_has_the_mask_of_the_output() -> None:
    torch.manual_seed(1)
    x = torch.ones(10, 10, requires_grad=True)
    out = dropout(x, 0.4, True)
    out.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, out.detach())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_type_stays(dtype: torch.dtype) -> None:
    assert dropout(torch.ones(9, dtype=dtype), 0.5, True).dtype == dtype
