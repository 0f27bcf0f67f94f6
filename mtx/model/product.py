"""Products with weights that do not change any more: what decoding does most.

On a CPU the weights are brought once into the layout that oneDNN multiplies fastest. With few rows, when reading the
weights is what takes time, that halves it; with many it saves a tenth to a quarter (docs/decisions.md). The operations
are those that torch's own compiler uses; where this torch or machine lacks them, the plain ones serve.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

_ONEDNN_TYPES = torch.float32, torch.bfloat16


class Product:
    """x W^T + b for x [N, in], with a weight [out, in] and a bias [out] or none."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype):
        self.bias = None if bias is None else bias.detach().to(dtype)
        weight = weight.detach().to(dtype)
        self._ops: Any = _onednn() if weight.device.type == "cpu" and dtype in _ONEDNN_TYPES else None
        self._weight = weight.T.contiguous() if self._ops is None else self._ops._reorder_linear_weight(weight)

    @classmethod
    def of(cls, parts: Sequence[nn.Linear], dtype: torch.dtype, scale: float = 1.0) -> "Product":
        """Linear layers side by side as one product; `scale` is a factor of the first."""
        factors = [scale] + [1.0] * (len(parts) - 1)
        weights = [part.weight * factor for part, factor in zip(parts, factors, strict=True)]
        biases = [part.bias * factor for part, factor in zip(parts, factors, strict=True)]
        return cls(torch.cat(weights), torch.cat(biases), dtype)

    def __call__(self, x: Tensor, relu: bool = False) -> Tensor:
        if self._ops is not None:
            out: Tensor = self._ops._linear_pointwise(x, self._weight, self.bias, "relu" if relu else "none", [], "")
            return out
        out = torch.mm(x, self._weight) if self.bias is None else torch.addmm(self.bias, x, self._weight)
        return out.relu_() if relu else out

    def plus(self, x: Tensor, residual: Tensor) -> Tensor:
        """x W^T + b + residual."""
        if self._ops is not None:
            out: Tensor = self._ops._linear_pointwise.binary(x, residual, self._weight, self.bias, "add")
            return out
        return self(x).add_(residual)


def _onednn() -> Any:
    """The operations of oneDNN in torch, or None where there are none."""
    ops = torch.ops.mkldnn
    names = "_reorder_linear_weight", "_linear_pointwise"
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return ops if has_onednn and all(hasattr(ops, name) for name in names) else None
