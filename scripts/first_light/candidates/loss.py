"""Softmax and target of the loss as one Triton kernel, which turns logits into their gradient in place.

`mtx.training.loss` has the formulas. A program has one row and passes over it twice: for the sum of the exponentials,
and to write the gradient; the second time it finds the row in the L2 cache. A row of 37,056 outputs in registers would
spill, because a block is a power of two, 65,536 here.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from mtx.training import loss

BLOCK = 8192  # outputs at once
NUM_WARPS = 16  # 4 programs on a multiprocessor; more of them hold more rows than the L2 cache
GROUP = tl.constexpr(8)  # neighbouring outputs of one thread, which share a running maximum
LOG2_E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-1e30)  # less than any logit; its difference from -inf is still a number
TINY = tl.constexpr(torch.finfo(torch.float32).tiny)


@triton.jit
def softmax_minus_target(
    logits, targets, sums, keep, num_outputs, num_columns, num_rows, num_targets, BLOCK: tl.constexpr
):
    """Writes softmax(z) - keep [j = y] over logits z, zero from `num_outputs` on; nll and z_y go to sums [2, rows].

    A row without a target has y = 0 and sums of zero.
    """
    row = tl.program_id(0).to(tl.int64)
    at = logits + row * num_columns
    places = GROUP * tl.arange(0, BLOCK // GROUP)[:, None] + tl.arange(0, GROUP)[None, :]
    maxima = tl.full([BLOCK // GROUP], LOWEST, tl.float32)
    totals = tl.zeros([BLOCK // GROUP], tl.float32)
    for first in range(0, num_columns, BLOCK):
        columns = first + places
        z = tl.load(at + columns, mask=columns < num_columns, other=0.0).to(tl.float32)
        z = tl.where(columns < num_outputs, z, float("-inf"))
        largest = tl.maximum(maxima, tl.max(z, 1))
        powers = tl.exp2(z * LOG2_E - (largest * LOG2_E)[:, None])
        totals = totals * tl.exp2((maxima - largest) * LOG2_E) + tl.sum(powers, 1)
        maxima = largest
    largest = tl.max(maxima, 0)
    shift = largest * LOG2_E + tl.log2(tl.sum(totals * tl.exp2((maxima - largest) * LOG2_E), 0))
    target = tl.load(targets + row % num_targets)
    is_real = target < num_outputs  # pad is the id after the last output
    target = tl.where(is_real, target, 0)
    z_y = tl.load(at + target).to(tl.float32)
    p_y = tl.exp2(z_y * LOG2_E - shift)
    tl.store(sums + row, tl.where(is_real, -tl.log(tl.maximum(p_y, TINY, propagate_nan=tl.PropagateNan.ALL)), 0.0))
    tl.store(sums + num_rows + row, tl.where(is_real, z_y, 0.0))
    tl.debug_barrier()  # z_y is read before any thread writes
    for first in range(0, num_columns, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        is_column = columns < num_columns
        z = tl.load(at + columns, mask=is_column, other=0.0).to(tl.float32)
        p = tl.where(columns < num_outputs, tl.exp2(z * LOG2_E - shift), 0.0)
        tl.store(at + columns, p, mask=is_column)
    tl.debug_barrier()  # the thread that has y has written it
    tl.store(at + target, p_y - keep)


def subtract_target_(logits: Tensor, targets: Tensor, num_outputs: int, keep: float) -> Tensor:
    """Turns logits [P * n, V'] into softmax(z) - keep [j = y]; returns nll and z_y of each row, fp32 [2, P * n].

    Args:
        targets: int64 [n], those of each of P passes.
    """
    num_rows, num_columns = logits.shape
    sums = logits.new_empty(2, num_rows, dtype=torch.float32)
    sizes = num_outputs, num_columns, num_rows, len(targets)
    softmax_minus_target[(num_rows,)](logits, targets, sums, keep, *sizes, BLOCK, num_warps=NUM_WARPS)
    return sums


@torch.library.custom_op("candidates::loss_chunk", mutates_args=())
def loss_chunk(
    h: Tensor,
    w: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    num_outputs: int,
    smoothing: float,
    rdrop_alpha: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same as `mtx.training.loss._chunk`, which it calls if there is a divergence of two passes."""
    if rdrop_alpha:
        return loss._chunk(h, w, bias, targets, num_outputs, smoothing, rdrop_alpha)
    logits = h.flatten(0, 1) @ w.T
    if bias is not None:
        logits[:, :num_outputs] += bias.to(h.dtype)
    nll, z_y = subtract_target_(logits, targets, num_outputs, 1 - smoothing).sum(1)
    mask = (targets < num_outputs)[:, None]
    d_bias = nll.new_empty(0)
    if bias is not None:
        d_bias = (logits * mask.repeat(len(h), 1)).sum(0, dtype=torch.float32)
    d_weight = logits.T @ (h * mask).flatten(0, 1)
    return (logits @ w).view_as(h), d_weight, d_bias, torch.stack([nll, z_y, torch.zeros_like(nll)])


loss_chunk.register_fake(loss._chunk)  # which gives the shapes
