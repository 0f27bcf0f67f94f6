"""Label-smoothed cross entropy (5.4), computed in chunks of positions: logits of a whole batch never exist at once.

For one position with logits z, target y, V outputs and smoothing e, torch's definition:
    nll = -log softmax(z)[y],   loss = (1 - e) * nll + e / V * sum_j -log softmax(z)[j]
    d loss / d z_j = softmax(z)[j] - e / V - (1 - e) [j = y]
The forward pass also computes the gradient, chunk by chunk; the backward pass only scales it. The gradients of the
hidden states and of the weights are products with the matrix d loss / d z. Only softmax(z) - (1 - e) [j = y] is
multiplied as a matrix. The term e / V is the same for all outputs, so its part of each product is e / V times a sum of
the weights or of the hidden states. So the softmax is the only pass over all logits.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_CPU_CHUNK_ELEMENTS = 1 << 23  # logits held at once
_CPU_CHUNK_ELEMENTS_WITHOUT_GRADIENT = 1 << 21  # blocks of many MB leave holes in the memory of a process
_CHUNK_BYTES = 1 << 28  # the same elsewhere, in bytes: few, large products, whose gradients are sums over chunks
_CHUNK_BYTES_WITHOUT_GRADIENT = 1 << 26  # in a validation, beside all that training keeps in memory
_ALIGNMENT = 64  # the outputs are padded to a multiple: products of odd sizes are slow, above all on AMX and GPUs


@dataclass(frozen=True)
class LossSums:
    """Sums over the positions with a target; `loss` is differentiable, `nll` is unsmoothed."""

    loss: Tensor
    nll: Tensor


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float,
        scale: float | Tensor, with_grad: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        device = hidden.device.type
        compute = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        with torch.autocast(device, enabled=False):
            return _forward(ctx, hidden, weight, bias, targets, smoothing, scale, with_grad, compute)

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden, d_weight, d_bias = ctx.saved_tensors
        is_eager_on_cpu = grad_loss.device.type == "cpu" and not torch.compiler.is_compiling()
        if is_eager_on_cpu and grad_loss == 1:  # saves a pass over the vocabulary's gradient
            return d_hidden, d_weight, d_bias, None, None, None, None
        d_bias = None if d_bias is None else d_bias * grad_loss
        return d_hidden * grad_loss, d_weight * grad_loss, d_bias, None, None, None, None


def _forward(
    ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float,
    scale: float | Tensor, with_grad: bool, compute: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    num_outputs, d_model = weight.shape
    exact = torch.promote_types(compute, torch.float32)
    real = targets < num_outputs  # pad is the id after the last output
    y, mask = torch.where(real, targets, 0)[:, None], real[:, None]
    h, w = hidden.to(compute), F.pad(weight.to(compute), (0, 0, 0, -num_outputs % _ALIGNMENT))
    uniform = smoothing / num_outputs
    if with_grad:
        d_hidden, masked_h = torch.empty_like(h), h * mask
        d_weight = torch.zeros(w.shape, dtype=exact, device=w.device)
        d_bias = None if bias is None else torch.zeros(len(w), dtype=exact, device=w.device)
    log_p_y, z_y = torch.empty_like(y, dtype=exact), torch.empty_like(y, dtype=exact)
    rows, run = _rows_at_once(w, with_grad), _compiled_chunk if torch.compiler.is_compiling() else _chunk
    for start in range(0, len(targets), rows):
        part = slice(start, start + rows)
        if with_grad:
            z_y[part], p_y, d_hidden[part], d_weight_part, d_bias_part = run(
                h[part], w, bias, y[part], num_outputs, smoothing, masked_h[part], mask[part]
            )
            d_weight += d_weight_part
            if d_bias is not None:
                d_bias += d_bias_part
        else:
            z_y[part], p_y, *_ = run(h[part], w, bias, y[part], num_outputs, smoothing)
        log_p_y[part] = p_y.clamp_min(torch.finfo(torch.float32).tiny).log()  # so the nll of a token is at most 87
    if with_grad:
        d_hidden = (d_hidden - uniform * weight.sum(0)) * (mask * scale)
        d_weight = d_weight[:num_outputs].sub_(uniform * (hidden * mask).sum(0, dtype=exact)).mul_(scale)
        if d_bias is not None:
            d_bias = (d_bias[:num_outputs] - uniform * real.sum()) * scale
        ctx.save_for_backward(d_hidden.to(hidden.dtype), d_weight.to(weight.dtype), d_bias)
    mean_z = hidden.to(exact) @ weight.to(exact).mean(0) + (0 if bias is None else bias.mean())
    nll, spread = -log_p_y[:, 0] * real, (z_y - log_p_y)[:, 0] - mean_z  # z_y - log p_y = log sum_j exp(z_j)
    loss = (1 - smoothing) * nll.sum() + smoothing * (spread * real).sum()
    return loss * scale, nll.sum()


def _chunk(
    h: Tensor, w: Tensor, bias: Tensor | None, y: Tensor, num_outputs: int, smoothing: float,
    masked_h: Tensor | None = None, mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns z_y and softmax(z)_y of some positions, [n, 1], and the gradients of h, w and the bias.

    Gradients are empty without `masked_h`, and that of the bias without a bias.
    """
    exact = torch.promote_types(h.dtype, torch.float32)
    logits = h @ w.T
    if bias is not None:
        logits[:, :num_outputs] += bias.to(h.dtype)
    logits[:, num_outputs:] = -torch.inf
    p = torch.softmax(logits, -1)
    z_y, p_y = logits.gather(1, y).to(exact), p.gather(1, y).to(exact)
    if masked_h is None or mask is None:
        return z_y, p_y, h.new_empty(0), h.new_empty(0), h.new_empty(0)
    at_y = y[:, 0] + torch.arange(len(p), device=p.device) * len(w)
    p.view(-1).index_copy_(0, at_y, (p_y[:, 0] - (1 - smoothing)).to(h.dtype))
    d_bias = h.new_empty(0) if bias is None else (p * mask).sum(0, dtype=exact)
    return z_y, p_y, p @ w, p.T @ masked_h, d_bias


# A compiler would compute the logits of all chunks first, and hold them all in memory; it does not look into this.
_compiled_chunk = torch.library.custom_op("mtx::loss_chunk", _chunk, mutates_args=())


@_compiled_chunk.register_fake
def _(
    h: Tensor, w: Tensor, bias: Tensor | None, y: Tensor, num_outputs: int, smoothing: float,
    masked_h: Tensor | None = None, mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    exact = torch.promote_types(h.dtype, torch.float32)
    d_h, d_w = (h.new_empty(0) if masked_h is None else torch.empty_like(x) for x in (h, w))
    d_bias = h.new_empty(0) if masked_h is None or bias is None else w.new_empty(len(w), dtype=exact)
    return torch.empty_like(y, dtype=exact), torch.empty_like(y, dtype=exact), d_h, d_w, d_bias


def _rows_at_once(weight: Tensor, with_grad: bool) -> int:
    """The number of positions whose logits, products with `weight` in its type, are in memory at once."""
    if weight.device.type == "cpu":
        elements = _CPU_CHUNK_ELEMENTS if with_grad else _CPU_CHUNK_ELEMENTS_WITHOUT_GRADIENT
    else:
        elements = (_CHUNK_BYTES if with_grad else _CHUNK_BYTES_WITHOUT_GRADIENT) // weight.itemsize
    return max(1, elements // len(weight))


def smoothed_loss(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, scale: float | Tensor = 1.0
) -> LossSums:
    """Label-smoothed loss of packed hidden states, summed and multiplied by `scale`.

    Args:
        hidden: [N, D]. weight: [V, D]. bias: [V] or None.
        targets: int [N]; positions with the pad id (V) have no loss.
        scale: 1 / target tokens of the whole step, so that micro-batches add up to the mean of the step.
    """
    leaves = [tensor for tensor in (hidden, weight, bias) if tensor is not None]
    # Within the function torch has switched gradients off, and it says of weights that they need one even in no_grad.
    with_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in leaves)
    loss, nll = _ChunkedLoss.apply(hidden, weight, bias, targets, smoothing, scale, with_grad)  # type: ignore[no-untyped-call]
    return LossSums(loss, nll)
