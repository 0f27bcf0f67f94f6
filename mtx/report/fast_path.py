"""Compares the fast step of training on CUDA with the plain one, for `mtx doctor` and the tests on a GPU.

The plain step computes in fp32, with the padded attention kernel, one operation after the other. The fast one computes
in bf16 with the varlen kernel, is recorded as a graph, and perhaps compiled. (A run compares less, on its
first batch; see `check_fast_step` in `mtx.training.build`.)

What is compared is the loss, and for each parameter the norm of the difference of both gradients, relative to that of
the plain one. Products in bf16 round their factors by up to 2^-9. In a sum over many positions these errors cancel, in
the loss above all; behind a softmax, whose gradients nearly cancel themselves, they grow. Measured for correct bf16 on
a CPU: loss 0.0002, worst parameter 0.044, hardly more for deeper models. Of nine faults put in, the mildest (one
sentence that begins one token too late) has 0.14. The limits lie between, see docs/decisions.md.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from mtx.config.schema import ModelConfig
from mtx.data.batches import PackedBatch, Shape, pack
from mtx.data.token_store import Side
from mtx.model.architectures import new_model
from mtx.model.device import use_device
from mtx.training.micro_batch import MicroStep, StepResult, take_step

_SRC_LENGTHS, _TGT_LENGTHS = (17, 1, 40, 23, 8, 31), (15, 2, 33, 30, 9, 28)  # of the sentences of the small step
_MAX_TOKENS = 64
_NUM_POSITIONS = 256
_MAX_SENTENCES = 80  # of a batch; the rest is dummies
_NUM_BATCHES = 2
_LOSS_LIMIT, _GRADIENT_LIMIT = 2**-9, 0.12  # of a relative difference
_COUNTED = 1e-3  # a parameter counts if its gradient's norm is this share of that of all
_REPEATED = 2**-8  # distance of two equal steps: kernels that add in an undefined order may round some sums elsewhere


@dataclass(frozen=True)
class Comparison:
    """The distances of the fast step from the plain one, the seconds of each, and a fault if there is one."""

    loss: float
    gradients: float
    plain_s: float
    fast_s: float
    fault: str | None


def compare(plain: Callable[[], StepResult], fast: Callable[[], StepResult]) -> Comparison:
    """Take steps on both paths and compare them; see the top of this file. What a step raises is not caught."""
    expected, plain_s = _timed(plain)
    first = fast()
    again, fast_s = _timed(fast)
    loss, gradients = abs(first.loss / expected.loss - 1), _distance(first, expected)
    fault = None
    if not (loss <= _LOSS_LIMIT and gradients <= _GRADIENT_LIMIT):  # also if one of them is not a number
        fault = f"its loss differs by {loss:.2%} and a gradient by {gradients:.0%} from the plain step's"
    elif not _distance(again, first) <= _REPEATED:
        fault = "the same step taken twice gives different gradients"
    return Comparison(loss, gradients, plain_s, fast_s, fault)


def _distance(one: StepResult, other: StepResult) -> float:
    """The largest norm of the difference of two gradients of a parameter, relative to the other one's norm.

    Parameters whose gradients are tiny compared with the others' do not count: those of the keys' biases would be zero,
    were it not for rounding.
    """
    sizes = torch.stack([gradient.norm() for gradient in other.gradients])
    apart = torch.stack([(a - b).norm() for a, b in zip(one.gradients, other.gradients, strict=True)])
    counted = (apart / sizes)[sizes > _COUNTED * sizes.norm()]
    return float(counted.max()) if len(counted) else math.inf


def _timed(step: Callable[[], StepResult]) -> tuple[StepResult, float]:
    started = time.perf_counter()
    result = step()
    return result, time.perf_counter() - started


def make_steps(
    config: ModelConfig, num_ids: int, device: torch.device, compiled: bool
) -> tuple[Callable[[], StepResult], Callable[[], StepResult]]:
    """The plain and the fast step, without dropout, of a model of this configuration on a CUDA device."""
    use_device(device)
    batches = [_batch(num_ids, seed) for seed in range(_NUM_BATCHES)]

    def step(is_fast: bool) -> Callable[[], StepResult]:
        torch.manual_seed(0)
        model = new_model(config.model_copy(update={"dropout": 0.0}), num_ids).to(device).train()
        model.kernel = "varlen" if is_fast else "padded"
        model.prepare_positions(_MAX_TOKENS)
        micro_step = MicroStep(model, 0.1, "bf16" if is_fast else "fp32", is_fast and compiled)
        return lambda: take_step(micro_step, batches, 0)

    return step(False), step(True)


def _batch(num_ids: int, seed: int) -> PackedBatch:
    """Sentences of fixed lengths and random tokens, in host memory."""
    random = np.random.default_rng(seed)
    src, tgt = (
        Side.of([random.integers(num_ids, size=length).tolist() for length in lengths], np.int64)
        for lengths in (_SRC_LENGTHS, _TGT_LENGTHS)
    )
    shape = Shape(_NUM_POSITIONS, _NUM_POSITIONS, _MAX_SENTENCES, _MAX_TOKENS, 0)
    return pack(src, tgt, np.arange(len(_SRC_LENGTHS)), shape, num_ids)
