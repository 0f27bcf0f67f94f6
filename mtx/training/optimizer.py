"""Adam, as section 5.3 of the paper has it, and the update that it makes from the gradients of a step."""

from collections.abc import Sequence

import torch
from torch import Tensor


def new_optimizer(parameters: Sequence[Tensor]) -> torch.optim.Adam:
    """Adam with a learning rate of 0 until a step sets it.

    Torch would make the moments in the first step, and running out of memory there would leave only some of them.
    """
    optimizer = torch.optim.Adam(parameters, lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True)
    for parameter in parameters:
        optimizer.state[parameter] = {
            "step": torch.zeros((), device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


def apply_gradients(
    optimizer: torch.optim.Adam, learning_rate: float, norm: Tensor, clip_norm: float | None, non_finite: Tensor
) -> None:
    """Clip the gradients and update the parameters, without waiting for the device.

    Args:
        norm: that of the whole gradient.
        non_finite: if it is 1, the device skips the update.
    """
    for group in optimizer.param_groups:
        if clip_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(group["params"], clip_norm, norm)
        group["lr"] = learning_rate
    optimizer.found_inf = non_finite  # type: ignore[attr-defined]  # which fused Adam reads
    optimizer.step()
