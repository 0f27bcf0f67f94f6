"""How the ranks of a run share its model: the loop is one program for any number of them, and asks its `Strategy`.

With `Strategy` each rank has the whole model, and they add up their gradients; one rank alone has nothing to add.
`Sharded` divides the weights, their gradients and Adam's state, where they do not fit one device (`fully_shard`): a
layer's weights are gathered on each device for its forward and its backward pass only. Checkpoints do not depend on
the strategy: rank 0 writes those of one device, and gives each rank its part when a run resumes.
"""

from collections.abc import Callable, Mapping
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
from mtx.model.translation_model import TranslationModel
from mtx.training import checkpoint
from mtx.training.checkpoint import Snapshot, State
from mtx.training.optimizer import new_optimizer
from mtx.training.ranks import Ranks

_BYTES = 16  # of a parameter: its weight, its gradient and Adam's two moments
_MAX_SHARE = 0.5  # of a device's memory for these; the rest is for activations, a checkpoint's copy and decoding

NewModel = Callable[[str | torch.device], TranslationModel]
Read = Callable[[TranslationModel, torch.optim.Optimizer], State]


class Strategy:
    """Each rank has the whole model. All ranks call each method together.

    Args:
        new_model: makes the model with its initial weights on a device.
        device: that of this rank.

    Attributes:
        parameters: what the optimizer of this rank updates.
        root: if it is not None, `root(function, *arguments)` calls a function in which the model can be used.
    """

    root: Any = None

    def __init__(self, new_model: NewModel, device: torch.device, ranks: Ranks):
        self._new_model, self._device, self._ranks = new_model, device, ranks
        self.model = new_model(device)
        self.parameters = self._divide()
        self.optimizer = new_optimizer(self.parameters)
        self._has_met = False

    def _divide(self) -> list[Tensor]:
        return list(self.model.parameters())

    def load(self, read: Read) -> State:
        """Give all ranks the weights and moments that `read` puts into a model and an optimizer on rank 0."""
        state = self._ranks.run_on_rank_zero(lambda: read(self.model, self.optimizer))
        self._ranks.broadcast(parameter.detach() for parameter in self.model.parameters())
        self._ranks.broadcast(checkpoint.moments(self.model, self.optimizer).values())
        return state

    def begin_micro_step(self, is_last: bool) -> None:
        """Prepare for the next micro-batch, perhaps the last one of its step."""

    def reduce_gradients(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        """Add up the gradients of all ranks, and `sums`; returns the sums and the norm of the whole gradient."""
        self._meet()
        if self._ranks.size > 1:  # a rank may have no sentence that uses a parameter
            for parameter in self.parameters:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        self._ranks.all_reduce(*gradients, sums)
        return sums, torch.nn.utils.get_total_norm(gradients)

    def _meet(self) -> None:
        """Wait for the others in the first step: compiling it may take one rank minutes longer than another."""
        if not self._has_met:
            self._ranks.all_gather_object(None)
            self._has_met = True

    def snapshot(self) -> Snapshot:
        """What a checkpoint holds; empty but on rank 0."""
        return checkpoint.snapshot(self.model, self.optimizer) if self._ranks.is_rank_zero else Snapshot({}, {})

    def whole_model(self) -> TranslationModel:
        """The model to validate."""
        return self.model


class _Root(nn.Module):
    """Runs a function of the model with the weights that no layer has: the loss reads the embedding too."""

    def __init__(self, model: TranslationModel):
        super().__init__()
        self.model = model

    def forward(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)


class Sharded(Strategy):
    """Each rank keeps its part of every parameter of a Transformer."""

    def _divide(self) -> list[Tensor]:
        assert isinstance(self.model, Transformer)
        mesh = init_device_mesh(self._device.type, (self._ranks.size,))
        self.root = _Root(self.model)
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        for module in (*self.model.encoder, *self.model.decoder, self.root):
            fully_shard(module, mesh=mesh, mp_policy=policy)
        for module in self.root.modules():
            if isinstance(module, FSDPModule):  # sums, not means: the loss is divided by the tokens of the whole step
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        return list(self.model.parameters())

    def load(self, read: Read) -> State:
        """See `Strategy.load`: rank 0 reads into a whole model on the CPU, and scatters it."""
        whole = Snapshot({}, {})

        def work() -> State:
            nonlocal whole
            model = self._new_model("cpu")
            optimizer = new_optimizer(list(model.parameters()))
            state = read(model, optimizer)
            whole = checkpoint.snapshot(model, optimizer)
            return state

        state = self._ranks.run_on_rank_zero(work)
        for name, parameter in self.model.named_parameters():
            self._scatter(whole.weights.get(name), parameter.detach())
            for key, part in self.optimizer.state[parameter].items():
                self._scatter(whole.moments.get(f"{name}.{key}"), part)
        return state

    def _scatter(self, whole: Tensor | None, part: Tensor) -> None:
        """Give each rank its part of a tensor that rank 0 has."""
        full = torch.empty(part.shape, device=self._device) if whole is None else whole.to(self._device)
        if isinstance(part, DTensor):
            part.copy_(distribute_tensor(full, part.device_mesh, part.placements))
        else:
            self._ranks.broadcast([full])
            part.copy_(full)

    def begin_micro_step(self, is_last: bool) -> None:
        """See `Strategy.begin_micro_step`: ranks add up their gradients after the last micro-batch."""
        self.root.set_requires_gradient_sync(is_last)

    def reduce_gradients(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        """See `Strategy.reduce_gradients`."""
        self._meet()
        self._ranks.all_reduce(sums)
        norm = torch.nn.utils.get_total_norm([each.grad for each in self.parameters if each.grad is not None])
        return sums, norm.full_tensor() if isinstance(norm, DTensor) else norm

    @torch.no_grad()
    def snapshot(self) -> Snapshot:
        """See `Strategy.snapshot`; in host memory, gathered one tensor at a time."""
        whole = Snapshot(self._gather(dict(self.model.named_parameters())), {})
        for name, parameter in self.model.named_parameters():
            moments = self.optimizer.state[parameter]
            whole.moments.update(self._gather({f"{name}.{key}": part for key, part in moments.items()}))
        return whole

    @torch.no_grad()
    def whole_model(self) -> TranslationModel:
        """See `Strategy.whole_model`: a copy on each rank."""
        weights, model = self._gather(dict(self.model.named_parameters())), self._new_model(self._device)
        if self._ranks.is_rank_zero:
            model.load_state_dict(weights)
        self._ranks.broadcast(model.parameters())
        return model

    def _gather(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The whole tensors of which each rank has a part, in host memory; nothing but on rank 0."""
        whole = {}
        for name, part in parts.items():
            full = part.full_tensor() if isinstance(part, DTensor) else part
            if self._ranks.is_rank_zero:
                whole[name] = full.detach().cpu().clone()
        return whole


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
