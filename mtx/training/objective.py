"""Label-smoothed cross entropy (5.4) computed in chunks, so that the logits of a whole batch never exist at once.

For one position with logits z, target y, V outputs and smoothing e, torch's definition:
    nll = -log softmax(z)[y],   loss = (1 - e) * nll + e / V * sum_j -log softmax(z)[j]
The forward pass computes the gradient too, chunk by chunk; the backward pass only scales it.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_CHUNK_ELEMENTS = {"cpu": 1 << 22}  # logits held at once, in elements
_CHUNK_ELEMENTS_ELSEWHERE = 1 << 27  # few large kernels; half a GB of fp32


@dataclass(frozen=True)
class LossSums:
    """Sums over the positions that carry loss; `loss` can be differentiated, `nll` is unsmoothed."""

    loss: Tensor
    nll: Tensor


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, scale: float
    ) -> tuple[Tensor, Tensor]:
        compute = (
            torch.get_autocast_dtype(hidden.device.type)
            if torch.is_autocast_enabled(hidden.device.type)
            else hidden.dtype
        )
        with torch.autocast(hidden.device.type, enabled=False):
            return _forward(ctx, hidden, weight, bias, targets, smoothing, scale, compute)

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden, d_weight, d_bias = ctx.saved_tensors
        return (
            d_hidden * grad_loss,
            d_weight * grad_loss,
            None if d_bias is None else d_bias * grad_loss,
            None,
            None,
            None,
        )


def _forward(
    ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, scale: float,
    compute: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    num_outputs = weight.shape[0]
    real = targets < num_outputs  # pad is the id after the last output
    hidden_c, weight_c = hidden.to(compute), weight.to(compute)
    with_grad = any(ctx.needs_input_grad)
    d_hidden = torch.empty_like(hidden_c)
    d_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
    d_bias = torch.zeros(num_outputs, dtype=torch.float32, device=weight.device) if bias is not None else None
    loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
    nll = torch.zeros_like(loss)
    elements = _CHUNK_ELEMENTS.get(hidden.device.type, _CHUNK_ELEMENTS_ELSEWHERE)
    chunk = max(1, elements // num_outputs)
    for start in range(0, len(targets), chunk):
        part = slice(start, start + chunk)
        mask = real[part]
        y = torch.where(mask, targets[part], 0)[:, None]
        logits = hidden_c[part] @ weight_c.T
        if bias is not None:
            logits = logits + bias.to(compute)
        log_p = torch.log_softmax(logits.float(), -1)  # 1.4 times faster on a CPU than converting inside
        part_nll = -log_p.gather(1, y)[:, 0] * mask
        nll += part_nll.sum()
        loss += (1 - smoothing) * part_nll.sum() - smoothing / num_outputs * (log_p.sum(-1) * mask).sum()
        if with_grad:
            d_logits = log_p.exp_().sub_(smoothing / num_outputs)
            d_logits.scatter_add_(1, y, torch.full_like(y, smoothing - 1, dtype=torch.float32))
            d_logits *= (mask * scale)[:, None]
            if d_bias is not None:
                d_bias += d_logits.sum(0)
            d_logits = d_logits.to(compute)
            torch.mm(d_logits, weight_c, out=d_hidden[part])
            d_weight += d_logits.T @ hidden_c[part]
    ctx.save_for_backward(d_hidden.to(hidden.dtype), d_weight.to(weight.dtype), d_bias)
    return loss * scale, nll


def smoothed_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, scale: float = 1.0
) -> LossSums:
    """Label-smoothed loss of packed hidden states, summed and multiplied by `scale`.

    Args:
        hidden: [N, D]. weight: [V, D]. bias: [V] or None.
        targets: int [N]; positions with the pad id (V) carry no loss.
        scale: 1 / target tokens of the whole step, so that micro-batches add up to the mean of the step.
    """
    loss, nll = _ChunkedLoss.apply(hidden, weight, bias, targets, smoothing, scale)  # type: ignore[no-untyped-call]
    return LossSums(loss, nll)
