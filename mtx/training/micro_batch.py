"""The micro-batch: its forward and backward pass, how a step is divided, and the largest size that fits the device.

On a CPU the operations run one by one: compiling them costs 25 seconds and gains less than a twentieth. On CUDA they
are recorded once as a graph and replayed for every batch, which is possible because all batches have one shape; a long
run compiles them first. The size decides how a step is divided, never what it learns from, so a run may change it, and
halves it when memory is short. Flow: packed batch -> `MicroStep` -> gradients, loss sums.
"""

import functools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from mtx import machine
from mtx.config.schema import Config
from mtx.data.packing import PackedBatch, Shape, micro_batch_shape, pack, to_device, twice
from mtx.data.sampler import BatchSampler
from mtx.data.token_store import Side
from mtx.decoding.torch_engine import SCORED_TOKENS, score_pairs
from mtx.errors import MtxError, is_out_of_memory
from mtx.formatting import format_size
from mtx.model.architectures import num_parameters
from mtx.model.attention import Kernel
from mtx.model.cuda_graphs import CudaGraph
from mtx.model.device import free_unused_memory
from mtx.model.fused import BlockLayout, hidden_states
from mtx.model.transformer import Transformer
from mtx.model.translation_model import TranslationModel
from mtx.storage import durable
from mtx.training.loss import smoothed_loss

if TYPE_CHECKING:
    from mtx.training.trainer import Trainer

NewModel = Callable[[], TranslationModel]

logger = logging.getLogger(__name__)

CPU_MICRO_BATCH = 4096  # larger ones are not faster on a CPU, and memory use stays small
_FREE_SHARE = 0.08  # share of a GPU's memory that stays free for decoding and for fragmentation over days
NOT_CHOSEN = 0  # threads of a run that only ranks have trained which shared a machine
_WARM_UPS = 3  # runs before a graph is recorded, in which libraries allocate their buffers


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
    plan: dict[str, Any] | None = None


class MicroStep:
    """Adds the gradient of a micro-batch to those of the model, and its loss to `sums`.

    Args:
        rdrop_alpha: see `smoothed_loss`; not 0 makes each micro-step two passes.
        precision: `bf16` runs the model in autocast; weights and gradients stay fp32.
        compiled: whether torch compiles the forward pass; only with the `varlen` kernel.
        root: for a sharded model, what calls a function of it; see `mtx.training.strategy`.

    Attributes:
        sums: fp32 [2] on the device, loss and nll of the micro-batches since `start_step`.
        is_static: whether graphs are recorded, and with them the gradients stay where they are.
        layout: how the compiled step attends.
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
        self.is_static = self.device.type == "cuda" and model.kernel == "varlen" and root is None
        self._compiled = compiled
        if compiled:
            assert isinstance(model, Transformer)
            probability = torch.tensor(model.config.dropout, device=self.device)
            for part in (model, *model.encoder, *model.decoder):
                part.dropout = probability
        self.layout = BlockLayout
        # A function, not a method: one would hold this object, and its memory on the device with it.
        loss = MicroStep._loss
        self._forward: Any = torch.compile(loss, fullgraph=True, dynamic=False) if compiled else loss
        if root is not None:
            self._forward = functools.partial(root, loss)
        self._graphs: list[CudaGraph] = []  # of the first micro-batch of a step, and of the others
        self._held: list[Tensor] = []  # what the graphs read and the model may replace
        self._is_first = True

    def start_step(self) -> None:
        """Begin a step: its first micro-batch replaces the gradients and the sums, and the others add to them."""
        self._is_first = True
        if not self.model.training:
            self.model.train()

    def __call__(self, batch: PackedBatch, scale: float) -> None:
        """Run a micro-batch in host memory; on CUDA this returns before the work is done.

        Args:
            scale: 1 / target tokens of the whole step.
        """
        is_first, self._is_first = self._is_first, False
        self._scale.fill_(scale)
        if not self.is_static:
            self._run(self._move(batch), is_first)
            return
        if not self._graphs:
            self._prepare_graphs(batch)
        self._own.buffer.copy_(batch.buffer, non_blocking=True)
        self._graphs[not is_first].replay(functools.partial(self._run, self._own, is_first))

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
        loss, nll = self._forward(self, batch, self._scale)
        loss.backward()
        self.sums += torch.stack([loss.detach(), nll.detach()])

    def _loss(self, batch: PackedBatch, scale: Tensor) -> tuple[Tensor, Tensor]:
        """The loss and the nll of the target."""
        model, alpha = self.model, self._rdrop_alpha
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._bf16):
            hidden, targets = self._hidden_twice(batch) if alpha else (self._hidden(batch), batch.tgt_out_ids)
            weight, bias = model.output_weight, model.output_bias
            sums = smoothed_loss(hidden, weight, bias, targets, self._smoothing, scale, alpha)
        return sums.loss, sums.nll

    def _hidden(self, batch: PackedBatch) -> Tensor:
        """The hidden states of the target, [N, D]."""
        if self._compiled:
            assert isinstance(self.model, Transformer)
            return hidden_states(self.model, batch, self.layout)
        return self.model.decode(batch, self.model.encode(batch))

    def _hidden_twice(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """The hidden states of two passes, [2, N, D], and the tokens; without the dummies, but not with `varlen`."""
        if self.model.kernel == "varlen":  # a recorded step does not know how many tokens are real
            return torch.stack([self._hidden(batch), self._hidden(batch)]), batch.tgt_out_ids
        size = batch.num_tgt_tokens
        hidden = self._hidden(twice(batch))[: 2 * size]  # one batch of twice the size is faster
        return hidden.view(2, size, hidden.shape[-1]), batch.tgt_out_ids[:size]

    def _prepare_graphs(self, batch: PackedBatch) -> None:
        """Prepare to record on the first batch of the first step.

        Weights are changed in place from here on; a longer table of positions replaces the one that the graphs read.
        """
        started = time.monotonic()
        if self._compiled:
            logger.info("compiling the training step, once; it saves about a quarter of the time of each later step")
        self._own, self._held = self._move(batch), list(self.model.buffers())
        state = torch.cuda.get_rng_state(self.device)
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        pool = torch.cuda.graph_pool_handle()
        self._graphs = [CudaGraph(stream, pool) for _ in range(2)]
        for _ in range(_WARM_UPS):
            self._graphs[0].warm_up(functools.partial(self._run, self._own, True))
        torch.cuda.set_rng_state(state, self.device)
        if self._compiled:
            is_cold = torch._dynamo.utils.counters["inductor"]["fxgraph_cache_miss"]
            cache = "with a cold cache" if is_cold else "from torch's cache"
            logger.info("compiled the training step in %.0f s, %s", time.monotonic() - started, cache)


class StepResult(NamedTuple):
    """What a step computes: its loss, and the gradient of each parameter."""

    loss: float
    gradients: list[Tensor]


def take_step(step: MicroStep, batches: Sequence[PackedBatch], seed: int) -> StepResult:
    """The result of a step of these micro-batches, without an update."""
    step.start_step()
    for number, batch in enumerate(batches):
        seed_micro_step(step.device, seed, 1, number)
        step(batch, 1 / sum(batch.num_tgt_tokens for batch in batches))
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
    tokens_per_sentence = sampler.tokens_per_sentence if runtime.kernel == "varlen" else None
    size, longest = runtime.micro_batch_tokens, config.data.max_tokens
    return micro_batch_shape(config.training.batch_tokens, size, sampler.ratio, longest, tokens_per_sentence, num_ranks)


def new_micro_step(config: Config, runtime: RuntimeChoices, model: TranslationModel, root: object = None) -> MicroStep:
    """The micro-step of a run with this model; for `root` see `Strategy`."""
    return MicroStep(
        model,
        config.training.label_smoothing,
        runtime.precision,
        runtime.compile and root is None,
        root=root,
        rdrop_alpha=config.training.rdrop_alpha,
    )


def halve(trainer: "Trainer", shortage: str) -> None:
    """Continue with half the micro-batch; the step keeps its sentences and its normalisation.

    Raises:
        MtxError: the second time, and on one of several ranks, which then all end: the next start takes the half.
    """
    size, longest = trainer.runtime.micro_batch_tokens, trainer.config.data.max_tokens
    half = max(longest, -(-size // 2))
    runtime = replace(trainer.runtime, micro_batch_tokens=half)
    text = f"step {trainer.state.step + 1}: out of memory with micro-batches of {size} target tokens: {shortage}"
    if trainer.has_halved or size <= longest:
        raise MtxError(text, f"training.micro_batch_tokens={half} in a new run_dir, or a smaller model.preset")
    durable.write_json(trainer.paths.chosen, asdict(runtime))
    if trainer.ranks.size > 1:
        raise MtxError(text, f"rerun the same command to resume with micro-batches of {half}")
    logger.warning("%s; halving micro-batches", text)
    trainer.optimizer.zero_grad()
    del trainer.micro_step, trainer.update_weights  # recorded graphs hold memory
    free_unused_memory(trainer.device)
    trainer.has_halved = True
    trainer.runtime = runtime
    trainer.divide_steps()


def largest_micro_batch(config: Config, runtime: RuntimeChoices, new_model: NewModel, sampler: BatchSampler) -> int:
    """The target tokens of the largest micro-batch that fits: a whole step, halved until it does.

    Args:
        runtime: its `micro_batch_tokens` is not used.
        new_model: makes a model on the device of `runtime`.

    Raises:
        MtxError: if not even the longest sentence fits.
    """
    tokens, longest = config.training.batch_tokens, config.data.max_tokens
    if torch.device(runtime.device).type != "cuda":
        return max(min(tokens, CPU_MICRO_BATCH), longest)
    size = max(tokens, longest)
    while not _fits(config, replace(runtime, micro_batch_tokens=size, compile=False), new_model, sampler):
        if size == longest:
            raise MtxError(
                f"{runtime.device}: not enough memory for a micro-batch of {longest} target tokens",
                "use a smaller model.preset, or device=cpu",
            )
        size = max(-(-size // 2), longest)
    logger.info("using micro-batches of %s target tokens, which fit %s", f"{size:,}", runtime.device)
    return size


def _fits(config: Config, runtime: RuntimeChoices, new_model: NewModel, sampler: BatchSampler) -> bool:
    """Whether training with these micro-batches leaves `_FREE_SHARE` of the memory free."""
    try:
        _try_step(config, runtime, new_model, sampler)
        free, total = torch.cuda.mem_get_info(runtime.device)
        return free > _FREE_SHARE * total
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        free_unused_memory(torch.device(runtime.device))  # also the tensors that the error's traceback held


def _try_step(config: Config, runtime: RuntimeChoices, new_model: NewModel, sampler: BatchSampler) -> None:
    """Take a step and part of a validation, next to all that is in memory while a checkpoint is written.

    All sentences are the longest. Ranks that divide a model try its weights and gradients whole, so that none waits for
    another one that has too little memory.
    """
    model, longest = new_model().train(), config.data.max_tokens
    # Adam's two moments, a checkpoint's copies of these and of the weights, and the copy of the weights that searches.
    num_shards = 2 if config.training.shard else 1  # at least as many
    parts = [-(-parameter.numel() // num_shards) for parameter in model.parameters()]
    reserved = [torch.zeros(part, device=runtime.device) for part in parts for _ in range(6)]
    _, shape = step_shape(config, runtime, sampler)
    micro_step = new_micro_step(config, runtime, model)
    micro_step.start_step()
    micro_step(longest_sentences(shape, model.pad_id), 1.0)
    sentences = [[0] * longest] * max(1, SCORED_TOKENS // longest)
    score_pairs(model.eval(), sentences, sentences, alpha=0.0)
    del reserved


def longest_sentences(shape: Shape, pad_id: int) -> PackedBatch:
    """A batch of as many of the longest sentences as `shape` holds, in host memory."""
    room = min(shape.num_src, shape.num_tgt) - shape.spare
    count = max(1, room // shape.max_tokens)
    side = Side.of([[0] * shape.max_tokens] * count, np.uint16)
    return pack(side, side, np.arange(count), shape, pad_id)


def check_memory(config: Config, device: torch.device, num_ids: int) -> None:
    """Refuse a model whose weights, gradients and moments do not fit the free memory of this machine.

    A GPU reports this itself.
    """
    available = machine.available_bytes()
    num_weights = num_parameters(config.model, num_ids)
    needed = 16 * num_weights
    if device.type == "cpu" and available is not None and needed > available:
        wants, has = format_size(needed), format_size(available)
        raise MtxError(
            f"training {num_weights:,} parameters needs at least {wants} of memory, but {has} are free",
            "a smaller model.preset",
        )
