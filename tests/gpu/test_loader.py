"""A batch that the loader's thread prepared arrives on the GPU as it was packed, all of it."""

from pathlib import Path

import numpy as np
import pytest
import torch

from mtx.data.packing import SLICES, assign, load_steps, micro_batch_shape, pack, to_device
from mtx.data.sampler import BatchSampler, SamplerState, steps
from mtx.data.token_store import TokenStore, store_batch, write_store
from tests.models import random_ids

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]

BATCH_TOKENS, K, MAX_TOKENS, NUM_IDS, NUM_PAIRS = 4096, 2, 64, 50, 3000


def test_pinned_batches_arrive_as_they_were_packed(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    src, tgt = (random_ids(rng.integers(1, MAX_TOKENS, NUM_PAIRS).tolist(), NUM_IDS, seed) for seed in (1, 2))
    texts = [""] * NUM_PAIRS
    write_store(
        tmp_path / "train.arrow",
        NUM_IDS,
        [1.0],
        [store_batch(NUM_IDS, src, tgt, np.arange(NUM_PAIRS), np.zeros(NUM_PAIRS), texts, texts)],
    )
    store = TokenStore.load(tmp_path / "train.arrow")
    sampler = BatchSampler(store.epoch_order(1), BATCH_TOKENS, 4096)
    _, shape = micro_batch_shape(
        BATCH_TOKENS, BATCH_TOKENS // K, sampler.ratio, MAX_TOKENS, sampler.tokens_per_sentence
    )
    moved = []
    for loaded in load_steps(store, steps(sampler, SamplerState(), 50), K, shape, pin=True):
        assert all(getattr(batch, name).is_pinned() for batch in loaded.micro_batches for name in (*SLICES, "buffer"))
        torch.cuda._sleep(1_000_000)  # the copies wait, while the loader fills the pinned memory that they read
        moved.append([to_device(batch, torch.device("cuda")) for batch in loaded.micro_batches])
    for batches, step in zip(moved, steps(sampler, SamplerState(), 50), strict=True):
        groups = assign(store.src.lengths[step.pairs], store.tgt.lengths[step.pairs], K, shape)
        for batch, group in zip(batches, groups, strict=True):
            expected = pack(store.src, store.tgt, step.pairs[group], shape, store.num_ids)
            for name in SLICES:
                assert getattr(batch, name).is_cuda
                assert torch.equal(getattr(batch, name).cpu(), getattr(expected, name)), name
