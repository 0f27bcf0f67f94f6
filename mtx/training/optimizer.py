"""Adam, as section 5.3 of the paper has it, and the update that it makes from the gradients of a step."""

import functools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mtx.model.cuda_graphs import CudaGraph


def new_optimizer(parameters: Sequence[Tensor]) -> torch.optim.Adam:
    """Adam with a learning rate of 0 until a step sets it.

    Torch would make the moments in the first step, and running out of memory there would leave only some of them.
    Where `found_inf` is 1, the device skips the update.
    """
    device = parameters[0].device
    optimizer = torch.optim.Adam(
        parameters, lr=0.0, betas=(0.9, 0.98), eps=1e-9, fused=True, capturable=device.type == "cuda"
    )
    for parameter in parameters:
        optimizer.state[parameter] = {
            "step": torch.zeros((), device=device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    optimizer.found_inf = torch.zeros((), device=device)  # type: ignore[attr-defined]
    return optimizer


class WeightUpdate:
    """Updates the weights from the gradients of a step, without waiting for the device.

    If the loss or the gradient is not finite, the device skips this update and all later ones.

    Args:
        sums: of the loss and the nll, fp32 [2] on the device.
        norm: returns that of the whole gradient.
        is_recorded: whether gradients stay where they are in memory, so that this is recorded as a graph.
    """

    def __init__(
        self,
        optimizer: torch.optim.Adam,
        sums: Tensor,
        norm: Callable[[], Tensor],
        clip_norm: float | None,
        is_recorded: bool,
    ):
        self._optimizer, self._sums, self._norm, self._clip_norm = optimizer, sums, norm, clip_norm
        self._rate = torch.zeros((), device=sums.device)
        self._graph = CudaGraph(torch.cuda.Stream(sums.device)) if is_recorded else None  # type: ignore[no-untyped-call]
        self._is_warm = False

    def __call__(self, learning_rate: float) -> Tensor:
        """Update the weights.

        Returns:
            fp32 [3] on the device: mean loss, summed nll, gradient norm before clipping. The next call may change it.
        """
        if self._graph is None:
            self._apply(learning_rate, self._clip_norm)
            return self._figures
        if not self._is_warm:  # by an update that changes neither weights nor gradients
            found_inf: Tensor = self._optimizer.found_inf  # type: ignore[attr-defined]
            before = found_inf.clone()
            found_inf.fill_(1)
            self._graph.warm_up(functools.partial(self._apply, self._rate, self._clip_norm and math.inf))
            found_inf.copy_(before)
            self._is_warm = True
        self._rate.fill_(learning_rate)
        self._graph.replay(functools.partial(self._apply, self._rate, self._clip_norm))
        return self._figures

    def _apply(self, learning_rate: float | Tensor, clip_norm: float | None) -> None:
        norm = self._norm()
        self._figures = torch.cat([self._sums, norm.float().view(1)])
        found_inf = self._optimizer.found_inf  # type: ignore[attr-defined]
        torch.maximum(found_inf, (~self._figures.isfinite().all()).float(), out=found_inf)
        for group in self._optimizer.param_groups:
            if clip_norm is not None:
                torch.nn.utils.clip_grads_with_norm_(group["params"], clip_norm, norm)
            group["lr"] = learning_rate
        self._optimizer.step()
