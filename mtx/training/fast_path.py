"""The fast path of training on CUDA, tried beside the plain one before a run relies on it.

The plain path computes in fp32, with the padded attention kernel, one operation after the other. The fast one differs
from it in up to four parts, see `PARTS`, none of which can be tested for every GPU, driver and compiler. So at its
first start a run takes a small step with its own model sizes both ways, in a process of its own: what raises, differs,
crashes or hangs is switched off, and training goes on without it.
Flow: the parts that suit the device -> `find_sound_parts` -> trials -> the fastest path without fault.

What is compared is the loss, and for each parameter the norm of the difference of both gradients, relative to that of
the plain one. Products in bf16 round their factors by up to 2^-9. In a sum over many positions these errors cancel, in
the loss above all; behind a softmax, whose gradients nearly cancel themselves, they grow. Measured for correct bf16 on
a CPU: loss 0.0002, worst parameter 0.044, hardly more for deeper models. Of nine faults put in, the mildest (one
sentence that begins one token too late) has 0.14. The limits lie between, see docs/decisions.md.
"""

import logging
import math
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mtx.config.schema import ModelConfig
from mtx.data.packing import PackedBatch, Shape, pack
from mtx.data.token_store import Side
from mtx.decoding.batches import to_tensors
from mtx.model.architectures import new_model
from mtx.model.device import attention_kernel, make_deterministic, use_device
from mtx.training.micro_step import MicroStep, seed_all
from mtx.training.trial_process import START, Stage, TrialError, run_trial

logger = logging.getLogger(__name__)

Parts = tuple[str, ...]
# The parts of the fast path, each of which needs those behind it, except for `compile`, which does not need `graph`.
PARTS = {
    "compile": "the compiled step", "graph": "the recorded graph", "varlen": "the varlen attention kernel",
    "bf16": "products in bf16",
}  # fmt: skip
_DROPPED: tuple[Parts, ...] = ((), ("compile",), ("graph",), ("compile", "graph"), ("compile", "graph", "varlen"))

_SRC_LENGTHS, _TGT_LENGTHS = (17, 1, 40, 23, 8, 31), (15, 2, 33, 30, 9, 28)  # of the sentences of the small step
_NUM_POSITIONS, _MAX_SENTENCES = 256, 80  # their batch; the rest is dummies
_NUM_BATCHES = 2
_DROPOUT = 0.3
_PLAIN = Stage("the plain step", 60.0)
_COMPILING = Stage("compiling", 900.0)  # work of the CPU, which takes minutes on a slow one
_FAST = Stage("the fast step", 60.0)
_LOSS_LIMIT, _GRADIENT_LIMIT = 2**-9, 0.12  # of a relative difference
_COUNTED = 1e-3  # a parameter counts if its gradient's norm is this share of that of all
_REPEATED = 2**-8  # distance of two equal steps: kernels that add in an undefined order may round some sums elsewhere


@dataclass(frozen=True)
class Task:
    """What a trial needs to know of a run.

    Attributes:
        parts: the path to try, see `PARTS`.
    """

    model: ModelConfig
    num_ids: int
    max_tokens: int
    label_smoothing: float
    device: str
    deterministic: bool
    parts: Parts
    consistency: float = 0.0


def parts_for(device: torch.device, precision: str, model: ModelConfig, deterministic: bool, compiled: bool) -> Parts:
    """The parts of the fast path that suit a device and a precision, whether they have faults or not."""
    parts = {"bf16"} if precision == "bf16" else set()
    if model.architecture != "transformer":
        return tuple(parts)
    if attention_kernel(device, precision, model.d_model // model.num_heads, deterministic) == "varlen":
        parts |= {"varlen", "graph", "compile"} if compiled else {"varlen", "graph"}
    return tuple(part for part in PARTS if part in parts)


def listed(parts: Iterable[str]) -> str:
    """The parts in words."""
    return ", ".join(PARTS[part] for part in parts)


@dataclass(frozen=True)
class Outcome:
    """What a trial found: a fault, or else the distances from the plain path and the seconds of a step on each.

    Attributes:
        is_plain: whether the fault is one of the plain step, which says nothing about the fast one.
    """

    fault: str | None = None
    is_plain: bool = False
    loss: float = math.nan
    gradients: float = math.nan
    plain_s: float = math.nan
    fast_s: float = math.nan


@dataclass(frozen=True)
class Numbers:
    """What a step computes: its loss, and the gradient of each parameter."""

    loss: float
    gradients: list[Tensor]

    def is_finite(self) -> bool:
        return math.isfinite(self.loss) and all(bool(gradient.isfinite().all()) for gradient in self.gradients)

    def distance(self, other: "Numbers") -> float:
        """The largest norm of the difference of two gradients of a parameter, relative to the other one's norm.

        Parameters whose gradients are tiny beside the others' say nothing and do not count: those of the keys' biases
        would be zero, were it not for rounding.
        """
        sizes = torch.stack([gradient.norm() for gradient in other.gradients])
        apart = torch.stack([(a - b).norm() for a, b in zip(self.gradients, other.gradients, strict=True)])
        return float((apart / sizes)[sizes > _COUNTED * sizes.norm()].max())


@dataclass(frozen=True)
class Steps:
    """The steps that a trial compares: functions, so that a test can put a fault into each.

    Attributes:
        plain, fast: a step without dropout.
        compile: does what takes long before the first fast step; None if there is no such thing.
        seeded: a fast step with dropout, for a seed; None if the model has none.
        addresses: of all tensors that the fast step reads and writes.
    """

    plain: Callable[[], Numbers]
    fast: Callable[[], Numbers]
    compile: Callable[[], object] | None
    seeded: Callable[[int], Numbers] | None
    addresses: Callable[[], list[int]]


@dataclass(frozen=True)
class Finding:
    """Which parts of a path may be used, and what was found out about them.

    Attributes:
        parts: the largest part of the path that has no fault.
        faults: for each part that is switched off why; parts that need such a part are off too.
        outcome: that of the last trial; None if even the plain step failed, or no part is left.
    """

    parts: Parts
    faults: dict[str, str]
    outcome: Outcome | None = None


def find_sound_parts(task: Task) -> Finding:
    """Tries the path of `task`, and while there is a fault, ever smaller parts of it."""
    faults: dict[Parts, str] = {}
    for parts in dict.fromkeys(tuple(part for part in task.parts if part not in dropped) for dropped in _DROPPED):
        try:
            outcome = run_trial(trial, replace(task, parts=parts))
        except TrialError as error:
            outcome = Outcome(f"{error.stage}: {error}", is_plain=error.stage in (START.name, _PLAIN.name))
        if outcome.fault is None:
            return Finding(parts, _blamed(task.parts, parts, faults), outcome)
        faults[parts] = outcome.fault
        if outcome.is_plain:
            break
    return Finding((), _blamed(task.parts, (), faults))


def _blamed(wished: Parts, sound: Parts, faults: dict[Parts, str]) -> dict[str, str]:
    """For each part that is switched off, the fault of the smallest path that had it."""
    missing = [part for part in wished if part not in sound]
    if missing and missing[-1] in ("varlen", "bf16"):  # the others need it
        missing = missing[-1:]
    return {part: next(fault for parts, fault in reversed(faults.items()) if part in parts) for part in missing}


def trial(task: Task) -> Generator[Stage, None, Outcome]:
    """Takes the small step of `task` on both paths and compares them."""
    return compare(lambda: make_steps(task))


def compare(make: Callable[[], Steps]) -> Generator[Stage, None, Outcome]:
    """Compares fast steps with the plain one; see the top of this file."""
    yield _PLAIN
    steps = make()
    expected, plain_s = _timed(steps.plain)
    if not expected.is_finite() or expected.loss <= 0 or not any(bool(g.any()) for g in expected.gradients):
        return Outcome("the plain step itself gives no usable loss and gradients", is_plain=True)
    if steps.compile is not None:
        yield _COMPILING
        steps.compile()
    yield _FAST
    first = steps.fast()
    addresses = steps.addresses()
    again, fast_s = _timed(steps.fast)
    loss, gradients = abs(first.loss / expected.loss - 1), first.distance(expected)
    outcome = Outcome(None, False, loss, gradients, plain_s, fast_s)
    if not first.is_finite():
        return Outcome("its loss or gradient is not finite")
    if not (loss <= _LOSS_LIMIT and gradients <= _GRADIENT_LIMIT):
        return Outcome(f"its loss differs by {loss:.2%} and a gradient by {gradients:.0%} from the plain step's")
    if not again.distance(first) <= _REPEATED:
        return Outcome("the same step taken twice gives different gradients")
    if steps.addresses() != addresses:
        return Outcome("its tensors have moved in memory between two steps")
    if steps.seeded is not None:
        one, same, other = (steps.seeded(seed) for seed in (1, 1, 2))
        if not same.distance(one) <= _REPEATED:
            return Outcome("the same seed gives different dropout")
        if not other.distance(one) > 4 * _REPEATED:
            return Outcome("another seed gives the same dropout")
    return outcome


def _timed(step: Callable[[], Numbers]) -> tuple[Numbers, float]:
    started = time.perf_counter()
    numbers = step()
    return numbers, time.perf_counter() - started


def make_steps(task: Task) -> Steps:
    """The steps of a trial on the device of `task`."""
    device = torch.device(task.device)
    use_device(device)
    if task.deterministic:
        make_deterministic()
    batches = [_batch(task, seed) for seed in range(_NUM_BATCHES)]
    plain = _micro_step(task, ())
    fast = _micro_step(task, task.parts)
    seeded = _micro_step(task, task.parts, _DROPOUT) if task.model.dropout else None

    def compile() -> None:
        for step in (fast, seeded):
            if step is not None:
                step.compile(batches[0])

    return Steps(
        lambda: _take(plain, batches, 0),
        lambda: _take(fast, batches, 0),
        compile if "compile" in task.parts else None,
        None if seeded is None else lambda seed: _take(seeded, batches, seed),
        fast.addresses,
    )


def _micro_step(task: Task, parts: Parts, dropout: float = 0.0) -> MicroStep:
    """A `MicroStep` of a new model. The one with dropout has fewer layers: of it only the dropout is of interest."""
    changes: dict[str, Any] = {"dropout": dropout}
    if dropout:
        changes |= {"num_encoder_layers": 1, "num_decoder_layers": 1}
    torch.manual_seed(0)
    model = new_model(task.model.model_copy(update=changes), task.num_ids).to(task.device).train()
    model.kernel = "varlen" if "varlen" in parts else "padded"
    model.prepare_positions(task.max_tokens)
    precision = "bf16" if "bf16" in parts else "fp32"
    return MicroStep(
        model, task.label_smoothing, precision, "compile" in parts, "graph" in parts, consistency=task.consistency
    )


def _batch(task: Task, seed: int) -> PackedBatch:
    """Sentences of fixed lengths and random tokens, in host memory."""
    random, sides = np.random.default_rng(seed), list[Side]()
    for lengths in (_SRC_LENGTHS, _TGT_LENGTHS):
        sizes = np.minimum(lengths, task.max_tokens).astype(np.int32)
        tokens = random.integers(task.num_ids, size=int(sizes.sum()), dtype=np.uint32)
        sides.append(Side(tokens, np.cumsum(sizes, dtype=np.int64) - sizes, sizes))
    src, tgt = sides
    shape = Shape(_NUM_POSITIONS, _NUM_POSITIONS, _MAX_SENTENCES, task.max_tokens, 0)
    return to_tensors(pack(src, tgt, np.arange(len(_SRC_LENGTHS)), shape, task.num_ids))


def _take(step: MicroStep, batches: Sequence[PackedBatch], seed: int) -> Numbers:
    step.start_step()
    for number, batch in enumerate(batches):
        seed_all(seed, 1, number)
        step(batch, 1 / sum(batch.num_tgt_tokens for batch in batches))
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in step.model.parameters()]
    return Numbers(float(step.sums[0]), gradients)
