"""The fast step of training on CUDA beside the plain one: what the tests compare in full.

The plain step computes in fp32, with the padded attention kernel, one operation after the other; the fast one in bf16
with the varlen kernel, recorded as a graph and perhaps compiled. Measured for correct bf16 on a CPU: the loss differs
by 0.0002, the worst gradient by 0.044. Of nine faults put in, the mildest (one sentence that begins one token too
late) has 0.14. (A run compares less, on its first batch: `check_fast_step` in `mtx.training.build`.)
"""

from collections.abc import Callable

import numpy as np
import torch

from mtx.config.schema import ModelConfig
from mtx.data.packing import PackedBatch, Shape, pack
from mtx.data.token_store import Side
from mtx.model.architectures import new_model
from mtx.model.device import use_device
from mtx.training.micro_batch import MicroStep, RecordedStep, StepResult, take_step

LOSS_LIMIT, GRADIENT_LIMIT = 2**-9, 0.12  # of a relative difference
REPEATED = 2**-8  # between two equal steps: kernels that add in an undefined order may round some sums elsewhere
_SRC_LENGTHS, _TGT_LENGTHS = (17, 1, 40, 23, 8, 31), (15, 2, 33, 30, 9, 28)
_COUNTED = 1e-3  # a parameter counts if its gradient's norm is this share of that of all


def worst_gradient(one: StepResult, other: StepResult) -> float:
    """The largest norm of the difference of two gradients of a parameter, relative to the other one's norm.

    Parameters whose gradients are tiny compared with the others' do not count: those of the keys' biases would be zero,
    were it not for rounding.
    """
    sizes = torch.stack([gradient.norm() for gradient in other.gradients])
    apart = torch.stack([(a - b).norm() for a, b in zip(one.gradients, other.gradients, strict=True)])
    return float((apart / sizes)[sizes > _COUNTED * sizes.norm()].max())


def make_steps(
    config: ModelConfig, num_ids: int, device: torch.device, compiled: bool
) -> tuple[Callable[[], StepResult], Callable[[], StepResult]]:
    """The plain and the fast step, without dropout, of two batches."""
    use_device(device)
    batches = [_batch(num_ids, seed) for seed in range(2)]

    def step(is_fast: bool) -> Callable[[], StepResult]:
        torch.manual_seed(0)
        model = new_model(config.model_copy(update={"dropout": 0.0}), num_ids).to(device).train()
        model.kernel = "varlen" if is_fast else "padded"
        model.prepare_positions(64)
        kind = RecordedStep if is_fast and device.type == "cuda" else MicroStep
        micro_step = kind(model, 0.1, "bf16" if is_fast else "fp32", is_fast and compiled)
        return lambda: take_step(micro_step, batches, 0)

    return step(False), step(True)


def _batch(num_ids: int, seed: int) -> PackedBatch:
    random = np.random.default_rng(seed)
    src, tgt = (
        Side.of([random.integers(num_ids, size=length).tolist() for length in lengths], np.int64)
        for lengths in (_SRC_LENGTHS, _TGT_LENGTHS)
    )
    return pack(src, tgt, np.arange(len(_SRC_LENGTHS)), Shape(256, 256, 80, 64, 0), num_ids)
