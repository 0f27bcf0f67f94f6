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
    d (m - m') / d z_j = p_j (u_j - m) + p_j - p'_j,   d (m - m') / d z'_j = -(p'_j (u_j - m') + p_j - p'_j)
With f = a / 2, what of 2 d loss / d z and 2 d loss / d z' has all outputs is therefore
    p_j (1 - f m + f u_j) + f (p_j - p'_j)   and   p'_j (1 + f m' - f u_j) - f (p_j - p'_j)
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mtx.formatting import divide_up, round_up

_CPU_CHUNK = 512  # positions whose logits are held at once: more leave the caches, fewer make small products
_CPU_CHUNK_ELEMENTS = 1 << 24  # the most logits that are held at once
# The same elsewhere, in bytes, or a share of the memory that a GPU has beyond 16 GB: gradients are sums over chunks,
# and a compiled step copies the output weight for each. With less memory, larger chunks would leave less for
# micro-batches.
_CHUNK_BYTES = 1 << 28
_CHUNK_SHARE = 1 / 32
_SMALL_MEMORY = 1 << 34
_ALIGNMENT = 64  # of the outputs, and of chunks on a GPU: products of odd sizes are slow, above all on AMX and GPUs


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
        num_outputs = len(weight)
        num_passes = len(hidden)
        scale = scale / num_passes
        mask = (targets < num_outputs)[:, None]  # pad is the id after the last output
        with torch.autocast(device, enabled=False):
            h = hidden.to(compute)
            w = F.pad(weight.to(compute), (0, 0, 0, -num_outputs % _ALIGNMENT))
            d_hidden = torch.empty_like(h)
            d_weight = torch.zeros_like(w, dtype=exact)
            d_bias = d_weight.new_zeros(0 if bias is None else len(w))
            sums = d_weight.new_zeros(3)
            rows = max(1, _rows_at_once(w, num_passes * len(targets)) // num_passes)
            run = _compiled_chunk if torch.compiler.is_compiling() else _chunk
            for start in range(0, len(targets), rows):
                part = slice(start, start + rows)
                d_hidden[:, part], d_weight_part, d_bias_part, sums_part = run(
                    h[:, part], w, bias, targets[part], num_outputs, smoothing, rdrop_alpha
                )
                d_weight += d_weight_part
                d_bias += d_bias_part
                sums += sums_part
            uniform = smoothing / num_outputs
            total = (hidden * mask).sum((0, 1), dtype=exact)
            count = num_passes * mask.sum()
            d_hidden = (d_hidden - uniform * weight.sum(0)) * (mask * scale)
            d_weight = d_weight[:num_outputs].sub_(uniform * total).mul_(scale)
            d_bias = (d_bias[:num_outputs] - uniform * count) * scale
            ctx.save_for_backward(d_hidden.to(hidden.dtype), d_weight.to(weight.dtype), d_bias)
            nll, z_y, divergence = sums
            mean_z = total @ weight.to(exact).mean(0) + (0 if bias is None else count * bias.mean())
            spread = z_y + nll - mean_z  # z_y - log p_y = log sum_j exp(z_j)
            loss = (1 - smoothing) * nll + smoothing * spread + rdrop_alpha / 2 * divergence
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
    rdrop_alpha: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Some positions of all passes.

    Args:
        h: [P, n, D]. w: with rows that are added to `num_outputs`. targets: [n].

    Returns:
        The gradients of h, of w and of the bias, which is empty without a bias; and the sums of -log softmax(z)_y, of
        z_y and of the divergence of two passes.
    """
    exact = torch.promote_types(h.dtype, torch.float32)
    mask = (targets < num_outputs)[:, None]
    logits = h.flatten(0, 1) @ w.T
    if bias is not None:
        logits[:, :num_outputs] += bias.to(h.dtype)
    logits[:, num_outputs:] = torch.finfo(logits.dtype).min  # their softmax is 0, and so is the difference of two
    p = torch.softmax(logits, -1)
    ys = torch.where(mask, targets[:, None], 0).repeat(len(h), 1)
    is_real = mask.repeat(len(h), 1)
    z_y = logits.gather(1, ys).to(exact)
    p_y = p.gather(1, ys).to(exact)
    log_p_y = p_y.clamp_min(torch.finfo(torch.float32).tiny).log()  # a token's nll is at most 87
    divergence = _add_divergence(logits, p, rdrop_alpha / 2) * mask if rdrop_alpha else z_y.new_zeros(1)
    sums = torch.stack([(-log_p_y * is_real).sum(), (z_y * is_real).sum(), divergence.sum()])
    rows = torch.arange(len(p), device=p.device)[:, None]  # on a CPU, scatter_ would copy all of p in bf16, twice
    p[rows, ys] = (p[rows, ys].to(exact) - (1 - smoothing)).to(p.dtype)
    d_bias = z_y.new_empty(0) if bias is None else (p * is_real).sum(0, dtype=exact)
    return (p @ w).view_as(h), p.T @ (h * mask).flatten(0, 1), d_bias, sums


def _add_divergence(logits: Tensor, p: Tensor, factor: float) -> Tensor:
    """Adds the gradient of `factor` times the divergence of two passes to p; returns the divergence, [n, 1].

    Args:
        logits, p: [2n, V], the logits of one pass after those of the other, and their softmax.
    """
    exact = torch.promote_types(p.dtype, torch.float32)
    z1, z2 = logits.chunk(2)
    p1, p2 = p.chunk(2)
    u = z1 - z2
    difference = p1 - p2
    # A sum in another type than that of the elements would copy all of them.
    divergence: Tensor = torch.linalg.vecdot(difference, u)[:, None].to(exact)
    m1: Tensor = torch.linalg.vecdot(p1, u)[:, None].to(exact)
    for q, m, f in ((p1, m1, factor), (p2, m1 - divergence, -factor)):
        q.mul_(torch.add((1 - f * m).to(p.dtype), u, alpha=f)).add_(difference, alpha=f)
    return divergence


# A compiler would compute the logits of all chunks first, and hold them all in memory; it does not look into this.
_compiled_chunk = torch.library.custom_op("mtx::loss_chunk", _chunk, mutates_args=())
_compiled_chunk.register_fake(_chunk)  # which gives the shapes


def _rows_at_once(weight: Tensor, num_rows: int) -> int:
    """The number of positions whose logits, products with `weight` in its type, are in memory at once; perhaps 0.

    On a GPU the chunks of all `num_rows` positions are equal, for a short last one would cost as much as a whole one.
    """
    if weight.device.type == "cpu":
        return min(_CPU_CHUNK, _CPU_CHUNK_ELEMENTS // len(weight))
    most_bytes = _CHUNK_BYTES
    if weight.device.type == "cuda":
        memory = torch.cuda.get_device_properties(weight.device).total_memory
        most_bytes = max(most_bytes, int(_CHUNK_SHARE * (memory - _SMALL_MEMORY)))
    most_rows = max(1, most_bytes // (weight.itemsize * len(weight) * _ALIGNMENT)) * _ALIGNMENT
    num_chunks = max(1, divide_up(num_rows, most_rows))
    return round_up(divide_up(num_rows, num_chunks), _ALIGNMENT)


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
    return LossSums(*_ChunkedLoss.apply(passes, weight, bias, targets, smoothing, rdrop_alpha, scale))  # type: ignore[no-untyped-call]
