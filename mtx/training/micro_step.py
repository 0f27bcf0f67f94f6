"""Forward and backward pass of one micro-batch. Flow: packed batch -> gradients, loss sums.

On a CPU the operations run one by one: compiling them costs 25 seconds and gains less than a twentieth. On CUDA they
are recorded once as a graph and replayed for every batch, which is possible because all batches have one shape; a long
run compiles them first.
"""

import functools
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mtx.data.batches import PackedBatch, to_device, twice
from mtx.model.cuda_graphs import CudaGraph
from mtx.model.fused import hidden_states
from mtx.model.transformer import Transformer
from mtx.model.translation_model import TranslationModel
from mtx.training.loss import smoothed_loss

logger = logging.getLogger(__name__)

_WARM_UPS = 3  # runs before a graph is recorded, in which libraries allocate their buffers


class MicroStep:
    """Adds the gradient of a micro-batch to those of the model, and its loss to `sums`.

    Args:
        rdrop_alpha: see `smoothed_loss`; not 0 makes each micro-step two passes.
        precision: `bf16` runs the model in autocast; weights and gradients stay fp32.
        compiled: whether torch compiles the forward pass; only with the `varlen` kernel.
        root: for a sharded model, what calls a function of it; see `mtx.training.strategy`.

    Attributes:
        sums: fp32 [2] on the device, loss and nll since `start_step`.
    """

    def __init__(
        self,
        model: TranslationModel,
        label_smoothing: float,
        precision: str,
        compiled: bool = False,
        root: Any = None,
        rdrop_alpha: float = 0.0,
    ):
        self.model = model
        self.device = model.embedding.device
        self._smoothing = label_smoothing
        self._rdrop_alpha = rdrop_alpha
        self._bf16 = precision == "bf16"
        self.sums = torch.zeros(2, device=self.device)
        self._scale = torch.zeros((), device=self.device)
        is_varlen = self.device.type == "cuda" and model.kernel == "varlen"
        self._is_static = is_varlen and root is None  # a graph is recorded
        self._predict = functools.partial(_predict_fused, model) if compiled else model.predictions
        self._forward = torch.compile(self._loss, fullgraph=True, dynamic=False) if compiled else self._loss
        if root is not None:
            self._forward = functools.partial(root, self._loss)
        self._compiled = compiled
        self._graph: CudaGraph | None = None
        self._tensors: list[Tensor] = []  # those that the graph reads; holding them keeps their memory theirs
        self._recorded_at: list[int] = []  # their addresses
        self._batch: PackedBatch | None = None  # the graph's input

    def start_step(self) -> None:
        """Reset the gradients and the sums."""
        self.sums.zero_()
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        if self._is_static and gradients:  # a graph adds to its own memory
            torch._foreach_zero_(gradients)
        else:
            self.model.zero_grad()

    def __call__(self, batch: PackedBatch, scale: float) -> None:
        """Run a micro-batch in host memory; on CUDA this returns before the work is done.

        Args:
            scale: 1 / target tokens of the whole step.
        """
        self._scale.fill_(scale)
        if not self._is_static:
            self._run(self._move(batch))
            return
        if self._graph is None or self.addresses() != self._recorded_at:
            self._record(batch)
        assert self._batch is not None and self._graph is not None
        self._batch.buffer.copy_(batch.buffer, non_blocking=True)
        self._graph.replay()

    def _move(self, batch: PackedBatch) -> PackedBatch:
        """The batch on the device; for `varlen` without its counts, which it does not need and which would vary."""
        moved = to_device(batch, self.device)
        if self.model.kernel == "padded":
            return moved
        return replace(moved, num_sentences=0, num_src_tokens=0, num_tgt_tokens=0)

    def _run(self, batch: PackedBatch) -> None:
        """The forward and the backward pass of a batch on the device."""
        loss, nll = self._forward(batch, self._scale)
        loss.backward()  # type: ignore[no-untyped-call]
        self.sums += torch.stack([loss.detach(), nll.detach()])

    def _loss(self, batch: PackedBatch, scale: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of the target, perhaps with that of the source, and the nll of the target."""
        model, alpha = self.model, self._rdrop_alpha
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._bf16):
            predictions = self._predict_twice(batch) if alpha else self._predict(batch)
            of_target, *of_source = (
                smoothed_loss(hidden, model.output_weight, model.output_bias, targets, self._smoothing, scale, alpha)
                for hidden, targets in predictions
            )
        return sum((sums.loss for sums in of_source), start=of_target.loss), of_target.nll

    def _predict_twice(self, batch: PackedBatch) -> list[tuple[Tensor, Tensor]]:
        """The `predictions` of two passes, [2, N, D]; without the dummies, but not with `varlen`."""
        if self.model.kernel == "varlen":  # a recorded step does not know how many tokens are real
            passes = zip(self._predict(batch), self._predict(batch), strict=True)
            return [(torch.stack([one, two]), ids) for (one, ids), (two, _) in passes]
        sizes = batch.num_tgt_tokens, batch.num_src_tokens
        both = zip(self._predict(twice(batch)), sizes, strict=False)  # one batch of twice the size is faster
        return [(hidden[: 2 * size].view(2, size, hidden.shape[-1]), ids[:size]) for (hidden, ids), size in both]

    def addresses(self) -> list[int]:
        """Where the tensors lie that a recorded graph reads and writes; nothing without a graph."""
        if self._batch is None:
            return []
        tensors = (*self.model.step_tensors(), self._batch.buffer, self.sums, self._scale)
        return [tensor.data_ptr() for tensor in tensors]

    def _record(self, batch: PackedBatch) -> None:
        """Warm up and record the graph on a first batch; gradients, sums and random state are restored."""
        started = time.monotonic()
        if self._compiled:
            logger.info("compiling the training step: once, a minute or two, less where it was compiled before")
        self._batch = self._move(batch)
        state = torch.cuda.get_rng_state(self.device)
        gradients, sums = _copy_gradients(self.model), self.sums.clone()
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self._graph = CudaGraph(functools.partial(self._run, self._batch), stream)
        for _ in range(_WARM_UPS):
            self._graph.warm_up()
        self._graph.record()
        for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
            assert parameter.grad is not None
            parameter.grad.copy_(gradient)
        self.sums.copy_(sums)
        self._tensors, self._recorded_at = self.model.step_tensors(), self.addresses()
        torch.cuda.set_rng_state(state, self.device)
        logger.info("the training step is ready (%.0f s)", time.monotonic() - started)


class StepResult(NamedTuple):
    """What a step computes: its loss, and the gradient of each parameter."""

    loss: float
    gradients: list[Tensor]


def take_step(step: MicroStep, batches: Sequence[PackedBatch], seed: int) -> StepResult:
    """The result of a step of these micro-batches, without an update."""
    step.start_step()
    for number, batch in enumerate(batches):
        seed_all(seed, 1, number)
        step(batch, 1 / sum(batch.num_tgt_tokens for batch in batches))
    return StepResult(float(step.sums[0]), _copy_gradients(step.model))


def _copy_gradients(model: TranslationModel) -> list[Tensor]:
    """Copies of the gradients of all parameters."""
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]


def _predict_fused(model: TranslationModel, batch: PackedBatch) -> list[tuple[Tensor, Tensor]]:
    assert isinstance(model, Transformer)
    return [(hidden_states(model, batch), batch.tgt_out_ids)]


def seed_all(seed: int, step: int, micro_step: int) -> None:
    """Seed torch's generators from the position of a micro-step in the run."""
    state = np.random.SeedSequence((seed, step, micro_step)).generate_state(1, np.uint64)[0]
    torch.manual_seed(int(state >> np.uint64(1)))
