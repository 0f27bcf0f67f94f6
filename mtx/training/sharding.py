"""Divides the weights, their gradients and Adam's state among ranks, where they do not fit one device (`fully_shard`).

A layer's weights are put together on each device for its forward and its backward pass only. Checkpoints are those of
one device: rank 0 gathers them, one tensor at a time, and gives each rank its part when a run resumes.
Flow: a whole model -> `Sharding` -> the trainer, which updates `local` and asks for a `snapshot`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from mtx.config.schema import Config
from mtx.model.architectures import num_parameters
from mtx.model.device import total_bytes
from mtx.model.transformer import Transformer
from mtx.training.checkpoint import MOMENTS, Snapshot
from mtx.training.ranks import Ranks

_BYTES = 16  # of a parameter: its weight, its gradient and Adam's two moments
_MAX_SHARE = 0.5  # of a device's memory for these; the rest is for activations, a checkpoint's copy and decoding


def is_sharded(config: Config, device: torch.device, num_ids: int, ranks: Ranks) -> bool:
    """Whether to divide the model: as `training.shard` says, or by auto where it takes too much of a GPU's memory."""
    wanted, total = config.training.shard, total_bytes(device)
    if config.model.architecture != "transformer" or ranks.size == 1:
        return False
    if wanted != "auto":
        return wanted
    size = _BYTES * num_parameters(config.model, num_ids)
    is_large = device.type == "cuda" and total is not None and size > _MAX_SHARE * total
    return any(ranks.all_gather_object(is_large))


class _Root(nn.Module):
    """Runs a function of the model with the weights that no layer has: the loss reads the embedding too."""

    def __init__(self, model: Transformer):
        super().__init__()
        self.model = model

    def forward(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)


class Sharding:
    """Divides `model` in place; each rank keeps its part of every parameter.

    Attributes:
        root: `root(function, *arguments)` calls a function in which the model can be used.
        local: by name, this rank's part of each parameter, for its optimizer.
    """

    def __init__(self, model: Transformer, device: torch.device, ranks: Ranks):
        self._model = model
        self._device = device
        self._ranks = ranks
        self._mesh = init_device_mesh(device.type, (ranks.size,))
        self.root: Any = _Root(model)
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        for module in (*model.encoder, *model.decoder, self.root):
            fully_shard(module, mesh=self._mesh, mp_policy=policy)
        for module in self.root.modules():
            if isinstance(module, FSDPModule):  # sums, not means: the loss is divided by the tokens of the whole step
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        self.local = {name: parameter.to_local().detach() for name, parameter in self._parameters()}

    def _parameters(self) -> Iterator[tuple[str, DTensor]]:
        for name, parameter in self._model.named_parameters():
            assert isinstance(parameter, DTensor)
            yield name, parameter

    def sum_gradients_after(self, is_last: bool) -> None:
        """Say whether the next micro-batch is the last of its step, after which ranks add up their gradients."""
        self.root.set_requires_gradient_sync(is_last)

    def reduce_gradients(self, parameters: Sequence[Tensor], sums: Tensor) -> tuple[Tensor, Tensor]:
        """Give `parameters`, those of `local`, their gradients; returns the sums and the norm of the whole gradient."""
        for (_, whole), parameter in zip(self._parameters(), parameters, strict=True):
            parameter.grad = whole.grad.to_local() if isinstance(whole.grad, DTensor) else whole.grad
        norm = torch.nn.utils.get_total_norm([each.grad for each in parameters if each.grad is not None])
        numbers = torch.cat([sums, norm.float().view(1).square()])
        self._ranks.all_reduce(numbers)
        return numbers[:-1], numbers[-1].sqrt()

    def scatter(self, whole: Snapshot, optimizer: torch.optim.Optimizer) -> None:
        """Give each rank its part of a checkpoint that rank 0 has read. All ranks call this together.

        Args:
            whole: all tensors on rank 0, else nothing.
            optimizer: that of `local`.
        """
        for name, parameter in self._parameters():
            self.local[name].copy_(self._part(whole.weights.get(name), parameter))
            count = whole.moments.get(f"{name}.step", torch.zeros(())).to(self._device)
            self._ranks.broadcast([count])
            parts = (self._part(whole.moments.get(f"{name}.{key}"), parameter) for key in MOMENTS[1:])
            optimizer.state[self.local[name]] = dict(zip(MOMENTS, (count, *parts), strict=True))

    def _part(self, whole: Tensor | None, parameter: DTensor) -> Tensor:
        """This rank's part of a tensor that rank 0 has."""
        full = torch.empty(parameter.shape, device=self._device) if whole is None else whole.to(self._device)
        return distribute_tensor(full, self._mesh, parameter.placements).to_local().clone()

    @torch.no_grad()
    def snapshot(self, optimizer: torch.optim.Optimizer | None = None) -> Snapshot:
        """What a checkpoint of one device holds, in host memory; empty but on rank 0. All ranks call this together.

        Args:
            optimizer: that of `local`; None leaves the moments out.
        """
        weights, moments = dict[str, Tensor](), dict[str, Tensor]()
        for name, parameter in self._parameters():
            self._gather(name, self.local[name], parameter, weights)
            state = optimizer.state[self.local[name]] if optimizer is not None else {}
            for key, part in state.items():
                if key == "step":
                    moments[f"{name}.{key}"] = part.cpu().clone()
                else:
                    self._gather(f"{name}.{key}", part, parameter, moments)
        return Snapshot(weights, moments) if self._ranks.is_rank_zero else Snapshot({}, {})

    def _gather(self, name: str, part: Tensor, like: DTensor, tensors: dict[str, Tensor]) -> None:
        shape, stride = like.shape, like.stride()
        whole = DTensor.from_local(part, self._mesh, like.placements, shape=shape, stride=stride).full_tensor()
        if self._ranks.is_rank_zero:
            tensors[name] = whole.cpu().clone()
