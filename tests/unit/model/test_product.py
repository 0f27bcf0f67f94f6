"""A prepared product is the product."""

import pytest
import torch
from torch import Tensor, nn

from mtx.model import product
from mtx.model.product import Product


@pytest.fixture(params=["as it is here", "without oneDNN"], autouse=True)
def _operations(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without oneDNN":
        monkeypatch.setattr(product, "_onednn", lambda: None)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-4), (torch.bfloat16, 0.1)])
@pytest.mark.parametrize("rows", [1, 4, 67])
@torch.inference_mode()
def test_it_equals_the_linear_layers(dtype: torch.dtype, tolerance: float, rows: int) -> None:
    torch.manual_seed(rows)
    parts = [nn.Linear(24, 40), nn.Linear(24, 24)]
    x, residual = torch.randn(rows, 24, dtype=dtype), torch.randn(rows, 64, dtype=dtype)

    def close(got: Tensor, expected: Tensor) -> None:
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), expected, rtol=0, atol=tolerance)

    weights = [part.weight.to(dtype).double() for part in parts]
    biases = [part.bias.to(dtype).double() for part in parts]
    expected = torch.cat([x.double() @ w.T + b for w, b in zip(weights, biases, strict=True)], 1)
    both = Product.of(parts, dtype)
    close(both(x), expected)
    close(both(x, relu=True), expected.relu())
    close(both.plus(x, residual), expected + residual.double())
    halved = Product.of(parts, dtype, scale=0.5)(x)
    close(halved[:, :40], expected[:, :40] / 2)
    close(halved[:, 40:], expected[:, 40:])
    close(Product(parts[0].weight, None, dtype)(x), x.double() @ weights[0].T)
