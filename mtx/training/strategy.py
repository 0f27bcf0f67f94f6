"""How the ranks of a run share its model: the loop is one program for any number of them, and asks its `Strategy`.

With `Strategy` each rank has the whole model, and they add up their gradients; one rank alone has nothing to add.
`Sharded` divides the weights, their gradients and Adam's state, where they do not fit one device (`fully_shard`): a
layer's weights are gathered on each device for its forward and its backward pass only. Checkpoints do not depend on
the strategy: rank 0 writes those of one device, and gives each rank its part when a run resumes.
The optimizer is Adam, as section 5.3 of the paper has it; `WeightUpdate` is its update after the gradients of a step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from mtx.model.cuda_graphs import CudaGraph
from mtx.model.transformer import Transformer
from mtx.model.translation_model import TranslationModel
from mtx.training import checkpoint
from mtx.training.checkpoint import Snapshot, State
from mtx.training.ranks import Ranks

Restore = Callable[[TranslationModel, torch.optim.Optimizer], State]


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


@dataclass(eq=False)
class WeightUpdate:
    """Updates the weights from the gradients of a step, without waiting for the device.

    If the loss or the gradient is not finite, the device skips this update and all later ones.

    Args:
        sums: of the loss and the nll, fp32 [2] on the device.
        norm: returns that of the whole gradient.
        is_recorded: whether gradients stay where they are in memory, so that this is recorded as a graph, in the second
            update.
    """

    optimizer: torch.optim.Adam
    sums: Tensor
    norm: Callable[[], Tensor]
    clip_norm: float | None
    is_recorded: bool

    def __post_init__(self) -> None:
        device = self.sums.device
        self._rate = torch.zeros((), device=device)
        self._graph = CudaGraph(torch.cuda.Stream(device)) if self.is_recorded else None  # type: ignore[no-untyped-call]

    def __call__(self, learning_rate: float) -> Tensor:
        """Update the weights.

        Returns:
            fp32 [3] on the device: mean loss, summed nll, gradient norm before clipping. The next call may change it.
        """
        if self._graph is None:
            self._apply(learning_rate)
        else:
            self._rate.fill_(learning_rate)
            self._graph.replay(partial(self._apply, self._rate))
        return self._figures

    def _apply(self, learning_rate: float | Tensor) -> None:
        norm = self.norm()
        self._figures = torch.cat([self.sums, norm.float().view(1)])
        found_inf = self.optimizer.found_inf  # type: ignore[attr-defined]
        torch.maximum(found_inf, (~self._figures.isfinite().all()).float(), out=found_inf)
        for group in self.optimizer.param_groups:
            if self.clip_norm is not None:
                torch.nn.utils.clip_grads_with_norm_(group["params"], self.clip_norm, norm)
            group["lr"] = learning_rate
        self.optimizer.step()


@dataclass(eq=False)
class Strategy:
    """Each rank has the whole model. All ranks call each method together.

    Args:
        new_model: makes the model with its initial weights on a device.
        device: that of this rank.

    Attributes:
        parameters: what the optimizer of this rank updates.
    """

    new_model: Callable[[str | torch.device], TranslationModel]
    device: torch.device
    ranks: Ranks

    def __post_init__(self) -> None:
        self.model = self.new_model(self.device)
        self._divide()
        self.parameters: list[Tensor] = list(self.model.parameters())
        self.optimizer = new_optimizer(self.parameters)

    def _divide(self) -> None:
        """Divide the model, where each rank has only a part of it."""

    def load(self, restore: Restore) -> State:
        """Give all ranks the weights and moments that `restore` puts into a model and an optimizer on rank 0."""
        state = self.ranks.run_on_rank_zero(restore, self.model, self.optimizer)
        self.ranks.broadcast(tensor.detach() for tensor in _tensors(self.model, self.optimizer).values())
        return state

    def begin_micro_step(self, is_last: bool) -> None:
        """Prepare for the next micro-batch, perhaps the last one of its step."""

    def reduce_gradients(self, sums: Tensor) -> None:
        """Add up the gradients of all ranks, and `sums`."""
        if self.ranks.size > 1:
            for parameter in self.parameters:  # a rank may have no sentence that uses a parameter
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            self.ranks.all_reduce(*self._gradients(), sums)

    def gradient_norm(self) -> Tensor:
        """The norm of the whole gradient."""
        return _full(torch.nn.utils.get_total_norm(self._gradients()))

    def _gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    def snapshot(self) -> Snapshot:
        """What a checkpoint holds; only rank 0 has numbers."""
        return checkpoint.snapshot(self.model, self.optimizer) if self.ranks.is_rank_zero else Snapshot({}, {})

    def whole_model(self) -> TranslationModel:
        """The model to validate."""
        return self.model


class Sharded(Strategy):
    """Each rank keeps its part of every parameter of a Transformer."""

    def _divide(self) -> None:
        assert isinstance(self.model, Transformer)
        mesh = init_device_mesh(self.device.type, (self.ranks.size,))
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        for module in (*self.model.encoder, *self.model.decoder, self.model):
            sharded = fully_shard(module, mesh=mesh, mp_policy=policy)
            sharded.set_gradient_divide_factor(1.0)  # sums, not means: the loss is divided by the tokens of the step
            sharded.set_force_sum_reduction_for_comms(True)

    def load(self, restore: Restore) -> State:
        """See `Strategy.load`: rank 0 reads into a whole model on the CPU, and scatters it."""
        whole_tensors = dict[str, Tensor]()

        def work() -> State:
            model = self.new_model("cpu")
            optimizer = new_optimizer(list(model.parameters()))
            state = restore(model, optimizer)
            whole_tensors.update(_tensors(model, optimizer))
            return state

        state = self.ranks.run_on_rank_zero(work)
        with torch.no_grad():
            for name, part in _tensors(self.model, self.optimizer).items():
                if whole_tensors:
                    full = whole_tensors[name].to(self.device)
                else:
                    full = torch.empty(part.shape, device=self.device)
                if isinstance(part, DTensor):
                    part.copy_(distribute_tensor(full, part.device_mesh, part.placements))
                else:
                    self.ranks.broadcast([full])
                    part.copy_(full)
        return state

    def begin_micro_step(self, is_last: bool) -> None:
        """See `Strategy.begin_micro_step`: ranks add up their gradients after the last micro-batch."""
        self.model.set_requires_gradient_sync(is_last)  # type: ignore[operator]

    def reduce_gradients(self, sums: Tensor) -> None:
        """See `Strategy.reduce_gradients`; the gradients are added up already."""
        self.ranks.all_reduce(sums)

    @torch.no_grad()
    def snapshot(self) -> Snapshot:
        """See `Strategy.snapshot`; in host memory, gathered one tensor at a time."""
        device = "cpu" if self.ranks.is_rank_zero else "meta"
        moments = checkpoint.moments(self.model, self.optimizer)
        return Snapshot(
            {name: _full(part).to(device, copy=True) for name, part in self.model.named_parameters()},
            {name: _full(part).to(device, copy=True) for name, part in moments.items()},
        )

    @torch.no_grad()
    def whole_model(self) -> TranslationModel:
        """See `Strategy.whole_model`: a copy on each rank."""
        model = self.new_model(self.device)
        for parameter, part in zip(model.parameters(), self.model.parameters(), strict=True):
            parameter.copy_(_full(part))
        return model


def _tensors(model: TranslationModel, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The weights and Adam's state by name."""
    return {**dict(model.named_parameters()), **checkpoint.moments(model, optimizer)}


def _full(part: Tensor) -> Tensor:
    """The whole tensor of which each rank has a part."""
    return part.full_tensor() if isinstance(part, DTensor) else part
