"""What a step of the search needs of all logits, in one pass over them: a Triton kernel for CUDA.

torch's operations convert bf16 logits to fp32 first, and then read and write them several times. Triton's interpreter
runs the kernel on a CPU: with the environment variable TRITON_INTERPRET=1.
"""

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor

_GROUPS_AT_ONCE = 64  # 4,096 logits in registers


@triton.jit  # type: ignore[untyped-decorator]
def _reduce(logits, log_sums, maxima, num_groups, GROUP: tl.constexpr, GROUPS: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    largest = -1e30  # less than any logit; its difference from -inf is still a number
    total = 0.0
    for first_group in range(0, num_groups, GROUPS):
        groups = row * num_groups + first_group + tl.arange(0, GROUPS)
        is_real = groups < (row + 1) * num_groups
        columns = groups[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        values = tl.load(logits + columns, mask=is_real[:, None], other=float("-inf")).to(tl.float32)
        group_maxima = tl.max(values, 1)
        tl.store(maxima + groups, group_maxima, mask=is_real)
        new_largest = tl.maximum(largest, tl.max(group_maxima, 0))
        total = total * tl.exp(largest - new_largest) + tl.sum(tl.exp(values - new_largest))
        largest = new_largest
    tl.store(log_sums + row, largest + tl.log(total))


@torch.library.custom_op("mtx::reduce_logits", mutates_args=())
def reduce_logits(logits: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Returns log sum_j exp(z_j) of each row of logits z, fp32 [B, J], and maxima of groups, fp32 [B, J, V / group].

    Args:
        logits: [B, J, V]; V is a multiple of `group`.
        group: number of neighbouring tokens in a group, a power of two.
    """
    log_sums, maxima = _results(logits, group)
    sizes = {"GROUP": group, "GROUPS": _GROUPS_AT_ONCE}
    _reduce[(log_sums.numel(),)](logits.contiguous(), log_sums, maxima, maxima.shape[2], **sizes)
    return log_sums, maxima


@reduce_logits.register_fake
def _results(logits: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Returns memory for the results of `reduce_logits`."""
    *rows, size = logits.shape
    return logits.new_empty(rows, dtype=torch.float), logits.new_empty(*rows, size // group, dtype=torch.float)
