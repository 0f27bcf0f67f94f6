"""The micro-batch: its forward and backward pass, and how a step is divided.

On a CPU the operations run one by one: compiling them costs 25 seconds and gains less than a twentieth. On CUDA they
are recorded once as a graph and replayed for every batch, which is possible because all batches have one shape; a long
run compiles them first. The size decides how a step is divided, never what it learns from, so a run may change it.
Flow: packed batch -> `MicroStep` -> gradients, loss sums.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from mtx.config.schema import Config, TrainingConfig
from mtx.data.packing import PackedBatch, Shape, micro_batch_shape, to_device, twice
from mtx.data.sampler import BatchSampler
from mtx.model.attention import Kernel
from mtx.model.cuda_graphs import CudaGraph
from mtx.model.transformer import Transformer, hidden_states
from mtx.model.translation_model import TranslationModel
from mtx.training.loss import smoothed_loss

logger = logging.getLogger(__name__)

NOT_CHOSEN = 0  # threads of a run that only ranks have trained which shared a machine
_WARM_UPS = 3  # runs before a graph is recorded


@dataclass(frozen=True)
class RuntimeChoices:
    """The content of chosen.json. With the `varlen` kernel the step of a run is recorded once.

    Attributes:
        plan: see `mtx.training.plan.decide`.
    """

    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:\d{1,3})?|mps)$")]
    precision: Literal["fp32", "bf16"]
    micro_batch_tokens: Annotated[int, Field(ge=1, lt=1 << 31)]
    kernel: Kernel
    threads: Annotated[int, Field(ge=NOT_CHOSEN, le=4096)]
    compile: bool
    plan: dict[str, Any] | None = field(default=None, hash=False)


@dataclass(eq=False)
class MicroStep:
    """Adds the gradient of a micro-batch to those of the model, and its loss to `sums`, one operation after the other.

    Args:
        precision: `bf16` runs the model in autocast; weights and gradients stay fp32.
        compiled: whether torch compiles the forward pass; only with the `varlen` kernel.
        rdrop_alpha: see `smoothed_loss`; not 0 makes each micro-step two passes.

    Attributes:
        sums: fp32 [2] on the device, loss and nll of the micro-batches since the first one of the step.
        is_recorded: whether graphs are recorded, and with them the gradients stay where they are.
    """

    model: TranslationModel
    label_smoothing: float
    precision: str
    compiled: bool = False
    rdrop_alpha: float = 0.0
    is_recorded = False

    def __post_init__(self) -> None:
        model = self.model
        self.device = model.embedding.device
        self.sums = torch.zeros(2, device=self.device)
        self._scale = torch.zeros((), device=self.device)
        if self.compiled:
            probability = torch.tensor(model.config.dropout, device=self.device)
            for part in (model, *model.encoder, *model.decoder):  # type: ignore[misc]
                part.dropout = probability
        # A function, not a method: one would hold this object, and its memory on the device with it.
        loss = MicroStep._loss
        self._forward: Any = torch.compile(loss, fullgraph=True, dynamic=False) if self.compiled else loss

    def __call__(self, batch: PackedBatch, scale: float, is_first: bool) -> None:
        """Run a micro-batch in host memory; on CUDA this returns before the work is done.

        Args:
            scale: 1 / target tokens of the whole step.
            is_first: of its step: it replaces the gradients and the sums, and the others add to them.
        """
        if not self.model.training:
            self.model.train()
        self._scale.fill_(scale)
        self._take(batch, is_first)

    def _take(self, batch: PackedBatch, is_first: bool) -> None:
        self._run(self._move(batch), is_first)

    def _move(self, batch: PackedBatch) -> PackedBatch:
        """The batch on the device; for `varlen` without its counts, which it does not need and which would vary."""
        moved = to_device(batch, self.device)
        if self.model.kernel == "padded":
            return moved
        return replace(moved, num_sentences=0, num_src_tokens=0, num_tgt_tokens=0)

    def _run(self, batch: PackedBatch, is_first: bool) -> None:
        """The forward and the backward pass of a batch on the device.

        Args:
            is_first: in its step. Without a gradient to add to, a recorded pass leaves new ones in memory of its own.
        """
        if is_first:
            self.sums.zero_()
            self.model.zero_grad()
        loss, nll = self.model(self._forward, self, batch, self._scale)
        loss.backward()
        self.sums += torch.stack([loss.detach(), nll.detach()])

    def _loss(self, batch: PackedBatch, scale: Tensor) -> tuple[Tensor, Tensor]:
        """The loss and the nll of the target."""
        model = self.model
        alpha = self.rdrop_alpha
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            if alpha:
                hidden, targets = self._hidden_twice(batch)
            else:
                hidden = self._hidden(batch)
                targets = batch.tgt_out_ids
            weights = model.output_weight, model.output_bias
            sums = smoothed_loss(hidden, *weights, targets, self.label_smoothing, scale, alpha)
        return sums.loss, sums.nll

    def _hidden(self, batch: PackedBatch) -> Tensor:
        """The hidden states of the target, [N, D]."""
        model = self.model
        is_tiled = self.device.type == "cpu" and model.kernel == "padded"
        if self.compiled or (is_tiled and type(model) is Transformer):  # a sharded one has another class
            return hidden_states(model, batch)  # type: ignore[arg-type]
        return model.decode(batch, model.encode(batch))

    def _hidden_twice(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """The hidden states of two passes, [2, N, D], and the tokens; without the dummies, but not with `varlen`."""
        if self.model.kernel == "varlen":  # a recorded step does not know how many tokens are real
            return torch.stack([self._hidden(batch), self._hidden(batch)]), batch.tgt_out_ids
        size = batch.num_tgt_tokens
        hidden = self._hidden(twice(batch))[: 2 * size]  # one batch of twice the size is faster
        return hidden.view(2, size, hidden.shape[-1]), batch.tgt_out_ids[:size]


class RecordedStep(MicroStep):
    """The same on CUDA with the `varlen` kernel, recorded on the first batch and replayed for every other one.

    Weights are changed in place from then on; a longer table of positions replaces the one that the graphs read.
    """

    is_recorded = True
    _graphs: Sequence[CudaGraph] = ()  # of the first micro-batch of a step, and of the others

    def _take(self, batch: PackedBatch, is_first: bool) -> None:
        if not self._graphs:
            self._prepare_graphs(batch)
        self._batch.buffer.copy_(batch.buffer, non_blocking=True)
        first_graph, next_graph = self._graphs
        graph = first_graph if is_first else next_graph
        graph.replay(partial(self._run, self._batch, is_first))

    def _prepare_graphs(self, batch: PackedBatch) -> None:
        if self.compiled:
            logger.info("compiling the training step, which about halves the time of each later one")
        self._batch = self._move(batch)
        self._held = list(self.model.buffers())  # what the model may replace
        state = torch.cuda.get_rng_state(self.device)
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        pool = torch.cuda.graph_pool_handle()
        self._graphs = [CudaGraph(stream, pool, num_warm_ups) for num_warm_ups in (_WARM_UPS, 0)]
        for _ in range(_WARM_UPS):
            self._graphs[0].replay(partial(self._run, self._batch, True))
        torch.cuda.set_rng_state(state, self.device)


def new_micro_step(training: TrainingConfig, runtime: RuntimeChoices, model: TranslationModel) -> MicroStep:
    """The micro-step of a run with this model; a sharded one is gathered for each pass, so its step is not recorded."""
    is_whole = not isinstance(model, FSDPModule)
    is_recorded = model.embedding.device.type == "cuda" and model.kernel == "varlen" and is_whole
    kind = RecordedStep if is_recorded else MicroStep
    compiled = runtime.compile and is_whole
    return kind(model, training.label_smoothing, runtime.precision, compiled, training.rdrop_alpha)


class StepResult(NamedTuple):
    """What a step computes: its loss, and the gradient of each parameter."""

    loss: float
    gradients: list[Tensor]


def take_step(step: MicroStep, batches: Sequence[PackedBatch], seed: int) -> StepResult:
    """The result of a step of these micro-batches, without an update."""
    for number, batch in enumerate(batches):
        seed_micro_step(step.device, seed, 1, number)
        step(batch, 1 / sum(batch.num_tgt_tokens for batch in batches), number == 0)
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in step.model.parameters()]
    return StepResult(float(step.sums[0]), gradients)


def seed_micro_step(device: torch.device, seed: int, step: int, micro_step: int) -> None:
    """Seed the device's generator from the position of a micro-step in the run."""
    state = int(np.random.SeedSequence((seed, step, micro_step)).generate_state(1, np.uint64)[0]) >> 1
    if device.type == "cuda":  # `manual_seed` would take the host longer than a small model's step takes the device
        torch.cuda.default_generators[torch.cuda.current_device()].manual_seed(state)
    else:
        torch.manual_seed(state)


def step_shape(config: Config, runtime: RuntimeChoices, sampler: BatchSampler, num_ranks: int = 1) -> tuple[int, Shape]:
    """The number of micro-batches of a step, a multiple of `num_ranks`, and their shape.

    Only the `varlen` kernel does work for sentences that are not there; the others have room for any step.
    """
    return micro_batch_shape(
        config.training.batch_tokens,
        runtime.micro_batch_tokens,
        sampler.ratio,
        config.data.max_tokens,
        sampler.tokens_per_sentence if runtime.kernel == "varlen" else None,
        num_ranks,
    )
