"""k micro-batches are one batch: the same loss and the same gradients."""

import numpy as np
import pytest
import torch
from torch import Tensor

from mtx.data.packing import assign, micro_batch_shape, pack
from mtx.data.sampler import BatchSampler, SamplerState
from mtx.decoding.batches import to_tensors
from mtx.training.loss import smoothed_loss
from tests.models import random_ids, side, tiny_model

NUM_IDS, MAX_TOKENS = 20, 40


def step_gradients(lengths: list[int], batch_tokens: int, micro_batch_tokens: int) -> tuple[int, dict[str, Tensor]]:
    """The number of micro-batches of the first step, and its loss and gradients."""
    model = tiny_model(NUM_IDS, d_ff=24)
    src, tgt = (side(random_ids(lengths, NUM_IDS, seed)) for seed in (1, 2))
    plan = BatchSampler(src.lengths, tgt.lengths, None, 1, batch_tokens)
    k, shape = micro_batch_shape(batch_tokens, micro_batch_tokens, plan.ratio, MAX_TOKENS)
    step = plan.step(SamplerState())
    groups = assign(src.lengths[step.pairs], tgt.lengths[step.pairs], k, shape)
    total = torch.zeros(())
    for group in groups:
        batch = to_tensors(pack(src, tgt, step.pairs[group], shape, NUM_IDS))
        hidden = model.decode(batch, model.encode(batch))
        sums = smoothed_loss(hidden, model.output_weight, None, batch.tgt_out_ids, 0.1, 1 / step.num_tgt_tokens)
        sums.loss.backward()  # type: ignore[no-untyped-call]
        total += sums.loss.detach()
    return len(groups), {"loss": total, **{n: p.grad for n, p in model.named_parameters() if p.grad is not None}}


@pytest.mark.parametrize("micro_batch_tokens", [150, 100, 40])
def test_cutting_a_step_changes_nothing(micro_batch_tokens: int) -> None:
    lengths = np.random.default_rng(1).integers(1, MAX_TOKENS, 60).tolist()
    one, expected = step_gradients(lengths, 300, 300)
    several, got = step_gradients(lengths, 300, micro_batch_tokens)
    assert (one, several) == (1, -(-300 // micro_batch_tokens))
    assert got.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(got[name], expected[name], rtol=1e-5, atol=1e-7, msg=name)


def test_a_step_of_fewer_sentences_than_micro_batches() -> None:
    _, expected = step_gradients([40] * 9, 100, 100)  # two sentences
    _, got = step_gradients([40] * 9, 100, 20)  # in five micro-batches
    for name in expected:
        torch.testing.assert_close(got[name], expected[name], rtol=1e-5, atol=1e-7, msg=name)
