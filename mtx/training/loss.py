"""Label-smoothed cross entropy (5.4), computed in chunks of positions: logits of a whole batch never exist at once.

For one position with logits z, target y, V outputs and smoothing e, torch's definition:
    nll = -log softmax(z)[y],   loss = (1 - e) * nll + e / V * sum_j -log softmax(z)[j]
    d loss / d z_j = softmax(z)[j] - e / V - (1 - e) [j = y]
The forward pass also computes the gradient, chunk by chunk; the backward pass only scales it. The gradients of the
hidden states and of the weights are products with the matrix d loss / d z. Only softmax(z) - (1 - e) [j = y] is
multiplied as a matrix, with rdrop_alpha also the gradient of the divergence. The term e / V is the same for all
outputs, so its part of each product is e / V times a sum of the weights or of the hidden states. Without
rdrop_alpha the softmax is the only pass over all logits.

With rdrop_alpha a (R-Drop, Liang et al. 2021, arXiv 2106.14448) each position has the logits z and z' of two passes
that differ in their dropout, with p = softmax(z) and p' = softmax(z'):
    loss = (loss of z + loss of z') / 2 + a / 4 * (KL(p || p') + KL(p' || p))
With u = z - z' and m = sum_j p_j u_j, m' = sum_j p'_j u_j, the sum of both divergences is m - m', and
    d (m - m') / d z_j = p_j * (1 + u_j - m) - p'_j,   d (m - m') / d z'_j = p'_j * (1 - u_j + m') - p_j
With f = a / 2, what of 2 d loss / d z and 2 d loss / d z' has all outputs is therefore f and -f times
    p_j - p'_j + p_j * (1 / f + u_j - m)   and   p_j - p'_j - p'_j * (1 / f - u_j + m')
and the products are made of these; f and the sign multiply their results and the hidden states, which are smaller.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_CPU_CHUNK = 512  # positions whose logits are held at once: more leave the caches, fewer make small products
_CPU_CHUNK_ELEMENTS = 1 << 24  # the most logits that are held at once
_CHUNK_BYTES = 1 << 28  # the same elsewhere, in bytes: few, large products, whose gradients are sums over chunks
_LEAST_FACTOR = 1e-6  # a weight of the divergence that makes no difference, and has an inverse
_ALIGNMENT = 64  # the outputs are padded to a multiple: products of odd sizes are slow, above all on AMX and GPUs


class LossSums(NamedTuple):
    """Sums over the positions with a target; `loss` is differentiable, `nll` is unsmoothed."""

    loss: Tensor
    nll: Tensor


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        rdrop_alpha: float,
        scale: float | Tensor,
    ) -> tuple[Tensor, Tensor]:
        device = hidden.device.type
        compute = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        exact = torch.promote_types(compute, torch.float32)
        num_outputs, num_passes = len(weight), len(hidden)
        scale = scale / num_passes
        mask = (targets < num_outputs)[:, None]  # pad is the id after the last output
        with torch.autocast(device, enabled=False):
            h, w = hidden.to(compute), F.pad(weight.to(compute), (0, 0, 0, -num_outputs % _ALIGNMENT))
            divergence_factor = max(rdrop_alpha / 2, _LEAST_FACTOR) if rdrop_alpha else 0.0
            factor = divergence_factor or 1.0
            uniform = smoothing / num_outputs / factor
            d_hidden, d_weight = torch.empty_like(h), torch.zeros_like(w, dtype=exact)
            d_bias = d_weight.new_zeros(0 if bias is None else len(w))
            log_p_y, z_y = (d_weight.new_empty((*h.shape[:2], 1)) for _ in range(2))
            divergence = d_weight.new_empty((len(targets), 1))
            rows = max(1, _rows_at_once(w) // num_passes)
            run = _compiled_chunk if torch.compiler.is_compiling() else _chunk
            for start in range(0, len(targets), rows):
                part = slice(start, start + rows)
                z_y[:, part], log_p_y[:, part], divergence[part], d_hidden[:, part], d_weight_part, d_bias_part = run(
                    h[:, part], w, bias, targets[part], num_outputs, smoothing, divergence_factor
                )
                d_weight += d_weight_part
                d_bias += d_bias_part
            scale_of_products = scale * factor
            d_hidden = (d_hidden - uniform * weight.sum(0)) * (mask * scale_of_products)
            d_weight = d_weight[:num_outputs].sub_(uniform * (hidden * mask).sum((0, 1), dtype=exact))
            d_weight.mul_(scale_of_products)
            d_bias = (d_bias[:num_outputs] - num_passes * uniform * mask.sum()) * scale_of_products
            ctx.save_for_backward(d_hidden.to(hidden.dtype), d_weight.to(weight.dtype), d_bias)
            mean_z = hidden.to(exact) @ weight.to(exact).mean(0) + (0 if bias is None else bias.mean())
            nll = (-log_p_y * mask).sum()
            spread = z_y - log_p_y - mean_z[..., None]  # z_y - log p_y = log sum_j exp(z_j)
            loss = (1 - smoothing) * nll + smoothing * (spread * mask).sum()
            loss = loss + rdrop_alpha / 2 * (divergence * mask).sum()
            return loss * scale, nll / num_passes

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ctx.saved_tensors
        is_eager_on_cpu = grad_loss.device.type == "cpu" and not torch.compiler.is_compiling()
        if not is_eager_on_cpu or grad_loss != 1:  # else it saves a pass over the vocabulary's gradient
            gradients = [gradient * grad_loss for gradient in gradients]
        d_hidden, d_weight, d_bias = gradients
        return d_hidden, d_weight, d_bias if ctx.needs_input_grad[2] else None, None, None, None, None


def _chunk(
    h: Tensor,
    w: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    num_outputs: int,
    smoothing: float,
    factor: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Some positions of all passes.

    Args:
        h: [P, n, D]. w: with rows that are added to `num_outputs`. targets: [n].
        factor: f, which the gradients are divided by until their products are made; 0 without a divergence.

    Returns:
        z_y and log softmax(z)_y, [P, n, 1]; the divergence of two passes, [n, 1]; and the gradients of h, of w and of
        the bias, divided by f. That of the bias is empty without a bias.
    """
    exact = torch.promote_types(h.dtype, torch.float32)
    mask = (targets < num_outputs)[:, None]
    y = torch.where(mask, targets[:, None], 0)
    logits = h.flatten(0, 1) @ w.T
    if bias is not None:
        logits[:, :num_outputs] += bias.to(h.dtype)
    logits[:, num_outputs:] = torch.finfo(logits.dtype).min  # their softmax is 0, and so is the difference of two
    p = torch.softmax(logits, -1)
    ys = y.repeat(len(h), 1)
    shape = (*h.shape[:2], 1)
    z_y, p_y = (values.gather(1, ys).to(exact).view(shape) for values in (logits, p))
    log_p_y = p_y.clamp_min(torch.finfo(torch.float32).tiny).log()  # a token's nll is at most 87
    divergence, signs = torch.zeros_like(y, dtype=exact), torch.ones_like(h[:, :1, :1], dtype=torch.long)
    if factor:
        divergence, signs[1] = _divergence(logits, p, factor), -1
    at_y = ys[:, 0] + torch.arange(len(p), device=p.device) * len(w)
    d_y = p.gather(1, ys).to(exact).view(shape) - (1 - smoothing) / (factor or 1.0) * signs.to(exact)
    p.view(-1).index_copy_(0, at_y, d_y.flatten().to(h.dtype))
    d_logits = p.view(*shape[:2], -1)
    mask = mask * signs
    d_bias = z_y.new_empty(0) if bias is None else (d_logits * mask).sum((0, 1), dtype=exact)
    return z_y, log_p_y, divergence, (d_logits @ w) * signs, p.T @ (h * mask).flatten(0, 1), d_bias


def _divergence(logits: Tensor, p: Tensor, factor: float) -> Tensor:
    """The divergence of two passes, [n, 1]; the gradient over all outputs takes the place of p.

    It is divided by `factor` and -factor as the module says, so that neither half is multiplied or negated on its own.

    Args:
        logits, p: [2n, V], the logits of one pass after those of the other, and their softmax; both change.
    """
    exact = torch.promote_types(p.dtype, torch.float32)
    difference, u = logits.chunk(2)
    p1, p2 = p.chunk(2)
    torch.sub(difference, u, out=u)
    torch.sub(p1, p2, out=difference)
    # A sum in another type than that of the elements would copy all of them.
    sums: list[Tensor] = [torch.linalg.vecdot(q, u)[:, None].to(exact) for q in (difference, p1)]
    divergence, m1 = sums
    c1, c2 = ((1 / factor + m).to(p.dtype) for m in (-m1, m1 - divergence))
    torch.addcmul(difference, p1, c1 + u, out=p1)
    torch.addcmul(difference, p2, torch.sub(c2, u, out=u), value=-1, out=p2)
    return divergence


# A compiler would compute the logits of all chunks first, and hold them all in memory; it does not look into this.
_compiled_chunk = torch.library.custom_op("mtx::loss_chunk", _chunk, mutates_args=())


@_compiled_chunk.register_fake
def _(
    h: Tensor,
    w: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    num_outputs: int,
    smoothing: float,
    factor: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    of_positions = h.new_empty((*h.shape[:2], 1), dtype=torch.promote_types(h.dtype, torch.float32))
    z_y, log_p_y = of_positions, torch.empty_like(of_positions)
    d_bias = of_positions.new_empty(0 if bias is None else len(w))
    return z_y, log_p_y, torch.empty_like(z_y[0]), torch.empty_like(h), torch.empty_like(w), d_bias


def _rows_at_once(weight: Tensor) -> int:
    """The number of positions whose logits, products with `weight` in its type, are in memory at once."""
    if weight.device.type == "cpu":
        return min(_CPU_CHUNK, max(1, _CPU_CHUNK_ELEMENTS // len(weight)))
    return max(1, _CHUNK_BYTES // weight.itemsize // len(weight))


def smoothed_loss(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    smoothing: float,
    scale: float | Tensor = 1.0,
    rdrop_alpha: float = 0.0,
) -> LossSums:
    """Label-smoothed loss of packed hidden states, summed and multiplied by `scale`.

    Args:
        hidden: [N, D], or [2, N, D] for the mean of two passes and the divergence between them.
        weight: [V, D]. bias: [V] or None.
        targets: int [N]; positions with the pad id (V) have no loss.
        scale: 1 / target tokens of the whole step, so that micro-batches add up to the mean of the step.
        rdrop_alpha: the weight of the divergence, for two passes.
    """
    passes = hidden if hidden.dim() == 3 else hidden[None]
    sums = _ChunkedLoss.apply(passes, weight, bias, targets, smoothing, rdrop_alpha, scale)  # type: ignore[no-untyped-call]
    return LossSums(*sums)
